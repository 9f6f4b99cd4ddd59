"""Child processes that a user's code starts on a rank: how they end, what is refused, and how their work is pickled.

A forked child has a copy of the engine, whose connections belong to its parent.
"""

from __future__ import annotations

import _posixsubprocess
import contextlib
import multiprocessing
import operator
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import cloudpickle

from xpulab.engine.engine import this_engine
from xpulab.engine.users_mpi.interruptible import KINDS
from xpulab.sharing.classes import dumps

__all__ = ["children_end_here"]

#: In the command lines of the resource trackers of Python and of joblib.
_TRACKER = b".resource_tracker import main"
_SETSID = 15  # position of fork_exec's argument that has the child begin a session
_KEPT = ("Get_name", "Get_rank", "Get_size")  # of a communicator: they send nothing


@contextlib.contextmanager
def children_end_here(traceback_of: Callable[[BaseException], str]) -> Iterator[None]:
    """Open a context that only this process leaves: a child that was forked in it ends at its end.

    The child would otherwise go on as a second engine of the same rank.

    Parameters
    ----------
    traceback_of : callable
        Returns the traceback of an exception as a text.
    """
    me, status = os.getpid(), 0
    try:
        yield
    except BaseException as error:
        if os.getpid() == me:
            raise
        status = _status(error, traceback_of)
    if os.getpid() != me:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def _status(error: BaseException, traceback_of: Callable[[BaseException], str]) -> int:
    """Return the exit status of a child, as Python's interpreter has it; prints the error."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return error.code or 0
    print(error.code if isinstance(error, SystemExit) else traceback_of(error).rstrip(), file=sys.stderr)
    return 1


def _refusing(name: str) -> Callable[..., NoReturn]:
    """Return a method `name` of a communicator for a child process."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise RuntimeError(
            f"{name} was called in a child process of this rank: only the rank itself can communicate with other "
            "ranks; give it the result, such as by multiprocessing.Queue, and send it from there"
        )

    return refuse


def _silence_communicators() -> None:
    """In a forked child: refuse calls of MPI, whose messages would reach other ranks in the name of this one."""
    for kind in KINDS:
        for name, method in list(vars(kind).items()):
            if callable(method) and not name.startswith("_") and name not in _KEPT:
                setattr(kind, name, _refusing(name))


def _reduced(pickler: ForkingPickler, thing: object) -> Any:
    """Reduce functions and classes of a cell or of a notebook, which a child process cannot import."""
    if not isinstance(thing, (types.FunctionType, type)) or thing.__module__ != "__main__":
        return NotImplemented
    engine, name = this_engine(), thing.__qualname__
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    forks = method == "fork" and get_spawning_popen() is None  # asking without allow_none would fix the method
    if engine is not None and forks and _of_a_cell(engine.namespace, name) is thing:
        return _of_this_process, (name,)
    return cloudpickle.loads, (dumps(thing),)


def _of_a_cell(namespace: Mapping[str, Any], name: str) -> Any:
    first, _, rest = name.partition(".")
    with contextlib.suppress(AttributeError):
        return operator.attrgetter(rest)(namespace.get(first)) if rest else namespace.get(first)
    return None


def _of_this_process(name: str) -> Any:
    """Return a function or class of a cell, which the parent of this process has sent by name."""
    engine = this_engine()
    found = None if engine is None else _of_a_cell(engine.namespace, name)
    if found is None:
        raise AttributeError(
            f"{name} was defined after this process was forked; start its pool or process in the cell that defines "
            f"{name}, or in a later one"
        )
    return found


def _apart(fork_exec: Callable[..., int]) -> Callable[..., int]:
    """Return `fork_exec` with which the programs that remove shared memory begin a session of their own.

    They end by themselves after a rank has ended. MPI's launcher kills a rank with its group of processes, and would
    kill them, too: therefore each is in its session before it runs its first line.
    """

    def call(*arguments: Any) -> int:
        if _TRACKER in os.fsencode(arguments[0][-1]):
            arguments = (*arguments[:_SETSID], True, *arguments[_SETSID + 1 :])
        return fork_exec(*arguments)

    return call


_posixsubprocess.fork_exec = _apart(_posixsubprocess.fork_exec)
setattr(ForkingPickler, "reducer_override", _reduced)  # noqa: B010 -- typeshed declares it a method
os.register_at_fork(after_in_child=_silence_communicators)
