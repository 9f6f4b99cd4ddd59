"""What a user sees of tables, pictures and progress bars of a cell: under their ranks, in order with its prints."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
from waiting import until

import xpulab
from xpulab.console.cells import run_cell
from xpulab.deploy.tasks.merging import Merging
from xpulab.deploy.tasks.page import Page
from xpulab.sharing.transcript import CLEARS, SHOWN, Transcripts, Writer, plain

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("merged_lines")]

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
    """Prints, too, where an object is shown, and where the output is cleared."""

    def publish(self, data: Any, *args: Any, **kwargs: Any) -> None:
        print(f"<{data['text/plain'].splitlines()[-1]}>")
        super().publish(data, *args, **kwargs)

    def clear_output(self, wait: bool = False) -> None:
        print("<cleared>")
        self.outputs.clear()


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


def test_figures_of_pyplot_are_shown_in_order_with_prints(
    pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that are still open at the end of the cell come after its value, as in a notebook."""
    source = """
import matplotlib.pyplot as plt
for step in range(2):
    print("step", step)
    plt.plot([step, 0])
    plt.show()
print("open")
plt.plot([0, 3])
"value"
"""
    order = ["step 0", "figure", "step 1", "figure", "open", "'value'", "figure"]
    with in_a_notebook() as shown:
        run_cell(pair, source, ranks=[1])
    seen = [line.partition(" of ")[0] for line in capsys.readouterr().out.splitlines() if not line.startswith("<")]
    assert seen == [f"[1] {what}" for what in order]
    drawn = pair.last_output.figures
    assert [base64.b64decode(output["data"]["image/png"]) for output in shown.outputs] == drawn[1]
    assert [output["metadata"]["image/png"]["alt"] for output in shown.outputs] == ["figure of rank 1"] * 3

    run_cell(pair, source, ranks=[1])
    said = capsys.readouterr().out
    assert [line.partition(" of ")[0] for line in said.splitlines()] == [f"[1] {what}" for what in order]
    assert re.findall(r"last_output\.figures(.*)", said) == ["[1][0]", "[1][1]", "[1][2]"]


