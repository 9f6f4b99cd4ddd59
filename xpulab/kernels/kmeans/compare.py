"""The kernel of `find_nearest`: it compares rows with all centres, tile by tile.

A work-group processes a span of rows, block by block. It lists the rows of a block whose label may change (`_lists`),
and copies them side by side (`_copies`). It compares as many rows at a time as a tile has: it loads them (`_loads`),
computes the scores of one group of centres after the other, and keeps the two smallest (`_scores`). From these it
computes the slacks (`_slacks`), and queues the rows that move from the sum of one centre to that of another
(`_queues`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from xpulab.kernels.kmeans.moves import BATCH, QUEUE, move
from xpulab.kernels.kmeans.tiles import ROOMS, Tile, space
from xpulab.kernels.language import (
    DeviceFunction,
    Kernel,
    PrivateArray,
    device_function,
    fma,
    group_barrier,
    index,
    kernel,
    prefetch,
)
from xpulab.kernels.layout import BLOCK

__all__ = ["RING", "chunk_of", "every_kernel", "nearest_kernel"]

RING = 2 * BLOCK  # rows in the copy: those of a block, and those that are left over from earlier blocks
_BLOCK_MASK = np.int32(BLOCK - 1)
_RING_MASK = RING - 1
_BURST = 512  # smallest number of elements of wide rows that are prefetched at a time
_ONE = np.int32(1)


def chunk_of(room_for: int, tile: Tile) -> int:
    """Return the number of groups of centres that local memory holds; 0 without local memory, or without `room_for`."""
    return max(1, tile.local // (room_for * tile.centers)) if tile.local and room_for else 0


@device_function
def _lists(  # type: ignore[no-untyped-def]
    block, n, labels, slack, shrunk, parameters, bits, listed, first_row, taken
):
    """List the rows of a block whose label may change after the `taken` ones before; returns how many there are now.

    `shrunk` is where the parameters say, for each centre, by how much the slack of its rows has shrunk.
    """
    for row in range(block * BLOCK, min(block * BLOCK + BLOCK, n)):
        old = labels[index(row)]
        listed[index(first_row + taken)] = np.int32(row - first_row) | ((old + _ONE) << bits)
        if slack[index(row)] <= parameters[index(shrunk + max(old, np.int32(0)))]:
            taken += 1
    return taken


def _copies(narrow: bool, stride: int, mine: int) -> DeviceFunction:
    """Make the function that copies the listed rows from `before` to `taken` side by side, to the group's ring.

    The elements of a row are far apart in memory, and those of a wide row would evict each other from the cache.
    Therefore wide rows are copied feature by feature.
    """

    @device_function
    def copy(lane, data, block, d, parameters, listed, first_row, before, taken, stage, ring):  # type: ignore[no-untyped-def]
        first = block * (d * BLOCK)
        if narrow:
            for i in range(before + lane * mine, taken, stride):
                row = listed[index(first_row + i)] & _BLOCK_MASK
                to = ring + (i & _RING_MASK)
                for f in range(d):
                    stage[index(to + f * RING)] = data[index(first + f * BLOCK + row)] - parameters[index(f)]
        else:
            for f in range(d):
                for i in range(before + lane * mine, taken, stride):
                    row = listed[index(first_row + i)] & _BLOCK_MASK
                    to = ring + f * RING + (i & _RING_MASK)
                    stage[index(to)] = data[index(first + f * BLOCK + row)] - parameters[index(f)]

    return copy


def _loads(n_rows: int, n_items: int) -> DeviceFunction:
    """Make the function that loads a work-item's rows into `x` (d, n_rows), from a `whole` block or from the ring."""

    @device_function
    def load(x, whole, data, first, parameters, stage, ring, lane, d):  # type: ignore[no-untyped-def]
        if whole:
            for f in range(d):
                for r in range(n_rows):
                    x[f * n_rows + r] = data[index(first + f * BLOCK + r * n_items + lane)] - parameters[index(f)]
        else:
            for f in range(d):
                for r in range(n_rows):
                    x[f * n_rows + r] = stage[index(ring + f * RING + r * n_items + lane)]

    return load


