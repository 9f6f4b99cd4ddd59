"""Copies CSR rows of any indices: a part of the rows, or batch after batch. The CPU copies them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.kmeans.sparse_lloyd import SparseLabels, new_labels
from xpulab.kernels.kmeans.sparse_rows import SparseRows

__all__ = ["Batches", "on_cpu", "picked", "subset"]

#: Values, columns, and where each row begins.
_CSR = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]


def subset(rows: SparseRows, indices: npt.NDArray[np.int64]) -> SparseRows:
    """Copy some of the rows, with their weights, as `xpulab.kernels.kmeans.gather.subset`."""
    weights = rows.sample_weight
    chosen = None if weights is None else rows.device.fetch(weights, stop=rows.n_samples, copied=False)[indices]
    return _copied(rows, on_cpu(rows), indices, chosen)


def picked(stored: _CSR, indices: npt.NDArray[np.int64]) -> _CSR:
    """Copy the values and the columns of some rows of `on_cpu`; return these, and where each row begins."""
    data, columns, starts = stored
    lengths = starts[indices + 1] - starts[indices]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    at = np.arange(ends[-1]) + np.repeat(starts[indices] - ends[:-1], lengths)
    return data[at], columns[at], ends


class Batches:
    """Batches of rows, as `xpulab.kernels.kmeans.gather.Batches`."""

    def __init__(self, rows: SparseRows, most: int) -> None:
        self._rows, self._stored = rows, on_cpu(rows)

    def take(self, indices: npt.NDArray[np.int64]) -> tuple[SparseRows, SparseLabels]:
        """Return the rows of these indices as a batch, and labels for it."""
        return _copied(self._rows, self._stored, indices, None), new_labels(self._rows.device, len(indices))


def on_cpu(rows: SparseRows) -> _CSR:
    """Return the values, the columns and the starts of all rows on the CPU."""
    fetch, n = rows.device.fetch, rows.n_samples
    starts = fetch(rows.indptr, stop=n + 1, copied=False)
    n_stored = int(starts[n])
    return fetch(rows.data, stop=n_stored, copied=False), fetch(rows.indices, stop=n_stored, copied=False), starts


def _copied(
    rows: SparseRows,
    stored: _CSR,
    indices: npt.NDArray[np.int64],
    weights: npt.NDArray[Any] | None,
) -> SparseRows:
    return SparseRows.upload(rows.device, *picked(stored, indices), rows.n_features, weights)
