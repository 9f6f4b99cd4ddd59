"""The kernel of `find_nearest`: it compares rows with all centres.

A work-group processes a span of rows, block by block. It lists the rows of a block whose label may change (`_lists`),
and copies them side by side (`_copies`). It compares as many rows at a time as its work-items have (`LaunchShape`): it
loads them, computes the scores of one group of centres after the other, and keeps the two smallest (`_comparisons`).
From these it computes labels and slacks (`_results`), writes them (`_labels`), and queues the rows that move from the
sum of one centre to that of another (`_queues`), which it moves in batches (`_batches`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from xpulab.kernels.kmeans.launch_shapes import PRIVATE_FEATURES, LaunchShape, space
from xpulab.kernels.kmeans.moves import BATCH, QUEUE, clear_sums, move
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
_NARROW = 16  # features up to which a row is copied at once, and a block is prefetched at once
_BURST = 512  # smallest number of elements of wide rows that are prefetched at a time
_ONE = np.int32(1)


def chunk_of(features: int, shape: LaunchShape) -> int:
    """Return the number of groups of centres of so many features that local memory holds; 0 if it is not used."""
    return max(1, shape.local // (features * shape.centers)) if shape.local and features else 0


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


def _copies(narrow: bool, shape: LaunchShape) -> DeviceFunction:
    """Make the function that copies the listed rows from `before` to `taken` side by side, to the group's ring.

    The elements of a row are far apart in memory, and those of a wide row would evict each other from the cache.
    Therefore wide rows are copied feature by feature.
    """
    stride, lane_offset = shape.strides

    @device_function
    def copy(lane, data, block, d, parameters, listed, first_row, before, taken, stage, ring):  # type: ignore[no-untyped-def]
        first = block * (d * BLOCK)
        if narrow:
            for i in range(before + lane * lane_offset, taken, stride):
                row = listed[index(first_row + i)] & _BLOCK_MASK
                to = ring + (i & _RING_MASK)
                for f in range(d):
                    stage[index(to + f * RING)] = data[index(first + f * BLOCK + row)] - parameters[index(f)]
        else:
            for f in range(d):
                for i in range(before + lane * lane_offset, taken, stride):
                    row = listed[index(first_row + i)] & _BLOCK_MASK
                    to = ring + f * RING + (i & _RING_MASK)
                    stage[index(to)] = data[index(first + f * BLOCK + row)] - parameters[index(f)]

    return copy


def _loads(shape: LaunchShape) -> DeviceFunction:
    """Make the function that loads a work-item's rows into `x` (d, n_rows), from a `whole` block or from the ring."""
    n_rows, n_items = shape.rows, shape.items

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


def _scores(shape: LaunchShape, private: bool, bounded: bool, local: bool) -> DeviceFunction:
    """Make the function that computes the scores ``|y|^2 - 2 x.y`` of a group of centres.

    The function keeps the two smallest scores of each row. It reads the centres at `centers` in the parameters, or in
    the local memory `shared`. It reads the rows from `x`, or, if private memory is too small for them, from the ring or
    the block, as `_loads` does.
    """
    n_rows, n_centers, n_items = shape.rows, shape.centers, shape.items

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
                    if private:
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


def _stages(shape: LaunchShape) -> DeviceFunction:
    """Make the function that copies groups of centres, from `first_group` to `end_group`, to the local memory."""
    n_centers, n_items = shape.centers, shape.items

    @device_function
    def stage_centers(item, parameters, centers, first_group, end_group, shared, lane, d):  # type: ignore[no-untyped-def]
        first = first_group * d * n_centers
        last = end_group * d * n_centers
        group_barrier(item.get_group())  # other work-items may still read the centres before
        for i in range(lane, last - first, n_items):
            shared[index(i)] = parameters[index(centers + first + i)]
        group_barrier(item.get_group())

    return stage_centers


