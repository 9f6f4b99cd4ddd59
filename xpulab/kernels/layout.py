"""The layout of rows on a device: the kernels that bring rows from C order into blocks, and back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from xpulab.kernels.language import DeviceFunction, Kernel, device_function, group_barrier, index, kernel, transpose
from xpulab.kernels.runtime.device import Array, Device
from xpulab.kernels.runtime.launch import launch

__all__ = ["BLOCK", "arrange", "every_kernel", "in_c_order", "lay_out", "lay_out_kernels"]

#: Number of rows of a block. Row i, feature f is at [i // BLOCK, f, i % BLOCK], so that neighbouring work-items read
#: neighbouring numbers, and a work-group reads contiguous memory.
BLOCK = 64
_STAGE_BYTES = 8 << 20
_LEAST_SQUARE = 4  # rows and columns that are transposed at a time


@cache
def _lay_out_kernel(dtype: np.dtype[Any], lanes: int, rows_at_once: int) -> Kernel:
    zero = dtype.type(0)

    @kernel("T[] i8 i8 i8 i8 T*", dtype)
    def lay_out(item, data, first, n_blocks, n, n_features, stage):  # type: ignore[no-untyped-def]
        # The rows of a block take the same memory in both orders, so each block is rearranged in place.
        worker = item.get_group().get_group_id(0)
        workers = item.get_group().get_group_range(0)
        lane = item.get_local_id(0)
        size = n_features * BLOCK
        mine = worker * size
        for block in range(first + worker * n_blocks // workers, first + (worker + 1) * n_blocks // workers):
            there = min(n - block * BLOCK, BLOCK) * n_features
            for i in range(lane, there, lanes):
                stage[index(mine + i)] = data[index(block * size + i)]
            # Each work-item writes the same positions of the stage in both loops, so no barrier is needed in between.
            for i in range((there + lanes - 1 - lane) // lanes * lanes + lane, size, lanes):
                stage[index(mine + i)] = zero
            group_barrier(item.get_group())
            for row in range(lane * rows_at_once, BLOCK, lanes * rows_at_once):
                for f in range(n_features):
                    for r in range(rows_at_once):
                        data[index(block * size + f * BLOCK + row + r)] = stage[
                            index(mine + (row + r) * n_features + f)
                        ]
            group_barrier(item.get_group())

    return lay_out


def _lay_out_cut(device: Device) -> tuple[int, int]:
    """Return the number of work-items of a work-group, and of rows that each of them rearranges at a time.

    On a CPU, one work-item rearranges a whole block, eight rows at a time. This takes a third of the time of
    neighbouring work-items, which would read distant numbers with gather instructions.
    """
    return (1, 8) if device.is_cpu else (BLOCK, 1)


def lay_out_kernels(device: Device, dtype: np.dtype[Any]) -> tuple[Kernel, Kernel]:
    """Return the kernels that rearrange rows into blocks: in place, and from other memory."""
    cut = _lay_out_cut(device)
    return _lay_out_kernel(dtype, *cut), _arrange_kernel(
        dtype, *cut, _square(dtype, device.wide) if device.is_cpu else 0
    )


def _square(dtype: np.dtype[Any], wide: bool) -> int:
    """Return how many numbers a register of a CPU has."""
    return (64 if wide else 32) // dtype.itemsize


def lay_out(device: Device, data: Array, first: int, n_blocks: int, n: int, n_features: int) -> None:
    """Rearrange rows in C order into blocks, in place: `n_blocks` blocks from `first` on, of `n` rows in all."""
    lanes, _ = _lay_out_cut(device)
    block_bytes = n_features * BLOCK * data.dtype.itemsize
    workers = min(n_blocks, 8 * device.compute_units, max(1, _STAGE_BYTES // block_bytes))
    stage = device.empty(workers * n_features * BLOCK, data.dtype)
    launch(
        device, lay_out_kernels(device, data.dtype)[0], workers, lanes,
        data, np.int64(first), np.int64(n_blocks), np.int64(n), np.int64(n_features), stage,
    )  # fmt: skip


def _order_kernel_of(device: Device, dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel that copies blocks of rows into C order."""
    return _order_kernel(dtype, *_lay_out_cut(device), _square(dtype, device.wide) if device.is_cpu else 0)


