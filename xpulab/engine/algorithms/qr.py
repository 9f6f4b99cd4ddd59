"""The triangle R of a QR decomposition of all rows. Unlike the Gram matrix, it does not square the condition number.

Each rank decomposes its rows a chunk at a time with Householder reflections, on the host and in float64. The triangles
of the ranks are stacked in the order of the ranks, and decomposed again [1]_. With a column of ones before the other
columns, the triangle without its first row and column is that of the centred columns, so that one pass is enough.

References
----------
.. [1] J. Demmel, L. Grigori, M. Hoemmen, J. Langou, "Communication-optimal parallel and sequential QR and LU
   factorizations", SIAM Journal on Scientific Computing 34 (2012), A206-A239.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.centring import less_mean
from xpulab.engine.algorithms.passes import Products, may_be_precise, products, rough_mean
from xpulab.engine.dataset import Data, data_of
from xpulab.engine.engine import Task, task
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.rows import Rows

__all__ = ["Triangle", "centred_triangle", "local_triangle", "products_of", "triangle_of", "triangular"]

_NEAR = 4.0  # roundings of a mean, within which a shift is as good as the mean
_CHUNK = 1024  # rows that are decomposed at once; with up to 100 columns they fit into a core's L2 cache


@dataclass(frozen=True)
class Triangle:
    """The triangle of the centred columns and targets of all rows; all arrays are float64.

    Attributes
    ----------
    r : numpy.ndarray of shape (min(n_samples, n_features + n_targets), n_features + n_targets)
        Upper triangular, or trapezoidal if there are fewer rows than columns. ``r.T @ r`` has the weighted sums of
        products of the columns; the targets are the last columns.
    weight : float
        Sum of the weights; without weights, the number of rows.
    mean : numpy.ndarray of shape (n_features,)
        Weighted means of the columns; zeros if they were not centred.
    target_mean : numpy.ndarray of shape (n_targets,)
        Weighted means of the targets; zeros if they were not centred.
    """

    r: np.ndarray
    weight: float
    mean: np.ndarray
    target_mean: np.ndarray


def triangular(
    task: Task,
    rows: Rows,
    shift: np.ndarray | None = None,
    targets: Rows | None = None,
    target_shift: np.ndarray | None = None,
) -> np.ndarray:
    """Return the triangle R of a QR decomposition of all rows and targets, times the square roots of their weights.

    Parameters
    ----------
    task : Task
    rows : Rows
        This rank's rows, with weights if there are any.
    shift : numpy.ndarray of shape (n_features,) or None
        Subtracted from the rows in float64.
    targets : Rows or None
        Targets of the same rows.
    target_shift : numpy.ndarray of shape (n_targets,) or None
        Subtracted from the targets in float64.

    Returns
    -------
    numpy.ndarray of float64 of shape (min(n_samples, n_features + n_targets), n_features + n_targets)
        The same on all ranks. Its diagonal is not negative.
    """
    sides = _sides(rows, shift, targets, target_shift)
    return _of_all(task, rows, sides, ones=False)


def centred_triangle(task: Task, rows: Rows, targets: Rows | None = None) -> Triangle:
    """Return the triangle of all rows and targets minus their weighted means.

    One pass is enough, unless a rough mean is so far from the mean that the difference loses half of the digits.
    """
    shift = rough_mean(task, rows).astype(np.float64)
    target_shift = np.empty(0) if targets is None else rough_mean(task, targets).astype(np.float64)
    found = _about(task, rows, shift, targets, target_shift)
    away = np.abs(np.concatenate([found.mean - shift, found.target_mean - target_shift]))
    size = np.abs(np.concatenate([found.mean, found.target_mean]))
    eps, spread = np.finfo(np.float64).eps, np.abs(found.r).max(axis=0)
    if ((away * np.sqrt(eps * found.weight) > spread) & (away > _NEAR * eps * size)).any():
        found = _about(task, rows, found.mean, targets, found.target_mean)
    return found


def _about(task: Task, rows: Rows, shift: np.ndarray, targets: Rows | None, target_shift: np.ndarray) -> Triangle:
    """Return the triangle of all rows and targets minus their means, of which the shifts are near."""
    r = _of_all(task, rows, _sides(rows, shift, targets, target_shift), ones=True)
    return _less_mean(r, _weight(task, rows), shift, target_shift)


def triangle_of(task: Task, data: Data, centre: bool) -> Triangle:
    """Return the triangle of all rows and targets, minus their weighted means with `centre`."""
    if centre:
        return centred_triangle(task, data.rows, data.targets)
    n_targets = 0 if data.targets is None else data.targets.n_features
    r = triangular(task, data.rows, targets=data.targets)
    return Triangle(r, _weight(task, data.rows), np.zeros(data.n_features), np.zeros(n_targets))


def products_of(found: Triangle) -> Products:
    """Return the products of the columns and targets of a triangle; not finite if float64 has no room for them."""
    with np.errstate(over="ignore", invalid="ignore"):  # then they are not finite
        sums, n = found.r.T @ found.r, len(found.mean)
    return Products(found.weight, found.mean, sums[:n, :n], found.target_mean, sums[:n, n:], sums[n:, n:])


def local_triangle(task: Task, rows: Rows, start: int, stop: int, shift: np.ndarray) -> np.ndarray:
    """Return the triangle of some rows of this rank minus a shift, with a column of ones before the other columns.

    Parameters
    ----------
    task : Task
    rows : Rows
    start, stop : int
        The rows, by their index on this rank.
    shift : numpy.ndarray of shape (n_features,)

    Returns
    -------
    numpy.ndarray of float64 of shape (min(stop - start, 1 + n_features), 1 + n_features)
    """
    return _of_rank(task, rows, [(rows, shift)], True, start, stop)


def _sides(
    rows: Rows, shift: np.ndarray | None, targets: Rows | None, target_shift: np.ndarray | None
) -> list[tuple[Rows, np.ndarray]]:
    """Return the rows, with or without targets, and the means that are subtracted from them."""
    pairs = [(rows, shift), *([] if targets is None else [(targets, target_shift)])]
    return [(side, np.zeros(side.n_features) if middle is None else middle) for side, middle in pairs]


def _less_mean(r: np.ndarray, weight: float, shift: np.ndarray, target_shift: np.ndarray) -> Triangle:
    """Return the triangle without its column of ones."""
    centred, mean = less_mean(r, np.concatenate([shift, target_shift]))
    if len(centred) < centred.shape[1]:  # without the row of the mean, too few rows are left
        centred = np.concatenate([centred, np.zeros((1, centred.shape[1]))])
    return Triangle(centred, weight, mean[: len(shift)], mean[len(shift) :])


def _weight(task: Task, rows: Rows) -> float:
    mine = float(rows.n_samples)
    if rows.sample_weight is not None:
        mine = float(rows.host_weights().sum())
    return float(task.comm.allreduce(np.array([mine]))[0])


def _of_all(task: Task, rows: Rows, sides: list[tuple[Rows, np.ndarray]], ones: bool) -> np.ndarray:
    """Return the triangle of all ranks' rows."""
    task.check()
    mine = _of_rank(task, rows, sides, ones, 0, rows.n_samples)
    columns = mine.shape[1]
    counts = task.comm.allgather_arrays(np.array([rows.n_samples, len(mine)], np.int64))
    n_samples, most = int(counts[:, 0].sum()), max(int(counts[:, 1].max()), 1)
    padded = np.zeros((most, columns))  # rows of zeros change nothing in a square triangle
    padded[: len(mine)] = mine
    every = task.comm.allgather_arrays(padded.ravel()).reshape(-1, most, columns)
    r: np.ndarray
    if n_samples < columns:
        few = [one[:count] for one, count in zip(every, counts[:, 1], strict=True)]
        r = np.asarray(np.linalg.qr(np.concatenate(few), mode="r"))
    else:
        r = np.zeros((columns, columns), order="F")
        for one in every:
            r = _merged(r, np.asfortranarray(one))
    signs = np.where(np.diagonal(r) < 0, -1.0, 1.0)
    return np.triu(r) * signs[:, None]