def _comparisons(features: int, shape: LaunchShape, bounded: bool, number: type[Any]) -> DeviceFunction:
    """Make the function that compares rows with all centres, group by group.

    The function returns which chunk of centres is in local memory, as `loaded` says before. Wide rows are prefetched
    meanwhile, in small parts: the elements of `data` from `ahead` to `end`.
    """
    infinity = number(np.inf)
    n_rows, n_centers = shape.rows, shape.centers
    private, narrow = features > 0, 0 < features <= _NARROW
    local, chunk = chunk_of(features, shape) > 0, max(1, chunk_of(features, shape))
    load, stage_centers = _loads(shape), _stages(shape)
    score_group = _scores(shape, private, bounded, local)

    @device_function
    def compare(  # type: ignore[no-untyped-def]
        item, score, x, least, second, label, parameters, shared, loaded, n_groups, whole, data, first, ahead, end,
        stage, ring, lane, d,
    ):  # fmt: skip
        for r in range(n_rows):
            least[r] = infinity
            second[r] = infinity
            label[r] = 0
        if private:
            load(x, whole, data, first, parameters, stage, ring, lane, d)
        centers = d + n_groups * n_centers
        burst = max(_BURST, (end - ahead + n_groups - 1) // n_groups)
        for c in range(n_groups):
            if local and c // chunk != loaded:
                loaded = c // chunk
                end_group = min((loaded + 1) * chunk, n_groups)
                stage_centers(item, parameters, centers, loaded * chunk, end_group, shared, lane, d)
            if not narrow and ahead < end:
                if lane == 0:
                    prefetch(data, index(ahead), index(burst))
                ahead += burst
            of_group = (c - loaded * chunk) * d * n_centers if local else centers + c * d * n_centers
            score_group(
                score, x, least, second, label, parameters, shared, d + c * n_centers, of_group, c * n_centers, data,
                first, stage, ring, lane, d,
            )  # fmt: skip
        return loaded

    return compare


def _results(features: int, shape: LaunchShape, bounded: bool, number: type[Any]) -> DeviceFunction:
    """Make the function that writes the labels of the compared rows to `found`, and with bounds their slacks.

    The slacks, in the stage, are less all rounding errors; -1 if these may exceed the slack. `limits` is where the
    parameters have twice the largest squared norm of the centres, and the rounding error of the slacks.
    """
    infinity, zero, none = number(np.inf), number(0), number(-1)
    most = number(1 - 1e-4)
    n_rows, n_items, private = shape.rows, shape.items, features > 0

    @device_function
    def write_results(  # type: ignore[no-untyped-def]
        item, x, least, second, label, stage, ring, slacks, found, labelled, parameters, limits, rounding, lane, d
    ):
        if bounded:
            largest = parameters[index(limits)]
            margin = parameters[index(limits + 1)]
            for r in range(n_rows):
                xx = zero
                for f in range(d):
                    z = x[f * n_rows + r] if private else stage[index(ring + f * RING + r * n_items + lane)]
                    xx = fma(z, z, xx)
                error = rounding * (xx + largest)
                near = math.sqrt(max(least[r] + xx, zero) + error)
                far = math.sqrt(max(second[r] + xx, zero) + error)
                slack = (second[r] - least[r] - error) / (near + far) * most - margin
                slack = infinity if second[r] == infinity else slack  # there is no other centre
                # The comparison is also false if the slack is NaN, after an overflow.
                stage[index(slacks + lane + r * n_items)] = slack if slack > zero else none
        for r in range(n_rows):
            found[index(labelled + lane + r * n_items)] = label[r]
        group_barrier(item.get_group())

    return write_results


def _queues(bounded: bool) -> DeviceFunction:
    """Make the function that queues compared rows from `done` to `end` that move to another sum.

    The function returns the number of rows in the queue, and the number of changed labels.
    """

    @device_function
    def enqueue(  # type: ignore[no-untyped-def]
        item, done, end, first_row, span, bits, listed, labels, found, labelled, anew, d, queue, queued, waiting,
        changed,
    ):  # fmt: skip
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
        group_barrier(item.get_group())
        return waiting, changed

    return enqueue


def _labels(shape: LaunchShape, bounded: bool) -> DeviceFunction:
    """Make the function that writes the labels of the compared rows from `done` to `end`, and their slacks.

    Without bounds, `label` has the labels of rows that lie side by side from `row` on. With bounds, the rows are
    listed, and `found` and `stage` have their labels and slacks.
    """
    n_rows, n_items = shape.rows, shape.items
    stride, lane_offset = shape.strides

    @device_function
    def write_labels(  # type: ignore[no-untyped-def]
        item, label, row, done, end, first_row, span, listed, labels, found, labelled, slack, stage, slacks, parameters,
        shrunk, lane,
    ):  # fmt: skip
        if bounded:
            for i in range(done + lane * lane_offset, end, stride):
                at = first_row + (listed[index(first_row + i)] & np.int32(span - 1))
                new = found[index(labelled + i - done)]
                labels[index(at)] = new
                slack[index(at)] = stage[index(slacks + i - done)] + parameters[index(shrunk + new)]
            group_barrier(item.get_group())
        else:
            for r in range(n_rows):
                labels[index(row + r * n_items + lane)] = label[r]

    return write_labels


def _batches(shape: LaunchShape, number: type[Any]) -> DeviceFunction:
    """Make the function that moves `now` of the `waiting` rows between the sums, and returns how many wait then."""
    unit, n_items = number(1), shape.items
    stride, lane_offset = shape.strides

    @device_function
    def move_batches(  # type: ignore[no-untyped-def]
        item, lane, data, d, parameters, weights, weighted, queue, queued, waiting, now, moving, staged, sums, base
    ):
        for first in range(0, now, BATCH):
            move(
                item, lane, n_items, stride, lane_offset, data, d, parameters, weights, weighted, unit, queue,
                queued + first, min(now - first, BATCH), moving, staged, sums, base,
            )  # fmt: skip
        if now > 0:
            for i in range(now, waiting):
                for part in range(3):
                    queue[index(queued + part * QUEUE + i - now)] = queue[index(queued + part * QUEUE + i)]
            waiting -= now
            group_barrier(item.get_group())
        return waiting

    return move_batches


@cache
def nearest_kernel(features: int, dtype: np.dtype[Any], shape: LaunchShape, bounded: bool, summing: bool) -> Kernel:
    """Return the kernel for at most so many features, or, if this is 0, for any number of features.

    The kernel does not depend on the shape's span.

    Its argument `parameters` has the shift (d); the squared norms (n_groups * n_centers); -2 * the centres (n_groups,
    d, n_centers); for each centre by how much the slack of its rows has shrunk; twice the largest squared norm; the
    rounding error of the slacks; and whether the sums begin with all rows. `stage` has for each work-group the copied
    rows (d, RING), and then the new slacks; `found` has the labels of these rows. `shared` is local memory for a chunk
    of centres, in the same order as in `parameters`. For `queue`, `moving` and `sums` see `move`; the sums end with
    the number of labels that each work-group has changed.
    """
    number = dtype.type
    zero = number(0)
    n_rows, n_centers, n_items = shape.rows, shape.centers, shape.items
    step, n_scores, private_size = n_rows * n_items, n_rows * n_centers, max(1, features * n_rows)
    narrow = 0 < features <= _NARROW
    copying = bounded and features == 0  # also copies whole blocks, because the scores are computed from the copy
    copy = _copies(narrow, shape)
    compare = _comparisons(features, shape, bounded, number)
    write_results = _results(features, shape, bounded, number)
    enqueue = _queues(bounded)
    write_labels = _labels(shape, bounded)
    move_batches = _batches(shape, number)
    shared_kind, queue_kind = "T@" if chunk_of(features, shape) else "T*", "i8*" if summing else "i4*"

    @kernel(
        f"T[] i8 i8 T* i8 i8 i8 i4 T i4* T* i4* i4* T* i4* {shared_kind} T* i4 {queue_kind} T* T*", dtype,
        shelf=f"{dtype.str[1:]}.{shape.shelf}",
    )  # fmt: skip
    def nearest(  # type: ignore[no-untyped-def]
        item, data, n, d, parameters, n_groups, k, span, bits, rounding, labels, slack, listed, counts, stage, found,
        shared, weights, weighted, queue, moving, sums,
    ):  # fmt: skip
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        shrunk = d + n_groups * n_centers * (1 + d)
        anew = parameters[index(shrunk + k + 2)] > zero
        x = PrivateArray(private_size, number)
        least = PrivateArray(n_rows, number)
        second = PrivateArray(n_rows, number)
        label = PrivateArray(n_rows, np.int32)
        score = PrivateArray(n_scores, number)
        first_row = group * span
        last_row = min(first_row + span, n)
        ring = group * (d * RING + BLOCK)
        slacks = ring + d * RING
        labelled = group * BLOCK
        compared = first_row // BLOCK - 1  # last block of which rows were compared
        loaded = -1  # chunk of centres in local memory
        taken, done = 0, 0  # number of listed rows of the span, and of those that were compared
        waiting, changed = 0, 0  # number of rows in the queue, and of changed labels
        queued = group * (3 * QUEUE)
        width = (d // n_items + 1) * n_items
        moved = group * (BATCH * width)
        base = group * (2 * width) * k
        if summing:
            clear_sums(lane, n_items, 2 * width * k, sums, base, BATCH * width, moving, moved, zero)
        for block in range(first_row // BLOCK, (last_row + (BLOCK - 1)) // BLOCK):
            data_of_block, next_block = block * (d * BLOCK), (block + 1) * (d * BLOCK)
            before = taken
            # The next rows are prefetched while these rows are compared; otherwise the device would wait and compute in
            # turns. Wide rows are prefetched in small parts.
            if narrow and lane == 0:
                prefetch(data, index(next_block), index(d * BLOCK))
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
                offset = done - before if whole else done & _RING_MASK
                loaded = compare(
                    item, score, x, least, second, label, parameters, shared, loaded, n_groups, whole, data,
                    data_of_block + offset, next_block, next_block + (block - compared) * (d * BLOCK), stage,
                    ring + offset, lane, d,
                )  # fmt: skip
                compared = block
                end = min(done + step, taken)
                if bounded or summing:
                    write_results(
                        item, x, least, second, label, stage, ring + offset, slacks, found, labelled, parameters,
                        shrunk + k, rounding, lane, d,
                    )  # fmt: skip
                if summing:
                    waiting, changed = enqueue(
                        item, done, end if bounded else min(end, last_row - first_row), first_row, span, bits, listed,
                        labels, found, labelled, anew, d, queue, queued, waiting, changed,
                    )  # fmt: skip
                write_labels(
                    item, label, block * BLOCK + offset, done, end, first_row, span, listed, labels, found, labelled,
                    slack, stage, slacks, parameters, shrunk, lane,
                )  # fmt: skip
                done = end
            if summing:
                # As long as there are more blocks, only whole batches are moved; the other rows wait in the queue.
                now = waiting if (block + 1) * BLOCK >= last_row else waiting // BATCH * BATCH
                waiting = move_batches(
                    item, lane, data, d, parameters, weights, weighted, queue, queued, waiting, now, moving, moved,
                    sums, base,
                )  # fmt: skip
        if summing and lane == 0:
            sums[index(item.get_group().get_group_range(0) * (2 * width) * k + group)] = number(changed)
        if bounded:
            counts[index(group)] = np.int32(taken)

    return nearest


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue, with every launch shape that the tuner may choose."""
    for dtype, is_cpu in itertools.product(map(np.dtype, (np.float32, np.float64)), (True, False)):
        shapes = dict.fromkeys(replace(shape, span=0) for shape in space(dtype, is_cpu).values())
        for shape, features in itertools.product(shapes, (*PRIVATE_FEATURES, 0)):
            for bounded, summing in itertools.product((False, True), repeat=2):
                yield nearest_kernel(features, dtype, shape, bounded, summing)
