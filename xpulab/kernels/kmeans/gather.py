"""Copies rows of any indices into blocks: a part of the rows, or batch after batch.

A batch has as many blocks as its rows need. The rest of its last block has the weight zero, so that launches, which
know the number of rows, can be repeated for batches of the same number of blocks. Few rows are copied by the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.kmeans.nearest import Labels, new_labels
from xpulab.kernels.language import Kernel, index, kernel
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.row_passes import take
from xpulab.kernels.rows import Rows, are_few
from xpulab.kernels.runtime.device import Device
from xpulab.kernels.runtime.launch import Prepared, launch, prepare

__all__ = ["Batches", "every_kernel", "subset"]

_NO_WEIGHTS, _ONES, _COPIES = np.int32(0), np.int32(1), np.int32(2)


@cache
def _gather_kernel(dtype: np.dtype[Any], lanes: int) -> Kernel:
    one, zero = dtype.type(1), dtype.type(0)

    @kernel("T[] i8 T* i4 i8* T* T*", dtype)
    def gather(item, data, d, weights, kind, chosen, out, out_weights):  # type: ignore[no-untyped-def]
        # chosen: the number of rows, then their indices. A work-group writes one block, with zeros after the last row.
        block = item.get_group().get_group_id(0)
        n = chosen[0]
        for lane in range(item.get_local_id(0), BLOCK, lanes):
            row = block * BLOCK + lane
            to = block * d * BLOCK + lane
            # Stores under the condition, because the CPU's compiler forgets it for a number that is chosen by branches.
            if kind != 0:
                out_weights[index(row)] = zero
            if row < n:
                source = chosen[index(row + 1)]
                at = source // BLOCK * (d * BLOCK) + source % BLOCK
                for f in range(d):
                    out[index(to + f * BLOCK)] = data[index(at + f * BLOCK)]
                if kind == 1:
                    out_weights[index(row)] = one
                if kind == 2:
                    out_weights[index(row)] = weights[index(source)]
            else:
                for f in range(d):
                    out[index(to + f * BLOCK)] = zero

    return gather


def _lanes(device: Device) -> int:
    """Return the number of work-items of a work-group: one on a CPU, where several would gather numbers one by one."""
    return 1 if device.is_cpu else BLOCK


def _numbered(indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the indices as the kernel takes them, with their number first."""
    return np.concatenate([[len(indices)], indices])


def subset(rows: Rows, indices: npt.NDArray[np.int64]) -> Rows:
    """Copy some of the rows, with their weights, on the device.

    Parameters
    ----------
    rows : Rows
    indices : numpy.ndarray of int64 of shape (n,)
        Indices of the rows, from 0 to n_samples - 1, in the order of the copies.

    Returns
    -------
    Rows

    Raises
    ------
    DeviceError
        If the device's memory is full.
    """
    device, d, n = rows.device, rows.n_features, len(indices)
    n_blocks = -(-n // BLOCK)
    data = device.recycled(n_blocks * d * BLOCK, rows.dtype)
    weights = None if rows.sample_weight is None else device.empty(n_blocks * BLOCK, rows.dtype)
    if n:
        launch(
            device, _gather_kernel(rows.dtype, _lanes(device)), n_blocks, _lanes(device),
            rows.data, np.int64(d), rows.sample_weight or data, _NO_WEIGHTS if weights is None else _COPIES,
            device.array(_numbered(indices)), data, weights or data,
        )  # fmt: skip
        device.wait()  # the indices may go now
    return Rows(device, data, n, d, weights)


class Batches:
    """Batches of rows, each of which replaces the one before it.

    Parameters
    ----------
    rows : Rows
        The rows of which batches are taken, without their weights.
    most : int
        Largest number of rows of a batch.
    """

    def __init__(self, rows: Rows, most: int) -> None:
        self._rows = rows
        device, d = rows.device, rows.n_features
        self._data = device.empty(-(-most // BLOCK) * d * BLOCK, rows.dtype)
        self._weights = device.empty(-(-most // BLOCK) * BLOCK, rows.dtype)
        self._chosen = device.empty(most + 1, np.int64)
        self._known: dict[int, tuple[Prepared, Rows, Labels]] = {}
        self._few: Labels | None = None  # for few rows
        self._written = BLOCK  # rows of the first block that may not be zeros

    def take(self, indices: npt.NDArray[np.int64]) -> tuple[Rows, Labels]:
        """Return the rows of these indices as a batch, and labels for it.

        Parameters
        ----------
        indices : numpy.ndarray of int64 of shape (n,)
            Indices of the rows, at least one. A row may come more than once.

        Returns
        -------
        rows : Rows
            Rows of weight 1, and up to a whole block rows of weight zero, unless they are few.
        labels : Labels
        """
        if self._rows.data.host is not None and len(indices) <= BLOCK and are_few(len(indices), self._rows.n_features):
            return self._taken_by_cpu(indices)
        self._written, n_blocks = BLOCK, -(-len(indices) // BLOCK)
        known = self._known.get(n_blocks)
        if known is None:
            known = self._known[n_blocks] = self._prepared(n_blocks)
        gather, rows, labels = known
        self._rows.device.store(_numbered(indices), self._chosen)
        gather()
        return rows, labels

    def _taken_by_cpu(self, indices: npt.NDArray[np.int64]) -> tuple[Rows, Labels]:
        device, d, n = self._rows.device, self._rows.n_features, len(indices)
        data, found = self._data.part(0, d * BLOCK), take(self._rows, indices)
        assert data.host is not None
        device.wait()
        block = data.host.reshape(d, BLOCK)
        block[:, :n], block[:, n : self._written] = found.T, 0
        self._written = n
        if self._few is None:
            self._few = new_labels(device, BLOCK)
        return Rows(device, data, n, d, None), self._few

    def _prepared(self, n_blocks: int) -> tuple[Prepared, Rows, Labels]:
        device, d = self._rows.device, self._rows.n_features
        data, weights = self._data.part(0, n_blocks * d * BLOCK), self._weights.part(0, n_blocks * BLOCK)
        gather = prepare(
            device, _gather_kernel(self._rows.dtype, _lanes(device)), n_blocks, _lanes(device),
            self._rows.data, np.int64(d), weights, _ONES, self._chosen, data, weights,
        )  # fmt: skip
        return gather, Rows(device, data, n_blocks * BLOCK, d, weights), new_labels(device, n_blocks * BLOCK)


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    yield from (_gather_kernel(np.dtype(dtype), lanes) for dtype in (np.float32, np.float64) for lanes in (1, BLOCK))
