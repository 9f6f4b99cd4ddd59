"""The output of a rank reaches the notebook completely, even if the rank crashes or its file is removed."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xpulab.sharing import transcript
from xpulab.sharing.transcript import Transcripts, Writer, mark_of


def test_output_is_read_while_it_is_written_and_the_exception_separately(tmp_path: Path) -> None:
    told = Transcripts(tmp_path, 2)
    writer = Writer(told.paths[1])
    print("hällo", file=writer)
    assert told.read() == ["", "hällo\n"]
    subprocess.run([sys.executable, "-c", "print('a child')"], stdout=writer.fileno(), check=True)
    writer.raised("ValueError: no\n")
    assert told.read() == ["", "a child\n"]
    assert (told.printed(1), told.raised(1)) == ("hällo\na child\n", "ValueError: no\n")
    assert (told.printed(0), told.raised(0)) == ("", "")
    writer.close()
    told.close()
    told.close()
    assert [path.name.partition(".")[0] for path in tmp_path.iterdir()] == ["rank-1"]  # the empty one is gone


@pytest.mark.parametrize("cut", [0, 1, 9, None])
def test_a_record_separator_in_the_output_is_no_end_of_it(cut: int | None, tmp_path: Path) -> None:
    """Neither that of a child process, nor one of Python's, nor a part of the mark."""
    told = Transcripts(tmp_path, 1)
    mark = mark_of(told.paths[0])
    with Writer(told.paths[0]) as writer:
        writer.write("one\x1e\n")
        writer.buffer.write(b"two\x1ethree\x1e")
        read = told.read()[0]
        writer.write(f"four{mark[: -1 - cut]}x\n" if cut is not None else "four\n")
        read += told.read()[0]
        writer.raised("KeyError: 5")
        read += told.read()[0]
    assert read == told.printed(0)
    assert read.startswith("one\x1e\ntwo\x1ethree\x1efour")
    assert told.raised(0) == "KeyError: 5"
    told.close()


def test_a_mark_that_comes_in_two_parts_is_not_shown(tmp_path: Path) -> None:
    told = Transcripts(tmp_path, 1)
    mark = mark_of(told.paths[0])
    with Path(told.paths[0]).open("a") as file:
        for part, shown in ((f"text{mark[:4]}", "text"), (mark[4:], ""), ("KeyError", "")):
            file.write(part)
            file.flush()
            assert told.read() == [shown]
    assert (told.printed(0), told.raised(0)) == ("text", "KeyError")
    told.close()


def test_the_stream_has_what_standard_output_has(tmp_path: Path) -> None:
    with Writer(str(tmp_path / "rank-0")) as writer:
        usual = io.TextIOWrapper(io.BytesIO())
        missing = {name for name in dir(usual) if not name.startswith("_") and not hasattr(writer, name)}
        assert missing == set()
        writer.reconfigure(line_buffering=True, encoding="utf-8", errors="strict")
        assert (writer.line_buffering, writer.buffer.fileno()) == (True, writer.fileno())
        writer.write("text ")
        writer.buffer.write(memoryview(b"bytes\n"))
        writer.buffer.flush()
        raw: Any = writer.buffer
        io.TextIOWrapper(raw, write_through=True).write("wrapped \ud800\n".replace("\ud800", "ä"))
        print("half \ud83d", file=writer)
    assert (tmp_path / "rank-0").read_text() == "text bytes\nwrapped ä\nhalf ?\n"


def test_half_a_character_waits_for_the_other_half(tmp_path: Path) -> None:
    told = Transcripts(tmp_path, 1)
    with Path(told.paths[0]).open("ab", buffering=0) as file:
        file.write("ä".encode()[:1])
        assert told.read() == [""]
        file.write("ä".encode()[1:])
        assert told.read() == ["ä"]
    told.close()


def test_the_files_may_be_removed_before_they_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    told = Transcripts(folder, 1)
    with Writer(told.paths[0]) as writer:
        writer.write("last words")
    shutil.rmtree(folder)
    assert told.read() == ["last words"]
    told.close()


@pytest.mark.parametrize("pieces", [["one line\n"], ["one ", "line", "\n"], ["one line\none line\n"]])
def test_whole_lines_are_kept_up_to_the_limit_and_the_rest_is_counted(pieces: list[str], tmp_path: Path) -> None:
    with Writer(str(tmp_path / "rank-0"), limit=20) as writer:
        for piece in pieces * 6:
            assert writer.write(piece) == len(piece)
        kept = (tmp_path / "rank-0").read_text()
        assert kept == "one line\n" * 3  # the line that has begun within 20 bytes is the last one
        assert writer.omitted == len("".join(pieces)) * 6 - len(kept)


def test_a_line_without_an_end_has_a_limit_too(tmp_path: Path) -> None:
    with Writer(str(tmp_path / "rank-0"), limit=20) as writer:
        for _ in range(300):
            writer.write("x" * 1000)
        assert len((tmp_path / "rank-0").read_text()) < 70_000
        assert len((tmp_path / "rank-0").read_text()) + writer.omitted == 300_000


def test_a_handler_of_logs_that_kept_the_stream_of_an_ended_call_writes_to_the_present_one(tmp_path: Path) -> None:
    before, present = Writer(str(tmp_path / "before")), Writer(str(tmp_path / "present"))
    handler = logging.StreamHandler(before)
    before.close()
    with contextlib.redirect_stdout(present):
        handler.emit(logging.makeLogRecord({"msg": "said"}))
        subprocess.run([sys.executable, "-c", "print('a child')"], stdout=before.fileno(), check=True)
    assert (tmp_path / "present").read_text() == "said\na child\n"
    present.close()
    assert before.write("nobody listens") == len("nobody listens")
    assert (tmp_path / "before").read_text() == ""


def test_on_a_full_disk_the_text_is_lost_and_the_code_goes_on(tmp_path: Path) -> None:
    with Writer("/dev/full") as writer:
        print("lost", file=writer)
        writer.raised("lost, too")
        assert writer.omitted == 5


def test_the_trace_of_a_crash_has_the_users_frames_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Transcripts(tmp_path, 1)
    ours = Path(transcript.__file__).parents[1] / "engine" / "cell.py"
    Path(told.paths[0]).write_text(
        'before\nFatal Python error: Segmentation fault\n\n  File "<%%xpu cell 1>", line 1 in f\n'
        f'  File "{ours}", line 9 in code\n  File "ipyparallel.py", line 3 in g\n\nExtension modules: many\n'
    )
    assert told.read()[0].endswith('fault\n\n  File "<%%xpu cell 1>", line 1 in f\n')
    told.close()
