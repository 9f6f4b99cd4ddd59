"""Faults in the middle of a call: at a meeting of its ranks, one of them is killed, or all wait for the interrupt."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "acted_when",
    "come_to",
    "die_on_rank_1",
    "interrupt_rank_0",
    "is_waiting",
    "leave_alone",
    "meetings",
    "pressed_when",
    "stand_still",
    "strike",
    "wait_for_stop",
]


def strike(
    task: Any,
    meeting: int = 0,
    act: Callable[..., Any] | None = None,
    *arguments: Any,
    iterations: int = 0,
    pause: float = 0,
    enough: str = "",
    doing: str = "",
    kept: str = "",
) -> None:
    """On an engine: call `act` at this meeting of the ranks in a later call of an estimator; see `meetings`.

    Parameters
    ----------
    task : Task
    meeting : int
        Number of the meeting, from 1; 0 for none. A meeting is a call of the communicator in which all ranks take part.
    act : callable, optional
    *arguments : Any
        Those of `act`.
    iterations : int
        Meetings count when the fit has noted so many iterations, of all its runs.
    pause : float
        Seconds by which each meeting takes longer after the first iteration: a fit keeps its state every 50 ms.
    enough : str
        The path of a file; once it is there, meetings take no longer.
    doing : str
        Meetings count while the board says that the engine is doing something that begins with this.
    kept : str
        The path of a file, which is made when the fit has kept a state, of its first iteration or a later one;
        meetings count from then on.
    """
    from xpulab.engine.comm import Communicator
    from xpulab.sharing.checkpoint import Checkpoint

    if hasattr(task.engine, "end_of_strike"):  # of a test that has failed, or of a moment that has not come
        task.engine.end_of_strike()
    names = (
        "allgather", "allgather_arrays", "allreduce", "bcast", "bcast_array", "end", "exchange_rows", "gather_blocks",
        "reduce",
    )  # fmt: skip
    kind, record, first = Communicator, task.engine.record, task.engine.board.ranks[0]
    usual = {name: getattr(kind, name) for name in names}
    most, write = 0, Checkpoint.write_packed

    def undo() -> int:
        for name, method in usual.items():
            setattr(kind, name, method)
        Checkpoint.write_packed = write  # type: ignore[method-assign]
        return most

    def written(self: Any, packed: bytes) -> None:
        write(self, packed)
        if kept and noted():
            Path(kept).touch()

    def noted() -> int:
        return int(first["lengths"].sum()) if first["task"] == record["task"] else 0

    def counting(method: Any) -> Any:
        def meet(self: Any, *rest: Any, **named: Any) -> Any:
            nonlocal most
            if bytes(record["name"]) not in (b"run", b"release"):
                done = noted()
                counts = done >= iterations and record["doing"].startswith(doing.encode())
                counts = counts and (not kept or os.path.exists(kept))
                self.met = getattr(self, "met", 0) + counts
                most = max(most, self.met)
                time.sleep(pause if done and not (enough and os.path.exists(enough)) else 0)
                if act is not None and self.met == meeting:
                    undo()
                    act(*arguments)
            return method(self, *rest, **named)

        return meet

    for name, method in usual.items():
        setattr(kind, name, counting(method))
    Checkpoint.write_packed = written  # type: ignore[method-assign]
    task.engine.end_of_strike = undo


def meetings(task: Any) -> int:
    """On an engine: return the most meetings of a task since `strike`, and end the strike."""
    return int(task.engine.end_of_strike())


def die_on_rank_1() -> None:
    """On an engine: kill rank 1."""
    from xpulab.engine.engine import this_engine

    engine = this_engine()
    if engine is not None and engine.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def interrupt_rank_0() -> None:
    """On an engine: send SIGINT to rank 0, as Ctrl-C in the notebook does."""
    from xpulab.engine.engine import this_engine

    engine = this_engine()
    if engine is not None and engine.rank == 0:
        os.kill(os.getpid(), signal.SIGINT)


def stand_still() -> None:
    """On an engine: stop this process, until it gets SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def wait_for_stop(waiting: str, doing: str = "") -> None:
    """On an engine: make the file `waiting`, and wait until the notebook has asked the task to stop.

    The board has to say that the engine is ``doing`` this.
    """
    from xpulab.engine.engine import this_engine

    engine = this_engine()
    assert engine is not None
    assert engine.task is not None
    assert engine.record["doing"].startswith(doing.encode()), engine.record["doing"]
    Path(waiting).touch()
    until = time.monotonic() + 120
    while not engine.task.cancelled():
        assert time.monotonic() < until
        time.sleep(0.01)


def leave_alone(waiting: str) -> None:
    """On an engine: end the task on rank 1 after a request to stop, where the other ranks meet."""
    from xpulab.engine.engine import this_engine

    wait_for_stop(waiting)
    engine = this_engine()
    if engine is not None and engine.rank == 1:
        raise KeyboardInterrupt


def come_to(folder: Path, ranks: int = 2) -> tuple[str, Callable[[], bool]]:
    """Return an expression for a cell, and a function that says whether so many ranks have come to this expression."""
    folder.mkdir()
    return f"open(f'{folder}/{{rank}}', 'w').close()", lambda: len(os.listdir(folder)) >= ranks


def is_waiting(cluster: Any, rank: int = 0) -> bool:
    """Return whether the board shows that a user's code on a rank waits for others; the rank looks twice a second."""
    record = cluster.engines.board.ranks[rank]
    return bool(record["hears"] and record["waits"])


@contextlib.contextmanager
def acted_when(condition: Callable[[], object], act: Callable[[], object]) -> Iterator[None]:
    """A context in whose body a thread calls `act` once, when the condition holds; not after its end."""
    ended, acting = threading.Event(), threading.Lock()

    def wait() -> None:
        while not condition() and not ended.wait(0.01):
            pass
        with acting:
            if not ended.is_set():
                act()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        with acting:
            ended.set()
        thread.join()


@contextlib.contextmanager
def pressed_when(waiting: Path | Callable[[], object]) -> Iterator[None]:
    """A context whose body gets SIGINT when there is this file, or this condition holds, and none after its end."""
    condition = waiting.exists if isinstance(waiting, Path) else waiting
    with acted_when(condition, lambda: os.kill(os.getpid(), signal.SIGINT)):
        yield
