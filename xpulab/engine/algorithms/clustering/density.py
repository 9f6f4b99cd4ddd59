"""DBSCAN over the ranks: each has the rows of a region, and those of other regions that may be near to one of its own.

The steps are those of PDSDBSCAN [1]_: neighbours are counted, near cores are joined in sets by each rank for its own
rows, sets of several ranks are joined by the pairs that cross the border of a region, and rows at the edge of clusters
take a label. The regions come from a sample, so that they have about as many rows each. A row of another region is
needed only where it is near to the box of this region's rows: the memory of a rank is linear in the rows.

References
----------
.. [1] M. M. A. Patwary, D. Palsetia, A. Agrawal, W. Liao, F. Manne and A. Choudhary, "A new scalable parallel DBSCAN
   algorithm using the disjoint-set data structure", SC 2012.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.engine.dataset import PassedRows, data_of, on_host, weights_of, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.neighbors import normalised
from xpulab.kernels.on_cpu.trees import (
    BEYOND,
    Near,
    Tree,
    count_near,
    joined,
    least_listed,
    least_near,
    link_near,
    roots_of,
)
from xpulab.kernels.row_passes import take
from xpulab.kernels.rows import Rows
from xpulab.sharing.sources import SharedArray, Source, Target

__all__ = ["by_row", "clustered"]

_SAMPLE = 1024  # rows of a rank of which regions are made
_MOST_LISTED = 33  # `min_samples` with which neighbours are listed


@dataclass(frozen=True, eq=False)
class _Region:
    """The rows of a rank's region, and the rows of other regions that may be near to one of them.

    Attributes
    ----------
    own, halo : Tree
    index : numpy.ndarray of int64 of shape (len(own),)
        Of the rows among those of all ranks.
    weights, halo_weights : numpy.ndarray of float64
    sent : numpy.ndarray of int64
        Places of the region's rows that other ranks have in their halos.
    counts : numpy.ndarray of int64 of shape (size,)
        How many of them each rank has.
    """

    task: Task
    own: Tree
    halo: Tree
    index: np.ndarray
    weights: np.ndarray
    halo_weights: np.ndarray
    sent: np.ndarray
    counts: np.ndarray

    def of_halo(self, values: np.ndarray) -> np.ndarray:
        """Return the values of the halo's rows, from the ranks that have these in their regions."""
        return self.task.comm.exchange_rows(values[self.sent, None], self.counts)[self.halo.order, 0]


