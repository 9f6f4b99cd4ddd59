"""Products of columns and targets, over all rows and over each fold's rows, for solvers that need nothing else.

The products of a fold's training rows are those of all rows minus those of its test rows. Therefore all folds of a
cross-validation need only one pass over the rows in addition to the pass for all rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xpulab.engine.algorithms.passes import products
from xpulab.engine.algorithms.qr import products_of, triangle_of
from xpulab.engine.dataset import Data, PassedRows
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.products import gram
from xpulab.kernels.row_passes import take
from xpulab.kernels.rows import Rows
from xpulab.sharing.answers import LinearProducts, Products
from xpulab.sharing.sources import SharedArray, Source

__all__ = ["fold_sums", "sharp_products"]

_SHARE = 64 << 20  # largest number of bytes of a fold's rows that are copied at once
_ENOUGH = 2.5e-5  # largest relative error of coefficients that the rounding of float32 products may cause
_TOO_LARGE = (
    "X or y has finite numbers whose squares are too large for float64, and this estimator needs their sums; divide X "
    "and y by a number such as 1e150 first"
)


def sharp_products(task: Task, data: Data, centre: bool) -> tuple[Products, bool]:
    """Compute products of columns; also return whether they come from the triangle of a QR decomposition in float64.

    The triangle is used for float32 rows that are so ill-conditioned that the rounding of their products would have an
    effect on the coefficients, which no later pass over the rows could correct, and for all rows whose products leave
    the range of their dtype.
    """
    double = data.dtype == np.float64
    if double or data.n_samples - centre > data.n_features:
        found = products(task, data, centre)
        if not found.lost and (double or task.comm.bcast(_benign(found.gram) if task.comm.rank == 0 else None)):
            return found, False
    return products_of(triangle_of(task, data, centre)), True


def _benign(matrix: np.ndarray) -> bool:
    """Return whether this Gram matrix of float32 rows is exact enough to compute coefficients from it."""
    diagonal = matrix.diagonal()
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1))
    values = np.linalg.eigvalsh(matrix * np.outer(scale, scale))
    return bool(np.finfo(np.float32).eps * values[-1] <= _ENOUGH * values[0])


def fold_sums(
    task: Task, data: Data, fold_of_own: np.ndarray, n_folds: int, shift: np.ndarray, sharp: bool
) -> dict[str, np.ndarray]:
    """Compute weighted sums over the rows of each fold, of the columns and targets minus a shift.

    Parameters
    ----------
    task : Task
    data : Data
        Rows with targets.
    fold_of_own : numpy.ndarray of int of shape (n_own,)
        The fold of each row of this rank; -1 for rows of no fold.
    n_folds : int
        Number of folds.
    shift : numpy.ndarray of shape (n_features + n_targets,)
        Values near the means.
    sharp : bool
        Whether products are added up in float64 on the host.

    Returns
    -------
    dict of str to numpy.ndarray of float64
        With m = n_features + n_targets: ``count`` and ``weight`` of shape (n_folds,), ``total`` of shape (n_folds, m),
        and ``products`` of shape (n_folds, m, m).
    """
    m = len(shift)
    shift = shift.astype(data.dtype).astype(np.float64)
    facts, found = np.zeros((n_folds, 2 + m)), np.zeros((n_folds, m, m))
    task.check()
    for rows, targets, fold, chosen in _of_folds(data, fold_of_own, n_folds):
        for block, right, weights in _of_fold(rows, targets, chosen):
            away = np.hstack([block, right]) - shift
            facts[fold, 0] += len(block)
            facts[fold, 1] += weights.sum()
            facts[fold, 2:] += weights @ away
            if sharp:
                found[fold] += (away.T * weights) @ away
            else:
                found[fold] += _on_device(rows, block, right, weights, shift)
    facts, found = task.comm.allreduce(facts), task.comm.allreduce(found)
    return {"count": facts[:, 0], "weight": facts[:, 1], "total": facts[:, 2:], "products": found, "shift": shift}


def _of_folds(data: Data, fold_of_row: np.ndarray, n_folds: int) -> Iterator[tuple[Rows, Rows, int, np.ndarray]]:
    """Yield this rank's rows in one pass, with their targets, and for each fold which of them are in it."""
    first = 0
    for rows, targets in data.parts():
        assert targets is not None
        folds = fold_of_row[first : first + rows.n_samples]
        for fold in range(n_folds):
            yield rows, targets, fold, np.flatnonzero(folds == fold)
        first += rows.n_samples


def _of_fold(rows: Rows, targets: Rows, chosen: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield chosen rows on the host, a part at a time, with their targets and weights."""
    step = max(1, _SHARE // (8 * (rows.n_features + targets.n_features)))
    weights = rows.weights_on_cpu()
    for first in range(0, len(chosen), step):
        index = chosen[first : first + step]
        yield take(rows, index), take(targets, index), weights[index]


def _on_device(rows: Rows, block: np.ndarray, right: np.ndarray, weights: np.ndarray, shift: np.ndarray) -> np.ndarray:
    n, unweighted = rows.n_features, rows.sample_weight is None
    some = Rows.upload(rows.device, block, None if unweighted else weights)
    return gram(some, shift[:n], Rows.upload(rows.device, right), shift[n:])[0]


@task("linear_products")
def _linear_products(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    centre: bool,
    folds: list[tuple[np.ndarray, int]] = (),  # type: ignore[assignment]
) -> LinearProducts:
    """Return `Products` of all rows, and `fold_sums` of each assignment of rows to folds."""
    data = Data(task, source, weights, targets)
    if folds and not data.in_passes:
        data.rows  # noqa: B018 - they are read once for several passes
    found, sharp = sharp_products(task, data, centre)
    if not all(np.isfinite(sums).all() for sums in (found.gram, found.cross)):
        raise ValueError(_TOO_LARGE)
    shift = np.concatenate([found.mean, found.target_mean])
    own = slice(data.bounds[task.comm.rank], data.bounds[task.comm.rank + 1])
    sums = [fold_sums(task, data, fold_of_row[own], n_folds, shift, sharp) for fold_of_row, n_folds in folds]
    return {"rows": data.n_own, "products": found, "sharp": sharp, "folds": sums}
