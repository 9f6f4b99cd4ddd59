"""A cell of a notebook on one rank: its namespace, its value, and the variables that it is given and brings back."""

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

from xpulab.engine.dataset import pieces, rows_of
from xpulab.engine.engine import Task, task
from xpulab.engine.queues import shared_queue
from xpulab.engine.usage import measured, pickled, queue_of
from xpulab.engine.users_code import answer_of
from xpulab.kernels.choice import kernels_for
from xpulab.sharing.memory import LEAST_SHARED, SharedBlock

__all__ = ["pull", "push", "run"]

#: Modules that have an `asnumpy` -> the class of arrays that it takes. A module is there only after a cell imported it;
#: of the last two, each dpctl has one.
_DEVICE_ARRAYS = {"dpnp": "ndarray", "dpnp.tensor": "usm_ndarray", "dpctl.tensor": "usm_ndarray"}


@task("%%xpu")
def run(
    task: Task, source: str, name: str, ranks: list[int], out: list[str], transcripts: list[str], profile: bool = False
) -> dict[str, Any]:
    """Run a cell on some ranks; the others wait for its end.

    Parameters
    ----------
    source : str
        Python.
    name : str
        What tracebacks call it.
    ranks : list of int
        Those who run it.
    out : list of str
        The variables to bring back.
    transcripts : list of str
        File of each rank for what it prints.
    profile : bool
        Whether to measure what the cell does.

    Returns
    -------
    dict
        As `answer_of`, with an ``outcome`` "left out" too; ``value``, the last expression as text, or None; ``out``,
        the values of the variables as bytes; ``figures``, of matplotlib, as PNG; ``usage``, if it was measured.
    """
    if task.comm.rank not in ranks:
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
    """Add the names that every cell finds to the variables of earlier cells."""
    # The queue that dpnp's arrays and kernels with local memory use by themselves: what a cell makes fits together.
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
    """As IPython's: figures as pictures, and all else as text."""
    for thing in things:
        if not _drew(thing):
            print(pretty(thing))


def _drew(thing: Any) -> bool:
    """Draw a figure of matplotlib; False if it is something else."""
    module = sys.modules.get("matplotlib.figure")
    if module is None or not isinstance(thing, module.Figure):
        return False
    _figures().draw(thing)
    return True


def _figures() -> Any:
    """The module that needs matplotlib, which a cell has imported."""
    return importlib.import_module("xpulab.engine.figures")


class _Pickler(cloudpickle.Pickler):
    """Arrays on the device become NumPy arrays: the notebook has neither dpnp nor dpctl."""

    def reducer_override(self, thing: Any) -> Any:
        for name, array in _DEVICE_ARRAYS.items():
            module = sys.modules.get(name)
            if module is not None and isinstance(thing, getattr(module, array)):
                return module.asnumpy(thing).__reduce_ex__(5)
        return super().reducer_override(thing)


class _Traveller(cloudpickle.Pickler):
    """Arrays on the device arrive on the device of another rank."""

    def reducer_override(self, thing: Any) -> Any:
        for name, array in _DEVICE_ARRAYS.items():
            module = sys.modules.get(name)
            if module is not None and isinstance(thing, getattr(module, array)):
                return _on_device, (name, module.asnumpy(thing))
        return super().reducer_override(thing)


def _on_device(module: str, array: Any) -> Any:
    return importlib.import_module(module).asarray(array)


def _message(thing: Any, protocol: int = 5) -> bytes:
    """The bytes of an object that mpi4py sends."""
    try:
        message = pickle.dumps(thing, protocol)
    except Exception:  # functions of a cell, and arrays on the device
        file = io.BytesIO()
        _Traveller(file, protocol=protocol).dump(thing)
        message = file.getvalue()
    pickled("dumps", len(message))
    return message


def _thing(message: Any) -> Any:
    """The object that mpi4py has received."""
    pickled("loads", len(message))
    return pickle.loads(message)


MPI.pickle.__init__(_message, _thing)  # type: ignore[misc]


def _lent(task: Task, name: str) -> dict[str, Any]:
    """A variable for the notebook: its large arrays are copied into shared memory, for the notebook's arrays.

    This rank holds the memory until the next call of the same notebook, which has mapped it by then.
    """
    if name not in task.engine.namespace:
        raise NameError(f"there is no variable {name!r} on this rank")
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(task.engine.namespace[name])
    return {"pickle": file.getvalue(), "buffers": [_lent_buffer(task, buffer) for buffer in buffers]}


def _lent_buffer(task: Task, buffer: pickle.PickleBuffer) -> bytes | dict[str, Any]:
    raw = np.frombuffer(buffer.raw(), np.uint8)
    if raw.nbytes < LEAST_SHARED or not task.engine.host.here:
        return raw.tobytes()
    block = SharedBlock.create(raw.nbytes)
    task.engine.lent.setdefault(task.client, []).append(block)
    block.write(raw, 0)
    return {"path": block.path, "nbytes": raw.nbytes}


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
            whole[first:last] = kernels_for(rows).take(rows, np.arange(first, last))
        return whole.reshape(-1, *thing["shape"][1:])
    if "rows" in thing:
        source, (_, *shape) = thing["rows"], thing["shape"]
        first, last = source["bounds"][number : number + 2]
        with SharedBlock.open(source["parts"][number], writable=True) as block:
            return block.array((last - first, *shape), source["dtype"])  # which has it to itself
    buffers = [np.frombuffer(bytearray(b), np.uint8) if isinstance(b, bytes) else _copied(b) for b in thing["buffers"]]
    return pickle.loads(thing["pickle"], buffers=buffers)


def _copied(place: dict[str, Any]) -> np.ndarray:
    """An array in shared memory, in memory of this process."""
    with SharedBlock.open(place["path"]) as block:
        return block.array(tuple(place["shape"]), place["dtype"], place["offset"]).copy()
