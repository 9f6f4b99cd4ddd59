"""A cell of a notebook on one rank: its namespace, its value, and variables that it receives and returns."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import linecache
import pickle
import sys
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from IPython.lib.pretty import pretty
from mpi4py import MPI

from xpulab.engine.cells.awaiting import awaited
from xpulab.engine.cells.queues import shared_queue
from xpulab.engine.cells.usage import measured, pickled, queue_of
from xpulab.engine.cells.users_code import answer_of
from xpulab.engine.dataset import pieces, rows_of
from xpulab.engine.engine import Engine, Task, this_engine
from xpulab.engine.registry import task
from xpulab.kernels.kmeans.choice import kernels_for
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.sparse_products import HostMatrix
from xpulab.sharing import classes
from xpulab.sharing.answers import UsersResult
from xpulab.sharing.memory import SharedBlock, shared_or_sent
from xpulab.sharing.sources import HandleRows, Pickled, SharedRows

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["add_figures", "explained", "for_notebook", "names", "pull", "push", "run"]

_ONCE = ("display", "get_ipython")  # given names that stay what an earlier cell has made of them
#: Name of a module with a function `asnumpy` -> the class of arrays that it takes. An engine has these modules only
#: after a cell has imported them. A release of dpctl has one of the last two.
_DEVICE_ARRAYS = {"dpnp": "ndarray", "dpnp.tensor": "usm_ndarray", "dpctl.tensor": "usm_ndarray"}


@task("%%xpu")
def run(
    task: Task, source: str, name: str, ranks: list[int], out: list[str], transcripts: list[str], profile: bool = False
) -> UsersResult:
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
    UsersResult
    """
    if task.comm.rank not in ranks:
        task.engine.record["ended"] = task.number
        return {"outcome": "left out"}
    namespace = task.engine.namespace
    task.ranks = ranks

    def code() -> UsersResult:
        answer: UsersResult = {}
        value = _execute(source, name, namespace)
        if value is not None:
            namespace["_"] = value
            if not _drew(value):
                answer["value"] = pretty(value)
        if "matplotlib.pyplot" in sys.modules:
            _figures().draw_open()
        answer["out"] = {each: _lent(task, each) for each in out}
        return answer

    with measured(profile) as found:
        _prepare(namespace, task, ranks)
        answer = answer_of(task, transcripts[task.comm.rank], code)
    _name_classes()
    answer |= found
    add_figures(answer)
    return answer


def add_figures(answer: UsersResult) -> None:
    """Add the figures of matplotlib that a call has drawn to its answer."""
    if "matplotlib.figure" in sys.modules:
        answer["figures"], answer["shown"] = _figures().taken()


def _prepare(namespace: dict[str, object], task: Task, ranks: list[int]) -> None:
    """Add the names that every cell can use to the variables of earlier cells."""
    given = {**_given(task.engine), "comm": task.engine.communicators.of(ranks)}
    namespace.update({name: thing for name, thing in given.items() if name not in _ONCE or name not in namespace})


def _given(engine: Engine) -> dict[str, Any]:
    # dpnp's arrays and kernels with local memory use this queue by default, so all that a cell makes is on one queue.
    device = engine.device.queue.sycl_device
    return {
        "__name__": "__main__",
        "comm": engine.communicators.of(range(engine.size)),
        "rank": engine.rank,
        "size": engine.size,
        "device": device,
        "queue": queue_of(shared_queue(device)),
        "display": _display,
        "get_ipython": get_ipython,
    }


def get_ipython() -> Any:
    """Return IPython's shell of this rank, for cells with magics and commands."""
    return _shell().get_ipython()


def _shell() -> Any:
    """Import the module with IPython's shell, which takes a third of a second, and which scripts do not need."""
    return importlib.import_module("xpulab.engine.cells.shell")


def names(engine: Engine, expression: str) -> dict[str, str] | None:
    """Return what completes in a cell after an expression and a dot, or the variables; see `shell.names`."""
    return _shell().names({**_given(engine), **engine.namespace}, expression)


def explained(engine: Engine, name: str, detail: int) -> dict[str, str] | None:
    """Return what Shift-Tab shows of a name in a cell; see `shell.explained`."""
    engine.namespace.update({given: value for given, value in _given(engine).items() if given not in engine.namespace})
    return _shell().explained(name, detail)


def _execute(source: str, name: str, namespace: dict[str, object]) -> Any:
    """Run the statements, and return the value of the last one if it is an expression without a final semicolon."""
    # Tracebacks and inspect.getsource read this entry. Without a time it is not compared with a file.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree = ast.parse(source, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    parts = [_compiled(tree, name, "exec")]
    if last is not None:
        parts.append(_compiled(last, name, "eval"))
    if any(part.co_flags & inspect.CO_COROUTINE for part in parts):
        value = awaited(_awaiting(parts, namespace))
    else:
        value = [eval(part, namespace) for part in parts][-1]
    return None if last is None or source.rstrip().endswith(";") else value


def _compiled(tree: ast.Module | ast.Expression, name: str, mode: str) -> CodeType:
    """Compile a part of a cell, without the `__future__` statements of this module."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code: CodeType = compile(tree, name, mode, flags, dont_inherit=True)
    return code


async def _awaiting(parts: list[CodeType], namespace: dict[str, object]) -> Any:
    """Run the parts of a cell that awaits something, and return the value of the last one."""
    value = None
    for part in parts:
        value = eval(part, namespace)
        if part.co_flags & inspect.CO_COROUTINE:
            value = await value
    return value


def _display(*things: object, **options: Any) -> Any:
    """Show things with the output of the cell, as IPython's `display` does."""
    if options or not things:
        return _shell().display(*things, **options)
    for thing in things:
        if not _drew(thing):
            _shell().display(thing)
    return None


