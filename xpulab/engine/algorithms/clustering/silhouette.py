"""Silhouettes of labelled rows: each rank compares its rows with the rows of all ranks, which send theirs in turn.

Only the sums of the distances from a row to the rows of each cluster are kept, in float64, for some rows at a time. A
silhouette is a ratio of distances [1]_, so the rows may be multiplied by any number: a power of 2 keeps them exact, and
their squares in the range of their dtype.

References
----------
.. [1] P. J. Rousseeuw, "Silhouettes: a graphical aid to the interpretation and validation of cluster analysis", Journal
   of Computational and Applied Mathematics 20 (1987), 53-65.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xpulab.engine.algorithms.labels import chosen_among, codes_of
from xpulab.engine.dataset import Data, data_of, pieces, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.distance_sums import Kind, Queries
from xpulab.kernels.neighbors import normalised
from xpulab.kernels.row_passes import take
from xpulab.sharing.answers import Total
from xpulab.sharing.sources import SharedArray, Source, Target

__all__ = ["Labelled", "silhouettes"]

_PIECE, _PIECE_BYTES = 8192, 32 << 20  # rows that a rank sends at a time
_SUMS = 4 << 20  # sums of distances that a rank computes at a time
_WORK = 2e10  # differences of a launch, about: a request to stop is seen between two launches
_KINDS: dict[str, Kind] = {
    "euclidean": "euclidean",
    "cosine": "squares",  # of rows divided by their norms, whose squared distance is twice that of the cosine
    "sqeuclidean": "squares",
    "manhattan": "absolute",
    "chebyshev": "largest",
    "minkowski": "powers",
}


class Labelled:
    """A rank's rows in the order of their clusters.

    Parameters
    ----------
    task : Task
    data : Data
    codes : numpy.ndarray of int64 of shape (n_own,)
        The number of each row's cluster; -1 for rows that are not used.
    k : int
        Number of clusters.
    metric : str
        A name in `_KINDS`.

    Attributes
    ----------
    places : numpy.ndarray of int64 of shape (n_used,)
        The rows that are used, by their cluster.
    codes : numpy.ndarray of int64 of shape (n_used,)
        Their clusters.
    counts : numpy.ndarray of int64 of shape (size, k)
        Number of rows of each rank and cluster.
    width : int
        Number of columns of the rows that are compared.
    """

    def __init__(self, task: Task, data: Data, codes: np.ndarray, k: int, metric: str) -> None:
        self._rows, self._directions = data.rows, metric == "cosine"
        order = np.argsort(codes, kind="stable")
        self.places = order[codes[order] >= 0]
        self.codes = codes[self.places]
        self.counts = task.comm.allgather_arrays(np.bincount(self.codes, minlength=k).astype(np.int64))
        self.width = data.n_features + self._directions
        self._exponent = 0 if self._directions else self._to_scale(task)

    def _to_scale(self, task: Task) -> int:
        """Return by which power of 2 to multiply the rows, so that their squares neither overflow nor underflow."""
        most = 0.0
        for first, last in pieces(len(self.places), self.width * self._rows.dtype.itemsize):
            most = max(most, float(np.abs(take(self._rows, self.places[first:last])).max()))
        most = float(task.comm.allreduce(np.array([most]), np.maximum)[0])
        reach = np.finfo(self._rows.dtype).maxexp // 2 - 14 - self.width.bit_length() // 2
        return int(reach - np.frexp(most)[1]) if most else 0

    def some(self, first: int, last: int) -> np.ndarray:
        """Return some of the rows, in this order, as they are compared.

        For the cosine, a last column has 1 for rows of zeros, and 0 for other rows. A row of zeros then has the cosine
        0, and so the distance 1, to every other row, and the distance 0 to rows of zeros.
        """
        rows = take(self._rows, self.places[first:last])
        if not self._directions:
            return np.ldexp(rows, self._exponent)
        rows = normalised(rows)
        return np.hstack([rows, ~rows.any(axis=1, keepdims=True)]).astype(rows.dtype)


def _passing(task: Task, mine: Labelled) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the rows of all ranks on all ranks, a part at a time; with the clusters there, and the number of each."""
    step = max(1, min(_PIECE, _PIECE_BYTES // (mine.width * mine._rows.dtype.itemsize)))
    for root, counts in enumerate(mine.counts):
        codes = np.repeat(np.arange(len(counts)), counts)
        for first in range(0, len(codes), step):
            last = min(first + step, len(codes))
            shape = last - first, mine.width
            own = root == task.comm.rank
            rows = mine.some(first, last) if own else np.empty(shape, mine._rows.dtype)
            yield task.comm.bcast_array(rows, root), *np.unique(codes[first:last], return_counts=True)


def silhouettes(task: Task, mine: Labelled, metric: str, p: float) -> np.ndarray:
    """Compute the silhouette of each row of this rank, in the order of `mine`: float64 of shape (n_used,).

    A row that is alone in its cluster has the silhouette 0.
    """
    k, sizes = mine.counts.shape[1], mine.counts.sum(axis=0)
    most = int(mine.counts.sum(axis=1).max())  # the same number of steps on all ranks
    step = int(max(64, min(_SUMS // k, _WORK / (_PIECE * mine.width))))
    found = np.empty(len(mine.codes))
    for first in range(0, most, step):
        codes = mine.codes[first : first + step]
        given = mine.some(first, first + len(codes)) if len(codes) else None
        queries = None if given is None else Queries(task.device, given, _KINDS[metric], p)
        sums = np.zeros((k, len(codes)))
        for rows, there, counts in _passing(task, mine):
            task.check()
            if queries is not None and given is not None:
                sums[there] += queries.sums(rows, counts)
                if metric == "cosine":
                    sums[there] += _between_zeros(rows, counts, given)
        found[first : first + step] = _of_sums(sums, codes, sizes, given if metric == "cosine" else None)
    return found


def _between_zeros(rows: np.ndarray, counts: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Return what to add to the sums for rows of zeros, which have the cosine 0 with each other, too."""
    zeros = np.add.reduceat(rows[:, -1].astype(np.float64), np.cumsum(counts) - counts)
    return 2 * np.outer(zeros, queries[:, -1])


def _of_sums(sums: np.ndarray, codes: np.ndarray, sizes: np.ndarray, directions: np.ndarray | None) -> np.ndarray:
    """Return silhouettes from the sums of distances to the rows of each cluster, an array (k, m)."""
    own = codes, np.arange(len(codes))
    with np.errstate(divide="ignore", invalid="ignore"):
        within = sums[own]
        if directions is not None:  # no row is apart from itself
            within -= 2 * directions[:, -1]
        within /= sizes[codes] - 1
        sums[own] = np.inf
        between = (sums / sizes[:, None]).min(axis=0, initial=np.inf)
        return np.nan_to_num((between - within) / np.maximum(within, between))


@task("metrics.silhouette")
def _silhouette(
    task: Task,
    source: Source,
    weights: None,
    targets: Source,
    n_clusters: int,
    metric: tuple[str, float],
    target: Target | None = None,
    classes: np.ndarray | None = None,
    chosen: SharedArray | None = None,
) -> Total:
    """Write the silhouette of each row into an array (n_samples,) of the notebook, or return their sum.

    The targets are the numbers of the clusters, -1 for rows that are not used; or labels of these classes, of which
    those of the chosen rows are used.
    """
    data = data_of(task, source, None, targets)
    assert data.targets is not None
    codes = codes_of(data.targets, classes).astype(np.int64)
    if chosen is not None:
        codes[~chosen_among(data.n_own, chosen.open(), data.bounds[task.comm.rank])] = -1
    mine = Labelled(task, data, codes, n_clusters, metric[0])
    task.show(doing="comparing rows")
    found = silhouettes(task, mine, *metric)
    if target is not None:
        values = np.empty(data.n_own)
        values[mine.places] = found
        write_block(task, target, data.bounds, [values])
    total = task.comm.allreduce(np.array([found.sum()]))[0]
    return {"rows": data.n_own, "total": float(total)}
