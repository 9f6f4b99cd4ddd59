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

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.centring import less_mean
from xpulab.engine.algorithms.passes import may_be_precise, products, rough_mean
from xpulab.engine.dataset import Data, PassedRows
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import StreamedRows, parts_of
from xpulab.sharing.answers import Batches, Products, ProductsOfColumns
from xpulab.sharing.sources import SharedArray, Source

__all__ = ["Triangle", "centred_triangle", "merged", "products_of", "triangle_of", "triangular"]

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
    rows: Rows | StreamedRows,
    shift: np.ndarray | None = None,
    targets: Rows | None = None,
    target_shift: np.ndarray | None = None,
) -> np.ndarray:
    """Return the triangle R of a QR decomposition of all rows and targets, times the square roots of their weights.

    Parameters
    ----------
    task : Task
    rows : Rows or StreamedRows
        This rank's rows, with weights if there are any. It takes one pass.
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
    return _of_all(task, _Columns(rows, shift, targets, target_shift))


def centred_triangle(task: Task, rows: Rows | StreamedRows, targets: Rows | None = None) -> Triangle:
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


def _about(
    task: Task, rows: Rows | StreamedRows, shift: np.ndarray, targets: Rows | None, target_shift: np.ndarray
) -> Triangle:
    """Return the triangle of all rows and targets minus their means, of which the shifts are near."""
    r = _of_all(task, _Columns(rows, shift, targets, target_shift, ones=True))
    return _less_mean(r, _weight(task, rows), shift, target_shift)


def triangle_of(task: Task, data: Data, centre: bool) -> Triangle:
    """Return the triangle of all rows and targets, minus their weighted means with `centre`."""
    rows = data.block
    if centre:
        found = centred_triangle(task, rows, data.targets)
    else:
        r = triangular(task, rows, targets=data.targets)
        n_targets = 0 if data.targets is None else data.targets.n_features
        found = Triangle(r, _weight(task, rows), np.zeros(data.n_features), np.zeros(n_targets))
    data.require_finite()
    return found


def products_of(found: Triangle) -> Products:
    """Return the products of the columns and targets of a triangle; not finite if float64 has no room for them."""
    with np.errstate(over="ignore", invalid="ignore"):  # then they are not finite
        sums, n = found.r.T @ found.r, len(found.mean)
    return Products(found.weight, found.mean, sums[:n, :n], found.target_mean, sums[:n, n:], sums[n:, n:])


def _less_mean(r: np.ndarray, weight: float, shift: np.ndarray, target_shift: np.ndarray) -> Triangle:
    """Return the triangle without its column of ones."""
    centred, mean = less_mean(r, np.concatenate([shift, target_shift]))
    if len(centred) < centred.shape[1]:  # without the row of the mean, too few rows are left
        centred = np.concatenate([centred, np.zeros((1, centred.shape[1]))])
    return Triangle(centred, weight, mean[: len(shift)], mean[len(shift) :])


def _weight(task: Task, rows: Rows | StreamedRows) -> float:
    mine = float(rows.n_samples)
    if rows.sample_weight is not None:
        mine = float(rows.weights_on_cpu().sum())
    return float(task.comm.allreduce(np.array([mine]))[0])


def _of_all(task: Task, columns: _Columns) -> np.ndarray:
    """Return the triangle of all ranks' rows."""
    task.check()
    own = columns.rows.n_samples
    mine = next(_triangles(task, columns, [(0, own)]), np.empty((0, columns.n)))
    counts = task.comm.allgather_arrays(np.array([own, len(mine)], np.int64))
    n_samples, most = int(counts[:, 0].sum()), max(int(counts[:, 1].max()), 1)
    padded = np.zeros((most, columns.n))  # rows of zeros change nothing in a square triangle
    padded[: len(mine)] = mine
    every = task.comm.allgather_arrays(padded.ravel()).reshape(-1, most, columns.n)
    r: np.ndarray
    if n_samples < columns.n:
        few = [one[:count] for one, count in zip(every, counts[:, 1], strict=True)]
        r = np.asarray(np.linalg.qr(np.concatenate(few), mode="r"))
    else:
        r = np.zeros((columns.n, columns.n), order="F")
        for one in every:
            r = merged(r, np.asfortranarray(one))
    signs = np.where(np.diagonal(r) < 0, -1.0, 1.0)
    return np.triu(r) * signs[:, None]


