"""Tasks other than the algorithms that the notebook can send to the ranks; each is one short function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import cloudpickle

from xpulab.engine import algorithms
from xpulab.engine.cells import cell, names
from xpulab.engine.cells.usage import measured
from xpulab.engine.cells.users_code import Here, answer_of
from xpulab.engine.dataset import pieces, rows_of, write_block
from xpulab.engine.engine import Task, warm_up
from xpulab.engine.finite import require_all_finite
from xpulab.engine.registry import task
from xpulab.engine.torch import tasks as torch_tasks
from xpulab.kernels.kmeans.choice import kernels_for
from xpulab.kernels.kmeans.sparse import SparseRows
from xpulab.kernels.rows import Rows
from xpulab.sharing.answers import UsersResult
from xpulab.sharing.process_memory import ProcessMemory, can_read
from xpulab.sharing.sources import Handle, Source, Target

__all__ = ["algorithms", "cell", "names", "torch_tasks"]  # these modules register tasks


@task("describe")
def _describe(task: Task) -> dict[str, object]:
    """Describe this rank. If no other task follows at once, the engine then prepares kernels for the first fit."""
    task.engine.when_idle(warm_up)
    return {"engine": task.engine.describe()}


@task("reads")
def _reads(task: Task, memory: ProcessMemory, expected: bytes) -> dict[str, object]:
    """Find out whether this rank can read the memory of the process that sends rows.

    Ranks of other hosts need not. The helper rank reads it in their place, if there is one: rank 0 asks it.
    """
    if not task.engine.host.here:
        helper = task.engine.helper
        if helper is None or task.engine.rank != 0:
            return {"read": True}
        helper.ask({"memory": memory, "expected": expected})
        return {"read": helper.take_answer()}
    return {"read": can_read(memory, expected)}


@task("release")
def _release(task: Task, handles: list[str]) -> dict[str, object]:
    """Free the rows of handles that the notebook has deleted, and the states of explorers of these rows.

    The explorers' states must be freed, too, because the notebook may use the shared memory of the rows again.
    """
    held = task.engine.handles
    views = [name for name, kept in held.items() if getattr(kept, "handle", None) in handles]
    for handle in [*handles, *views]:
        held.pop(handle, None)
        task.engine.descriptions.pop(handle, None)
    return {}


@task("describe_rows")
def _describe_rows(task: Task, handle: Handle) -> dict[str, object]:
    """Note what is known of rows that are kept, such as the names of their columns."""
    task.engine.descriptions[handle.id] = handle.description
    return {}


@task("handles")
def _handles(task: Task) -> dict[str, object]:
    """List the rows that all clients may use."""
    return {"handles": [Handle(handle, rows) for handle, rows in task.engine.descriptions.items()]}


@task("last")
def _last(task: Task) -> dict[str, object]:
    """Return the last call that has ended, of any client."""
    return {"last": task.engine.last}


@task("scatter")
def _scatter(task: Task, source: Source) -> dict[str, object]:
    """Keep rows under a handle, in place of earlier rows of its name."""
    rows = rows_of(task, source)
    assert source.keep is not None
    name = source.keep.description.name
    named = [id for id, each in task.engine.descriptions.items() if each.name == name and id != source.keep.id]
    _release(task, [] if name is None else named)
    return {"shared": isinstance(rows, Rows) and rows.shared}


@task("require_finite")
def _require_finite(task: Task, source: Source, name: str, names: list[str] | None) -> dict[str, object]:
    """Raise ValueError on all ranks if rows of a handle have NaN; it names the first such row, and its column."""
    try:
        require_all_finite(task, rows_of(task, source), source.bounds, name, names=names)
    except ValueError as error:
        raise ValueError(
            f"{error} Fill in missing values with xpulab.impute.SimpleImputer, or choose rows and columns without them."
        ) from None
    return {}


def _until_stopped(task: Task, pieces: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the pieces of rows, until this rank has seen the request to stop: rows of gigabytes take seconds."""
    for piece in pieces:
        task.leave_if_cancelled()
        yield piece


@task("gather")
def _gather(task: Task, source: Source, target: Target) -> dict[str, object]:
    rows = rows_of(task, source)
    consecutive, row_bytes = kernels_for(rows).consecutive, rows.n_features * rows.dtype.itemsize
    whole = pieces(rows.n_samples, row_bytes)
    if target.number is None:  # rows for another host are read after the task
        whole = _until_stopped(task, whole)
    parts = (consecutive(rows, *piece) for piece in whole)
    write_block(task, target, source.bounds, parts, lasting=True)
    return {}


@task("gather_csr")
def _gather_csr(task: Task, source: Source, stored: list[int], targets: list[Target]) -> dict[str, object]:
    """Return sparse rows: their values, their columns, and where each row begins. `stored` has bounds of the values."""
    rows, (first, last) = rows_of(task, source), stored[task.comm.rank : task.comm.rank + 2]
    assert isinstance(rows, SparseRows)
    fetch, (data, indices, indptr) = task.device.fetch, targets
    for target, array in ((data, rows.data), (indices, rows.indices)):
        parts = (fetch(array, *piece) for piece in _until_stopped(task, pieces(last - first, target.dtype.itemsize)))
        write_block(task, target, stored, parts)
    write_block(task, indptr, source.bounds, [first + fetch(rows.indptr, 0, rows.n_samples)])
    return {}


@task("run")
def _run(task: Task, call: bytes, transcripts: list[str], profile: bool = False) -> UsersResult:
    """Call a function of the user."""

    def code() -> UsersResult:
        function, arguments, keywords = cloudpickle.loads(call)
        value = function(Here(task), *arguments, **keywords)
        try:
            return {"value": cell.for_notebook(value)}
        except Exception as error:
            raise TypeError(f"the value that the function returned cannot be sent to the notebook: {error}") from error

    with measured(profile) as found:
        answer = answer_of(task, transcripts[task.comm.rank], code)
    answer.update(found)
    cell.add_figures(answer)
    return answer