def _scores(n_rows: int, n_centers: int, n_items: int, tiled: bool, bounded: bool, local: bool) -> DeviceFunction:
    """Make the function that computes the scores ``|y|^2 - 2 x.y`` of a group of centres.

    The function keeps the two smallest scores of each row. It reads the centres at `centers` in the parameters, or in
    the local memory `shared`. It reads the rows from `x`, or, if private memory is too small for them, from the ring or
    the block, as `_loads` does.
    """

    @device_function
    def score_group(  # type: ignore[no-untyped-def]
        score, x, least, second, label, parameters, shared, norms, centers, first_center, data, first, stage, ring,
        lane, d,
    ):  # fmt: skip
        for j in range(n_centers):
            for r in range(n_rows):
                score[j * n_rows + r] = parameters[index(norms + j)]
        for f in range(d):
            for j in range(n_centers):
                if local:
                    y = shared[index(centers + f * n_centers + j)]
                else:
                    y = parameters[index(centers + f * n_centers + j)]
                for r in range(n_rows):
                    if tiled:
                        z = x[f * n_rows + r]
                    elif bounded:
                        z = stage[index(ring + f * RING + r * n_items + lane)]
                    else:
                        z = data[index(first + f * BLOCK + r * n_items + lane)] - parameters[index(f)]
                    score[j * n_rows + r] = fma(z, y, score[j * n_rows + r])
        for j in range(n_centers):
            for r in range(n_rows):
                s = score[j * n_rows + r]
                t = least[r]
                if s < t:
                    second[r] = t
                    least[r] = s
                    label[r] = np.int32(first_center + j)
                elif s < second[r]:
                    second[r] = s

    return score_group


def _slacks(n_rows: int, n_items: int, tiled: bool, number: type[Any]) -> DeviceFunction:
    """Make the function that writes each row's slack, less all rounding errors; -1 if these may exceed the slack.

    `largest` is twice the largest squared norm of the centres, and `margin` the rounding error of the slacks.
    """
    infinity, zero, none = number(np.inf), number(0), number(-1)
    most = number(1 - 1e-4)

    @device_function
    def write_slacks(  # type: ignore[no-untyped-def]
        x, least, second, stage, ring, slacks, lane, d, rounding, largest, margin
    ):
        for r in range(n_rows):
            xx = zero
            for f in range(d):
                z = x[f * n_rows + r] if tiled else stage[index(ring + f * RING + r * n_items + lane)]
                xx = fma(z, z, xx)
            error = rounding * (xx + largest)
            near = math.sqrt(max(least[r] + xx, zero) + error)
            far = math.sqrt(max(second[r] + xx, zero) + error)
            room = (second[r] - least[r] - error) / (near + far) * most - margin
            room = infinity if second[r] == infinity else room  # there is no other centre
            # The comparison is also false if room is NaN, after an overflow.
            stage[index(slacks + lane + r * n_items)] = room if room > zero else none

    return write_slacks


def _queues(bounded: bool) -> DeviceFunction:
    """Make the function that queues compared rows from `done` to `end` that move to another sum.

    The function returns the number of rows in the queue, and the number of changed labels.
    """

    @device_function
    def enqueue(  # type: ignore[no-untyped-def]
        done, end, first_row, span, bits, listed, labels, found, labelled, anew, d, queue, queued, waiting, changed
    ):
        for i in range(done, end):
            if bounded:
                entry = listed[index(first_row + i)]
                row = first_row + (entry & np.int32(span - 1))
                old = (entry >> bits) - _ONE
            else:
                row = first_row + i
                old = labels[index(row)]
            new = found[index(labelled + i - done)]
            if new != old:
                changed += 1
            if new != old or anew:
                queue[index(queued + waiting)] = row // BLOCK * d * BLOCK + row % BLOCK
                queue[index(queued + QUEUE + waiting)] = new
                queue[index(queued + 2 * QUEUE + waiting)] = -_ONE if anew else old
                waiting += 1
        return waiting, changed

    return enqueue


