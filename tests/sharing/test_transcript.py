"""The output of a rank reaches the notebook completely, even if the rank crashes or its file is removed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from xpulab.sharing import transcript
from xpulab.sharing.transcript import Transcripts, Writer


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


def test_the_beginning_is_kept_and_the_rest_counted(tmp_path: Path) -> None:
    with Writer(str(tmp_path / "rank-0"), most=10) as writer:
        assert [writer.write("x" * 8) for _ in range(3)] == [8, 8, 8]
        assert writer.omitted == 14
    assert (tmp_path / "rank-0").read_text() == "x" * 10


def test_a_full_disk_costs_the_text_and_not_the_code(tmp_path: Path) -> None:
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
