"""The kernel of `neighbors`: it computes the scores of rows for queries, and keeps the list of the nearest.

The queries lie in tiles, feature by feature, and the rows that are searched one after the other: a work-item has a few
queries of a tile, and reads the numbers of a row together with all other items of its group. A group takes a span of
the rows, some at a time, and several tiles for which it reads them from memory once. It computes the scores of a tile,
and then inserts into the list of each query the scores that are below the worst in the list; after the first rows these
are few.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from xpulab.kernels.language import (
    DeviceFunction,
    Kernel,
    PrivateArray,
    device_function,
    fma,
    group_barrier,
    index,
    kernel,
)

__all__ = [
    "CHUNK_BYTES",
    "RUN",
    "STAGED",
    "Kind",
    "LaunchShape",
    "every_kernel",
    "gather_kernel",
    "launch_shape_for",
    "search_kernel",
]

#: What a score is: ``start - x.y``, or the sum, or the largest, of ``|x - y|`` to some power.
Kind = Literal["product", "squares", "absolute", "largest", "powers"]

KINDS: tuple[Kind, ...] = ("product", "squares", "absolute", "largest", "powers")
RUN = 96  # rows whose scores a group has at a time
_PARTS = 6  # of a run: the least score of each is known, too, so that few scores are looked at one by one
_PART = RUN // _PARTS
STAGED = RUN + 1 + _PARTS  # numbers of each query that a group stages
CHUNK_BYTES = 256  # of a query's features that are used at a time: those of a tile stay in a core's first cache


@dataclass(frozen=True)
class LaunchShape:
    """How the work is cut into work-groups: queries and rows whose scores stay in registers, work-items of a group.

    `spread`: whether the work-items share the search through the scores (a GPU), or each does all of it: where a group
    is one thread with vector registers (a CPU), these are plain scalar moves.
    """

    queries: int
    rows: int
    items: int
    spread: bool

    @property
    def step(self) -> int:
        """Return the number of queries of a work-group."""
        return self.queries * self.items


def launch_shape_for(dtype: np.dtype[Any], is_cpu: bool) -> LaunchShape:
    if not is_cpu:
        return LaunchShape(1, 8, 64, True)
    return LaunchShape(3, 4, 16, False) if dtype == np.float32 else LaunchShape(1, 4, 16, False)


def _add_difference(kind: Kind) -> DeviceFunction:
    """Make the function that adds to a score what one feature of a query and of a row contributes."""
    product, squares, absolute, largest = (kind == each for each in KINDS[:4])

    @device_function
    def add_difference(score, x, y, power):  # type: ignore[no-untyped-def]
        if product:
            score = fma(x, y, score)
        else:
            t = abs(x - y)
            if squares:
                score = fma(t, t, score)
            elif absolute:
                score += t
            elif largest:
                score = t if t > score else score
            else:
                score += math.pow(t, power)
        return score

    return add_difference


def _score_run(kind: Kind, shape: LaunchShape, chunk: int, number: type[Any]) -> DeviceFunction:
    """Make the function that stages the scores of a run of rows, from `begin` on.

    After them it stages the least score of each query, and then that of each part of the run.
    """
    n_queries, n_rows, n_items, step = shape.queries, shape.rows, shape.items, shape.step
    n_scores = n_queries * n_rows
    infinity = number(np.inf)
    add_difference = _add_difference(kind)

    @device_function
    def score_run(queries, base, d, rows, start, begin, power, stage, scores, lane):  # type: ignore[no-untyped-def]
        score = PrivateArray(n_scores, number)
        x = PrivateArray(n_queries, number)
        low = PrivateArray(n_queries, number)
        lowest = PrivateArray(n_queries, number)
        for f_begin in range(0, d, chunk):
            f_end = min(f_begin + chunk, d)
            for q in range(n_queries):
                lowest[q] = infinity
            for part in range(_PARTS):
                for q in range(n_queries):
                    low[q] = infinity
                first = begin + part * _PART
                for row in range(first, first + _PART, n_rows):
                    to = scores + (row - begin) * step + lane
                    for j in range(n_rows):
                        s = start[index(row + j)]
                        for q in range(n_queries):
                            if f_begin == 0:
                                score[j * n_queries + q] = s
                            else:
                                score[j * n_queries + q] = stage[index(to + j * step + q * n_items)]
                    for f in range(f_begin, f_end):
                        for q in range(n_queries):
                            x[q] = queries[index(base + f * step + q * n_items)]
                        for j in range(n_rows):
                            y = rows[index((row + j) * d + f)]
                            for q in range(n_queries):
                                score[j * n_queries + q] = add_difference(score[j * n_queries + q], x[q], y, power)
                    for j in range(n_rows):
                        for q in range(n_queries):
                            s = score[j * n_queries + q]
                            low[q] = s if s < low[q] else low[q]
                            stage[index(to + j * step + q * n_items)] = s
                for q in range(n_queries):
                    lowest[q] = low[q] if low[q] < lowest[q] else lowest[q]
                    stage[index(scores + (RUN + 1 + part) * step + q * n_items + lane)] = low[q]
        for q in range(n_queries):
            stage[index(scores + RUN * step + q * n_items + lane)] = lowest[q]

    return score_run


def _insert_nearest(step: int, infinity: Any) -> DeviceFunction:
    """Make the function that inserts the staged scores of a query that are below the worst of its list.

    `to` is where its list begins in `best` and `indices`, and `counted` is not used.
    """

    @device_function
    def insert(stage, scores, begin, room, best, limit, to, indices, counted):  # type: ignore[no-untyped-def]
        worst = best[index(limit)]
        if stage[index(scores + RUN * step)] < worst:
            # Scores that were inserted become infinite, because several work-items may insert the scores of one query.
            stage[index(scores + RUN * step)] = infinity
            for part in range(_PARTS):
                if stage[index(scores + (RUN + 1 + part) * step)] < worst:
                    stage[index(scores + (RUN + 1 + part) * step)] = infinity
                    for j in range(part * _PART, (part + 1) * _PART):
                        s = stage[index(scores + j * step)]
                        if s < worst:
                            stage[index(scores + j * step)] = infinity
                            at = to + room - 1
                            for k in range(room - 1):
                                # All the way: a loop that ends where the score belongs would not be scalar on a CPU.
                                before = best[index(to + room - 2 - k)]
                                if s < before:
                                    best[index(at)] = before
                                    indices[index(at)] = indices[index(at - 1)]
                                    at -= 1
                            best[index(at)] = s
                            indices[index(at)] = np.int32(begin + j)
                            worst = best[index(to + room - 1)]

    return insert


def _list_within(step: int, infinity: Any) -> DeviceFunction:
    """Make the function that lists the rows whose staged scores for a query are at most its limit.

    The limit is `best` at `limit`. `counted` is where `indices` has the number of rows, followed by `room` of them, and
    `to` is not used.
    """

    @device_function
    def insert(stage, scores, begin, room, best, limit, to, indices, counted):  # type: ignore[no-untyped-def]
        worst = best[index(limit)]
        if stage[index(scores + RUN * step)] <= worst:
            stage[index(scores + RUN * step)] = infinity  # marked as done, as in `_insert_nearest`
            for j in range(RUN):
                if stage[index(scores + j * step)] <= worst:
                    stage[index(scores + j * step)] = infinity
                    count = indices[index(counted)]
                    if count < room:
                        indices[index(counted + 1 + count)] = np.int32(begin + j)
                    indices[index(counted)] = np.int32(count + 1)

    return insert


@cache
def search_kernel(kind: Kind, dtype: np.dtype[Any], shape: LaunchShape, listing: bool) -> Kernel:
    """Return the kernel that lists the rows with the least scores, or with `listing` all up to a limit.

    Its argument `queries` has (n_tiles, d, step). A work-group has `together` tiles, of which n_tiles is a multiple,
    and the same part of the rows. `start` has of each row what its score begins with; infinity after the last of them.
    `stage` has for each work-group (STAGED, step), see `_score_run`. `best` and `indices` have
    for each tile of a group (step, room), the least scores in their order, and their rows. With `listing` `best` has
    the limits (step,), and `indices` has (step, 1 + room), how many rows there are, and the first of them.
    """
    number = dtype.type
    infinity = number(np.inf)
    n_items, step = shape.items, shape.step
    stride, lane_offset = (n_items, 1) if shape.spread else (1, 0)
    score_run = _score_run(kind, shape, CHUNK_BYTES // dtype.itemsize, number)
    insert = _list_within(step, infinity) if listing else _insert_nearest(step, infinity)

    @kernel("T[] i8 i8 i8 T* T* i8 i8 T i8 T* T* i4*", dtype)
    def search(  # type: ignore[no-untyped-def]
        item, queries, n_tiles, together, d, rows, start, n, span, power, room, stage, best, indices
    ):  # fmt: skip
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        first = group * together // n_tiles * span
        scores = group * STAGED * step
        if listing:
            for i in range(lane, together * step, n_items):
                indices[index((group * together * step + i) * (room + 1))] = np.int32(0)
        else:
            for i in range(lane, together * step * room, n_items):
                best[index(group * together * step * room + i)] = infinity
                indices[index(group * together * step * room + i)] = np.int32(-1)
        for run in range(together * ((min(first + span, n) - first + (RUN - 1)) // RUN)):  # of one tile after the other
            begin = first + run // together * RUN
            tile = group * together + run % together
            base = tile % n_tiles * d * step + lane
            score_run(queries, base, d, rows, start, begin, power, stage, scores, lane)
            group_barrier(item.get_group())
            for i in range(lane * lane_offset, step, stride):
                to = (tile * step + i) * room
                limit = tile * step + i if listing else to + room - 1
                insert(stage, scores + i, begin, room, best, limit, to, indices, (tile * step + i) * (room + 1))
            group_barrier(item.get_group())

    return search


@cache
def gather_kernel(dtype: np.dtype[Any]) -> Kernel:
    @kernel("T[] i8 i8* i8 T*", dtype)
    def gather(item, data, d, chosen, size, out):  # type: ignore[no-untyped-def]
        i = item.get_global_id(0)
        if i < size:
            out[index(i)] = data[index(chosen[index(i // d)] * d + i % d)]

    return gather


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    for dtype, is_cpu, listing in itertools.product(
        map(np.dtype, (np.float32, np.float64)), (True, False), (False, True)
    ):
        yield gather_kernel(dtype)
        for kind in KINDS:
            yield search_kernel(kind, dtype, launch_shape_for(dtype, is_cpu), listing)
