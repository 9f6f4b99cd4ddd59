"""asyncio in a user's code: a loop of its own, because the engine's loop runs the task in which the code is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["awaited", "outside_of_loops"]

T = TypeVar("T")

_loops: list[asyncio.AbstractEventLoop] = []  # at most one


def awaited(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a cell to its end. Tasks that it has begun go on in the next cell that awaits something.

    Ctrl-C ends them, too. Tracebacks begin in the cell.
    """
    loop = _loop()
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except KeyboardInterrupt as interrupt:
        raise interrupt.with_traceback(_stopped(loop, task) or _in_cell(interrupt.__traceback__)) from None
    except BaseException as error:
        raise error.with_traceback(_in_cell(error.__traceback__))  # noqa: B904 -- the same error


def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop of cells. A cell may have closed it."""
    if not _loops or _loops[0].is_closed():
        _loops[:] = [asyncio.new_event_loop()]
    return _loops[0]


@contextlib.contextmanager
def outside_of_loops() -> Iterator[None]:
    """Open a context in which no loop of asyncio runs on this thread, as in a script: `asyncio.run` works."""
    outer, task = asyncio._get_running_loop(), None
    if outer is not None and (task := asyncio.current_task()) is not None:
        asyncio.tasks._leave_task(outer, task)
    asyncio._set_running_loop(None)
    asyncio.set_event_loop(_loop())
    try:
        yield
    finally:
        asyncio.set_event_loop(outer)
        asyncio._set_running_loop(outer)
        if outer is not None and task is not None:
            asyncio.tasks._enter_task(outer, task)


def _stopped(loop: asyncio.AbstractEventLoop, task: asyncio.Task[T]) -> TracebackType | None:
    """End all tasks of a loop, and return where this one was; None if it was not waiting."""
    if tasks := asyncio.all_tasks(loop):
        for each in tasks:
            each.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    try:
        task.result()
    except asyncio.CancelledError as ended:
        return _in_cell(ended.__traceback__)
    except BaseException:  # what it has raised at its end
        pass
    return None


def _in_cell(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins with the first line that is not of asyncio, or of this module."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").split(".")[0] in ("asyncio", "xpulab"):
        trace = trace.tb_next
    return trace
