"""Exact order statistics of columns, found byte by byte from counts that the ranks can add up.

The bits of a number are converted to an integer, so that the integers have the same order as the numbers. The bytes of
the wanted integer are found from the first to the last: for the known first bytes (a prefix), the kernel counts how
often each next byte follows, and the counts show which byte contains the wanted position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.language import Kernel, group_barrier, index, kernel
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.device import Array
from xpulab.kernels.runtime.launch import launch
from xpulab.kernels.streamed import RowsInParts, parts_of

__all__ = ["every_kernel", "order_statistics", "ordered_counts"]

_BINS = 256  # values of a byte
_LANES = 16  # work-items of a work-group, and counters side by side, which fill a cache line
_ROOM = _BINS + _LANES  # counters for each column and prefix; the last ones are for numbers that must not be counted
_NEAR_BYTES = 1 << 18  # bytes of the counters of a work-group on a CPU, which then stay in a core's L2 cache
_COUNTERS_BYTES = 64 << 20


@cache
def _count_kernel(dtype: np.dtype[Any], level: int) -> Kernel:
    """Return the kernel for the first byte (level 0), the second (1), or any later one (2).

    `dtype` is that of the integers as which the numbers are read. The first byte has no prefix. At the second byte,
    about half of the numbers have the prefix, so a branch would often be mispredicted: numbers without the prefix are
    added to counters that nobody reads. At later bytes, numbers without the prefix are skipped.

    As in histogram.py, each lane has the counters at its own position in a cache line: the lane with the number's
    counter adds 1, the other lanes add 0. Gathering and scattering counters would take more than twice as long.
    """
    bits = 8 * dtype.itemsize
    sign = bits - 1
    all_but_sign = dtype.type(np.iinfo(dtype).max)
    # Without the sign bit, the integer of a NaN is greater than that of infinity.
    infinity = dtype.type(np.array(np.inf, f"f{dtype.itemsize}").view(dtype))
    none, one, absent = np.int32(0), np.int32(1), np.int32(_BINS)
    lanes, bins, room = _LANES, _BINS, _ROOM
    first, rare = level == 0, level > 1
    mask = np.int32(_LANES - 1)
    middle = bins // 2
    parts = BLOCK // _LANES

    @kernel("T[] i8 i8 i8 i8 i8 i8 T* i8 i8 i4* i4*", dtype)
    def count(  # type: ignore[no-untyped-def]
        item, data, d, n, first_column, n_columns, width, n_blocks, prefixes, n_prefixes, shift, stage, counts
    ):  # fmt: skip
        # A work-group counts in `n_blocks` blocks of `width` columns. prefixes: (n_columns, n_prefixes), as signed
        # numbers; `shift`: number of bits after the byte. stage: for each group, the counters of the rows of a block.
        # counts: for each part of the rows (n_columns, n_prefixes, room).
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        groups_of_part = (n_columns + width - 1) // width
        column = group % groups_of_part * width
        end_column = min(column + width, n_columns)
        begin = group // groups_of_part * n_blocks
        mine = group // groups_of_part * n_columns * n_prefixes * room
        staged = group * BLOCK
        for i in range(column * n_prefixes * room, end_column * n_prefixes * room, lanes):
            counts[index(mine + i + lane)] = none
        for block in range(begin, min(begin + n_blocks, (n + (BLOCK - 1)) // BLOCK)):
            there = np.int32(min(n - block * BLOCK, BLOCK))
            for f in range(column, end_column):
                at = (block * d + first_column + f) * BLOCK + lane
                for q in range(n_prefixes):
                    for part in range(parts):
                        x = data[index(at + part * lanes)]
                        here = (x & all_but_sign) <= infinity and np.int32(part * lanes + lane) < there
                        ordered = x ^ ((x >> sign) & all_but_sign)
                        if first:
                            digit = np.int32((ordered >> (bits - 8)) + middle)
                        else:
                            start = ordered >> shift
                            here = here and (start >> 8) == prefixes[index(f * n_prefixes + q)]
                            digit = np.int32(start & (bins - 1))
                        stage[index(staged + part * lanes + lane)] = digit if here else absent
                    group_barrier(item.get_group())
                    base = mine + (f * n_prefixes + q) * room + lane
                    for i in range(BLOCK):
                        digit = stage[index(staged + i)]
                        if not rare or digit < absent:
                            counts[index(base + (digit - (digit & mask)))] += one if (digit & mask) == lane else none
                    group_barrier(item.get_group())

    return count


def _integers(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"i{dtype.itemsize}")


def ordered_counts(rows: Rows, prefixes: npt.NDArray[Any], level: int) -> npt.NDArray[np.int64]:
    """Count how often each byte follows given first bytes, among the numbers of a column as ordered integers.

    An ordered integer is unsigned, and has as many bytes as the number. It is less than another one if and only if the
    number is less; -0.0 is less than 0.0.

    Parameters
    ----------
    rows : Rows
        The rows; NaN is ignored.
    prefixes : numpy.ndarray of unsigned int of shape (q, n_features)
        For each column q prefixes of ordered integers, with `level` bytes each; zeros at level 0.
    level : int
        Number of known bytes: from 0 to 3 for float32, from 0 to 7 for float64.

    Returns
    -------
    numpy.ndarray of int64 of shape (q, n_features, 256)
        Counts by prefix, column and next byte.
    """
    device, d, wanted = rows.device, rows.n_features, len(prefixes)
    if rows.n_samples == 0 or wanted == 0:
        return np.zeros((wanted, d, _BINS), np.int64)
    integers = _integers(rows.dtype)
    q = wanted if level else 1  # at level 0 all prefixes are empty, and one is enough
    signed = prefixes[:q].astype(np.uint64)
    if level:
        signed = signed - np.uint64(1 << (8 * level - 1))  # unsigned arithmetic wraps around
    signed = signed.astype(np.int64).astype(integers)
    shift = 8 * (integers.itemsize - level - 1)
    data = Array(rows.data.memory, rows.data.size, integers)
    found = np.empty((q, d, _BINS), np.int64)
    column_bytes = 4 * q * _ROOM
    at_once = min(d, max(1, _COUNTERS_BYTES // column_bytes))
    width = min(at_once, max(1, _NEAR_BYTES // column_bytes)) if device.is_cpu else 1
    wanted_parts = -(-4 * device.compute_units * width // at_once)  # enough parts for all compute units
    parts = max(1, min(rows.n_blocks, wanted_parts, _COUNTERS_BYTES // (column_bytes * at_once)))
    parts = max(parts, -(-rows.n_samples // 2**30))  # so that no counter overflows
    n_blocks = -(-rows.n_blocks // parts)
    parts = -(-rows.n_blocks // n_blocks)
    counts = device.empty(parts * at_once * q * _ROOM, np.int32)
    stage = device.empty(parts * -(-at_once // width) * BLOCK, np.int32)
    for start in range(0, d, at_once):
        columns = min(at_once, d - start)
        known = device.array(np.ascontiguousarray(signed[:, start : start + columns].T))
        launch(
            device, _count_kernel(integers, min(level, 2)), parts * -(-columns // width), _LANES,
            data, np.int64(d), np.int64(rows.n_samples), np.int64(start), np.int64(columns), np.int64(width),
            np.int64(n_blocks), known, np.int64(q), np.int64(shift), stage, counts,
        )  # fmt: skip
        by_part = device.fetch(counts, stop=parts * columns * q * _ROOM, copied=False)
        sums = by_part.reshape(parts, columns, q, _ROOM)[..., :_BINS].sum(axis=0, dtype=np.int64)
        found[:, start : start + columns] = sums.swapaxes(0, 1)
    return found if level else np.repeat(found, wanted, axis=0)


def order_statistics(
    rows: Rows | RowsInParts,
    ranks_wanted: npt.NDArray[np.int64],
    reduce: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]] = lambda counts: counts,
) -> npt.NDArray[Any]:
    """Return the numbers at given positions of each sorted column.

    Parameters
    ----------
    rows : Rows or RowsInParts
        The rows of this rank; NaN is ignored. Each byte takes a pass.
    ranks_wanted : numpy.ndarray of int64 of shape (q, n_features)
        Positions in the sorted columns of all ranks, counted from 0; the same on all ranks.
    reduce : callable
        Adds up an array of counts over all ranks.

    Returns
    -------
    numpy.ndarray of shape (q, n_features), in the dtype of the rows
        NaN if the column has no such position.
    """
    unsigned = np.dtype(f"u{rows.dtype.itemsize}")
    left = np.array(ranks_wanted, np.int64)
    missing = left < 0
    prefixes = np.zeros(left.shape, np.uint64)
    for level in range(unsigned.itemsize):
        distinct, slots = _distinct(prefixes)
        own = np.zeros((len(distinct), rows.n_features, _BINS), np.int64)
        for _, part in parts_of(rows):
            own += ordered_counts(part, distinct, level)
        counts = reduce(own)
        up_to = counts.cumsum(axis=2)[slots, np.arange(rows.n_features)]
        missing |= left >= up_to[:, :, -1]
        digit = np.minimum((up_to <= left[:, :, None]).sum(axis=2), _BINS - 1)
        before = np.take_along_axis(up_to, np.maximum(digit - 1, 0)[:, :, None], axis=2)[:, :, 0]
        left -= np.where(digit > 0, before, 0)
        prefixes = (prefixes << np.uint64(8)) | digit.astype(np.uint64)
    ordered, sign = prefixes.astype(unsigned), unsigned.type(1 << (8 * unsigned.itemsize - 1))
    found = np.where(ordered & sign, ordered ^ sign, ~ordered).view(rows.dtype)
    return np.where(missing, rows.dtype.type(np.nan), found + rows.dtype.type(0))  # -0.0 + 0 is 0.0


def _distinct(prefixes: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp]]:
    """Return the distinct prefixes of each column, padded to the same number, and the index of each prefix in them.

    Neighbouring positions, such as the two around a quantile, nearly always have the same prefix, which is counted only
    once.
    """
    order = np.argsort(prefixes, axis=0, kind="stable")
    ascending = np.take_along_axis(prefixes, order, axis=0)
    new = np.ones(prefixes.shape, bool)
    new[1:] = ascending[1:] != ascending[:-1]
    slots = np.empty(prefixes.shape, np.intp)
    np.put_along_axis(slots, order, new.cumsum(axis=0) - 1, axis=0)
    distinct = np.zeros((int(slots.max(initial=-1)) + 1, prefixes.shape[1]), np.uint64)
    np.put_along_axis(distinct, slots, prefixes, axis=0)
    return distinct, slots


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    for dtype in map(np.dtype, (np.int32, np.int64)):
        yield from (_count_kernel(dtype, level) for level in range(3))
