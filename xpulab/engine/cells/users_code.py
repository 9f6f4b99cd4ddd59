"""Runs a user's code on a rank: provides its variables, captures its output, and reports how it ended."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from xpulab.engine.cells.advice import advice, is_of_gloo
from xpulab.engine.cells.awaiting import outside_of_loops
from xpulab.engine.cells.forks import children_end_here
from xpulab.engine.cells.queues import shared_queue
from xpulab.engine.cells.usage import queue_of
from xpulab.engine.comm import PeerFailed
from xpulab.engine.engine import Task, this_engine
from xpulab.engine.users_mpi.interruptible import Intracomm
from xpulab.engine.users_mpi.windows import give_back_locks, serve_until
from xpulab.engine.waiting import cause_of, users_code, watched_by
from xpulab.exceptions import NeverAnsweredError, error_fields
from xpulab.sharing.answers import UsersResult
from xpulab.sharing.transcript import Writer

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Here", "answer_of", "output_of_a_call"]

_OURS = str(Path(__file__).parents[1])
_libc = ctypes.CDLL(None)


class Here:
    """The first argument of a user's function on a rank. All other attributes are those of `Task`.

    Attributes
    ----------
    comm : mpi4py.MPI.Intracomm
        The communicator of all ranks, the same as in a cell.
    rank, size : int
        Rank of this engine, and number of ranks.
    queue : dpctl.SyclQueue
        The default queue of dpnp's arrays, with profiling on.
    task : Task
        The running task.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.comm: Intracomm = task.engine.communicators.of(range(task.comm.size))
        self.rank, self.size = task.comm.rank, task.comm.size
        self.queue = queue_of(shared_queue(task.device.queue.sycl_device))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)


def answer_of(task: Task, transcript: str, code: Callable[[], UsersResult]) -> UsersResult:
    """Run a user's code.

    Parameters
    ----------
    task : Task
    transcript : str
        File for the output of the code, and for its exception.
    code : callable
        Runs the code, and returns further keys for the answer.

    Returns
    -------
    UsersResult
        With ``outcome``, ``error``, ``omitted``, and the keys from `code`.
    """
    answer: UsersResult = {"outcome": "ok", "error": None}
    assert task.engine.torchrun is not None
    task.engine.torchrun.tell(task.ranks, (task.client, task.number))
    with _captured(task, transcript) as printed:
        try:
            with (
                children_end_here(_traceback),
                outside_of_loops(),
                users_code(),
                watched_by(task.check_peers, task.cancelled, functools.partial(_note_heard, task)),
                _signals_sent(task),
                task.engine.heartbeat.watching(task),
            ):
                try:
                    answer.update(code())
                except RuntimeError as error:
                    raise _cause(task, error) from None
        except PeerFailed:
            answer["outcome"] = "peer failed"
        except KeyboardInterrupt as interrupt:
            task.raised()
            answer["outcome"], answer["error"] = "interrupted", _error_fields(interrupt)
        except BaseException as error:
            fields = _error_fields(error)
            answer["outcome"], answer["error"] = "error", fields
            printed.raised(fields["traceback"])
            task.raised()
        if answer["outcome"] != "ok":
            give_back_locks()
    task.engine.record["ended"] = task.number
    ended = task.engine.board.ranks["ended"]
    serve_until(lambda: bool((ended[list(task.ranks)] == task.number).all()))
    return {**answer, "omitted": printed.omitted}


def output_of_a_call() -> Writer | None:
    """Return the output of the code that runs; None if none runs, or if the code has redirected its output."""
    engine = this_engine()
    return sys.stdout if engine is not None and engine.task is not None and isinstance(sys.stdout, Writer) else None


@contextlib.contextmanager
def _signals_sent(task: Task) -> Iterator[None]:
    """Open a context in which each request to stop the task sends SIGINT; see `Board.signal`."""
    task.engine.record["hears"] = task.number
    try:
        yield
    finally:
        if _is_rank(task):
            task.engine.record["hears"] = 0


def _note_heard(task: Task) -> None:
    """Note that the requests to stop raise an exception in the user's code."""
    if _is_rank(task):
        task.engine.record["heard"] = task.engine.record["signalled"]


def _is_rank(task: Task) -> bool:
    """Return whether this process is the rank itself, and not a child that its code has forked."""
    return bool(task.engine.record["pid"] == os.getpid())


def _cause(task: Task, error: RuntimeError) -> BaseException:
    """Return the exception that a library in C++ has made `error` of, or for which gloo's connections were closed."""
    if is_of_gloo(error) or type(error).__name__ == "DistNetworkError":
        try:
            task.check_peers()
        except (NeverAnsweredError, PeerFailed) as cause:
            return cause.with_traceback(error.__traceback__)
        if task.cancelled():
            return KeyboardInterrupt().with_traceback(error.__traceback__)
    return cause_of(error)


class _NoKeyboard(io.TextIOBase):
    """Replaces standard input, and raises an error if the code reads from it, instead of waiting for ever.

    Child processes of `multiprocessing` close it, and open their own.
    """

    encoding = "utf-8"

    def _refuse(self, *_: object) -> NoReturn:
        raise EOFError(
            "an engine has no keyboard, so input() and breakpoint() cannot work here: ask in the notebook, and "
            "send the answer to the engines"
        )

    read = readline = readlines = __iter__ = __next__ = fileno = _refuse

    def readable(self) -> bool:
        """Return True, as of a standard input; each form of reading raises the error that says what to do."""
        return True


@contextlib.contextmanager
def _captured(task: Task, path: str) -> Iterator[Writer]:
    """Write all output to a file: that of Python, libraries and child processes, and Python's message of a crash."""
    previous, task.engine.transcript = task.engine.transcript, path
    if previous:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(previous)
    printed, saved = Writer(path), (os.dup(1), os.dup(2))
    for descriptor in (1, 2):
        os.dup2(printed.fileno(), descriptor)
    faulthandler.enable(2, all_threads=False)
    keyboard, sys.stdin = sys.stdin, _NoKeyboard()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            yield printed
    finally:
        sys.stdin = keyboard
        faulthandler.disable()
        _libc.fflush(None)
        for descriptor, usual in zip((1, 2), saved, strict=True):
            os.dup2(usual, descriptor)
            os.close(usual)
        printed.close()


def _error_fields(error: BaseException) -> dict[str, str]:
    """Return type, message and traceback of an error. The traceback begins in the user's code, and ends with advice."""
    return {
        **error_fields(error),
        "traceback": _traceback(error) + advice(error),
        "at": _place(_users_part(error)),
    }


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, _users_part(error), chain=True))


def _users_part(error: BaseException) -> Any:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


def _place(trace: TracebackType | None) -> str:
    """Say where an interrupt occurred in the user's cell or file, such as ``"line 3: comm.recv()"``."""
    frames = traceback.extract_tb(trace)
    mine = [frame for frame in frames if frame.filename == frames[0].filename]
    return f"line {mine[-1].lineno}: {mine[-1].line}".removesuffix(": ") if mine else ""