def _smaller(square: int) -> tuple[int, int]:
    """Return the sizes of squares for fewer columns than `square`."""
    least = min(square, _LEAST_SQUARE)
    return max(square // 2, least), max(square // 4, least)


@cache
def _transposing(size: int) -> DeviceFunction:
    """Return a function for a CPU's kernels that transposes a table of at least so many rows and columns."""

    @device_function
    def in_squares(source, first, step, target, to, next_row, n_rows, n_columns):  # type: ignore[no-untyped-def]
        # The last squares may overlap those before them.
        for row in range(0, n_rows, size):
            r = min(row, n_rows - size)
            for column in range(0, n_columns, size):
                c = min(column, n_columns - size)
                transpose(source, first + r * step + c, step, target, to + c * next_row + r, next_row, size)

    return in_squares


@cache
def _arrange_kernel(dtype: np.dtype[Any], lanes: int, rows_at_once: int, square: int) -> Kernel:
    zero = dtype.type(0)
    half, quarter = _smaller(square)
    transpose_whole, transpose_halves, transpose_quarters = map(_transposing, (square, half, quarter))

    @kernel("T* T[] i8 i8 i8", dtype)
    def arrange(item, given, data, first, n, n_features):  # type: ignore[no-untyped-def]
        # Each work-group writes one block, with zeros after the last row. A CPU transposes squares of a whole block.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        there = n - group * BLOCK
        columns = 0
        if square and there >= BLOCK:
            columns = n_features
            at = group * BLOCK * n_features
            to = (first + group) * BLOCK * n_features
            if n_features >= square:
                transpose_whole(given, at, n_features, data, to, BLOCK, BLOCK, n_features)
            elif n_features >= half:
                transpose_halves(given, at, n_features, data, to, BLOCK, BLOCK, n_features)
            elif n_features >= quarter:
                transpose_quarters(given, at, n_features, data, to, BLOCK, BLOCK, n_features)
            elif n_features == 1:
                for row in range(BLOCK):
                    data[index(to + row)] = given[index(at + row)]
            else:
                columns = 0
        for row in range(lane * rows_at_once, BLOCK, lanes * rows_at_once):
            at = group * BLOCK * n_features + row * n_features
            to = (first + group) * BLOCK * n_features + row
            if row + rows_at_once <= there:
                for f in range(columns, n_features):
                    for r in range(rows_at_once):
                        data[index(to + f * BLOCK + r)] = given[index(at + r * n_features + f)]
            else:
                for f in range(n_features):
                    for r in range(rows_at_once):
                        x = zero
                        if row + r < there:
                            x = given[index(at + r * n_features + f)]
                        data[index(to + f * BLOCK + r)] = x

    return arrange


def arrange(device: Device, given: Array, data: Array, first: int, n: int, n_features: int) -> None:
    """Write `n` rows of C order into blocks, from block `first` on."""
    lanes, _ = _lay_out_cut(device)
    launch(
        device, lay_out_kernels(device, data.dtype)[1], -(-n // BLOCK), lanes,
        given, data, np.int64(first), np.int64(n), np.int64(n_features),
    )  # fmt: skip


@cache
def _order_kernel(dtype: np.dtype[Any], lanes: int, rows_at_once: int, square: int) -> Kernel:
    half, quarter = _smaller(square)
    transpose_whole, transpose_halves, transpose_quarters = map(_transposing, (square, half, quarter))

    @kernel("T* T[] i8 i8 i8", dtype)
    def order(item, data, out, first, n, n_features):  # type: ignore[no-untyped-def]
        # The reverse of `arrange`: each work-group copies the rows of one block into C order.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        there = min(n - group * BLOCK, BLOCK)
        at = (first + group) * BLOCK * n_features
        to = group * BLOCK * n_features
        columns = 0
        if square and there == BLOCK:
            columns = n_features
            if n_features >= square:
                transpose_whole(data, at, BLOCK, out, to, n_features, n_features, BLOCK)
            elif n_features >= half:
                transpose_halves(data, at, BLOCK, out, to, n_features, n_features, BLOCK)
            elif n_features >= quarter:
                transpose_quarters(data, at, BLOCK, out, to, n_features, n_features, BLOCK)
            elif n_features == 1:
                for row in range(BLOCK):
                    out[index(to + row)] = data[index(at + row)]
            else:
                columns = 0
        for row in range(lane * rows_at_once, there, lanes * rows_at_once):
            for f in range(columns, n_features):
                for r in range(rows_at_once):
                    if row + r < there:
                        out[index(to + (row + r) * n_features + f)] = data[index(at + f * BLOCK + row + r)]

    return order


def in_c_order(device: Device, data: Array, out: Array, first: int, n: int, n_features: int) -> None:
    """Copy `n` rows into C order, from block `first` on."""
    lanes, _ = _lay_out_cut(device)
    launch(
        device, _order_kernel_of(device, data.dtype), -(-n // BLOCK), lanes,
        data, out, np.int64(first), np.int64(n), np.int64(n_features),
    )  # fmt: skip


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    for dtype in map(np.dtype, (np.float32, np.float64)):
        yield from (_lay_out_kernel(dtype, *cut) for cut in ((1, 8), (BLOCK, 1)))
        yield from (_arrange_kernel(dtype, 1, 8, _square(dtype, wide)) for wide in (False, True))
        yield _arrange_kernel(dtype, BLOCK, 1, 0)
        yield from (_order_kernel(dtype, 1, 8, _square(dtype, wide)) for wide in (False, True))
        yield _order_kernel(dtype, BLOCK, 1, 0)
