"""Dense or sparse rows in float64 on the host, some at a time, and their sums by class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.rows import Rows
from xpulab.kernels.scaling import pieces_on_cpu
from xpulab.kernels.sparse_products import HostMatrix

__all__ = ["parts_of", "sums_of"]

_PIECE = 1 << 18  # stored values that are float64 at a time


def parts_of(rows: Rows | SparseRows, threshold: float | None = None) -> Iterator[tuple[int, Any]]:
    """Yield some rows in float64 on the host, with the number of the first: arrays, or CSR matrices of sparse rows.

    With a threshold, a number above it becomes 1, and any other 0.
    """
    if isinstance(rows, Rows):
        first = 0
        for piece in pieces_on_cpu(rows):
            yield first, piece.astype(np.float64) if threshold is None else _above(piece, threshold)
            first += len(piece)
        return
    whole = HostMatrix(rows).as_given
    step = max(1, rows.n_samples * _PIECE // max(whole.nnz, 1))
    for first in range(0, rows.n_samples, step):
        part = whole[first : first + step].astype(np.float64)  # a copy of the values, also if they are float64
        if threshold is not None:
            part.data = _above(part.data, threshold)
        yield first, part


def _above(numbers: np.ndarray, threshold: float) -> np.ndarray:
    """Return 1 for numbers above the threshold, and 0 for others; NaN for NaN and infinity, which are refused later."""
    made = (numbers > threshold).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(numbers.sum()):
            made[~np.isfinite(numbers)] = np.nan
    return made


def sums_of(
    rows: Rows | SparseRows, codes: np.ndarray, n_classes: int, threshold: float | None = None
) -> tuple[np.ndarray, float]:
    """Sum the rows of each class times their weights: (n_classes, n_features); with the smallest number, or 0.

    `codes` has the number of each row's class.
    """
    from scipy.sparse import csr_matrix  # a start does not wait for it

    sums, least, weights = np.zeros((n_classes, rows.n_features)), 0.0, rows.weights_on_cpu()
    with rows.device.computing():
        for first, part in parts_of(rows, threshold):
            n = part.shape[0]
            some = slice(first, first + n)
            places = codes[some], np.arange(n)
            found = csr_matrix((weights[some], places), (n_classes, n)) @ part
            sums += found if isinstance(found, np.ndarray) else found.toarray()
            least = min(least, float((part if isinstance(part, np.ndarray) else part.data).min(initial=0.0)))
    return sums, least
