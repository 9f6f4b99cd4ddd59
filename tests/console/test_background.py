"""``%%xpu --background``: the notebook goes on while a cell runs, and has an object with its output."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import threading
import traceback
from typing import Any

import pytest
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from strikes import acted_when, pressed_when
from traitlets.config import Config
from waiting import until

import xpulab
from xpulab.cluster import KMeans
from xpulab.console.background import BackgroundCell
from xpulab.console.cells import Cell, CellInterrupted, run_cell
from xpulab.exceptions import EngineError

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("merged_lines")]

WAITS = """
import os, time
while not os.path.exists(go_on):
    time.sleep(0.05)
print("done", rank)
seven = 7
seven + rank
"""


@pytest.fixture
def shell(on_pair: xpulab.XPUCluster, no_cluster: None) -> Any:
    config = Config()
    config.HistoryManager.enabled = False
    shell: Any = InteractiveShell(config=config)
    shell.extension_manager.load_extension("xpulab")
    on_pair.activate()
    yield shell
    from xpulab.deploy import cluster

    cluster.clusters.running.clear()
    shell.extension_manager.unload_extension("xpulab")


@pytest.mark.parametrize("late", [False, True])
def test_the_output_in_a_notebook_says_when_the_cell_has_ended(on_pair: xpulab.XPUCluster, late: bool) -> None:
    notebook: Any = ZMQInteractiveShell.instance()
    notebook.display_pub = CapturingDisplayPublisher()
    try:
        result = BackgroundCell(Cell(on_pair, "import time\ntime.sleep(0.3)"), lambda output: None)
        if late:
            result.wait()
        result._ipython_display_()
        outputs = notebook.display_pub.outputs
        until(lambda: len(outputs) == 2 and not result.running)
    finally:
        ZMQInteractiveShell.clear_instance()
    first, last = ([each[field] for field in ("data", "transient", "update")] for each in outputs)
    assert first[1] == last[1]  # the same output of the page
    assert ("running on rank 0-1" in first[0]["text/plain"]) != late
    assert last[2]
    assert "done after" in last[0]["text/plain"]


@pytest.fixture
def running(shell: Any, tmp_path: Any) -> BackgroundCell:
    """A cell that runs until the file go-on exists."""
    shell.user_ns["go_on"] = str(tmp_path / "go-on")
    result: BackgroundCell = shell.run_cell_magic(
        "xpu", "--background --in go_on --out seven", 'print("begun")' + WAITS
    )
    until(lambda: "begun" in result.output)
    return result


def test_the_notebook_goes_on_and_the_result_says_how_far_it_is(
    shell: Any, running: BackgroundCell, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert running.running
    assert ": running on rank 0-1 for" in repr(running)
    assert running.output == "[0-1] begun"
    assert "seven" not in shell.user_ns
    with pytest.raises(TimeoutError, match=r"running on rank 0-1 for .*; to wait on, call wait\(\) again"):
        running.wait(0.1)
    (tmp_path / "go-on").touch()
    assert running.wait(120) == "[0-1] begun\n[0] done 0\n[1] done 1\n[0] 7\n[1] 8"
    assert ": done after" in repr(running)
    assert "5 lines of output" in repr(running)
    assert running.values == {"seven": [7, 7]}
    assert shell.user_ns["seven"] == [7, 7]
    assert capsys.readouterr().out == ""


def test_other_tasks_wait_for_it_and_say_so(
    on_pair: xpulab.XPUCluster, running: BackgroundCell, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    told = io.StringIO()
    with (
        contextlib.redirect_stderr(told),
        acted_when(lambda: "waiting for %%xpu of another thread" in told.getvalue(), (tmp_path / "go-on").touch),
    ):
        run_cell(on_pair, "print('next', seven)")
    assert "waiting for %%xpu of another thread" in told.getvalue()
    assert capsys.readouterr().out == "[0-1] next 7\n"
    until(lambda: not running.running)


def test_stop_ends_it_on_all_ranks_and_the_engines_go_on(on_pair: xpulab.XPUCluster, running: BackgroundCell) -> None:
    running.stop()
    assert not running.running
    assert ": stopped after" in repr(running)
    assert running.output == "[0-1] begun"
    with pytest.raises(CellInterrupted, match="rank 0 was in line"):
        running.wait()
    assert KMeans(2, random_state=0).fit([[0.0], [1.0]]).n_iter_ > 0


def test_a_cell_that_has_not_begun_is_stopped_too(
    shell: Any, on_pair: xpulab.XPUCluster, running: BackgroundCell, tmp_path: Any
) -> None:
    second = shell.run_cell_magic("xpu", "--background later", "never = 1")
    assert shell.user_ns["later"] is second
    until(lambda: "waiting for %%xpu" in second.output)
    second.stop()
    assert ": stopped after" in repr(second)
    assert running.running
    (tmp_path / "go-on").touch()
    running.wait(120)
    with pytest.raises(EngineError, match="no variable 'never'"):
        on_pair["never"]


def test_an_error_is_told_and_raised_by_wait(shell: Any) -> None:
    result = shell.run_cell_magic("xpu", "--background", "print('before')\n1 / rank")
    with pytest.raises(EngineError, match="1 of 2 engines raised ZeroDivisionError"):
        result.wait(120)
    assert ": failed after" in repr(result)
    assert "ZeroDivisionError" in repr(result)
    assert result.output.startswith("[0-1] before")
    with pytest.raises(SyntaxError):
        shell.run_cell_magic("xpu", "--background", "1 +")


def test_tables_and_progress_bars_are_text_in_its_output(shell: Any) -> None:
    source = """
import pandas as pd
from tqdm.auto import tqdm
display(pd.DataFrame({"a": [7]}))
for _ in tqdm(range(3), desc="rows"): pass
print("after")
"""
    first, second, *bars, last = shell.run_cell_magic("xpu", "--background", source).wait(120).splitlines()
    assert (first, second, last) == ("[0-1]    a", "[0-1] 0  7", "[0-1] after")
    assert len(bars) in (1, 2)  # the times on a bar may differ
    assert all("rows: 100%" in bar for bar in bars), bars


def test_ctrl_c_ends_the_wait_and_not_the_cell(running: BackgroundCell, tmp_path: Any) -> None:
    main = threading.get_ident()

    def waits() -> bool:
        stack = traceback.walk_stack(sys._current_frames()[main])
        return any(frame.f_code is inspect.unwrap(BackgroundCell.wait).__code__ for frame, _ in stack)

    with pytest.raises(KeyboardInterrupt, match="the cell goes on"), pressed_when(waits):
        running.wait(120)
    assert running.running
    (tmp_path / "go-on").touch()
    assert "done" in running.wait(120)
