"""What a user sees of tables, pictures and progress bars of a cell: under their ranks, in order with its prints."""

from __future__ import annotations

import base64
import contextlib
import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import xpulab
from xpulab.console.cells import run_cell
from xpulab.sharing.transcript import SHOWN, Transcripts, Writer, plain

pytestmark = pytest.mark.cluster

TABLE = """
from IPython.display import display as show, HTML, Image
import pandas as pd
print("before")
show(pd.DataFrame({"a": [rank]}))
print("between")
display(HTML("<b>both</b>"))
print("after")
"""
#: Bars that a program draws by carriage returns, and what is left of each at its end.
BARS = [
    ("from tqdm import tqdm\nfor _ in tqdm(range(3), desc='rows'): pass", r"rows: 100%"),
    ("from tqdm.auto import tqdm\nfor _ in tqdm(range(3), desc='auto'): pass", r"auto: 100%"),
    ("from rich.progress import track\nfor _ in track(range(3), description='rich'): pass", r"rich .*100%"),
    ("import sys\nfor n in range(3):\n    sys.stdout.write(f'\\r{n}/2 [==]')\nprint()", r"2/2 \[==\]"),
]


class ZMQInteractiveShell(InteractiveShell):
    """Replaces a notebook's kernel, and keeps the displayed objects in ``display_pub.outputs``."""


@contextlib.contextmanager
def in_a_notebook() -> Iterator[Any]:
    InteractiveShell.clear_instance()
    shell: Any = ZMQInteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    shell.display_pub = Publisher()
    try:
        yield shell.display_pub
    finally:
        ZMQInteractiveShell.clear_instance()


class Publisher(CapturingDisplayPublisher):
    """Prints, too, where an object is shown."""

    def publish(self, data: Any, *args: Any, **kwargs: Any) -> None:
        print(f"<{data['text/plain'].splitlines()[-1]}>")
        super().publish(data, *args, **kwargs)


def test_a_terminal_shows_text_in_order(pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    run_cell(pair, TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "[0-1] before", "[0]    a", "[0] 0  0", "[1]    a", "[1] 0  1", "[0-1] between",
        "[0-1] <IPython.core.display.HTML object>", "[0-1] after",
    ]  # fmt: skip
    assert SHOWN not in str(pair.last_output)
    assert pair.last_output.printed[1].splitlines()[:3] == ["before", "   a", "0  1"]


def test_a_notebook_shows_objects_under_their_ranks_in_order(
    pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with in_a_notebook() as shown:
        run_cell(pair, TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "[0-1] before", "[0]", "<0  0>", "[1]", "<0  1>", "[0-1] between",
        "[0-1]", "<<IPython.core.display.HTML object>>", "[0-1] after",
    ]  # fmt: skip
    assert ["<td>0</td>" in shown.outputs[0]["data"]["text/html"], shown.outputs[2]["data"]["text/html"]] == [
        True, "<b>both</b>",
    ]  # fmt: skip


def test_figures_and_pictures_of_ipythons_display(pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """A figure that was shown in this way is not shown a second time at the end of the cell."""
    source = """
from IPython.display import display, Image
import matplotlib.pyplot as plt
fig = plt.figure(figsize=(1, 1))
print("before")
display(fig)
print("after")
display(Image(data=b"\\x89PNG", format="png", embed=True))
plt.show()
"""
    with in_a_notebook() as shown:
        run_cell(pair, source, ranks=[1])
    assert capsys.readouterr().out.splitlines() == [
        "[1] before", "[1]", "<<Figure size 100x100 with 0 Axes>>", "[1] after",
        "[1]", "<<IPython.core.display.Image object>>",
    ]  # fmt: skip
    pictures = [base64.b64decode(output["data"]["image/png"])[:4] for output in shown.outputs]
    assert pictures == [b"\x89PNG"] * 2


def test_an_object_is_updated_in_its_place(pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    source = """
from IPython.display import display, update_display
handle = display(f"one {rank}", display_id="bar")
handle.update(f"two {rank}")
update_display("three", display_id="bar")
"""
    with in_a_notebook() as shown:
        run_cell(pair, source)
    assert sorted(capsys.readouterr().out.splitlines())[:2] == sorted(f"<'{text}'>" for text in ("one 0", "one 1"))
    ids = [output["transient"]["display_id"] for output in shown.outputs]
    assert len(set(ids)) == 2
    for each in set(ids):
        mine = [output for output in shown.outputs if output["transient"]["display_id"] == each]
        assert [output["update"] for output in mine] == [False, True, True]
        assert [output["data"]["text/plain"][1:4] for output in mine] == ["one", "two", "thr"]
    run_cell(pair, source, ranks=[0])
    assert capsys.readouterr().out.splitlines() == ["[0] 'one 0'", "[0] 'two 0'", "[0] 'three'"]


@pytest.mark.parametrize(("source", "left"), BARS)
def test_bars_are_lines_that_are_overwritten(
    pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str], source: str, left: str
) -> None:
    run_cell(pair, f"{source}\nprint('after')")
    seen = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", capsys.readouterr().out)  # without colours, and where the cursor goes
    *bars, last = [line for line in seen.splitlines() if line.strip("[0-1] ")]
    assert last == "[0-1] after"
    assert len(bars) in (1, 2)  # the times on a bar may differ
    assert all(re.search(left, bar) for bar in bars), bars


def test_programs_find_no_notebook_on_a_rank(pair: xpulab.XPUCluster) -> None:
    """Those that look for one would send messages to a browser, which does not hear an engine."""
    source = """
import IPython
shell = IPython.get_ipython()
found = type(shell).__name__, shell is get_ipython(), "IPKernelApp" in shell.config, shell.user_ns is globals()
"""
    run_cell(pair, source)
    assert pair.pull("found") == [("Shell", True, False, True)] * 2


def test_objects_that_come_in_parts_or_are_only_words(tmp_path: Path) -> None:
    told = Transcripts(tmp_path, 1)
    with Writer(told.paths[0]) as writer:
        writer.write("half a line")
        writer.show({"data": {"text/plain": "text"}, "metadata": {}, "id": None, "update": False})
        written = Path(told.paths[0]).read_bytes()
        read = told.read()[0]
        writer.write(f"{SHOWN}no JSON\n")
        read += told.read()[0]
    assert told.printed(0) == plain(read) == "half a line\ntext\nno JSON\n"
    parts = Transcripts(tmp_path, 1)
    mine = written.replace(Path(told.paths[0]).name.encode(), Path(parts.paths[0]).name.encode())
    with io.FileIO(parts.paths[0], "a") as file:
        said = ""
        for n in range(len(mine)):
            file.write(mine[n : n + 1])
            said += parts.read()[0]
            assert said in ("", "half a line\n") or "half a line".startswith(said) or said.endswith("}\n")
    assert plain(said) == "half a line\ntext\n"
    told.close()
    parts.close()


def test_a_background_thread_displays_text(pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    source = """
import threading
from IPython.display import display, HTML
gate = threading.Event()
thread = threading.Thread(target=lambda: (gate.wait(), display(HTML("late"))))
thread.start()
threading.Timer(0.3, gate.set).start();
"""
    run_cell(pair, source, ranks=[0])
    run_cell(pair, "thread.join()", ranks=[0])
    deadline, said = time.monotonic() + 10, ""
    while "HTML object" not in said and time.monotonic() < deadline:
        said += capsys.readouterr().out
        time.sleep(0.02)
    assert said.splitlines() == ["[0] <IPython.core.display.HTML object>"]
