"""Counts the rows of each cluster in each pixel of a picture of two features, and finds the range of each feature."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.explorer.counting import MOST_CELLS
from xpulab.kernels.kmeans.nearest import Labels
from xpulab.kernels.language import AtomicRef, Kernel, group_barrier, index, kernel
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.rows import SPAN, Rows
from xpulab.kernels.runtime.launch import launch

__all__ = ["count_pixels", "every_kernel", "ranges"]

_LANES = 16  # counters side by side, which fill a cache line
_MAX_COPIES_BYTES = 256 << 20


@cache
def _count_kernel(dtype: np.dtype[Any], shared: bool) -> Kernel:
    """Return the kernel that counts.

    If `shared`, all work-groups add to the same counters; otherwise each work-group has its own copy.

    A work-group with its own copy processes one row after the other. Each lane has the counters at its own position in
    a cache line: the lane with the row's counter adds 1, the other lanes add 0. So no two lanes add to the same
    counter, and a CPU adds whole vectors. This is 20 times faster than atomics, or than work-groups of one item. A GPU
    has too many work-groups for copies, but fast atomics.
    """
    zero = dtype.type(0)
    one, none = np.int32(1), np.int32(0)
    mask = np.int32(_LANES - 1)

    @kernel("i4[] T* i8 i8 i8 i4* i8* T* i4 i4 i8 i4*", dtype)
    def count(  # type: ignore[no-untyped-def]
        item, counts, data, d, n, n_blocks, labels, features, view, width, height, size, stage
    ):
        # view: left, low, columns per unit, lines per unit, columns, lines. stage: for each group, the index of the
        # counter of each row of a block; the last line of `size` counters is for rows outside of the picture.
        group = item.get_group().get_group_id(0)
        groups = item.get_group().get_group_range(0)
        lane = item.get_local_id(0)
        base = 0 if shared else group * size
        staged = group * BLOCK
        if not shared:
            for line in range(size // _LANES):
                counts[index(base + line * _LANES + lane)] = none
        for block in range(group * n_blocks // groups, (group + 1) * n_blocks // groups):
            first = block * BLOCK
            xs = (block * d + features[index(0)]) * BLOCK
            ys = (block * d + features[index(1)]) * BLOCK
            for j in range(BLOCK // _LANES):
                i = j * _LANES + lane
                x = (data[index(xs + i)] - view[index(0)]) * view[index(2)]
                y = (data[index(ys + i)] - view[index(1)]) * view[index(3)]
                inside = zero <= x and x < view[index(4)] and zero <= y and y < view[index(5)]
                counter = np.int32((labels[index(first + i)] * height + np.int32(y)) * width + np.int32(x))
                counter = counter if inside else np.int32(size - _LANES)
                if not shared:
                    stage[index(staged + i)] = counter
                elif first + i < n:
                    AtomicRef(counts, index(counter)).fetch_add(one)
            if not shared:
                group_barrier(item.get_group())
                for i in range(min(BLOCK, n - first)):
                    counter = stage[index(staged + i)]
                    at = base + (counter - (counter & mask)) + lane
                    counts[index(at)] += one if (counter & mask) == lane else none
                group_barrier(item.get_group())

    return count


@cache
def _add_kernel() -> Kernel:
    @kernel("i8 i8 i4[]")
    def add(item, copies, size, counts):  # type: ignore[no-untyped-def]
        counter = item.get_global_id(0)
        total = np.int32(0)
        for copy in range(copies):
            total += counts[index(copy * size + counter)]
        counts[index(counter)] = total

    return add


def count_pixels(
    rows: Rows,
    labels: Labels,
    n_clusters: int,
    features: tuple[int, int],
    low: tuple[float, float],
    high: tuple[float, float],
    shape: tuple[int, int],
    shared: bool | None = None,
) -> npt.NDArray[np.int32]:
    """Count rows by cluster and pixel: an exact two-dimensional histogram for each cluster.

    Parameters
    ----------
    rows : Rows
    labels : Labels
        Labels of these rows, from 0 to n_clusters - 1.
    n_clusters : int
    features : tuple of two ints
        The columns for the horizontal and the vertical axis.
    low, high : tuple of two floats
        Limits of these columns. The picture includes `low`, but not `high`. Rows outside of it are not counted.
    shape : tuple of two ints
        (lines, columns) of the picture; the first line is at `low`.
    shared : bool, optional
        Whether all work-groups add to the same counters, with atomics; by default on all devices but CPUs.

    Returns
    -------
    numpy.ndarray of int32 of shape (n_clusters, lines, columns)

    Raises
    ------
    ValueError
        If there are more counters than `MOST_CELLS`.
    """
    lines, columns = shape
    cells = n_clusters * lines * columns
    if cells > MOST_CELLS:
        raise ValueError(
            f"{n_clusters} clusters on {lines} × {columns} pixels: expected at most {MOST_CELLS:,} counters"
        )
    if rows.n_samples == 0:
        return np.zeros((n_clusters, lines, columns), np.int32)
    device, number = rows.device, rows.dtype.type
    shared = not device.is_cpu if shared is None else shared
    size = (-(-cells // _LANES) + 1) * _LANES
    most = rows.n_spans if shared else min(device.compute_units, max(1, _MAX_COPIES_BYTES // (4 * size)))
    groups = min(rows.n_blocks, most)
    copies = 1 if shared else groups
    counts = labels.scratch("pixels", copies * size, np.int32)
    if shared:
        device.store(np.zeros(size, np.int32), counts)
    counters = labels.scratch("counters", groups * BLOCK, np.int32)
    scale = [number(pixels) / (number(b) - number(a)) for a, b, pixels in zip(low, high, (columns, lines), strict=True)]
    launch(
        device, _count_kernel(rows.dtype, shared), groups, _LANES,
        counts,  # must be the first argument, because atomics need an array, not a pointer
        rows.data, np.int64(rows.n_features), np.int64(rows.n_samples), np.int64(rows.n_blocks), labels.current,
        device.array(np.array(features, np.int64)), device.array(np.array([*low, *scale, columns, lines], rows.dtype)),
        np.int32(columns), np.int32(lines), np.int64(size), counters,
    )  # fmt: skip
    if copies > 1:
        launch(device, _add_kernel(), size // _LANES, _LANES, np.int64(copies), np.int64(size), counts)
    return device.fetch(counts, stop=cells).reshape(n_clusters, lines, columns)


@cache
def _range_kernel(dtype: np.dtype[Any]) -> Kernel:
    blocks_of_span = SPAN // BLOCK

    @kernel("T[] i8 i8 T* T*", dtype)
    def column_range(item, data, d, n, least, most):  # type: ignore[no-untyped-def]
        span = item.get_group().get_group_id(0) // d
        f = item.get_group().get_group_id(0) % d
        lane = item.get_local_id(0)
        low = data[index((span * blocks_of_span * d + f) * BLOCK)]  # the first row of the span always exists
        high = low
        for block in range(span * blocks_of_span, min((span + 1) * blocks_of_span, (n + (BLOCK - 1)) // BLOCK)):
            if block * BLOCK + lane < n:
                x = data[index((block * d + f) * BLOCK + lane)]
                low = min(low, x)
                high = max(high, x)
        least[index(item.get_global_id(0))] = low
        most[index(item.get_global_id(0))] = high

    return column_range


def ranges(rows: Rows) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the minimum and maximum of each column.

    Returns
    -------
    low, high : numpy.ndarray of float64 of shape (n_features,)
        Infinity and minus infinity if there are no rows.
    """
    d = rows.n_features
    if rows.n_samples == 0:
        return np.full(d, np.inf), np.full(d, -np.inf)
    size = rows.n_spans * d * BLOCK
    least, most = rows.device.empty(size, rows.dtype), rows.device.empty(size, rows.dtype)
    launch(
        rows.device, _range_kernel(rows.dtype), rows.n_spans * d, BLOCK,
        rows.data, np.int64(d), np.int64(rows.n_samples), least, most,
    )  # fmt: skip
    by_column = (rows.n_spans, d, BLOCK)
    low = rows.device.fetch(least).reshape(by_column).min(axis=(0, 2))
    high = rows.device.fetch(most).reshape(by_column).max(axis=(0, 2))
    return low.astype(np.float64), high.astype(np.float64)


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    for dtype in map(np.dtype, (np.float32, np.float64)):
        yield from (_count_kernel(dtype, shared) for shared in (False, True))
        yield _range_kernel(dtype)
    yield _add_kernel()