def _of_rank(
    task: Task, rows: Rows, sides: list[tuple[Rows, np.ndarray]], ones: bool, start: int, stop: int
) -> np.ndarray:
    """Return the triangle of this rank's rows from `start` to `stop`, or the rows themselves if they are few."""
    columns = ones + sum(side.n_features for side, _ in sides)
    if stop - start <= columns:
        return np.concatenate([np.empty((0, columns)), *(c.T for c in _chunks(rows, sides, ones, start, stop))])
    r = np.zeros((columns, columns), order="F")
    for chunk in _chunks(rows, sides, ones, start, stop):
        task.leave_if_cancelled()
        r = _merged(r, chunk.T)
    return np.triu(r)


def _chunks(
    rows: Rows, sides: list[tuple[Rows, np.ndarray]], ones: bool, start: int, stop: int
) -> Iterator[np.ndarray]:
    """Yield the rows times the square roots of their weights, a part of m rows at a time, as float64 (columns, m)."""
    columns = ones + sum(side.n_features for side, _ in sides)
    device = rows.device
    for first in range(start // BLOCK * BLOCK, stop, _CHUNK):
        last = min(first + _CHUNK, stop)
        blocks, skipped = -(-(last - first) // BLOCK), max(start - first, 0)
        chunk = np.empty((columns, last - first - skipped))
        if ones:
            chunk[0] = 1.0
        at = int(ones)
        for side, shift in sides:
            d = side.n_features
            found = device.fetch(side.data, first * d, (first + blocks * BLOCK) * d, copied=False)
            by_column = found.reshape(blocks, d, BLOCK).swapaxes(0, 1).reshape(d, -1)
            np.subtract(by_column[:, skipped : last - first], shift[:, None], out=chunk[at : at + d], dtype=np.float64)
            at += d
        if rows.sample_weight is not None:
            chunk *= np.sqrt(device.fetch(rows.sample_weight, first + skipped, last), dtype=np.float64)
        yield chunk


def _merged(r: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Return the triangle of a square triangle and more rows, both in Fortran order. It overwrites both."""
    from scipy.linalg.lapack import dtpqrt  # the first import takes half a second

    columns = len(r)
    if not len(more):
        return r
    # On one core of a Xeon: 8, 14, 20 and 25 GFLOP/s with 20, 50, 300 and 1000 columns; numpy.linalg.qr has 2 to 10.
    panel = min(columns, 4 if columns < 32 else 8 if columns < 128 else 24)
    merged, *_, failed = dtpqrt(0, panel, r, more, overwrite_a=1, overwrite_b=1)
    if failed:
        raise ValueError(f"LAPACK's tpqrt refused argument {-failed}")
    return merged


@task("shifted_triangle")
def _shifted_triangle(
    task: Task,
    source: dict[str, Any],
    weights: dict[str, Any] | None,
    targets: dict[str, Any],
    shift: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return the triangle of a column of ones, the columns and the targets, minus a shift; from rank 0.

    Parameters
    ----------
    shift : numpy.ndarray of shape (n_features + n_targets,) or None
        If None, values near the means of these rows.
    """
    data = data_of(task, source, weights, targets)
    assert data.targets is not None
    n = data.rows.n_features
    if shift is None:
        shift = np.concatenate([rough_mean(task, data.rows), rough_mean(task, data.targets)]).astype(np.float64)
    sides = _sides(data.rows, shift[:n], data.targets, shift[n:])
    r = _of_all(task, data.rows, sides, ones=True)
    return {"rows": data.rows.n_samples, **({"r": r, "shift": shift} if task.comm.rank == 0 else {})}


@task("triangular")
def _triangular(
    task: Task,
    source: dict[str, Any],
    weights: dict[str, Any] | None,
    targets: dict[str, Any] | None = None,
    centre: bool = True,
    or_gram: bool = False,
) -> dict[str, Any]:
    """Return the `Triangle` of the columns and targets, from rank 0.

    With `or_gram`, without targets and with centring, the result may be `Products`, which are five times as fast. They
    are summed in float64, so that the singular values of float32 rows are as exact as those from a triangle in float32.
    """
    data = Data(task, source, weights, targets)
    if or_gram and data.n_samples >= data.n_features and may_be_precise(task, data.dtype):
        sums = products(task, data, True, precise=True)
        return {"rows": data.n_own, **(vars(sums) if task.comm.rank == 0 else {})}
    found = triangle_of(task, data, centre)
    return {"rows": data.rows.n_samples, **(vars(found) if task.comm.rank == 0 else {})}


@task("products")
def _products(
    task: Task,
    source: dict[str, Any],
    weights: dict[str, Any] | None,
    centre: bool,
    targets: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the `Products` of the columns, from rank 0; also the triangle ``r``, if they come from one.

    They do if the products leave the range of the rows' dtype.
    """
    data = Data(task, source, weights, targets)
    found, own = products(task, data, centre), {}
    if found.lost:
        triangle = triangle_of(task, data, centre)
        found, own = products_of(triangle), {"r": triangle.r}
    return {"rows": data.n_own, **({"products": vars(found), **own} if task.comm.rank == 0 else {})}


@task("batch_triangles")
def _batch_triangles(
    task: Task, source: dict[str, Any], weights: None, batches: list[tuple[int, int]]
) -> dict[str, Any]:
    """Return, for each batch, the triangle of a column of ones and this rank's rows in the batch, minus a shift.

    A batch is given by its first and last row in the whole data set. The shift is the same on all ranks.
    """
    data = data_of(task, source)
    shift = rough_mean(task, data.rows).astype(np.float64)
    begin, end = data.bounds[task.comm.rank : task.comm.rank + 2]
    parts = []
    for number, (start, stop) in enumerate(batches):
        first, last = max(start, begin), min(stop, end)
        if first < last:
            task.leave_if_cancelled()
            parts.append((number, local_triangle(task, data.rows, first - begin, last - begin, shift)))
    return {"rows": data.rows.n_samples, "shift": shift, "parts": parts}
