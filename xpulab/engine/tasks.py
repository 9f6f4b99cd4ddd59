"""What the notebook can ask of the ranks: one short function a task, found by its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np

from xpulab.checkpoint import Checkpoint
from xpulab.engine import cell, explore, kmeans
from xpulab.engine.engine import Engine, Task, task, users_code
from xpulab.engine.sources import held_open, kind_of, pieces, rows_of, weights_of, write_block
from xpulab.kernels import dense
from xpulab.kernels.choice import AnyRows, kernels_for
from xpulab.kernels.launch import build_together
from xpulab.kernels.rows import Rows

__all__ = ["cell"]


def _warm_up(engine: Engine) -> None:
    """Have the device's driver finish kernels that a first fit needs."""
    block = np.zeros((2, 2), np.float32)
    rows = Rows.upload(engine.device, block)
    labels = dense.new_labels(engine.device, 2)
    dense.lloyd_step(rows, np.zeros(2, np.float32), block, labels)


@task("describe")
def _describe(task: Task) -> dict[str, Any]:
    """Who and where this rank is; whoever asks is about to begin."""
    task.engine.when_idle(_warm_up)
    return task.engine.describe()


@task("release")
def _release(task: Task, handles: list[str]) -> dict[str, Any]:
    """Free the rows of handles that have died in the notebook, and what explorers keep of them.

    The memory of rows may be a block of the notebook that sent them, which fills it anew as soon as they are free.
    """
    held = task.engine.handles
    views = [name for name, kept in held.items() if isinstance(kept, explore.Held) and kept.handle in handles]
    for handle in [*handles, *views]:
        held.pop(handle, None)
        task.engine.abouts.pop(handle, None)
    return {}


@task("handles")
def _handles(task: Task) -> dict[str, Any]:
    """The rows that all clients may use."""
    return {"handles": [{**about, "id": handle} for handle, about in task.engine.abouts.items()]}


@task("last")
def _last(task: Task) -> dict[str, Any]:
    """The latest call that has ended, whoever made it."""
    return {"last": task.engine.last}


@task("scatter")
def _scatter(task: Task, source: dict[str, Any], handle: str, about: dict[str, Any]) -> dict[str, Any]:
    rows = rows_of(task, source)
    engine = task.engine
    namesakes = [] if about["name"] is None else [h for h, a in engine.abouts.items() if a["name"] == about["name"]]
    _release(task, namesakes)
    engine.handles[handle], engine.abouts[handle] = rows, about
    return {"shared": isinstance(rows, Rows) and rows.shared}


