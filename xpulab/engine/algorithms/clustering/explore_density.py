"""The explorer's DBSCAN on the ranks: clusters of the chosen rows for one `eps`, and a picture of their rows."""

from __future__ import annotations

import numpy as np

from xpulab.engine.algorithms.clustering.density import by_row
from xpulab.engine.algorithms.clustering.explore import Held, held_for, picture, selected
from xpulab.engine.dataset import write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.explorer.counting import LARGEST, View
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.on_cpu.trees import Near
from xpulab.kernels.rows import Rows
from xpulab.sharing.answers import ExploredDensity
from xpulab.sharing.sources import HandleRows, Target

__all__ = ["kinds_of"]


def kinds_of(labelled: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return how each row is drawn, as `xpulab.explorer.picture.DensityPicture` counts the rows.

    Parameters
    ----------
    labelled : numpy.ndarray of int64 of shape (n, 2)
        The cluster of each row, -1 for noise, and whether it is a core.
    ranks : numpy.ndarray of int64 of shape (n_clusters,)
        Of the clusters by size: 0 for the largest.

    Returns
    -------
    numpy.ndarray of int32 of shape (n,)
    """
    labels, core = labelled.T
    kinds = np.append(np.minimum(ranks, LARGEST), 0)[labels] + np.where(core, 0, LARGEST + 1)
    return np.where(labels < 0, 2 * (LARGEST + 1), kinds).astype(np.int32)


def _label(task: Task, held: Held, eps: float, min_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Cluster the chosen rows, and return the sizes of the clusters and the numbers of cores, borders and noise."""
    rows, comm = held.problem.rows, held.problem.comm
    assert isinstance(rows, Rows)
    labelled = by_row(task, rows, held.problem.bounds, None, Near("euclidean", 2.0, eps**2), min_samples)
    labels, core = labelled.T
    n_clusters = int(comm.allreduce(np.array([labels.max(initial=-1) + 1]), np.maximum)[0])
    sizes = comm.allreduce(np.bincount(labels[labels >= 0], minlength=n_clusters))
    kinds = comm.allreduce(np.array([(core == 1).sum(), ((core == 0) & (labels >= 0)).sum(), (labels < 0).sum()]))
    ranks = np.empty(n_clusters, np.int64)
    ranks[np.argsort(-sizes, kind="stable")] = np.arange(n_clusters)
    drawn = np.full(rows.n_blocks * BLOCK, -1, np.int32)
    drawn[: rows.n_samples] = kinds_of(labelled, ranks)
    if rows.n_samples:
        rows.device.store(drawn, held.labels.current)
    held.clusters, held.centers = labels.copy(), np.empty((2 * (LARGEST + 1) + 1, rows.n_features))
    return sizes, kinds


@task("explore.density")
def _explore_density(
    task: Task,
    explorer: str,
    source: HandleRows,
    points: int,
    eps: float | None,
    min_samples: int,
    view: View,
    target: Target,
) -> ExploredDensity:
    """Cluster the chosen rows if `eps` is given, and count the picture."""
    held = held_for(task, explorer, source, points)
    found = (None, None) if eps is None else _label(task, held, eps, min_samples)
    write_block(task, target, [0, *[target.shape[0]] * task.comm.size], [picture(held, view)])
    return {"sizes": found[0], "kinds": found[1], "selected": selected(held)}
