"""A cell of a notebook on one rank: its namespace, its value, and variables that it receives and returns."""

from __future__ import annotations

import ast
import importlib
import io
import linecache
import pickle
import sys
from typing import Any

import cloudpickle
import numpy as np
from IPython.lib.pretty import pretty
from mpi4py import MPI

from xpulab.engine.cells.queues import shared_queue
from xpulab.engine.cells.usage import measured, pickled, queue_of
from xpulab.engine.cells.users_code import answer_of
from xpulab.engine.dataset import array_of, pieces, rows_of
from xpulab.engine.engine import Task, task
from xpulab.kernels.kmeans.choice import kernels_for
from xpulab.sharing.memory import SharedBlock, shared_or_sent

__all__ = ["pull", "push", "run"]

#: Name of a module with a function `asnumpy` -> the class of arrays that it takes. An engine has these modules only
#: after a cell has imported them. A release of dpctl has one of the last two.
_DEVICE_ARRAYS = {"dpnp": "ndarray", "dpnp.tensor": "usm_ndarray", "dpctl.tensor": "usm_ndarray"}


@task("%%xpu")
def run(
    task: Task, source: str, name: str, ranks: list[int], out: list[str], transcripts: list[str], profile: bool = False
) -> dict[str, Any]:
    """Run a cell on some ranks; the other ranks wait for its end.

    Parameters
    ----------
    source : str
        Python code.
    name : str
        Name of the cell in tracebacks.
    ranks : list of int
        The ranks that run the cell.
    out : list of str
        Names of the variables to return.
    transcripts : list of str
        For each rank, the file for its output.
    profile : bool
        Whether to measure what the cell does.

    Returns
    -------
    dict
        The keys of `answer_of`, with the further ``outcome`` "left out"; ``value``, the last expression as text, or
        None; ``out``, the values of the variables as bytes; ``figures``, those of matplotlib as PNG; ``usage``, if it
        was measured.
    """
    if task.comm.rank not in ranks:
        task.engine.record["ended"] = task.number
        return {"outcome": "left out"}
    namespace = task.engine.namespace
    task.ranks = ranks

    def code() -> dict[str, Any]:
        answer: dict[str, Any] = {}
        value = _execute(source, name, namespace)
        if value is not None:
            namespace["_"] = value
            if not _drew(value):
                answer["value"] = pretty(value)
        if "matplotlib.pyplot" in sys.modules:
            _figures().show()
        answer["out"] = {each: _lent(task, each) for each in out}
        return answer

    with measured(profile) as found:
        _prepare(namespace, task, ranks)
        answer = answer_of(task, transcripts[task.comm.rank], code)
    answer |= found
    return {**answer, "figures": _figures().taken()} if "matplotlib.figure" in sys.modules else answer


def _prepare(namespace: dict[str, Any], task: Task, ranks: list[int]) -> None:
    """Add the names that every cell can use to the variables of earlier cells."""
    # dpnp's arrays and kernels with local memory use this queue by default, so all that a cell makes is on one queue.
    device = task.device.queue.sycl_device
    namespace.update(
        __name__="__main__",
        comm=task.engine.communicator(ranks),
        rank=task.comm.rank,
        size=task.comm.size,
        device=device,
        queue=queue_of(shared_queue(device)),
        display=_display,
    )


def _execute(source: str, name: str, namespace: dict[str, Any]) -> Any:
    """Run the statements, and return the value of the last one if it is an expression without a final semicolon."""
    # Tracebacks and inspect.getsource read this entry. Without a time it is not compared with a file.
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
    """Show figures as pictures, and everything else as text, as IPython's `display` does."""
    for thing in things:
        if not _drew(thing):
            print(pretty(thing))


def _drew(thing: Any) -> bool:
    """Draw a figure of matplotlib; return False if it is something else."""
    module = sys.modules.get("matplotlib.figure")
    if module is None or not isinstance(thing, module.Figure):
        return False
    _figures().draw(thing)
    return True


