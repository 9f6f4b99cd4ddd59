"""A user's code on engines that crash, stand still or do not end: the output, the losses, and the next call."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from strikes import acted_when, come_to, is_waiting, pressed_when
from waiting import until

import xpulab
from xpulab.console.cells import CellInterrupted, run_cell
from xpulab.deploy.current import latest_cluster
from xpulab.deploy.tasks import exchange
from xpulab.exceptions import EngineError, EngineLostError, EngineStuckError

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("merged_lines")]

#: Code for a cell that waits until a file exists.
AWAIT = """
import os, time
until = time.monotonic() + 120
while not os.path.exists({!r}):
    assert time.monotonic() < until
    time.sleep(0.01)
"""
STILL = "rank 0 is still in a call that cannot be interrupted"


def deaf(begun: Path, ends: str) -> str:
    """Return one call that does not check for signals: it makes a folder, and lasts until the iterable `ends` it."""
    return f"any(itertools.chain(map(os.mkdir, [{str(begun)!r}]), {ends}))"


@pytest.fixture(scope="module")
def often_lost() -> Iterator[xpulab.XPUCluster]:
    with xpulab.XPUCluster(2, silence=1.0, timeout=60) as cluster:
        yield cluster


@pytest.fixture
def engines(often_lost: xpulab.XPUCluster) -> xpulab.XPUCluster:
    """A cluster of 2 engines that a test may lose."""
    often_lost.recover = True
    return often_lost.start()


@pytest.fixture
def soon_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a message say after 0.3 s which ranks an interrupt does not end."""
    monkeypatch.setattr(exchange, "_USERS_GRACE", 0.3)


