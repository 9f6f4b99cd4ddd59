"""Copies CSR rows of any places: a part of the rows, or batch after batch. The host copies them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.kmeans.sparse_lloyd import SparseLabels, new_labels
from xpulab.kernels.kmeans.sparse_rows import SparseRows

__all__ = ["Batches", "subset"]


def subset(rows: SparseRows, places: npt.NDArray[np.int64]) -> SparseRows:
    """Copy some of the rows, with their weights, as `xpulab.kernels.kmeans.gather.subset`."""
    weights = rows.sample_weight
    some = None if weights is None else rows.device.fetch(weights, stop=rows.n_samples, copied=False)[places]
    return _copied(rows, _on_host(rows), places, some)


class Batches:
    """Batches of rows, as `xpulab.kernels.kmeans.gather.Batches`."""

    def __init__(self, rows: SparseRows, most: int) -> None:
        self._rows, self._host = rows, _on_host(rows)

    def take(self, places: npt.NDArray[np.int64]) -> tuple[SparseRows, SparseLabels]:
        """Return the rows at these places as a batch, and labels for it."""
        return _copied(self._rows, self._host, places, None), new_labels(self._rows.device, len(places))


def _on_host(rows: SparseRows) -> tuple[npt.NDArray[Any], ...]:
    """Return the values, the columns and the starts of all rows on the host."""
    fetch, n = rows.device.fetch, rows.n_samples
    starts = fetch(rows.indptr, stop=n + 1, copied=False)
    stored = int(starts[n])
    return fetch(rows.data, stop=stored, copied=False), fetch(rows.indices, stop=stored, copied=False), starts


def _copied(
    rows: SparseRows, host: tuple[npt.NDArray[Any], ...], places: npt.NDArray[np.int64], weights: Any
) -> SparseRows:
    data, columns, starts = host
    lengths = starts[places + 1] - starts[places]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    at = np.arange(ends[-1]) + np.repeat(starts[places] - ends[:-1], lengths)
    return SparseRows.upload(rows.device, data[at], columns[at], ends, rows.n_features, weights)