def _owners(task: Task, rows: np.ndarray) -> np.ndarray:
    """Return the rank of each row's region; the regions are halves of halves of a sample's rows."""
    every = np.concatenate(task.comm.allgather(rows[:: max(1, len(rows) // _SAMPLE)]))
    owners = np.zeros(len(rows), np.int64)

    def cut(sample: np.ndarray, places: np.ndarray, first: int, last: int) -> None:
        if last - first == 1 or not len(sample):
            owners[places] = first
            return
        middle = (first + last) // 2
        widest = int(np.argmax(sample.std(axis=0)))
        value = np.quantile(sample[:, widest], (middle - first) / (last - first))
        for below, part in ((True, (first, middle)), (False, (middle, last))):
            cut(
                sample[(sample[:, widest] <= value) == below],
                places[(rows[places, widest] <= value) == below],
                *part,
            )

    with np.errstate(over="ignore", invalid="ignore"):
        cut(every, np.arange(len(rows)), 0, task.comm.size)
    return owners


def _apart(rows: np.ndarray, box: np.ndarray, near: Near) -> np.ndarray:
    """Return whether rows are too far from a box, with room for the rounding of sums in another order."""
    with np.errstate(over="ignore", invalid="ignore"):
        gaps = np.maximum(np.maximum(box[0] - rows, rows - box[1]), 0)
        if near.name == "chebyshev":
            apart = gaps.max(axis=1)
        else:
            powers = {"manhattan": 1.0, "minkowski": near.power}
            apart = (gaps ** powers.get(near.name, 2.0)).sum(axis=1)
        far: np.ndarray = apart > near.reach * (1 + 1e-9)
    return far


def _divided(task: Task, rows: np.ndarray, first: int, weights: np.ndarray | None, near: Near) -> _Region:
    """Return the region of this rank, from the rows of all ranks; those of this one begin with number `first`."""
    comm, n, d = task.comm, *rows.shape
    owners = _owners(task, rows)
    order = np.argsort(owners, kind="stable")
    # Numbers of rows are exact in float64.
    beside = np.column_stack([rows, first + np.arange(n), np.ones(n) if weights is None else weights])
    del rows
    came = comm.exchange_rows(beside[order], np.bincount(owners, minlength=comm.size))
    del beside
    own = Tree.of(np.ascontiguousarray(came[:, :d]))
    came = came[own.order]
    boxes = comm.allgather_arrays(own.boxes[1].ravel()).reshape(comm.size, 2, d)
    parts = [
        np.flatnonzero(~_apart(came[:, :d], box, near)) if rank != comm.rank else np.empty(0, np.int64)
        for rank, box in enumerate(boxes)
    ]
    sent, counts = np.concatenate(parts), np.array([len(part) for part in parts])
    others = comm.exchange_rows(came[sent], counts)
    halo = Tree.of(np.ascontiguousarray(others[:, :d]), own.middle)
    weighed = np.ascontiguousarray(others[halo.order, d + 1])
    return _Region(
        task, own, halo, came[:, d].astype(np.int64), np.ascontiguousarray(came[:, d + 1]), weighed, sent, counts
    )


def _everywhere(task: Task, rows: np.ndarray) -> np.ndarray:
    """Return the rows of all ranks, on all of them."""
    size = task.comm.size
    return task.comm.exchange_rows(np.tile(rows, (size, 1)), np.full(size, len(rows)))


def clustered(
    task: Task,
    rows: np.ndarray,
    first: int,
    weights: np.ndarray | None,
    near: Near,
    min_samples: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cluster the rows of all ranks by density.

    Parameters
    ----------
    task : Task
    rows : numpy.ndarray of float64 of shape (n, n_features)
        This rank's.
    first : int
        Number of this rank's first row among those of all ranks.
    weights : numpy.ndarray of float64 of shape (n,), optional
    near : Near
    min_samples : int

    Returns
    -------
    index, labels, cores : numpy.ndarray of int64
        Of the rows of this rank's region: which they are, their clusters (-1 for noise), and whether they are cores.
    """
    task.show(doing="sorting the rows")
    region = _divided(task, rows, first, weights, near)
    own, halo, n = region.own, region.halo, len(region.own)
    task.check()

    totals = np.zeros(n)
    if near.name == "cosine" and near.limit < 1:
        # A row of zeros is 1 apart from all rows, but its own neighbour. Infinity fills up the leaves.
        totals[(own.leaves == 0).all(axis=1)[np.isfinite(own.leaves[:, 0])]] = 1
        totals *= region.weights
    # A row that has enough neighbours keeps them, unless a weight is negative.
    growing = all(task.comm.allgather(weights is None or bool((weights >= 0).all())))
    enough = float(min_samples) if growing else np.inf
    # A row with fewer than enough neighbours is compared with all of them: few rows are listed for the last step.
    lists = np.empty((n, min_samples - 1 if weights is None and min_samples <= _MOST_LISTED else 0), np.int32)
    listed, groups = True, own.n_leaves * (1 + (len(halo) > 0))
    for tree, some, offset in ((own, region.weights, 0), (halo, region.halo_weights, n)):
        listed &= count_near(
            own, tree, near, None if weights is None else some, enough, totals,
            _counting(task, own.n_leaves * (offset > 0), groups), lists, offset,
        )  # fmt: skip
    core = totals >= min_samples
    task.check()

    task.show(doing="linking cores")
    labels = _sets(task, region, near, core)
    task.check()

    task.show(doing="labelling the edges of clusters")
    labels[~core] = BEYOND
    best, cores, halo_labels = labels.copy(), np.where(core, 0, -1), region.of_halo(labels)
    if listed and lists.size:
        best[~core] = least_listed(lists[~core], totals[~core].astype(np.int64), np.append(labels, halo_labels))
    else:
        for tree, some in ((own, labels), (halo, halo_labels)):
            least_near(own, tree, near, some, cores, best, lambda done: task.leave_if_cancelled())
    best[best == BEYOND] = -1
    return region.index, best, core


def _counting(task: Task, before: int, groups: int) -> Callable[[int], None]:
    """Return what looks whether to leave a pass, and shows how many groups of both are done, of which some before."""

    def look(done: int) -> None:
        task.leave_if_cancelled()
        task.show(doing="counting neighbours: group", done=before + done, steps=groups)

    return look


def _sets(task: Task, region: _Region, near: Near, core: np.ndarray) -> np.ndarray:
    """Give the clusters of the cores numbers in the order of their first cores; other rows get -1."""
    own, n = region.own, len(region.own)
    roots = np.where(core, np.arange(n), -1)
    link_near(own, own, near, roots, task.leave_if_cancelled)
    roots_of(roots)
    # A set is called by its first row among those of all ranks.
    first = np.full(n, BEYOND)
    np.minimum.at(first, roots[core], region.index[core])
    names = np.where(core, first[roots], -1)

    halo_names = region.of_halo(names)
    _, leaders, places = np.unique(halo_names, return_index=True, return_inverse=True)
    both = np.concatenate([roots, np.where(halo_names < 0, -1, n + leaders[places])])
    link_near(own, region.halo, near, both, task.leave_if_cancelled)
    roots_of(both)

    # One row of each set that this rank knows names the set, and the first of the sets with which it is joined.
    every = np.concatenate([names, halo_names])
    one = np.concatenate([np.flatnonzero(core & (roots == np.arange(n))), n + leaders[halo_names[leaders] >= 0]])
    first = np.full(len(both), BEYOND)
    np.minimum.at(first, both[one], every[one])
    pairs = _everywhere(task, np.column_stack([every[one], first[both[one]]]))
    known = np.unique(pairs[:, 0])
    _, numbers = np.unique(joined(np.searchsorted(known, pairs), len(known)), return_inverse=True)
    labels = np.full(n, -1)
    labels[core] = numbers[np.searchsorted(known, names[core])]
    return labels


def by_row(
    task: Task, rows: Rows, bounds: list[int], weights: np.ndarray | None, near: Near, min_samples: int
) -> np.ndarray:
    """Return the cluster of each row of this rank, -1 for noise, and whether it is a core: (n, 2) of int64.

    Parameters
    ----------
    task : Task
    rows : Rows
        This rank's.
    bounds : list of int
        Rank r has the rows from bounds[r] up to, not including, bounds[r + 1].
    weights : numpy.ndarray of float64 of shape (n,), optional
    near : Near
    min_samples : int
    """
    first = bounds[task.comm.rank]
    values = on_host(rows, np.float64)
    if near.name == "cosine":
        values = normalised(values)
    with task.on_host():
        index, labels, core = clustered(task, values, first, weights, near, min_samples)
    owners = np.searchsorted(bounds[1:], index, side="right")
    order = np.argsort(owners, kind="stable")
    found = np.column_stack([index, labels, core])[order]
    came = task.comm.exchange_rows(found, np.bincount(owners, minlength=task.comm.size))
    labelled = np.empty((rows.n_samples, 2), np.int64)
    labelled[came[:, 0] - first] = came[:, 1:]
    return labelled


@task("density")
def _density(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    metric: tuple[str, float],
    limit: float,
    min_samples: int,
    target: Target,
    components: bool,
) -> dict[str, Any]:
    """Write the cluster of each row, and whether it is a core, into the array (n_samples, 2) of the notebook.

    With `components` this rank's cores themselves are returned, too.
    """
    data = data_of(task, source)
    mine = weights_of(task, weights, data.bounds)
    labelled = by_row(task, data.rows, data.bounds, mine, Near(*metric, limit), min_samples)
    write_block(task, target, data.bounds, [labelled])
    result = {"rows": data.rows.n_samples}
    return {**result, "components": take(data.rows, np.flatnonzero(labelled[:, 1]))} if components else result