def _figures() -> Any:
    """Import the module that draws figures. It needs matplotlib, which a cell has imported by then."""
    return importlib.import_module("xpulab.engine.cells.figures")


class _Pickler(cloudpickle.Pickler):
    """Pickle arrays on the device as NumPy arrays, because the notebook has neither dpnp nor dpctl."""

    def reducer_override(self, thing: Any) -> Any:
        for name, array in _DEVICE_ARRAYS.items():
            module = sys.modules.get(name)
            if module is not None and isinstance(thing, getattr(module, array)):
                return module.asnumpy(thing).__reduce_ex__(5)
        return super().reducer_override(thing)


class _Traveller(cloudpickle.Pickler):
    """Pickle arrays on the device so that they become arrays on the device of another rank."""

    def reducer_override(self, thing: Any) -> Any:
        for name, array in _DEVICE_ARRAYS.items():
            module = sys.modules.get(name)
            if module is not None and isinstance(thing, getattr(module, array)):
                return _on_device, (name, module.asnumpy(thing))
        return super().reducer_override(thing)


def _on_device(module: str, array: Any) -> Any:
    return importlib.import_module(module).asarray(array)


def _message(thing: Any, protocol: int = 5) -> bytes:
    """Return the bytes of an object that mpi4py sends."""
    try:
        message = pickle.dumps(thing, protocol)
    except Exception:  # such as a function of a cell, or an array on the device
        file = io.BytesIO()
        _Traveller(file, protocol=protocol).dump(thing)
        message = file.getvalue()
    pickled("dumps", len(message))
    return message


def _thing(message: Any) -> Any:
    """Return the object that mpi4py has received."""
    pickled("loads", len(message))
    return pickle.loads(message)


MPI.pickle.__init__(_message, _thing)  # type: ignore[misc]


def _lent(task: Task, name: str) -> dict[str, Any]:
    """A variable for the notebook: its large arrays are copied into shared memory, for the notebook's arrays."""
    if name not in task.engine.namespace:
        raise NameError(f"there is no variable {name!r} on this rank")
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(task.engine.namespace[name])

    def share(raw: np.ndarray) -> bytes | dict[str, Any]:
        return task.given([raw])

    return {"pickle": file.getvalue(), "buffers": shared_or_sent(buffers, share)}


@task("push")
def push(task: Task, things: dict[str, dict[str, Any]], ranks: list[int]) -> dict[str, Any]:
    """Make variables for cells.

    Parameters
    ----------
    things : dict of str to dict
        Name -> how to make the object, see `VariablesOnEngines.push`.
    ranks : list of int
        Those who get them.
    """
    if task.comm.rank in ranks:
        made = {name: _made(task, thing, ranks.index(task.comm.rank)) for name, thing in things.items()}
        task.engine.namespace.update(made)
    return {}


@task("pull")
def pull(task: Task, name: str, ranks: list[int]) -> dict[str, Any]:
    """A variable of cells, see `_lent`."""
    return {"value": _lent(task, name)} if task.comm.rank in ranks else {}


def _made(task: Task, thing: dict[str, Any], number: int) -> Any:
    """An object that the notebook sent; `number` is this rank's place among the ranks that get the object."""
    if "handle" in thing:
        rows = rows_of(task, thing["handle"])
        whole = np.empty((rows.n_samples, rows.n_features), rows.dtype)
        for first, last in pieces(rows.n_samples, rows.n_features * rows.dtype.itemsize):
            whole[first:last] = kernels_for(rows).consecutive(rows, first, last)
        return whole.reshape(-1, *thing["shape"][1:])
    if "rows" in thing:
        source, (_, *shape) = thing["rows"], thing["shape"]
        first, last = source["bounds"][number : number + 2]
        with SharedBlock.open(source["parts"][number], writable=True) as block:
            return block.array((last - first, *shape), source["dtype"])  # which has it to itself
    buffers = [bytearray(b) if isinstance(b, bytes) else array_of(b).copy() for b in thing["buffers"]]
    return pickle.loads(thing["pickle"], buffers=buffers)