@task("gather")
def _gather(task: Task, handle: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
    rows = rows_of(task, handle)
    take, row_bytes = kernels_for(rows).take, rows.n_features * rows.dtype.itemsize
    parts = (take(rows, np.arange(*piece)) for piece in pieces(rows.n_samples, row_bytes))
    write_block(task, target, handle["bounds"], parts)
    return {}


@task("KMeans.fit")
def _kmeans_fit(
    task: Task,
    source: dict[str, Any],
    weights: dict[str, Any] | None,
    target: dict[str, Any],
    random: Any,
    checkpoint: str,
    **parameters: Any,
) -> dict[str, Any]:
    kernels, dtype, n_features = kind_of(task, source)
    first = kernels.first_kernels(
        task.device, dtype, n_features, parameters["n_clusters"], parameters["init"] == "k-means++", weights is not None
    )
    build_together(task.device, first, task.comm.rank)
    bounds = source["bounds"]
    sample_weight = weights_of(task, weights, bounds)
    rows = rows_of(task, source, sample_weight)
    problem = kmeans.Problem(task, rows, bounds, sample_weight)
    generator = np.random.RandomState()
    generator.set_state(random)
    # Held from here on: the notebook may end before the fit does.
    with Checkpoint.open(checkpoint) as kept, held_open(target) as target:
        try:
            keep = kept.write if task.comm.rank == 0 else lambda state: None
            best = kmeans.fit(problem, random=generator, keep=keep, **parameters)
        except kmeans.Interrupted as interrupted:
            interrupted.result["history"] = problem.history
            raise
        used = np.zeros(len(best.centers), np.int64)
        for labels in _parts(rows, best.labels):
            used[labels] = 1
        write_block(task, target, bounds, _parts(rows, best.labels))
    return {
        "centers": best.centers + problem.shift,
        "inertia": best.inertia,
        "n_iter": best.n_iter,
        "distinct": int(np.count_nonzero(task.comm.allreduce(used))),
        "history": problem.history,
        "run": best.run,
        "ending": best.ending,
        "random": generator.get_state(),
        "rows": rows.n_samples,
        "tile": task.show_tile(rows, len(best.centers)),
        "tuning": problem.tuning,
    }


def _parts(rows: AnyRows, labels: Any) -> Iterator[np.ndarray]:
    """The labels, some at a time."""
    return (kernels_for(rows).labels_to_host(labels, last, first) for first, last in pieces(rows.n_samples, 4))


@task("KMeans.predict")
def _kmeans_predict(
    task: Task,
    source: dict[str, Any],
    weights: dict[str, Any] | None,
    target: dict[str, Any] | None,
    centers: np.ndarray,
) -> dict[str, Any]:
    """Labels if there is somewhere to put them, else the inertia."""
    rows = rows_of(task, source, weights_of(task, weights, source["bounds"]))
    shift = np.zeros(rows.n_features, rows.dtype)
    kernels = kernels_for(rows)
    tile = task.show_tile(rows, len(centers))
    labels = kernels.new_labels(task.device, rows.n_samples)
    kernels.assign(rows, shift, centers, labels, again=False)
    if target is not None:
        write_block(task, target, source["bounds"], _parts(rows, labels))
        return {"rows": rows.n_samples, "tile": tile}
    inertia = kernels.inertia(rows, shift, centers, labels)
    return {"inertia": float(task.comm.allreduce(np.array([inertia]))[0]), "rows": rows.n_samples, "tile": tile}


@task("KMeans.transform")
def _kmeans_transform(
    task: Task, source: dict[str, Any], weights: None, target: dict[str, Any], centers: np.ndarray
) -> dict[str, Any]:
    rows = rows_of(task, source)
    write_block(task, target, source["bounds"], kernels_for(rows).transform(rows, centers))
    return {"rows": rows.n_samples}


@task("explore.facts")
def _explore_facts(task: Task, source: dict[str, Any]) -> dict[str, Any]:
    return explore.facts(task, source)


@task("explore.update")
def _explore_update(
    task: Task,
    explorer: str,
    source: dict[str, Any],
    points: int,
    begin: dict[str, Any] | None,
    tol: float | None,
    view: dict[str, Any],
    target: dict[str, Any],
) -> dict[str, Any]:
    """New centres if there is a `begin`, an iteration if there is a `tol`, and the picture."""
    held = explore.held_for(task, explorer, source, points)
    result: dict[str, Any] = {"converged": False}
    if begin is not None:
        result["inertia"] = explore.begin(held, **begin)
    if tol is not None:
        result["inertia"], result["converged"] = explore.step(held, tol)
    counts = explore.picture(held, view)
    write_block(task, target, [0, *[target["shape"][0]] * task.comm.size], [counts])
    return {**result, "centers": held.centers + held.problem.shift}


@task("explore.fit")
def _explore_fit(
    task: Task, explorer: str, source: dict[str, Any], points: int, parameters: dict[str, Any]
) -> dict[str, Any]:
    held = explore.held_for(task, explorer, source, points)
    return {"inertia": explore.whole_fit(held, **parameters)}


@task("run")
def _run(task: Task, call: bytes) -> dict[str, Any]:
    """A function of the user's."""
    with users_code():
        function, arguments, keywords = cloudpickle.loads(call)
        value = function(task, *arguments, **keywords)
        try:
            return {"value": cloudpickle.dumps(value)}
        except Exception as error:
            raise TypeError(f"what the function returned cannot be brought back: {error}") from error