def _drew(thing: object) -> bool:
    """Show a figure of matplotlib; return False if it is something else."""
    module = sys.modules.get("matplotlib.figure")
    if module is None or not isinstance(thing, module.Figure):
        return False
    _figures().draw(thing)
    return True


def _figures() -> Any:
    """Import the module that draws figures. It needs matplotlib, which a cell has imported by then."""
    return importlib.import_module("xpulab.engine.cells.figures")


class _Pickler(classes.Pickler):
    """Pickle arrays on the device as NumPy arrays, because the notebook has neither dpnp nor dpctl, nor MPI."""

    def reducer_override(self, thing: object) -> Any:
        if isinstance(thing, MPI.Comm):
            raise TypeError("a communicator connects the ranks: the notebook has no use for it")
        for name, array in _DEVICE_ARRAYS.items():
            module = sys.modules.get(name)
            if module is not None and isinstance(thing, getattr(module, array)):
                return module.asnumpy(thing).__reduce_ex__(5)
        return super().reducer_override(thing)


class _Traveller(classes.Pickler):
    """Pickle arrays on the device so that they become arrays on the device of another rank."""

    def reducer_override(self, thing: object) -> Any:
        for name, array in _DEVICE_ARRAYS.items():
            module = sys.modules.get(name)
            if module is not None and isinstance(thing, getattr(module, array)):
                return _on_device, (name, module.asnumpy(thing))
        return super().reducer_override(thing)


def _on_device(module: str, array: npt.NDArray[Any]) -> Any:
    return importlib.import_module(module).asarray(array)


_NOTHING = ModuleType("__main__")


def _message(thing: object, protocol: int = 5) -> bytes:
    """Return the bytes of an object that mpi4py sends."""
    engine, main = this_engine(), sys.modules["__main__"]
    if engine is not None and main is engine.main:
        sys.modules["__main__"] = _NOTHING  # the receiver may lack what a cell on this rank has defined
    try:
        message = pickle.dumps(thing, protocol)
    except Exception:  # such as a function of a cell, or an array on the device
        file = io.BytesIO()
        _Traveller(file, protocol=protocol).dump(thing)
        message = file.getvalue()
    finally:
        sys.modules["__main__"] = main
    pickled("dumps", len(message))
    return message


def _thing(message: bytes | memoryview) -> Any:
    """Return the object that mpi4py has received."""
    pickled("loads", len(message))
    return pickle.loads(message)


def _name_classes() -> None:
    """Give the classes of the present cell, or of those before, the keys that they have on each rank of it."""
    if (engine := this_engine()) is not None:
        task = engine.task
        while task is not None and task.outer is not None:
            task = task.outer
        classes.name_all(engine.namespace, f"{engine.communicators.token} {0 if task is None else task.number}")


classes.found_by(_name_classes)
MPI.pickle.__init__(_message, _thing)  # type: ignore[misc]


def _lent(task: Task, name: str) -> Pickled:
    """Return a variable for the notebook: its large arrays are copied into shared memory, for the notebook's arrays."""
    if name not in task.engine.namespace:
        raise NameError(f"there is no variable {name!r} on this rank")
    buffers: list[pickle.PickleBuffer] = []
    value = for_notebook(task.engine.namespace[name], buffers.append)
    shared = shared_or_sent(buffers, lambda raw: task.arrays_for_client([raw]))
    return {"pickle": value, "buffers": shared}


def for_notebook(thing: object, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Pickle an object for the notebook."""
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffer_callback).dump(thing)
    return file.getvalue()


@task("push")
def push(task: Task, things: dict[str, HandleRows | SharedRows | Pickled], ranks: list[int]) -> dict[str, object]:
    """Make variables for cells.

    Parameters
    ----------
    things : dict of str to HandleRows, SharedRows or Pickled
        Name -> rows of which each rank gets its own, or an object.
    ranks : list of int
        Those who get them.
    """
    if task.comm.rank in ranks:
        made = {name: _made(task, thing, ranks.index(task.comm.rank)) for name, thing in things.items()}
        task.engine.namespace.update(made)
    return {}


@task("pull")
def pull(task: Task, name: str, ranks: list[int]) -> dict[str, Pickled]:
    """Return a variable of cells, see `_lent`."""
    return {"value": _lent(task, name)} if task.comm.rank in ranks else {}


def _made(task: Task, thing: HandleRows | SharedRows | Pickled, number: int) -> Any:
    """Return an object that the notebook sent; `number` is this rank's place among the ranks that get the object."""
    if isinstance(thing, HandleRows):
        rows = rows_of(task, thing)
        if isinstance(rows, SparseRows):
            return HostMatrix(rows).as_given.copy()
        whole = np.empty((rows.n_samples, rows.n_features), rows.dtype)
        for first, last in pieces(rows.n_samples, rows.n_features * rows.dtype.itemsize):
            whole[first:last] = kernels_for(rows).consecutive(rows, first, last)
        return whole.reshape(-1, *thing.shape[1:])
    if isinstance(thing, SharedRows):
        first, last = thing.bounds[number : number + 2]
        with SharedBlock.open(thing.paths[number], writable=True) as block:
            return block.array((last - first, *thing.shape[1:]), thing.dtype)  # which has it to itself
    buffers = [bytearray(b) if isinstance(b, bytes) else b.open().copy() for b in thing["buffers"]]
    return pickle.loads(thing["pickle"], buffers=buffers)
