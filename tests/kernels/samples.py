"""Kernels for the tests of launching.

``python -m xpulab.kernels.compile.build tests.kernels`` builds their catalogue.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from xpulab.kernels.language import Kernel, fma, group_barrier, index, kernel, prefetch


@cache
def add(dtype: np.dtype[Any]) -> Kernel:
    @kernel("T[] T", dtype)
    def add(item, x, value):
        x[index(item.get_global_id(0))] += value

    return add


@cache
def reverse(dtype: np.dtype[Any]) -> Kernel:
    @kernel("T[] T@", dtype)
    def reverse(item, x, shared):
        lane, size = item.get_local_id(0), item.get_local_range(0)
        shared[index(lane)] = x[index(item.get_global_id(0))]
        group_barrier(item.get_group())
        x[index(item.get_global_id(0))] = shared[index(size - 1 - lane)]

    return reverse


@cache
def add_after_asking(dtype: np.dtype[Any]) -> Kernel:
    @kernel("T[] T i8", dtype)
    def add_after_asking(item, x, value, ahead):
        i = item.get_global_id(0)
        prefetch(x, index(i + ahead), index(64))
        x[index(i)] += value

    return add_after_asking


@cache
def weigh() -> Kernel:
    @kernel("f4[] f4* f4*")
    def weigh(item, x, y, weight):
        i = item.get_global_id(0)
        prefetch(y, index(i), index(64))
        x[index(i)] += weight[index(0)] * y[index(i)]

    return weigh


@cache
def divide() -> Kernel:
    @kernel("f4[] f4")
    def divide(item, x, divisor):
        i = index(item.get_global_id(0))
        x[i] = x[i] / divisor

    return divide


@cache
def fused() -> Kernel:
    @kernel("f4[] f4 f4 f4")
    def fused(item, x, a, b, c):
        x[index(item.get_global_id(0))] = fma(a, b, c)

    return fused


@cache
def times(factor: int) -> Kernel:
    @kernel("f4[]", shelf=f"by{factor}")
    def scale(item, a):
        i = index(item.get_global_id(0))
        a[i] = a[i] * np.float32(factor)

    return scale


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    floats = np.dtype(np.float32), np.dtype(np.float64)
    for dtype in (*floats, np.dtype(np.int32)):
        yield from (add(dtype), reverse(dtype))
    yield from (add_after_asking(dtype) for dtype in floats)
    yield from (weigh(), divide(), fused())
    yield from (times(factor) for factor in range(3, 9))
