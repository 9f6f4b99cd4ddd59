"""Nearest neighbours over the ranks: each searches its own rows for all queries, and then merges all findings for its
share of the queries.

Scores as products are fast to compute, and rounded. Each rank takes a few more candidates than are asked for, compares
them with the query again, in float64 and by their differences, and then looks whether any row that is no candidate may
be as near: that depends on the least score that it can have, and on how far rounding can have moved it. The few
queries for which one may be are searched again by differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.engine.algorithms.clustering.ranges import ordinary, unit_of
from xpulab.engine.dataset import array_of, data_of, write_block
from xpulab.engine.engine import Task, task
from xpulab.exceptions import HandleError
from xpulab.kernels.neighbors import Index, Kind, nearest, normalised, rounding_of, within

__all__ = ["Metric", "nearest_of", "within_of"]

_MARGIN = 4  # candidates more than neighbours, at least; a quarter of the neighbours where that is more
_FEW_FEATURES = 16  # with fewer, products save no time
_WORK = 2e10  # products of a launch, about: a request to stop is seen between two launches
_MOST_QUERIES = 8192  # of a launch

_KINDS: dict[str, Kind] = {
    "euclidean": "squares",
    "cosine": "product",
    "manhattan": "absolute",
    "chebyshev": "largest",
    "minkowski": "powers",
}


@dataclass(frozen=True)
class Metric:
    """What is compared: one of the names in `_KINDS`, and the power of "minkowski".

    The numbers that are compared, and returned, grow with the distance: its square, its p-th power, itself.
    """

    name: str
    p: float

    @property
    def kind(self) -> Kind:
        """Return the scores that are exact."""
        return _KINDS[self.name]

    @property
    def power(self) -> float:
        """Of the distance, that gives what is compared."""
        return {"euclidean": 2.0, "minkowski": self.p}.get(self.name, 1.0)

    def compare(self, index: Index, queries: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the queries with some of the rows, in float64."""
        found = index.compare(queries, places, self.kind, self.p)
        return np.where(places < 0, np.inf, np.clip(1 + found, 0, 2)) if self.name == "cosine" else found