@cache
def nearest_kernel(room_for: int, dtype: np.dtype[Any], tile: Tile, bounded: bool, summing: bool) -> Kernel:
    """Return the kernel for at most `room_for` features, or, if this is 0, for any number of features.

    The kernel does not depend on the tile's span.
    """
    number = dtype.type
    infinity, zero, unit = number(np.inf), number(0), number(1)
    n_rows, n_centers, n_items = tile.rows, tile.centers, tile.items
    step = n_rows * n_items
    n_scores = n_rows * n_centers
    tiled = room_for > 0
    tile_size = max(1, room_for * n_rows)
    stride, mine = (n_items, 1) if tile.spread else (1, 0)
    narrow = 0 < room_for <= 16
    local = chunk_of(room_for, tile) > 0
    chunk = max(1, chunk_of(room_for, tile))
    copying = bounded and not tiled  # also copies whole blocks, because the scores are computed from the copy

    copy = _copies(narrow, stride, mine)
    load = _loads(n_rows, n_items)
    score_group = _scores(n_rows, n_centers, n_items, tiled, bounded, local)
    write_slacks = _slacks(n_rows, n_items, tiled, number)
    enqueue = _queues(bounded)
    shared_kind, queue_kind = "T@" if local else "T*", "i8*" if summing else "i4*"

    @kernel(
        f"T[] i8 i8 T* i8 i8 i8 i4 T i4* T* i4* i4* T* i4* {shared_kind} T* i4 {queue_kind} T* T*", dtype,
        shelf=f"{dtype.str[1:]}.{tile.shelf}",
    )  # fmt: skip
    def nearest(  # type: ignore[no-untyped-def]
        item,
        data,
        n,
        d,
        parameters,
        n_groups,
        k,
        span,
        bits,
        rounding,
        labels,
        slack,
        listed,
        counts,
        stage,
        found,
        shared,
        weights,
        weighted,
        queue,
        moving,
        sums,
    ):
        # parameters: shift (d); squared norms (n_groups * n_centers); -2 * centres (n_groups, d, n_centers); for each
        # centre by how much the slack of its rows has shrunk; twice the largest squared norm; the rounding error of the
        # slacks; and whether the sums begin with all rows.
        # stage, for each group: the copied rows (d, RING), then the new slacks; found: the labels of these rows.
        # shared: some of the centres, in the same order as in parameters.
        # queue, moving, sums: for each group, see `move`; then, for each group, the number of changed labels.
        group = item.get_group().get_group_id(0)
        n_spans = item.get_group().get_group_range(0)
        lane = item.get_local_id(0)
        centers = d + n_groups * n_centers
        shrunk = centers + n_groups * n_centers * d
        largest = parameters[index(shrunk + k)]
        margin = parameters[index(shrunk + k + 1)]
        anew = parameters[index(shrunk + k + 2)] > zero
        x = PrivateArray(tile_size, number)
        least = PrivateArray(n_rows, number)
        second = PrivateArray(n_rows, number)
        label = PrivateArray(n_rows, np.int32)
        score = PrivateArray(n_scores, number)
        first_row = group * span
        last_row = min(first_row + span, n)
        ring = group * (d * RING + BLOCK)
        slacks = ring + d * RING
        labelled = group * BLOCK
        seen = first_row // BLOCK - 1
        loaded = -1  # index of the chunk of centres in local memory
        taken = 0  # number of listed rows of the span
        done = 0  # number of listed rows that were compared
        changed = 0
        waiting = 0  # number of rows in the queue
        queued = group * (3 * QUEUE)
        width = (d // n_items + 1) * n_items
        if summing:
            for i in range(lane, 2 * width * k, n_items):
                sums[index(group * (2 * width) * k + i)] = zero
            for i in range(lane, BATCH * width, n_items):
                moving[index(group * (BATCH * width) + i)] = zero
        for block in range(first_row // BLOCK, (last_row + (BLOCK - 1)) // BLOCK):
            data_of_block = block * (d * BLOCK)
            before = taken
            # The next rows are prefetched while these rows are compared; otherwise the device would wait and compute in
            # turns. Wide rows are prefetched in small parts.
            if narrow and lane == 0:
                prefetch(data, index(data_of_block + d * BLOCK), index(d * BLOCK))
            if bounded:
                taken = _lists(block, n, labels, slack, shrunk, parameters, bits, listed, first_row, taken)
            else:
                taken += BLOCK
            whole = done == before and taken == before + BLOCK and not copying
            if bounded and not whole:
                copy(lane, data, block, d, parameters, listed, first_row, before, taken, stage, ring)
                group_barrier(item.get_group())
            enough = step if (block + 1) * BLOCK < last_row else 1
            while taken - done >= enough:
                place = done - before if whole else done & _RING_MASK
                for r in range(n_rows):
                    least[r] = infinity
                    second[r] = infinity
                    label[r] = 0
                if tiled:
                    load(x, whole, data, data_of_block + place, parameters, stage, ring + place, lane, d)
                ahead = (block + 1) * (d * BLOCK)
                end = ahead + (block - seen) * (d * BLOCK)
                burst = max(_BURST, (end - ahead + n_groups - 1) // n_groups)
                seen = block
                for c in range(n_groups):
                    if local and c // chunk != loaded:
                        loaded = c // chunk
                        first = loaded * chunk * d * n_centers
                        last = min((loaded + 1) * chunk, n_groups) * d * n_centers
                        group_barrier(item.get_group())  # other work-items may still read the centres before
                        for i in range(lane, last - first, n_items):
                            shared[index(i)] = parameters[index(centers + first + i)]
                        group_barrier(item.get_group())
                    if not narrow and ahead < end:
                        if lane == 0:
                            prefetch(data, index(ahead), index(burst))
                        ahead += burst
                    here = (c - loaded * chunk) * d * n_centers if local else centers + c * d * n_centers
                    score_group(
                        score, x, least, second, label, parameters, shared, d + c * n_centers, here, c * n_centers,
                        data, data_of_block + place, stage, ring + place, lane, d,
                    )  # fmt: skip
                if bounded:
                    write_slacks(x, least, second, stage, ring + place, slacks, lane, d, rounding, largest, margin)
                if bounded or summing:
                    for r in range(n_rows):
                        found[index(labelled + lane + r * n_items)] = label[r]
                    group_barrier(item.get_group())
                end_of_step = min(done + step, taken)
                if summing:
                    if not bounded:
                        end_of_step = min(end_of_step, last_row - first_row)
                    waiting, changed = enqueue(
                        done, end_of_step, first_row, span, bits, listed, labels, found, labelled, anew, d, queue,
                        queued, waiting, changed,
                    )  # fmt: skip
                    group_barrier(item.get_group())
                if bounded:
                    for i in range(done + lane * mine, end_of_step, stride):
                        row = first_row + (listed[index(first_row + i)] & np.int32(span - 1))
                        new = found[index(labelled + i - done)]
                        labels[index(row)] = new
                        slack[index(row)] = stage[index(slacks + i - done)] + parameters[index(shrunk + new)]
                    group_barrier(item.get_group())
                else:
                    for r in range(n_rows):
                        labels[index(block * BLOCK + place + r * n_items + lane)] = label[r]
                done = min(done + step, taken)
            if summing:
                # As long as there are more blocks, only whole batches are moved; the other rows wait in the queue.
                now = waiting if (block + 1) * BLOCK >= last_row else waiting // BATCH * BATCH
                for first in range(0, now, BATCH):
                    move(
                        item, lane, n_items, stride, mine, data, d, parameters, weights, weighted, unit, queue,
                        queued + first, min(now - first, BATCH), moving, group * (BATCH * width), sums,
                        group * (2 * width) * k,
                    )  # fmt: skip
                if now > 0:
                    for i in range(now, waiting):
                        for part in range(3):
                            queue[index(queued + part * QUEUE + i - now)] = queue[index(queued + part * QUEUE + i)]
                    waiting -= now
                    group_barrier(item.get_group())
        if summing and lane == 0:
            sums[index(n_spans * (2 * width) * k + group)] = number(changed)
        if bounded:
            counts[index(group)] = np.int32(taken)

    return nearest


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue, with every tile that the tuner may choose."""
    for dtype, is_cpu in itertools.product(map(np.dtype, (np.float32, np.float64)), (True, False)):
        tiles = dict.fromkeys(replace(tile, span=0) for tile in space(dtype, is_cpu).values())
        for tile, room_for in itertools.product(tiles, (*ROOMS, 0)):
            for bounded, summing in itertools.product((False, True), repeat=2):
                yield nearest_kernel(room_for, dtype, tile, bounded, summing)
