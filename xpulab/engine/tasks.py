"""Tasks other than the algorithms that the notebook can send to the ranks; each is one short function."""

from __future__ import annotations

from typing import Any

import cloudpickle

from xpulab.engine.algorithms import register_all
from xpulab.engine.algorithms.clustering import explore
from xpulab.engine.cells import cell
from xpulab.engine.cells.usage import measured
from xpulab.engine.cells.users_code import Here, answer_of
from xpulab.engine.dataset import keep_rows, pieces, rows_of, write_block
from xpulab.engine.engine import Task, task, warm_up
from xpulab.engine.torch import tasks as torch_tasks
from xpulab.kernels.kmeans.choice import kernels_for
from xpulab.kernels.rows import Rows
from xpulab.sharing.process_memory import can_read

__all__ = ["cell", "torch_tasks"]  # these modules register tasks

register_all()


@task("describe")
def _describe(task: Task) -> dict[str, Any]:
    """Describe this rank. If no other task follows at once, the engine then prepares kernels for the first fit."""
    task.engine.when_idle(warm_up)
    return task.engine.describe()


@task("reads")
def _reads(task: Task, memory: dict[str, Any], expected: bytes) -> dict[str, Any]:
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
def _release(task: Task, handles: list[str]) -> dict[str, Any]:
    """Free the rows of handles that the notebook has deleted, and the states of explorers of these rows.

    The explorers' states must be freed, too, because the notebook may use the shared memory of the rows again.
    """
    held = task.engine.handles
    views = [name for name, kept in held.items() if isinstance(kept, explore.Held) and kept.handle in handles]
    for handle in [*handles, *views]:
        held.pop(handle, None)
        task.engine.abouts.pop(handle, None)
    return {}


@task("handles")
def _handles(task: Task) -> dict[str, Any]:
    """List the rows that all clients may use."""
    return {"handles": [{**about, "id": handle} for handle, about in task.engine.abouts.items()]}


@task("last")
def _last(task: Task) -> dict[str, Any]:
    """Return the last call that has ended, of any client."""
    return {"last": task.engine.last}


@task("scatter")
def _scatter(task: Task, source: dict[str, Any], handle: str, about: dict[str, Any]) -> dict[str, Any]:
    rows = rows_of(task, source)
    engine = task.engine
    namesakes = [] if about["name"] is None else [h for h, a in engine.abouts.items() if a["name"] == about["name"]]
    _release(task, namesakes)
    keep_rows(task, rows, {"handle": handle, "about": about})
    return {"shared": isinstance(rows, Rows) and rows.shared}


@task("gather")
def _gather(task: Task, handle: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
    rows = rows_of(task, handle)
    consecutive, row_bytes = kernels_for(rows).consecutive, rows.n_features * rows.dtype.itemsize
    parts = (consecutive(rows, *piece) for piece in pieces(rows.n_samples, row_bytes))
    write_block(task, target, handle["bounds"], parts, lasting=True)
    return {}


@task("run")
def _run(task: Task, call: bytes, transcripts: list[str], profile: bool = False) -> dict[str, Any]:
    """Call a function of the user."""

    def code() -> dict[str, Any]:
        function, arguments, keywords = cloudpickle.loads(call)
        value = function(Here(task), *arguments, **keywords)
        try:
            return {"value": cloudpickle.dumps(value)}
        except Exception as error:
            raise TypeError(f"the value that the function returned cannot be sent to the notebook: {error}") from error

    with measured(profile) as found:
        answer = answer_of(task, transcripts[task.comm.rank], code)
    return {**answer, **found}
