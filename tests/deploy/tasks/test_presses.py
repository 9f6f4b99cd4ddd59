"""One press of Stop is one KeyboardInterrupt on each rank, as in a script, whatever its code does with it."""

from __future__ import annotations

import itertools
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from strikes import pressed_when
from waiting import until

import xpulab
from xpulab.console.cells import CellInterrupted, run_cell
from xpulab.deploy.tasks import exchange
from xpulab.sharing.board import Board

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("merged_lines")]

#: Waits for the interrupt on all ranks. `{ready}` is there when all of them wait.
WAIT = """
import pathlib, time
comm.Barrier()
if rank == 0:
    pathlib.Path({ready!r}).touch()
time.sleep(600)
"""
#: Lasts for many looks of the notebook at its board, none of which must interrupt again. `{ready}-looked` says so.
SAVES = "while not pathlib.Path({ready!r} + '-looked').exists():\n    time.sleep(0.01)"
LOOKS = 12


def cell(*parts: tuple[str, str], **values: str) -> str:
    """Return a cell of statements such as ``try:`` and the code in each."""
    return "\n".join(f"{head}\n{textwrap.indent(code.format(**values).strip(), '    ')}" for head, code in parts)


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that a cell makes before it waits. The notebook makes another when it has looked often."""
    made, looks, send = tmp_path / "ready", itertools.count(1), Board.signal

    def signal(board: Board, task: int) -> None:
        send(board, task)
        if next(looks) == LOOKS:
            Path(f"{made}-looked").touch()

    monkeypatch.setattr(Board, "signal", signal)
    return made


def interrupted(pair: xpulab.XPUCluster, ready: Path, source: str) -> None:
    with pressed_when(ready), pytest.raises(CellInterrupted):
        run_cell(pair, source)


def test_what_finally_does_is_not_interrupted_again(pair: xpulab.XPUCluster, ready: Path) -> None:
    run_cell(pair, "state = 'running'")
    interrupted(pair, ready, cell(("try:", WAIT), ("finally:", f"{SAVES}\nstate = 'saved'"), ready=str(ready)))
    assert pair.pull("state") == ["saved", "saved"]


def test_an_except_sees_one_interrupt_and_code_after_it_runs_on(pair: xpulab.XPUCluster, ready: Path) -> None:
    after = f"caught = 1\ntry:\n{textwrap.indent(SAVES, '    ')}\nexcept KeyboardInterrupt:\n    caught += 1"
    source = cell(("try:", WAIT), ("except KeyboardInterrupt:", after), ready=str(ready))
    with pressed_when(ready), pytest.raises(CellInterrupted, match=r"ran to its end .* or the code has caught it"):
        run_cell(pair, source)
    assert pair.pull("caught") == [1, 1]


def test_a_handler_of_the_code_has_heard_the_press(
    pair: xpulab.XPUCluster, ready: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"""
import pathlib, signal, time
from xpulab.engine.engine import this_engine
called = []
def handler(number, frame):
    called.append(number)
before = signal.signal(signal.SIGINT, handler)
comm.Barrier()
if rank == 0:
    pathlib.Path({str(ready)!r}).touch()
{SAVES.format(ready=str(ready))}
record = this_engine().record
print("called" if called == [signal.SIGINT] else called)
print("heard", record["heard"], "of", record["signalled"])
print("known" if signal.getsignal(signal.SIGINT) is handler is signal.signal(signal.SIGINT, before) else "replaced")
"""
    interrupted(pair, ready, source)
    assert capsys.readouterr().out.splitlines() == ["[0-1] called", "[0-1] heard 1 of 1", "[0-1] known"]


def test_a_thread_that_starts_after_a_caught_interrupt_waits_for_the_other_ranks(
    pair: xpulab.XPUCluster, ready: Path
) -> None:
    """Rank 1 comes late, so that the thread of rank 0 looks at the interrupt while it waits."""
    exchange_in_a_thread = (
        "import threading\nsums = []\nif rank == 1:\n    time.sleep(0.3)\n"
        "thread = threading.Thread(target=lambda: sums.append(comm.allreduce(rank + 1)))\n"
        "thread.start()\nthread.join()"
    )
    source = cell(("try:", WAIT), ("except KeyboardInterrupt:", exchange_in_a_thread), ready=str(ready))
    interrupted(pair, ready, source)
    assert pair.pull("sums") == [[3], [3]]


def test_a_handler_of_the_user_s_own_is_called_once(pair: xpulab.XPUCluster, ready: Path) -> None:
    source = (
        "import signal\nseen = []\nusual = signal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        + WAIT.replace("time.sleep(600)", "while not seen:\n    time.sleep(0.01)").format(ready=str(ready))
        + f"{SAVES}\nsignal.signal(signal.SIGINT, usual);".format(ready=str(ready))
    )
    interrupted(pair, ready, source)
    assert pair.pull("seen") == [[1], [1]]


def test_a_second_press_interrupts_what_the_first_left_running(
    pair: xpulab.XPUCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "_USERS_GRACE", 0.1)
    first, second = tmp_path / "first", tmp_path / "second"
    again = f"state = 'saving'\n{WAIT.format(ready=str(second))}"
    source = cell(("try:", WAIT), ("finally:", again), ready=str(first))
    said: list[str] = []

    def told() -> bool:
        said.append(capsys.readouterr().err)
        return second.exists() and "and the code goes on, such as in finally or except" in "".join(said)

    with pressed_when(told), pressed_when(first), pytest.raises(CellInterrupted):
        run_cell(pair, source)
    assert pair.pull("state") == ["saving", "saving"]
    assert pair.run(lambda here: here.comm.allreduce(1)) == [2, 2]


def test_a_cell_whose_forked_child_has_ended_is_interrupted(pair: xpulab.XPUCluster, ready: Path) -> None:
    """The child leaves the cell, too, and must not say that the rank has left it."""
    child = "import os\nif not (child := os.fork()):\n    raise SystemExit\nos.waitpid(child, 0)\n"
    interrupted(pair, ready, child + cell(("try:", WAIT), ("finally:", "state = 'after'"), ready=str(ready)))
    assert pair.pull("state") == ["after", "after"]


def test_a_function_s_finally_is_not_interrupted_again_either(
    pair: xpulab.XPUCluster, ready: Path, tmp_path: Path
) -> None:
    def saving(here: Any, ready: str, saved: str) -> None:
        import pathlib
        import time

        try:
            here.comm.Barrier()
            if here.rank == 0:
                pathlib.Path(ready).touch()
            time.sleep(600)
        finally:
            while not pathlib.Path(f"{ready}-looked").exists():
                time.sleep(0.01)
            pathlib.Path(f"{saved}-{here.rank}").touch()

    with pressed_when(ready), pytest.raises(CellInterrupted):
        pair.run(saving, str(ready), str(tmp_path / "saved"))
    assert sorted(each.name for each in tmp_path.glob("saved*")) == ["saved-0", "saved-1"]


def test_a_call_that_another_client_ends_is_interrupted_once(pair: xpulab.XPUCluster, ready: Path) -> None:

    def end() -> None:
        until(ready.exists)
        pair.stop_call()

    thread = threading.Thread(target=end)
    thread.start()
    source = cell(("try:", WAIT), ("finally:", f"{SAVES}\nstate = 'saved by it'"), ready=str(ready))
    with pytest.raises(CellInterrupted):
        run_cell(pair, source)
    thread.join()
    assert pair.pull("state") == ["saved by it"] * 2
