"""A cell of a notebook on one rank: its namespace, what it prints, what it raises."""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import sys
import traceback
from typing import Any

import cloudpickle
import dpctl
from IPython.lib.pretty import pretty
from mpi4py import MPI

from xpulab.engine.advice import advice
from xpulab.engine.comm import PeerFailed
from xpulab.engine.engine import Engine, Task, task, users_code
from xpulab.engine.interruptible import Intracomm, watched_by

__all__ = ["Transcript", "run"]

_KEPT = 1_000_000  # characters of a cell's output; a loop that prints must not fill the memory

#: Modules that have an `asnumpy` -> the class of arrays that it takes. A module is there only after a cell imported it;
#: of the last two, each dpctl has one.
_DEVICE_ARRAYS = {"dpnp": "ndarray", "dpnp.tensor": "usm_ndarray", "dpctl.tensor": "usm_ndarray"}


class Transcript(io.TextIOBase):
    """A text stream in memory that keeps the beginning of what is written.

    Attributes
    ----------
    omitted : int
        Characters that were not kept.
    """

    def __init__(self, most: int = _KEPT) -> None:
        self._parts: list[str] = []
        self._room = most
        self.omitted = 0

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Keep `text`, or as much of it as there is room for."""
        kept = text[: self._room]
        self._room -= len(kept)
        self.omitted += len(text) - len(kept)
        if kept:
            self._parts.append(kept)
        return len(text)

    def getvalue(self) -> str:
        """What was kept."""
        return "".join(self._parts)


@task("%%xpu")
def run(task: Task, source: str, name: str, ranks: list[int], out: str | None) -> dict[str, Any]:
    """Run a cell on some ranks; the others wait for its end.

    Parameters
    ----------
    source : str
        Python.
    name : str
        What tracebacks call it.
    ranks : list of int
        Those who run it.
    out : str, optional
        The variable to bring back.

    Returns
    -------
    dict
        ``outcome`` ("ok", "error", "interrupted", "peer failed" or "left out"); ``printed``; ``omitted``, characters
        printed and not kept; ``value``, the last expression as text, or None; ``error`` (type, message, traceback);
        ``out``, the variable's value as bytes.
    """
    answer: dict[str, Any] = dict.fromkeys(("value", "error", "out"))
    answer.update(outcome="ok" if task.comm.rank in ranks else "left out", printed="", omitted=0)
    if task.comm.rank not in ranks:
        return answer
    namespace = _namespace(task, ranks)
    printed = Transcript()
    try:
        with users_code(), watched_by(task.check_peers), _captured(printed):
            value = _execute(source, name, namespace)
            if value is not None:
                namespace["_"] = value
                answer["value"] = pretty(value)
            if out is not None:
                answer["out"] = _dumps(namespace, out)
    except PeerFailed:
        answer["outcome"] = "peer failed"
    except KeyboardInterrupt as interrupt:
        task.raised()
        answer.update(outcome="interrupted", error=_cells_error(interrupt, name))
    except BaseException as error:
        task.raised()
        answer.update(outcome="error", error=_cells_error(error, name))
    return {**answer, "printed": printed.getvalue(), "omitted": printed.omitted}


def _namespace(task: Task, ranks: list[int]) -> dict[str, Any]:
    """The variables of earlier cells, and the names that every cell finds."""
    # The queue that dpnp's arrays and kernels with local memory use by themselves: what a cell makes fits together.
    device = task.device.queue.sycl_device
    namespace = task.engine.namespace
    namespace.update(
        __name__="__main__",
        comm=_communicator(task.engine, tuple(ranks)),
        rank=task.comm.rank,
        size=task.comm.size,
        device=device,
        queue=dpctl.get_device_cached_queue(device),
        display=_display,
    )
    return namespace


def _communicator(engine: Engine, ranks: tuple[int, ...]) -> Intracomm:
    """The communicator of these ranks alone; nobody else takes part in making it."""
    if ranks not in engine.cell_comms:
        group = MPI.COMM_WORLD.group.Incl(ranks)
        engine.cell_comms[ranks] = Intracomm(MPI.COMM_WORLD.Create_group(group))
    return engine.cell_comms[ranks]


def _execute(source: str, name: str, namespace: dict[str, Any]) -> Any:
    """Run the statements; the value of the last if it is an expression that no semicolon ends."""
    # For tracebacks and inspect.getsource; an entry without a time is not checked against a file.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree = ast.parse(source, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    exec(compile(tree, name, "exec"), namespace)
    if last is None:
        return None
    value = eval(compile(last, name, "eval"), namespace)
    return None if source.rstrip().endswith(";") else value


def _display(*things: Any) -> None:
    """As IPython's, as text."""
    for thing in things:
        print(pretty(thing))


@contextlib.contextmanager
def _captured(printed: Transcript) -> Any:
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        yield


class _Pickler(cloudpickle.Pickler):
    """Arrays on the device become NumPy arrays: the notebook has neither dpnp nor dpctl."""

    def reducer_override(self, thing: Any) -> Any:
        for name, array in _DEVICE_ARRAYS.items():
            module = sys.modules.get(name)
            if module is not None and isinstance(thing, getattr(module, array)):
                return module.asnumpy(thing).__reduce__()
        return super().reducer_override(thing)


def _dumps(namespace: dict[str, Any], name: str) -> bytes:
    if name not in namespace:
        raise NameError(f"--out {name}: the cell has run, and there is no variable {name!r}")
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(namespace[name])
    return file.getvalue()


def _cells_error(error: BaseException, name: str) -> dict[str, str]:
    """The error, with its traceback from the cell on, and what to type instead where that is known."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace, chain=True)
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "message": str(error),
        "traceback": "".join(lines) + advice(error),
        "at": _place(trace, name),
    }


def _place(trace: Any, name: str) -> str:
    """``"line 3: comm.recv()"``: where in the cell an interrupt found it."""
    frames = [frame for frame in traceback.extract_tb(trace) if frame.filename == name]
    return f"line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
