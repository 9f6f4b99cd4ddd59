"""A cell of a notebook on one rank: its namespace, its value, and the variable that it brings back."""

from __future__ import annotations

import ast
import importlib
import io
import linecache
import pickle
import sys
from typing import Any

import cloudpickle
import dpctl
from IPython.lib.pretty import pretty
from mpi4py import MPI

from xpulab.engine.engine import Task, task
from xpulab.engine.users_code import answer_of

__all__ = ["run"]

#: Modules that have an `asnumpy` -> the class of arrays that it takes. A module is there only after a cell imported it;
#: of the last two, each dpctl has one.
_DEVICE_ARRAYS = {"dpnp": "ndarray", "dpnp.tensor": "usm_ndarray", "dpctl.tensor": "usm_ndarray"}


@task("%%xpu")
def run(
    task: Task, source: str, name: str, ranks: list[int], out: str | None, transcripts: list[str]
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
    out : str, optional
        The variable to bring back.
    transcripts : list of str
        File of each rank for what it prints.

    Returns
    -------
    dict
        As `answer_of`, with an ``outcome`` "left out" too; ``value``, the last expression as text, or None; ``out``,
        the variable's value as bytes.
    """
    if task.comm.rank not in ranks:
        return {"outcome": "left out"}
    namespace = _namespace(task, ranks)

    def code() -> dict[str, Any]:
        answer: dict[str, Any] = {}
        value = _execute(source, name, namespace)
        if value is not None:
            namespace["_"] = value
            answer["value"] = pretty(value)
        if out is not None:
            answer["out"] = _dumps(namespace, out)
        return answer

    return answer_of(task, transcripts[task.comm.rank], code)


def _namespace(task: Task, ranks: list[int]) -> dict[str, Any]:
    """The variables of earlier cells, and the names that every cell finds."""
    # The queue that dpnp's arrays and kernels with local memory use by themselves: what a cell makes fits together.
    device = task.device.queue.sycl_device
    namespace = task.engine.namespace
    namespace.update(
        __name__="__main__",
        comm=task.engine.communicator(ranks),
        rank=task.comm.rank,
        size=task.comm.size,
        device=device,
        queue=dpctl.get_device_cached_queue(device),
        display=_display,
    )
    return namespace


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


class _Pickler(cloudpickle.Pickler):
    """Arrays on the device become NumPy arrays: the notebook has neither dpnp nor dpctl."""

    def reducer_override(self, thing: Any) -> Any:
        for name, array in _DEVICE_ARRAYS.items():
            module = sys.modules.get(name)
            if module is not None and isinstance(thing, getattr(module, array)):
                return module.asnumpy(thing).__reduce__()
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
        return pickle.dumps(thing, protocol)
    except Exception:  # functions of a cell, and arrays on the device
        file = io.BytesIO()
        _Traveller(file, protocol=protocol).dump(thing)
        return file.getvalue()


MPI.pickle.__init__(_message, pickle.loads)  # type: ignore[misc]


def _dumps(namespace: dict[str, Any], name: str) -> bytes:
    if name not in namespace:
        raise NameError(f"--out {name}: the cell has run, and there is no variable {name!r}")
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(namespace[name])
    return file.getvalue()