def test_figures_of_a_function_on_the_ranks(pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    def draw(here: Any) -> None:
        import matplotlib.pyplot as plt

        plt.plot([here.rank, 0])
        plt.show()

    pair.run(draw)
    said = [line.partition(" of ")[0] for line in capsys.readouterr().out.splitlines()]
    assert sorted(said) == ["[0] figure", "[1] figure"]
    assert [len(drawn) for drawn in pair.last_output.figures.values()] == [1, 1]
    run_cell(pair, "None")
    assert pair.last_output.figures == {}


def test_a_rank_clears_its_own_output(pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    source = """
from IPython.display import clear_output, display, HTML
print("both")
display(HTML(f"<b>{rank}</b>"))
if rank == 0:
    clear_output(wait=True)
    print("new")
"""
    with in_a_notebook() as shown:
        run_cell(pair, source)
    left = capsys.readouterr().out.rpartition("<cleared>\n")[2].splitlines()
    assert sorted(left) == sorted(["[1] both", "[1]", "<<IPython.core.display.HTML object>>", "[0] new"])
    assert [output["data"]["text/html"] for output in shown.outputs] == ["<b>1</b>"]
    run_cell(pair, source, ranks=[0])
    said = ["both", "<IPython.core.display.HTML object>", "new"]
    assert capsys.readouterr().out.splitlines() == [f"[0] {line}" for line in said]
    assert pair.last_output.printed[0].splitlines() == said


def test_a_loop_that_clears_shows_its_last_step(pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if it prints more lines than are shown of others."""
    source = """
from IPython.display import clear_output
for step in range(500):
    clear_output(wait=True)
    print("step", step)
    print("loss", 1 / (1 + step))
"""
    with in_a_notebook():
        run_cell(pair, source)
    left = capsys.readouterr().out.rpartition("<cleared>\n")[2]
    lines = [line.rpartition("\r")[2].rstrip() for line in left.split("\n")]  # the first may be of half a line
    assert [line for line in lines if line] == ["[0-1] step 499", "[0-1] loss 0.002"]


def test_what_is_cleared_and_what_stays(capsys: pytest.CaptureFixture[str]) -> None:
    page = Page()
    merging = Merging(page.line, clears=True)
    clear, clear_and_wait = sorted(CLEARS, key=lambda line: CLEARS[line])
    bar = {"data": {"text/plain": "1%"}, "metadata": {}, "id": "bar", "update": False}

    def show(*said: tuple[int, str]) -> list[str]:
        for rank, text in said:
            merging.add(rank, text)
            merging.show(last=True)
        return capsys.readouterr().out.splitlines()

    with in_a_notebook():
        assert show((0, "a\n"), (1, f"{SHOWN}{json.dumps(bar)}\n")) == ["[0] a", "[1]", "<1%>"]
        page.message("a message")
        assert show((0, f"{clear_and_wait}\n")) == []
        assert show((1, "b\n")) == ["[1] b"]  # another rank's output does not clear that of rank 0
        new = {"data": {"text/plain": "2%"}, "metadata": {}, "id": "bar", "update": True}
        assert show((1, f"{SHOWN}{json.dumps(new)}\n")) == ["<2%>"]
        assert show((0, "c\n")) == ["<cleared>", "[1]", "<2%>", "[1] b", "[0] c"]
        assert show((1, f"{clear}\n")) == ["<cleared>", "[0] c"]
        assert show((1, f"{clear}\n")) == []
        merging.add(0, "d\n")
        merging.add(1, "d\n")
        merging.show(last=True)
        assert show((0, f"{clear_and_wait}\n"), (0, "e\n")) == ["[0-1] d", "<cleared>", "[1] d", "[0] e"]


def test_bars_of_fastprogress(pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Text that ends with a carriage return, as it draws bars outside of notebooks, and blanks at the end of a bar."""
    source = """
for epoch in range(2):
    for n in range(3):
        print(f"\\rEpoch {epoch} |{'#' * n}{'-' * (2 - n)}| {n}/2", end="\\r")
    print("\\r" + " " * 30, end="\\r")
    print("loss", epoch)
print("\\rlast |##| 2/2", end="\\r")
"""
    run_cell(pair, source)
    seen = re.sub(r".*\r(?=.)", "", capsys.readouterr().out)
    assert [line.rstrip() for line in seen.splitlines()] == ["[0-1] loss 0", "[0-1] loss 1", "[0-1] last |##| 2/2"]


@pytest.mark.parametrize("given", ["", "from IPython.display import display\n"])
def test_an_object_is_updated_in_its_place(
    pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    """Also with the `display` that each cell has."""
    source = (
        f"{given}from IPython.display import update_display\n"
        + """
handle = display(f"one {rank}", display_id="bar")
handle.update(f"two {rank}")
update_display("three", display_id="bar")
"""
    )
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


def test_a_display_of_the_user_s_own_stays_in_later_cells(pair: xpulab.XPUCluster) -> None:
    run_cell(pair, "usual = display\ndef display(thing): return thing + 1")
    run_cell(pair, "found = display(1)\ndisplay = usual", out=["found"])
    assert pair.last_output.values["found"] == [2, 2]


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


def test_a_function_shows_tables_and_bars_as_a_cell_does(
    pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def show(task: Any) -> None:
        import pandas as pd
        from IPython.display import display
        from tqdm.auto import tqdm

        display(pd.DataFrame({"a": [7]}))
        list(tqdm(range(3), desc="bar"))

    pair.run(show)
    told = capsys.readouterr()
    lines = [line for line in (told.out + told.err).splitlines() if line.strip("[0-1] ")]
    assert lines[:2] == ["[0-1]    a", "[0-1] 0  7"]
    assert len(lines) in (3, 4)  # the times on a bar may differ
    assert all("bar: 100%" in line for line in lines[2:]), lines


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
"""
    run_cell(pair, source, ranks=[0])
    run_cell(pair, "gate.set()\nthread.join()", ranks=[0])
    said = ""

    def shown() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "HTML object" in said

    until(shown)
    assert said.splitlines() == ["[0] <IPython.core.display.HTML object>"]
