"""Distances from all rows to all centres."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.language import Kernel, fma, index, kernel
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.launch import launch

__all__ = ["every_kernel", "transform"]

_STAGE_BYTES = 32 << 20


@cache
def _distance_kernel(dtype: np.dtype[Any]) -> Kernel:
    zero = dtype.type(0)

    @kernel("T[] i8 i8 T* i8 T*", dtype)
    def distance(item, data, d, first_block, centers, k, out):  # type: ignore[no-untyped-def]
        block = first_block + item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        for j in range(k):
            total = zero
            for f in range(d):
                t = data[index((block * d + f) * BLOCK + lane)] - centers[index(j * d + f)]
                total = fma(t, t, total)
            out[index(item.get_global_id(0) * k + j)] = math.sqrt(total)

    return distance


def transform(rows: Rows, centers: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Compute Euclidean distances from each row to each centre from the differences, a part of the rows at a time.

    Parameters
    ----------
    rows : Rows
    centers : numpy.ndarray of shape (n_clusters, n_features)
        The centres, without a shift subtracted.

    Yields
    ------
    numpy.ndarray of shape (m, n_clusters), in the dtype of the rows
        Distances of the next m rows.
    """
    device, k = rows.device, len(centers)
    if rows.n_samples == 0:
        return
    parameters = device.array(np.ascontiguousarray(centers, rows.dtype))
    blocks = min(rows.n_blocks, max(1, _STAGE_BYTES // (BLOCK * k * rows.dtype.itemsize)))
    stage = device.empty(blocks * BLOCK * k, rows.dtype)
    for first in range(0, rows.n_blocks, blocks):
        start, stop = first * BLOCK, min((first + blocks) * BLOCK, rows.n_samples)
        launch(
            device, _distance_kernel(rows.dtype), -(-(stop - start) // BLOCK), BLOCK,
            rows.data, np.int64(rows.n_features), np.int64(first), parameters, np.int64(k), stage,
        )  # fmt: skip
        yield device.fetch(stage, stop=(stop - start) * k).reshape(-1, k)


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    yield from (_distance_kernel(np.dtype(dtype)) for dtype in (np.float32, np.float64))
