"""The rows of an index that are nearest to queries, or within a limit, as if all were compared in float64.

Scores as products are fast to compute, and rounded. A few more candidates than are asked for are taken, and compared
with the query again, in float64 and by their differences. Then follows a look whether any row that is no candidate may
be as near: that depends on the least score that it can have, and on how far rounding can have moved it. The few
queries for which one may be are searched again by differences, whose rounding is small; for the few of these that leave
a doubt, all rows that may be as near are compared in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xpulab.kernels.neighbors import Index, Kind, nearest, rounding_of, within

__all__ = ["Metric", "nearest_of", "queries_at_a_time", "within_of"]

_MARGIN = 4  # candidates more than neighbours, at least; a quarter of the neighbours where that is more
_FEW_FEATURES = 16  # with fewer, products save no time
_WORK = 2e10  # products of a launch, about: a request to stop is seen between two launches
_MOST_QUERIES = 8192  # of a launch
_SOME_QUERIES = 288  # of a launch at least; of whole multiples of it, CPUs compute no more than they have
_AS_NEAR = 1 << 25  # queries times rows, at most, of which all that are as near as the neighbours are listed at a time

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
        """Return p, if distance**p is compared."""
        return {"euclidean": 2.0, "minkowski": self.p}.get(self.name, 1.0)

    def compare(self, index: Index, queries: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the queries with some of the rows, in float64."""
        found = index.compare(queries, places, self.kind, self.p)
        return np.where(places < 0, np.inf, np.clip(1 + found, 0, 2)) if self.name == "cosine" else found


def nearest_of(
    index: Index, queries: np.ndarray, k: int, metric: Metric, hasty: bool
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the k nearest of a rank's rows to each query, by what is compared, and then by their place.

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
    """Return the k nearest by scores as differences; by all rows that may be as near, where the candidates may not do.

    Those of "cosine" are products, and they do not look whether their candidates do.
    """
    scores, places = nearest(index, given, room, metric.kind, metric.p)
    compared, ranked = _ranked(index, queries, places, k, metric)
    if index.n_samples:
        # Scores above the range of the dtype are not listed, and those below it are all 0. float64 may hold them.
        limits, worst, farthest = np.finfo(index.dtype), scores[:, -1], compared[:, min(k, room) - 1]
        below = (worst < index.n_features * limits.tiny / limits.eps) & (farthest > 0)
        alone = below | (places[:, -1] < 0)
        for i in np.flatnonzero(alone):
            every = np.arange(index.n_samples)[None]
            compared[i], ranked[i] = (each[0] for each in _ranked(index, queries[i : i + 1], every, k, metric))
        if room < index.n_samples and metric.name != "cosine":
            near = ~alone & (farthest > 0) & (worst <= _highest(index, queries, given, farthest, metric))
            if near.any() and index.of_integers:  # with which scores up to 1 / eps are exact
                near &= (worst >= 1 / limits.eps) | (given != np.rint(given)).any(axis=1) | (metric.kind == "powers")
            step = max(1, _AS_NEAR // index.n_samples)
            unsure = np.flatnonzero(near)
            for some in (unsure[at : at + step] for at in range(0, len(unsure), step)):
                compared[some], ranked[some] = _of_as_near(index, queries[some], compared[some, k - 1], k, metric)
    return compared, ranked


def _of_as_near(
    index: Index, queries: np.ndarray, limits: np.ndarray, k: int, metric: Metric
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k nearest of the rows that are no farther from each query than its limit: at least k."""
    counts, compared, places = within_of(index, queries, limits, metric)
    order = np.lexsort((places, compared, np.repeat(np.arange(len(counts)), counts)))
    first = order[(np.cumsum(counts) - counts)[:, None] + np.arange(k)]
    return compared[first], places[first]


def _highest(index: Index, queries: np.ndarray, given: np.ndarray, limits: np.ndarray, metric: Metric) -> np.ndarray:
    """Return the highest scores of rows that are no farther from each query than its limit.

    Scores are rounded, and they are those for the given queries, which may be rounded, too.
    """
    unit = 8 * (index.n_features + 16) * float(np.finfo(index.dtype).eps)
    if metric.name == "cosine":
        most, rough = limits - 1, 1.0
    else:
        order = np.inf if metric.name == "chebyshev" else metric.power
        moved, root = np.linalg.norm(queries - given, order, axis=1), max(1.0, metric.power)
        most = np.where(moved > 0, (limits ** (1 / root) + moved ** (metric.power / root)) ** root, limits)
        rough = 0.0
    found: np.ndarray = most + unit * (abs(most) + rough)
    return found


def _ranked(
    index: Index, queries: np.ndarray, places: np.ndarray, k: int, metric: Metric
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k nearest among the candidates."""
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
    index: Index, queries: np.ndarray, limit: float | np.ndarray, metric: Metric
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a rank's rows that are no farther than a limit from each query, in their order.

    Parameters
    ----------
    index : Index
    queries : numpy.ndarray of float64 of shape (m, n_features)
    limit : float or numpy.ndarray of shape (m,)
        Of what is compared.
    metric : Metric

    Returns
    -------
    counts : numpy.ndarray of int64 of shape (m,)
    compared : numpy.ndarray of float64 of shape (counts.sum(),)
    places : numpy.ndarray of int64 of shape (counts.sum(),)
    """
    given = queries.astype(index.dtype)
    limits = np.broadcast_to(limit, len(queries))
    # Rows that are a little farther are listed, and then looked at in float64.
    most = _highest(index, queries, given, limits, metric).astype(index.dtype)
    found = within(index, given, most, metric.kind, metric.p)
    counts, compared, places = np.zeros(len(queries), np.int64), [], []
    for i, some in enumerate(found):
        exact = metric.compare(index, queries[i : i + 1], some[None])[0]
        chosen = exact <= limits[i]
        counts[i] = np.count_nonzero(chosen)
        compared.append(exact[chosen])
        places.append(some[chosen])
    return counts, np.concatenate(compared), np.concatenate(places)


def queries_at_a_time(n_samples: int, n_features: int) -> int:
    """Return how many queries to compare with so many rows at a time."""
    most = int(min(_MOST_QUERIES, _WORK / max(1, n_samples * n_features)))
    return max(1, most // _SOME_QUERIES) * _SOME_QUERIES