def test_lines_come_while_the_cell_runs(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    """The cell goes on when its first line is shown, and later when the second one is."""
    screen, first, second = io.StringIO(), tmp_path / "first", tmp_path / "second"
    source = f"print('first'){AWAIT}os.system('echo a child'){AWAIT}print('last')".format(str(first), str(second))
    with (
        contextlib.redirect_stdout(screen),
        acted_when(lambda: "first\n" in screen.getvalue(), first.touch),
        acted_when(lambda: "a child\n" in screen.getvalue(), second.touch),
    ):
        run_cell(pair, source)
    assert screen.getvalue() == "[0-1] first\n[0-1] a child\n[0-1] last\n"


def test_threads_are_heard_after_their_cell(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    screen, over = io.StringIO(), tmp_path / "over"
    source = f"""
import logging, os, sys, threading, time
handler = logging.StreamHandler(sys.stdout)
def later():
    while not os.path.exists({str(over)!r}):
        time.sleep(0.01)
    print("of a thread")
    handler.emit(logging.makeLogRecord({{"msg": "of a log"}}))
threading.Thread(target=later).start()
print("of the cell")
"""
    with contextlib.redirect_stdout(screen):
        run_cell(pair, source)
        assert screen.getvalue() == "[0-1] of the cell\n"
        over.touch()
        until(lambda: screen.getvalue().count("\n") >= 3)
    assert screen.getvalue() == "[0-1] of the cell\n[0-1] of a thread\n[0-1] of a log\n"


def test_many_lines_are_kept_and_a_limit_is_said_while_the_cell_runs(
    pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_cell(pair, "for i in range(50_000): print(f'{i:025}')")
    assert capsys.readouterr().out.endswith("more lines; to see them, type: %xpu_cluster last --output\n")
    for rank in range(2):
        assert pair.last_output.printed[rank].splitlines() == [f"{i:025}" for i in range(50_000)]
    pair.run(lambda here: print("\n" * 100))
    assert capsys.readouterr().out.endswith("more lines; to see them, type: %xpu_cluster last --output\n")
    assert pair.last_output.printed == dict.fromkeys(range(2), "\n" * 101)
    for module in "xpulab.deploy.tasks.users_code", "xpulab.sharing.transcript":
        monkeypatch.setattr(f"{module}.LIMIT", 1000)
    run_cell(pair, "print('x' * 1000)")
    # The lines of the ranks are one line, unless one rank prints later than the other.
    said = re.findall(r"rank (\S+) has printed 1000 B, the most that xpulab keeps of a rank's", capsys.readouterr().err)
    assert said in (["0-1"], ["0", "1"], ["1", "0"])


def test_a_function_has_the_comm_the_prints_and_the_stop_of_a_cell(
    pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def both(here: Any) -> Any:
        import numpy as np
        from mpi4py import MPI

        total = np.zeros(1)
        here.comm.Allreduce(np.ones(1), total)
        print("hello")
        mine = here.engine.namespace["comm"] is here.comm is MPI.COMM_WORLD
        return here.comm.allreduce({here.rank}, op=set.union), total.tolist(), here.size, mine

    run_cell(pair, "comm")
    capsys.readouterr()
    assert pair.run(both) == [({0, 1}, [2.0], 2, True)] * 2
    assert capsys.readouterr().out == "[0-1] hello\n"
    with pressed_when(lambda: is_waiting(pair)), pytest.raises(CellInterrupted, match=r"rank 0 was in line \d+"):
        pair.run(lambda here: here.comm.recv(source=0) if here.rank == 0 else None)
    run_cell(pair, "comm;")
    assert pair.run(both) == [({0, 1}, [2.0], 2, True)] * 2


def test_a_crash_loses_no_output_and_new_engines_start(
    engines: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    source = """
print("before")
if rank == 1:
    raise ValueError("the cause")
import ctypes, os, time
from xpulab.engine.engine import this_engine
engine = this_engine()
while engine.board.ranks["failed"][1] != engine.task.number:
    time.sleep(0.01)
os.write(1, b"said by a library\\n")
ctypes.string_at(0)
"""
    with pytest.raises(EngineLostError) as caught:
        run_cell(engines, source)
    message = str(caught.value)
    assert "rank 0" in message.splitlines()[0]
    assert "segmentation fault" in message.splitlines()[0]
    assert "Before, rank 1 raised:\nTraceback" in message
    assert "ValueError: the cause" in message
    assert "New engines were started; the variables of %%xpu cells and the rows" in message
    said = capsys.readouterr().out
    assert said.startswith("[0-1] before\n[0] said by a library\n[0] Fatal Python error: Segmentation fault")
    assert "line 11 in <module>" in said
    assert "xpulab/engine" not in said
    assert str(engines.last_output.text()) == said.rstrip("\n")
    logs = engines.logs()
    assert "said by a library" in logs
    assert "ValueError: the cause" in logs
    assert engines.run(lambda here: here.comm.allreduce(1)) == [2, 2]


@pytest.mark.usefixtures("soon_told")
def test_a_stop_waits_for_a_long_call_to_return(
    engines: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_cell(engines, "import itertools, os\nkept = rank")
    begun, told, returns = tmp_path / "begun", io.StringIO(), tmp_path / "returns"
    came, have_come = come_to(tmp_path / "came", 1)
    call = deaf(begun, f"map(os.access, itertools.repeat({str(returns)!r}), itertools.repeat(os.F_OK))")
    with (
        contextlib.redirect_stderr(told),
        acted_when(lambda: STILL in told.getvalue(), returns.touch),
        pressed_when(lambda: begun.exists() and have_come()),
        pytest.raises(CellInterrupted, match="rank 0 was in line 2: "),
    ):
        run_cell(engines, f"print('so far')\nif rank == 0: {call}; kept = 7\nelse: {came}")
    assert capsys.readouterr().out == "[0-1] so far\n"
    assert f"{STILL}; the code ends when this call returns" in told.getvalue()
    assert run_cell(engines, "kept = kept + 1", out=["kept"]).values["kept"] == [1, 2]


@pytest.mark.usefixtures("soon_told")
def test_a_second_stop_ends_the_engines_in_a_long_call(
    engines: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_cell(engines, "import itertools, os")
    begun, told = tmp_path / "begun", io.StringIO()

    def both_are_there() -> bool:
        assert engines.engines.board is not None
        ranks = engines.engines.board.ranks
        return begun.exists() and bool(ranks["failed"][1] == ranks["task"][0])

    with (
        contextlib.redirect_stderr(told),
        pressed_when(lambda: STILL in told.getvalue()),
        pressed_when(both_are_there),
        pytest.raises(EngineStuckError) as caught,
    ):
        run_cell(engines, f"print('so far')\n1 / 0 if rank else {deaf(begun, 'iter(int, 1)')}")
    assert "rank 0 was in a call that cannot be interrupted, and all engines were ended at your second" in str(
        caught.value
    )
    assert "Before, rank 1 raised:" in str(caught.value)
    assert "ZeroDivisionError" in str(caught.value)
    assert capsys.readouterr().out == "[0-1] so far\n"
    assert engines.run(lambda here: here.comm.allreduce(1)) == [2, 2]


def test_a_rank_that_stands_still_in_a_users_code_is_named_and_may_go_on(
    engines: xpulab.XPUCluster, tmp_path: Path
) -> None:
    pid, told, stopped = engines.facts[1].pid, io.StringIO(), tmp_path / "stopped"
    came, have_come = come_to(tmp_path / "came")

    def stop() -> None:
        os.kill(pid, signal.SIGSTOP)
        stopped.touch()

    with (
        contextlib.redirect_stderr(told),
        acted_when(have_come, stop),
        acted_when(lambda: "from now" in told.getvalue(), lambda: os.kill(pid, signal.SIGCONT)),
    ):
        source = f"{came}{AWAIT.format(str(stopped))}x = comm.allreduce(1)"
        assert run_cell(engines, source, out=["x"]).values["x"] == [2, 2]
    assert told.getvalue().count("rank 1 has stood still for 1 s") == 1
    assert "the engines are ended 9 s from now" in told.getvalue()
    assert engines.facts[1].pid == pid


def test_a_rank_that_leaves_with_status_0_is_named_and_without_recovery_restart_works(
    engines: xpulab.XPUCluster, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ipyparallel.client.client.get_ipython", lambda: shell)
    engines.activate()
    engines.recover = False
    with pytest.raises(EngineLostError, match=r"^rank 0 \(pid \d+ on .*\) ended: exited with status 0\.") as caught:
        run_cell(engines, "import os\nif rank == 0:\n    os._exit(0)\ncomm.barrier()")
    assert "rank 1" not in str(caught.value).splitlines()[0]
    assert "type: %xpu_cluster start" in str(caught.value)
    assert not engines.running
    assert latest_cluster() is engines
    shell.run_line_magic("xpu_cluster", "restart")
    assert engines.running
    assert "px" not in shell.magics_manager.magics["line"]


def test_the_error_of_a_late_rank_is_told_to_those_that_wait_in_any_communicator(pair: xpulab.XPUCluster) -> None:
    with pytest.raises(EngineError, match="1 of 2 engines raised ValueError"):
        pair.run(_raise_on_rank_1)


def _raise_on_rank_1(here: Any) -> None:
    from mpi4py import MPI

    if here.rank == 1:
        raise ValueError("no")
    MPI.COMM_WORLD.Create_cart([2]).Barrier()