class _Columns:
    """This rank's rows, and targets beside them, minus numbers; with `ones`, after a column of ones."""

    def __init__(
        self,
        rows: Rows | StreamedRows,
        shift: np.ndarray | None,
        targets: Rows | None = None,
        target_shift: np.ndarray | None = None,
        ones: bool = False,
    ) -> None:
        self.rows, self._targets, self._ones = rows, targets, ones
        widths = rows.n_features, 0 if targets is None else targets.n_features
        given = zip((shift, target_shift), widths, strict=True)
        self._shifts = [np.zeros(width) if middle is None else middle for middle, width in given]
        self.n = ones + sum(widths)

    def chunks(self, bounds: list[tuple[int, int]]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield ranges of the rows in one pass, each a chunk of m rows at a time.

        The ranges are in ascending order. With the number of the range come its next rows, times the square roots of
        their weights, as float64 (columns, m).
        """
        for begin, part in parts_of(self.rows):
            sides = [part]
            if self._targets is not None:
                sides.append(self._targets.part(begin, part.n_samples))
            for number, (start, stop) in enumerate(bounds):
                here = max(start - begin, 0), min(stop - begin, part.n_samples)
                for chunk in self._of_part(sides, *here):
                    yield number, chunk

    def _of_part(self, sides: list[Rows], start: int, stop: int) -> Iterator[np.ndarray]:
        rows, device = sides[0], sides[0].device
        for first in range(start // BLOCK * BLOCK, stop, _CHUNK):
            last = min(first + _CHUNK, stop)
            blocks, skipped = -(-(last - first) // BLOCK), max(start - first, 0)
            chunk = np.empty((self.n, last - first - skipped))
            if self._ones:
                chunk[0] = 1.0
            at = int(self._ones)
            for side, shift in zip(sides, self._shifts, strict=False):
                d = side.n_features
                found = device.fetch(side.data, first * d, (first + blocks * BLOCK) * d, copied=False)
                by_column = found.reshape(blocks, d, BLOCK).swapaxes(0, 1).reshape(d, -1)[:, skipped : last - first]
                np.subtract(by_column, shift[:, None], out=chunk[at : at + d], dtype=np.float64)
                at += d
            if rows.sample_weight is not None:
                chunk *= np.sqrt(device.fetch(rows.sample_weight, first + skipped, last), dtype=np.float64)
            yield chunk


def _triangles(task: Task, columns: _Columns, bounds: list[tuple[int, int]]) -> Iterator[np.ndarray]:
    """Yield the triangle of each range of this rank's rows, or the rows themselves if they are few.

    The ranges are in ascending order, and none is empty, unless there is only one.
    """
    chunks = columns.chunks(bounds)
    for number, of_range in itertools.groupby(chunks, key=lambda chunk: chunk[0]):
        start, stop = bounds[number]
        if stop - start <= columns.n:
            yield np.concatenate([chunk.T for _, chunk in of_range])
            continue
        r = np.zeros((columns.n, columns.n), order="F")
        for _, chunk in of_range:
            task.leave_if_cancelled()
            r = merged(r, chunk.T)
        yield np.triu(r)


def merged(r: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Return the triangle of a square triangle and more rows, both in Fortran order. It overwrites both.

    What is below the diagonal is not part of the triangle.
    """
    from scipy.linalg.lapack import dtpqrt  # the first import takes half a second

    columns = len(r)
    if not len(more):
        return r
    # On one core of a Xeon: 8, 14, 20 and 25 GFLOP/s with 20, 50, 300 and 1000 columns; numpy.linalg.qr has 2 to 10.
    panel = min(columns, 4 if columns < 32 else 8 if columns < 128 else 24)
    found, *_, failed = dtpqrt(0, panel, r, more, overwrite_a=1, overwrite_b=1)
    if failed:
        raise ValueError(f"LAPACK's tpqrt refused argument {-failed}")
    return found


@task("shifted_triangle")
def _shifted_triangle(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    shift: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return the triangle of a column of ones, the columns and the targets, minus a shift; from rank 0.

    Parameters
    ----------
    shift : numpy.ndarray of shape (n_features + n_targets,) or None
        If None, values near the means of these rows.
    """
    data = Data(task, source, weights, targets)
    rows, n = data.block, data.n_features
    assert data.targets is not None
    if shift is None:
        shift = np.concatenate([rough_mean(task, rows), rough_mean(task, data.targets)]).astype(np.float64)
    r = _of_all(task, _Columns(rows, shift[:n], data.targets, shift[n:], ones=True))
    data.require_finite()
    return {"rows": data.n_own, **({"r": r, "shift": shift} if task.comm.rank == 0 else {})}


@task("triangular")
def _triangular(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source | None = None,
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
    return {"rows": data.n_own, **(vars(found) if task.comm.rank == 0 else {})}


@task("products")
def _products(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    centre: bool,
    targets: Source | None = None,
) -> ProductsOfColumns:
    """Return the `Products` of the columns, from rank 0; also the triangle ``r``, if they come from one.

    They do if the products leave the range of the rows' dtype.
    """
    data = Data(task, source, weights, targets)
    answer: ProductsOfColumns = {"rows": data.n_own}
    found, triangle = products(task, data, centre), None
    if found.lost:
        triangle = triangle_of(task, data, centre)
        found = products_of(triangle)
    if task.comm.rank == 0:
        answer["products"] = found
        if triangle is not None:
            answer["r"] = triangle.r
    return answer


@task("batch_triangles")
def _batch_triangles(task: Task, source: Source, weights: None, batches: list[tuple[int, int]]) -> Batches:
    """Return, for each batch, the triangle of a column of ones and this rank's rows in the batch, minus a shift.

    A batch is given by its first and last row in the whole data set. The shift is the same on all ranks.
    """
    data = Data(task, source)
    rows = data.block
    shift = rough_mean(task, rows).astype(np.float64)
    begin, end = data.bounds[task.comm.rank : task.comm.rank + 2]
    cut = [(max(start, begin) - begin, min(stop, end) - begin) for start, stop in batches]
    here = [(number, own) for number, own in enumerate(cut) if own[0] < own[1]]
    made = list(_triangles(task, _Columns(rows, shift, ones=True), [own for _, own in here]))
    data.require_finite()
    return {
        "rows": data.n_own,
        "shift": shift,
        "parts": [(number, r) for (number, _), r in zip(here, made, strict=True)],
    }
