"""Moves rows between the sums of their centres, inside a kernel.

A sum consists of two numbers: the second is the rounding error of the first. So errors do not accumulate if the same
rows are added and subtracted in hundreds of iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xpulab.kernels.language import device_function, group_barrier, index
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.on_cpu.host import add_partial_sums
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.device import Array

__all__ = ["BATCH", "MAX_BYTES", "MAX_COUNT", "QUEUE", "PartialSums", "clear_sums", "move"]

BATCH = 16  # rows that are copied side by side at a time
QUEUE = 2 * BLOCK + BATCH  # largest number of rows that wait
MAX_COUNT = 2**22  # largest number of rows of a partial sum; float32 counts exactly up to 2**24
MAX_BYTES = 64 << 20  # largest number of bytes of all partial sums


def _width(n_features: int, items: int) -> int:
    """Return the length of a sum: one number per feature, the weight, and padding to a multiple of the work-items."""
    return (n_features // items + 1) * items


@dataclass(frozen=True)
class PartialSums:
    """Partial sums: the rows that each worker adds to the sums and subtracts from them. A worker is a work-group.

    Attributes
    ----------
    rows : Rows
    k : int
        Number of centres.
    workers : int
        Number of workers.
    items : int
        Number of work-items of a work-group.
    queue, stage, sums : Array
        See `move`. The sums of all workers are followed by the number of labels that each worker has changed.
    """

    rows: Rows
    k: int
    workers: int
    items: int
    queue: Array
    stage: Array
    sums: Array

    @classmethod
    def of(
        cls, rows: Rows, k: int, workers: int, items: int, room: Callable[[str, int, npt.DTypeLike], Array]
    ) -> PartialSums:
        """Make partial sums for `workers` workers. `room(name, size, dtype)` returns the arrays."""
        width = _width(rows.n_features, items)
        queue = room("queue", workers * 3 * QUEUE, np.int64)
        stage = room("moving", workers * BATCH * width, rows.dtype)
        sums = room("sums", workers * (2 * k * width + 1), rows.dtype)
        return cls(rows, k, workers, items, queue, stage, sums)

    @staticmethod
    def bytes_each(rows: Rows, k: int, items: int) -> int:
        """Return the bytes of the sums of one worker."""
        return 2 * k * _width(rows.n_features, items) * rows.dtype.itemsize

    def add_to(self, totals: npt.NDArray[np.float64]) -> int:
        """Add the changes to the sums of all rows (k, n_features + 1), and return the number of changed labels."""
        width = _width(self.rows.n_features, self.items)
        size = self.workers * (2 * self.k * width + 1)
        partial = self.rows.device.fetch(self.sums, stop=size, copied=False)
        return int(add_partial_sums(partial, self.workers, width, totals))


@device_function
def clear_sums(lane, items, size, sums, base, stage_size, stage, staged, zero):  # type: ignore[no-untyped-def]
    """Set the sums of a work-group, and its room for the rows of a batch, to zero; see `move`."""
    for i in range(lane, size, items):
        sums[index(base + i)] = zero
    for i in range(lane, stage_size, items):
        stage[index(staged + i)] = zero


# numba-dpex has no structures, so each value is an argument; item, lane, items, stride and lane_offset are those of the
# kernel.
@device_function
def move(  # type: ignore[no-untyped-def]
    item, lane, items, stride, lane_offset, data, d, shift, weights, weighted, one, queue, first, count, stage, staged,
    sums, base,
):  # fmt: skip
    """Take `count` rows from the sums of the centres they leave, and add them to those they come to.

    ``queue[first:]`` says where each row's first number is; `QUEUE` later which centre it comes to, and after as many
    more which one it leaves, or -1. ``stage[staged:]`` is room for `BATCH` rows (BATCH, width), zeros at their ends;
    ``sums[base:]`` holds for each centre the sums and what they had to round off (k, 2, width).

    What is the same for the work-group is done by every item alike where `lane_offset` is 0, which a CPU's compiler
    makes scalar: a row's numbers are far apart, and gathering them by lanes takes three times as long.
    """
    tiles = d // items + 1
    width = tiles * items  # as `_width`
    group_barrier(item.get_group())
    at = queue[index(first)]
    if count == BATCH and queue[index(first + BATCH - 1)] - at == BATCH - 1:  # neighbours, as in a sum of all rows
        for j in range(lane, BATCH, items):
            weight = one
            if weighted != 0:
                weight = weights[index(at // (d * BLOCK) * BLOCK + at % BLOCK + j)]
            stage[index(staged + j * width + d)] = weight
            for f in range(d):
                x = data[index(at + f * BLOCK + j)] - shift[index(f)]
                stage[index(staged + j * width + f)] = x * weight
    else:
        for j in range(lane * lane_offset, count, stride):
            at = queue[index(first + j)]
            weight = one
            if weighted != 0:
                weight = weights[index(at // (d * BLOCK) * BLOCK + at % BLOCK)]
            stage[index(staged + j * width + d)] = weight
            for f in range(d):
                x = data[index(at + f * BLOCK)] - shift[index(f)]
                stage[index(staged + j * width + f)] = x * weight
    group_barrier(item.get_group())
    for j in range(count):
        for side in range(2):
            center = queue[index(first + (side + 1) * QUEUE + j)]
            if center >= 0:
                for tile in range(tiles):
                    x = stage[index(staged + j * width + tile * items + lane)]
                    y = x if side == 0 else -x
                    at = base + center * (2 * width) + tile * items + lane
                    # Knuth's exact addition (TwoSum): `error` is the rounding error of `after`.
                    before = sums[index(at)]
                    after = before + y
                    part = after - before
                    error = (before - (after - part)) + (y - part)
                    sums[index(at)] = after
                    sums[index(at + width)] += error
    group_barrier(item.get_group())