def nearest_of(
    index: Index, queries: np.ndarray, k: int, metric: Metric, hasty: bool
) -> tuple[np.ndarray, np.ndarray, bool]:
    """The k nearest of a rank's rows to each query, by what is compared, and then by their place.

    Parameters
    ----------
    index : Index
    queries : numpy.ndarray of float64 of shape (m, n_features)
    k : int
    metric : Metric
    hasty : bool
        Whether to try products first, where they do.

    Returns
    -------
    compared : numpy.ndarray of float64 of shape (m, k)
        Infinity where there are no more rows.
    places : numpy.ndarray of int64 of shape (m, k)
        -1 where there are no more rows.
    hasty : bool
        Whether products were enough for most queries.
    """
    room = min(k + max(_MARGIN, k // 4), max(index.n_samples, 1))
    given = queries.astype(index.dtype)
    if not hasty or metric.name != "euclidean" or index.n_features < _FEW_FEATURES:
        return *_searched(index, queries, given, room, k, metric), hasty
    scores, places = nearest(index, given, room, "product")
    compared, places = _ranked(index, queries, places, k, metric)
    worst = scores[:, -1].astype(np.float64)
    every = np.isfinite(worst) & (room >= index.n_samples)  # all rows are candidates
    unsure = np.flatnonzero(~(every | _certain(index, queries, worst, compared[:, min(k, room) - 1])))
    if len(unsure):
        compared[unsure], places[unsure] = _searched(index, queries[unsure], given[unsure], room, k, metric)
    return compared, places, len(unsure) <= len(queries) // 2


def _searched(
    index: Index, queries: np.ndarray, given: np.ndarray, room: int, k: int, metric: Metric
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest by exact scores."""
    scores, places = nearest(index, given, room, metric.kind, metric.p)
    compared, ranked = _ranked(index, queries, places, k, metric)
    if index.n_samples:
        # Scores above the range of the dtype are not listed, and those below it are all 0. float64 may hold them.
        limits = np.finfo(index.dtype)
        below = (scores[:, -1] < index.n_features * limits.tiny / limits.eps) & (compared[:, min(k, room) - 1] > 0)
        for i in np.flatnonzero(below | (places[:, -1] < 0)):
            every = np.arange(index.n_samples)[None]
            compared[i], ranked[i] = (each[0] for each in _ranked(index, queries[i : i + 1], every, k, metric))
    return compared, ranked


def _ranked(
    index: Index, queries: np.ndarray, places: np.ndarray, k: int, metric: Metric
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest among the candidates."""
    if places.shape[1] < k:  # there are no more rows
        places = np.pad(places, ((0, 0), (0, k - places.shape[1])), constant_values=-1)
    compared = metric.compare(index, queries, np.ascontiguousarray(places))
    order = np.lexsort((np.where(places < 0, index.n_samples, places), compared), axis=1)[:, :k]
    return np.take_along_axis(compared, order, 1), np.take_along_axis(places, order, 1)


def _certain(index: Index, queries: np.ndarray, worst: np.ndarray, farthest: np.ndarray) -> np.ndarray:
    """Return whether all rows that are no candidates are farther from a query than its neighbours are.

    Parameters
    ----------
    index : Index
    queries : numpy.ndarray of float64 of shape (m, n_features)
    worst : numpy.ndarray of shape (m,)
        The largest score, as a product, of a candidate.
    farthest : numpy.ndarray of shape (m,)
        The largest squared distance of a neighbour.
    """
    norm = np.sqrt(np.einsum("ij,ij->i", queries, queries))
    other = np.minimum(index.largest, norm + np.sqrt(farthest))  # a row that is as near has a norm of at most this
    with np.errstate(over="ignore", invalid="ignore"):
        least = 2 * (worst - rounding_of(index, norm, other)) + norm * norm
        exact = 4 * (index.n_features + 4) * float(np.finfo(np.float64).eps) * (farthest + norm * norm)
        certain: np.ndarray = least > farthest + exact
    return certain & np.isfinite(worst)


def within_of(
    index: Index, queries: np.ndarray, limit: float, metric: Metric
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A rank's rows that are no farther than a limit from each query, in their order.

    Parameters
    ----------
    index : Index
    queries : numpy.ndarray of float64 of shape (m, n_features)
    limit : float
        Of what is compared.
    metric : Metric

    Returns
    -------
    counts : numpy.ndarray of int64 of shape (m,)
    compared : numpy.ndarray of float64 of shape (counts.sum(),)
    places : numpy.ndarray of int64 of shape (counts.sum(),)
    """
    given = queries.astype(index.dtype)
    # Scores and queries are rounded: rows that are a little farther are listed, and then looked at in float64.
    unit = 8 * (index.n_features + 16) * float(np.finfo(index.dtype).eps)
    most, rough = (limit - 1, 1.0) if metric.name == "cosine" else (limit, 0.0)
    if given.dtype != queries.dtype and metric.name != "cosine":
        slack = float(np.abs(queries).max()) * unit
        most = (limit ** (1 / metric.power) + index.n_features * slack) ** metric.power
    most = most + unit * (abs(most) + rough)
    found = within(index, given, np.full(len(given), most).astype(index.dtype), metric.kind, metric.p)
    counts, compared, places = np.zeros(len(queries), np.int64), [], []
    for i, some in enumerate(found):
        exact = metric.compare(index, queries[i : i + 1], some[None])[0]
        chosen = exact <= limit
        counts[i] = np.count_nonzero(chosen)
        compared.append(exact[chosen])
        places.append(some[chosen])
    return counts, np.concatenate(compared), np.concatenate(places)


def _index_of(task: Task, index: str, metric: Metric, rows: dict[str, Any] | None) -> Index:
    """Return the index that is kept here, made of rows that come with the task if there are any."""
    if rows is not None:
        data = data_of(task, rows["source"])
        task.show(doing="computing the index")
        made = Index.of(data.rows, directions=metric.name == "cosine")
        largest = float(task.comm.allreduce(np.array([made.largest]), np.maximum)[0])
        if not ordinary(largest, data.dtype, metric.power):
            unit = unit_of(task, data.rows, power=metric.power)
            made = made if unit == 1 else Index.of(data.rows, unit=unit)
        task.engine.handles[index] = made
    kept = task.engine.handles.get(index)
    if kept is None:
        raise HandleError("the rows of this estimator are gone from the engines; type: fit(X) again")
    assert isinstance(kept, Index)
    return kept


def _pieces(task: Task, index: Index, place: dict[str, Any], n_samples: int, metric: Metric) -> Iterator[Any]:
    """Some queries at a time, in float64, after a look for a request to stop; the same ones on all ranks."""
    step = int(max(256, min(_MOST_QUERIES, _WORK / max(1, n_samples * index.n_features))))
    whole = array_of(place)
    for first in range(0, len(whole), step):
        task.check()
        some = whole[first : first + step]
        if metric.name == "cosine":
            some = normalised(some)
        some = np.ascontiguousarray(some, np.float64)
        yield first, some if index.unit == 1 else some / index.unit


@task("neighbors.index")
def _make_index(task: Task, index: str, metric: tuple[str, float], rows: dict[str, Any]) -> dict[str, Any]:
    """Keep this rank's rows so that they can be searched."""
    return {"rows": _index_of(task, index, Metric(*metric), rows).n_samples}


@task("neighbors.nearest")
def _nearest(
    task: Task,
    index: str,
    metric: tuple[str, float],
    bounds: list[int],
    queries: dict[str, Any],
    shares: list[int],
    k: int,
    own: bool,
    compared: dict[str, Any],
    places: dict[str, Any],
    rows: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The k nearest of all rows to each query, into arrays of shape (n_queries, k), where distances are in `unit`s.

    Each rank merges what all have found for its share of the queries: those from shares[rank] up to shares[rank + 1].
    With `own`, the queries are the rows themselves, and none is its own neighbour.
    """
    how = Metric(*metric)
    mine = _index_of(task, index, how, rows)
    rank, hasty = task.comm.rank, True
    task.show(rows=mine.n_samples, doing="searching")
    each = k + own
    found = np.empty((queries["shape"][0], 2, each))
    for first, some in _pieces(task, mine, queries, bounds[-1], how):
        near, there, hasty = nearest_of(mine, some, each, how, hasty)
        found[first : first + len(some), 0] = near
        found[first : first + len(some), 1] = np.where(there < 0, there, there + bounds[rank]).view(np.float64)
    came = task.comm.exchange_rows(found.reshape(len(found), -1), np.diff(shares))
    of_ranks = came.reshape(task.comm.size, -1, 2, each)
    merged = _merged(of_ranks[:, :, 0], np.ascontiguousarray(of_ranks[:, :, 1]).view(np.int64))
    if own:
        merged = _others(*merged, np.arange(shares[rank], shares[rank + 1]))
    for target, part in zip((compared, places), merged, strict=True):
        write_block(task, target, shares, [np.ascontiguousarray(part)])
    return {"rows": mine.n_samples, "unit": mine.unit}


def _merged(compared: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merge what the ranks found, arrays of shape (size, n_queries, k), by what is compared and then by place."""
    if len(places) == 1:
        return compared[0], places[0]
    k = places.shape[2]
    beside = [np.concatenate(list(each), axis=1) for each in (compared, places)]
    # Stable: the rows of a rank come before those of the next.
    order = np.argsort(beside[0], axis=1, kind="stable")[:, :k]
    return np.take_along_axis(beside[0], order, 1), np.take_along_axis(beside[1], order, 1)


def _others(compared: np.ndarray, places: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Without each row itself, or without the first where as many rows are equal to it."""
    n, k = places.shape
    other = places != own[:, None]
    other[other.all(axis=1), 0] = False
    return compared[other].reshape(n, k - 1), places[other].reshape(n, k - 1)


@task("neighbors.within")
def _within(
    task: Task,
    index: str,
    metric: tuple[str, float],
    bounds: list[int],
    queries: dict[str, Any],
    radius: float,
    power: float,
    rows: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """This rank's rows that are no farther than a radius from each query: their number, how far, and which.

    What is compared is the distance, in units of the rows, to a power.
    """
    how = Metric(*metric)
    mine = _index_of(task, index, how, rows)
    with np.errstate(over="ignore"):  # then every row is near
        limit = float((radius / np.float64(mine.unit) ** (how.power / power)) ** power)
    task.show(rows=mine.n_samples, doing="searching")
    parts = [within_of(mine, some, limit, how) for _, some in _pieces(task, mine, queries, bounds[-1], how)]
    counts, compared, places = (np.concatenate(each) for each in zip(*parts, strict=True))
    places += bounds[task.comm.rank]
    return {"rows": mine.n_samples, "counts": counts, "compared": compared, "places": places, "unit": mine.unit}
