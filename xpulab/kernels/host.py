"""What the host computes between two launches, compiled: with few rows fifty calls of NumPy outlast a kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from xpulab.kernels.cache import claimed

__all__ = [
    "add_columns",
    "add_partial_sums",
    "count_positive",
    "finish",
    "inertia_of_sums",
    "move_centers",
    "pack_centers",
    "prepare",
    "widen_moved",
]

_kept = True  # whether other processes find the machine code
_ready: set[np.dtype[Any]] = set()  # for which everything is compiled


def prepare(dtype: np.dtype[Any], waiting: Callable[[], None]) -> None:
    """Compile what iterations on rows of this dtype need, or read it where another process has.

    Parameters
    ----------
    dtype : numpy.dtype
    waiting : callable
        Called between two functions, which take half a second each; what it raises ends the call.
    """
    if dtype in _ready:
        return
    centers, sums, totals, ones = np.ones((1, 1), dtype), np.ones((1, 1)), np.ones((1, 2)), np.ones(1)
    with claimed(f"host-{dtype}", waiting) if _kept else contextlib.nullcontext():
        for call in (
            lambda: pack_centers(centers[0], centers, ones, 1, False, np.empty(7, dtype)),
            lambda: widen_moved(sums, centers, ones),
            lambda: add_partial_sums(np.ones(3, dtype), 1, 1, sums),
            lambda: move_centers(totals, centers, centers.copy()),
            lambda: finish(1.0, totals, centers, centers.copy()),
        ):
            waiting()
            call()
    _ready.add(dtype)


def _compiled(function: Callable[..., Any]) -> Any:
    global _kept
    try:
        return numba.njit(function, cache=True, nogil=True, error_model="numpy")
    except RuntimeError:  # there is no folder to keep the machine code in
        _kept = False
        return numba.njit(function, nogil=True, error_model="numpy")


@_compiled
def pack_centers(
    shift: npt.NDArray[Any],
    centers: npt.NDArray[Any],
    moved: npt.NDArray[np.float64],
    tile: int,
    anew: bool,
    packed: npt.NDArray[Any],
) -> None:
    """The centres as `find_nearest`'s kernel reads them.

    Parameters
    ----------
    shift : numpy.ndarray of shape (n_features,)
    centers : numpy.ndarray of shape (n_clusters, n_features)
    moved : numpy.ndarray of float64 of shape (n_clusters,)
    tile : int
        Centres whose distances are computed together.
    anew : bool
        Whether sums begin with all rows.
    packed : numpy.ndarray of the dtype of the rows
        Filled: the shift; the squared norms; -2 times the centres, `tile` by `tile`, feature by feature; `moved`; twice
        the largest squared norm; what rounding `moved` is off by; `anew`. What fills up the last tile is infinitely
        far.
    """
    k, d = centers.shape
    n_tiles = -(-k // tile)
    grouped = d + n_tiles * tile
    largest = np.float64(0)
    for f in range(d):
        packed[f] = shift[f]
    for j in range(n_tiles * tile):
        first = grouped + (j // tile) * d * tile + j % tile
        if j < k:
            norm = np.float64(0)
            for f in range(d):
                c = np.float64(centers[j, f])
                norm += c * c
                packed[first + f * tile] = -2 * centers[j, f]
            packed[d + j] = norm
            largest = norm if norm > largest or np.isnan(norm) else largest
        else:
            packed[d + j] = np.inf
            for f in range(d):
                packed[first + f * tile] = 0
    last = grouped + n_tiles * tile * d
    farthest = np.float64(0)
    for j in range(k):
        packed[last + j] = moved[j]
        farthest = moved[j] if moved[j] > farthest or np.isnan(moved[j]) else farthest
    packed[last + k] = 2 * largest
    packed[last + k + 1] = 4 * np.finfo(packed.dtype).eps * farthest
    packed[last + k + 2] = anew


@_compiled
def widen_moved(before: npt.NDArray[Any], centers: npt.NDArray[Any], moved: npt.NDArray[np.float64]) -> None:
    """Add to `moved`, of each centre, its own step and the longest of the others; `before` becomes `centers`."""
    k, d = centers.shape
    steps = np.empty(k)
    longest: Any = 0.0
    next_longest: Any = 0.0
    for j in range(k):
        square = np.float64(0)
        for f in range(d):
            step = np.float64(centers[j, f]) - np.float64(before[j, f])
            square += step * step
            before[j, f] = centers[j, f]
        steps[j] = np.sqrt(square)
        if not steps[j] <= longest:
            longest, next_longest = steps[j], longest
        elif not steps[j] <= next_longest:
            next_longest = steps[j]
    seen = False
    for j in range(k):
        alone = steps[j] == longest and not seen
        seen = seen or alone
        moved[j] += (steps[j] + (next_longest if alone else longest)) * (1 + 1e-9)


@_compiled
def add_partial_sums(partial: npt.NDArray[Any], workers: int, width: int, sums: npt.NDArray[np.float64]) -> np.float64:
    """Add what the workers of lloyd.py's kernel have: for each its sums and roundings (k, 2, width), then all changes.

    Parameters
    ----------
    partial : numpy.ndarray of the dtype of the rows, of shape (workers * k * 2 * width + workers,)
    sums : numpy.ndarray of float64 of shape (k, n_features + 1)
        Changed in place.

    Returns
    -------
    float
        Number of changes.
    """
    k, columns = sums.shape
    for worker in range(workers):
        for j in range(k):
            first = (worker * k + j) * 2 * width
            for f in range(columns):
                # Unsigned, an index cannot count from the end, and the loop has no branch.
                here, rest = np.uint64(first + f), np.uint64(first + width + f)
                sums[j, f] += np.float64(partial[here]) + np.float64(partial[rest])
    changes = np.float64(0)
    for worker in range(workers):
        changes += partial[workers * k * 2 * width + worker]
    return changes


@_compiled
def add_columns(
    columns: npt.NDArray[np.int32],
    values: npt.NDArray[Any],
    middle: npt.NDArray[np.float64],
    squared: bool,
    totals: npt.NDArray[np.float64],
) -> None:
    """Add each value to the total of its column, or if `squared` what it adds to the sum of ``(x - middle)**2``."""
    for i in range(len(columns)):
        column = columns[i]
        value = np.float64(values[i])
        totals[column] += (value - 2 * middle[column]) * value if squared else value


@_compiled
def count_positive(labels: npt.NDArray[np.int32], weights: npt.NDArray[Any], n_clusters: int) -> npt.NDArray[np.int64]:
    """How many rows of positive weight each cluster has."""
    counts = np.zeros(n_clusters, np.int64)
    for i in range(len(labels)):
        if weights[i] > 0:
            counts[labels[i]] += 1
    return counts


@_compiled
def inertia_of_sums(squares: float, totals: npt.NDArray[np.float64], centers: npt.NDArray[Any]) -> np.float64:
    """Inertia from what an iteration has anyway: ``|x - c|**2 = |x|**2 - 2 x.c + |c|**2``, summed by cluster.

    Parameters
    ----------
    squares : float
        Weighted sum of the rows' squared norms.
    totals : numpy.ndarray of float64 of shape (n_clusters, n_features + 1)
        Of the rows of each cluster the sums, and the weight.
    centers : numpy.ndarray of shape (n_clusters, n_features)
    """
    k, d = centers.shape
    inertia = np.float64(squares)
    for j in range(k):
        cross = norm = np.float64(0)
        for f in range(d):
            c = np.float64(centers[j, f])
            cross += totals[j, f] * c
            norm += c * c
        inertia += totals[j, d] * norm - 2 * cross
    return max(np.float64(0), inertia)


@_compiled
def move_centers(totals: npt.NDArray[np.float64], centers: npt.NDArray[Any], moved: npt.NDArray[Any]) -> np.float64:
    """The means of the clusters, into `moved`; the sum of their squared distances to `centers` is returned.

    `totals` are those of `inertia_of_sums`.

    As scikit-learn, quirk included: a cluster that is empty takes what stands at the heaviest one when its turn comes,
    which is still a sum where that one comes later. It matters for data with too few distinct rows.
    """
    k, d = centers.shape
    heaviest = np.argmax(totals[:, d])
    shift = np.float64(0)
    for j in range(k):
        source = j if totals[j, d] > 0 else heaviest
        ready = source <= j and totals[source, d] > 0
        divisor = totals[source, d] if ready else 1.0
        for f in range(d):
            moved[j, f] = totals[source, f] / divisor
            step = np.float64(moved[j, f]) - np.float64(centers[j, f])
            shift += step * step
    return shift


@_compiled
def finish(
    squares: float, totals: npt.NDArray[np.float64], centers: npt.NDArray[Any], moved: npt.NDArray[Any]
) -> tuple[np.float64, np.float64]:
    """How an iteration ends: `inertia_of_sums`, and `move_centers` if no cluster is empty, else -1."""
    inertia = inertia_of_sums(squares, totals, centers)
    for j in range(len(centers)):
        if totals[j, -1] == 0:
            return inertia, np.float64(-1)
    return inertia, move_centers(totals, centers, moved)
