"""Divides each row by its norm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np

from xpulab.kernels.language import Kernel, fma, index, kernel
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.launch import launch

__all__ = ["NORMS", "Norm", "every_kernel", "normalised"]

#: The sum of the magnitudes, the root of the sum of the squares, or the largest magnitude.
Norm = Literal["l1", "l2", "max"]
NORMS: tuple[Norm, ...] = ("l1", "l2", "max")
_LANES = 16


@cache
def _normalised_kernel(dtype: np.dtype[Any], norm: Norm) -> Kernel:
    number = dtype.type
    zero, one = number(0), number(1)
    least = number(10 * np.finfo(dtype).eps)  # scikit-learn leaves rows with a smaller norm as they are
    parts = BLOCK // _LANES
    absolute, squared = norm == "l1", norm == "l2"

    @kernel("T[] i8 T*", dtype)
    def normalise(item, data, d, out):  # type: ignore[no-untyped-def]
        block = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        for part in range(parts):
            first = block * d * BLOCK + part * _LANES + lane
            total = zero
            for f in range(d):
                x = data[index(first + f * BLOCK)]
                if squared:
                    total = fma(x, x, total)
                else:
                    size = abs(x)
                    if absolute:
                        total += size
                    else:
                        total = size if size > total else total
            if squared:
                total = math.sqrt(total)
            total = one if total < least else total
            for f in range(d):
                out[index(first + f * BLOCK)] = data[index(first + f * BLOCK)] / total

    return normalise


def normalised(rows: Rows, norm: Norm) -> Rows:
    """Divide each row by its norm, as rows on the device with the same weights. Rows of nearly 0 stay as they are."""
    out = rows.device.empty(rows.n_blocks * rows.n_features * BLOCK, rows.dtype)
    if rows.n_samples:
        launch(
            rows.device, _normalised_kernel(rows.dtype, norm), rows.n_blocks, _LANES,
            rows.data, np.int64(rows.n_features), out,
        )  # fmt: skip
    return replace(rows, data=out)


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    yield from itertools.starmap(_normalised_kernel, itertools.product(map(np.dtype, (np.float32, np.float64)), NORMS))
