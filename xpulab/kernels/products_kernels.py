"""The kernels of `products`: they sum products of columns over the rows.

A work-group takes a chunk of the rows and stages it, and then passes over the stage once for each tile of products,
whose sums are in registers. Few columns are staged column by column, and the work-items stand for neighbouring rows:
the sums of the work-items are added up afterwards. Many columns are staged row by row, in panels, and the columns of a
tile are multiplied by all columns on the other side, as in the matrix products of [1]_. This stage takes longer to
write, and its sums need not be added up. On a GPU each work-item has its own columns of a tile. On a CPU a work-group
is a single work-item, which computes with vectors: it stages the columns by transposing them in registers, and gathers
nothing.

The stage and the sums may be of float64 where the rows are of float32: products of two float32 are exact in float64.

References
----------
.. [1] K. Goto, R. A. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM Transactions on
   Mathematical Software 34 (2008).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

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
    multiply_columns,
    prefetch,
    stage_columns,
)
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.runtime.device import lanes_of

__all__ = ["Form", "every_kernel", "form_of", "products_kernel"]

_VECTORS_CHUNK = 128  # rows; two panels of a chunk fit a core's first cache


@dataclass(frozen=True)
class Form:
    """How the products of one dtype are cut.

    Attributes
    ----------
    kind : {"few", "many", "vectors"}
        How the columns are staged.
    lanes : int
        Work-items of a group; see `Device.lanes`.
    left, right : int
        Columns of a tile on each side. The sums and what is multiplied fit a CPU's registers: 32 with AVX-512, 16 of
        half the size with AVX2.
    panel : int
        Columns that are staged together, of which tiles on both sides take whole parts.
    chunk : int
        Rows that are staged at a time: the columns of a tile stay in a core's first cache.
    sums : int
        Numbers that are left of a tile: the products, or those of each work-item.
    """

    kind: str
    lanes: int
    left: int
    right: int
    panel: int
    chunk: int
    sums: int

    @property
    def column_size(self) -> int:
        """Return the step between two columns of the stage; few columns would share cache lines at a power of two."""
        return self.chunk + 16 if self.kind == "few" else self.chunk


@cache
def form_of(dtype: np.dtype[Any], kind: str, wide: bool) -> Form:
    lanes, single = lanes_of(wide), dtype.itemsize == 4
    if kind == "vectors":
        size = (64 if wide else 32) // dtype.itemsize
        left, right = (size, 16) if wide else (4, 3 * size)
        return Form(kind, 1, left, right, size, _VECTORS_CHUNK, left * right)
    if kind == "many":
        left, right = 64 // dtype.itemsize, 16
        return Form(kind, lanes, left, right, math.lcm(left, right), BLOCK, left * right)
    side = (5 if single else 3) if wide else (3 if single else 2)
    return Form(kind, lanes, side, side, side, 2048 // dtype.itemsize, side * side * lanes)


def products_kernel(given: np.dtype[Any], dtype: np.dtype[Any], kind: str, wide: bool) -> Kernel:
    """Return the kernel for rows of the dtype `given`; all other numbers have `dtype`."""
    make = {"few": _few_kernel, "many": _many_kernel, "vectors": _vector_kernel}[kind]
    return make(given, dtype, wide)


def _signature(given: np.dtype[Any]) -> str:
    """Return the types of the arguments, which are the same for all kernels.

    The columns of `data` come first, those of `others` from others_at on; the rest of the n_columns are zeros. `tiles`
    says where in the stage the first columns of each tile are, and `partial` gets the sums of each group and tile.
    """
    rows = given.str[1:]
    return f"{rows}[] i8 T* {rows}* i8 i8 T* T* i4 i4 i8 i8 i8 i8* i8 T* i8 T* T*"


@device_function
def _store(total, totals, at, anew):  # type: ignore[no-untyped-def]
    if anew:
        totals[index(at)] = total
    else:
        totals[index(at)] += total


@device_function
def _store_sums(sums, n_sums, lanes, partial, to, anew):  # type: ignore[no-untyped-def]
    if anew:
        for i in range(n_sums):
            partial[index(to + i * lanes)] = sums[i]
    else:
        for i in range(n_sums):
            partial[index(to + i * lanes)] += sums[i]


# --- few columns, staged column by column


def _stage_column(form: Form, number: type[Any]) -> DeviceFunction:
    """Make the function that stages column f of `size` rows of chunk c, and returns its weighted sum.

    `source` has d columns, of which `middle` is subtracted.
    """
    zero, one = number(0), number(1)
    lanes, chunk = form.lanes, form.chunk
    chunk_blocks, parts = chunk // BLOCK, BLOCK // lanes

    @device_function
    def stage_column(source, c, d, f, middle, weights, weighted, size, stage, to, lane):  # type: ignore[no-untyped-def]
        total = zero
        if size == chunk and weighted == 0:
            # A whole chunk without weights: nothing to decide for each row.
            first = (c * chunk_blocks * d + f) * BLOCK + lane
            for block in range(chunk_blocks):
                of_block = zero
                for part in range(parts):
                    x = source[index(first + block * (d * BLOCK) + part * lanes)] - middle
                    of_block += x
                    stage[index(to + block * BLOCK + part * lanes)] = x
                total += of_block
        else:
            for row in range(0, size, lanes):
                block = c * chunk_blocks + row // BLOCK
                x = source[index((block * d + f) * BLOCK + row % BLOCK + lane)] - middle
                weight = one
                if weighted != 0:
                    weight = weights[index(c * chunk + row + lane)]
                    x = x * weight
                x = x if row + lane < size else zero
                total = fma(x, weight, total)
                stage[index(to + row)] = x
        return total

    return stage_column


def _multiply_few(form: Form, number: type[Any]) -> DeviceFunction:
    """Make the function that multiplies the columns of a tile, which are staged column by column."""
    zero = number(0)
    lanes, left, right, column_size = form.lanes, form.left, form.right, form.column_size
    n_sums = left * right

    @device_function
    def multiply_tile(stage, x_at, y_at, size, partial, to, anew):  # type: ignore[no-untyped-def]
        sums = PrivateArray(n_sums, number)
        y = PrivateArray(right, number)
        for i in range(n_sums):
            sums[i] = zero
        for row in range(0, size, lanes):
            for j in range(right):
                y[j] = stage[index(y_at + row + j * column_size)]
            for i in range(left):
                x = stage[index(x_at + row + i * column_size)]
                for j in range(right):
                    sums[i * right + j] = fma(x, y[j], sums[i * right + j])
        _store_sums(sums, n_sums, lanes, partial, to, anew)

    return multiply_tile


@cache
def _few_kernel(given: np.dtype[Any], dtype: np.dtype[Any], wide: bool) -> Kernel:
    number = dtype.type
    zero = number(0)
    form = form_of(dtype, "few", wide)
    lanes, chunk, tile_sums, column_size = form.lanes, form.chunk, form.sums, form.column_size
    stage_column = _stage_column(form, number)
    multiply_tile = _multiply_few(form, number)

    @kernel(_signature(given), dtype)
    def few_products(  # type: ignore[no-untyped-def]
        item, data, d, shift, others, t, others_at, other_shift, weights, weighted, others_weighted, n, first, n_chunks,
        tiles, n_tiles, stage, n_columns, partial, totals,
    ):  # fmt: skip
        # stage: of each group (n_columns, column_size). totals: of each group (n_columns, lanes), the weighted sums of
        # the columns.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        base = group * (n_columns * column_size)
        begin = first + group * n_chunks
        for c in range(begin, begin + n_chunks):
            size = max(min(n - c * chunk, chunk), 0)
            for f in range(n_columns):
                total = zero
                to = base + f * column_size + lane
                other = f - others_at
                if f < d:
                    total = stage_column(data, c, d, f, shift[index(f)], weights, weighted, size, stage, to, lane)
                elif other >= 0 and other < t:
                    middle = other_shift[index(other)]
                    total = stage_column(others, c, t, other, middle, weights, others_weighted, size, stage, to, lane)
                elif c == begin:
                    for row in range(0, chunk, lanes):
                        stage[index(to + row)] = zero
                _store(total, totals, (group * n_columns + f) * lanes + lane, c == begin)
            # The next chunk is prefetched in parts while the tiles are multiplied; otherwise reading and multiplying
            # would take turns.
            burst = 0
            if c + 1 < begin + n_chunks and (c + 2) * chunk <= n:
                burst = (chunk * d + n_tiles - 1) // n_tiles
            for tile in range(n_tiles):
                x_at = base + tiles[index(2 * tile)] + lane
                y_at = base + tiles[index(2 * tile + 1)] + lane
                if burst != 0 and lane == 0:
                    prefetch(data, index((c + 1) * chunk * d + tile * burst), index(burst))
                to = (group * n_tiles + tile) * tile_sums + lane
                multiply_tile(stage, x_at, y_at, size, partial, to, c == begin)

    return few_products


# --- many columns on a CPU, staged row by row by transposing


def _stage_rest(form: Form, number: type[Any]) -> DeviceFunction:
    """Make the function that stages a panel in which not all columns are those of the rows, number by number."""
    zero, one = number(0), number(1)
    size, chunk = form.panel, form.chunk
    chunk_blocks = chunk // BLOCK

    @device_function
    def stage_rest(  # type: ignore[no-untyped-def]
        column, c, there, data, d, shift, others, t, others_at, other_shift, weights, weighted, others_weighted, stage,
        to,
    ):  # fmt: skip
        for f in range(column, column + size):
            other = f - others_at
            for row in range(there):
                block = c * chunk_blocks + row // BLOCK
                x = zero
                weight = one
                if f < d:
                    x = data[index((block * d + f) * BLOCK + row % BLOCK)] - shift[index(f)]
                    if weighted != 0:
                        weight = weights[index(c * chunk + row)]
                elif other >= 0 and other <= t:
                    x = one
                    if other < t:
                        x = others[index((block * t + other) * BLOCK + row % BLOCK)]
                        x = x - other_shift[index(other)]
                    if others_weighted != 0:
                        weight = weights[index(c * chunk + row)]
                stage[index(to + row * size + (f - column))] = x * weight

    return stage_rest


@cache
def _vector_kernel(given: np.dtype[Any], dtype: np.dtype[Any], wide: bool) -> Kernel:
    number = dtype.type
    form = form_of(dtype, "vectors", wide)
    size, chunk, left, right = form.panel, form.chunk, form.left, form.right // form.panel
    tile_sums = form.sums
    chunk_blocks = chunk // BLOCK
    stage_rest = _stage_rest(form, number)

    @kernel(_signature(given), dtype)
    def vector_products(  # type: ignore[no-untyped-def]
        item, data, d, shift, others, t, others_at, other_shift, weights, weighted, others_weighted, n, first, n_chunks,
        tiles, n_tiles, stage, n_columns, partial, totals,
    ):  # fmt: skip
        # stage: of each group (n_columns / size, chunk, size). The column after the others has the weights, or ones:
        # its products are the totals. `totals` is not used.
        group = item.get_group().get_group_id(0)
        base = group * (n_columns * chunk)
        begin = first + group * n_chunks
        for c in range(begin, begin + n_chunks):
            there = max(min(n - c * chunk, chunk), 0)
            for column in range(0, n_columns, size):
                to = base + column * chunk
                if column + size <= d:
                    for row in range(0, there, size):
                        at = ((c * chunk_blocks + row // BLOCK) * d + column) * BLOCK + row % BLOCK
                        if weighted != 0:
                            stage_columns(
                                data, at, BLOCK, shift, column, weights, c * chunk + row, True, stage, to + row * size,
                                size,
                            )  # fmt: skip
                        else:
                            stage_columns(data, at, BLOCK, shift, column, shift, 0, False, stage, to + row * size, size)
                elif column <= others_at + t or c == begin:
                    stage_rest(
                        column, c, there, data, d, shift, others, t, others_at, other_shift, weights, weighted,
                        others_weighted, stage, to,
                    )  # fmt: skip
            burst = 0
            if c + 1 < begin + n_chunks and (c + 2) * chunk <= n:
                burst = (chunk * d + n_tiles - 1) // n_tiles
            for tile in range(n_tiles):
                if burst != 0:
                    prefetch(data, index((c + 1) * chunk * d + tile * burst), index(burst))
                multiply_columns(
                    stage, base + tiles[index(2 * tile)], base + tiles[index(2 * tile + 1)], size * chunk, there,
                    left, right, size, partial, (group * n_tiles + tile) * tile_sums, c == begin,
                )  # fmt: skip

    return vector_products


# --- many columns on a GPU, staged row by row


def _stage_columns_of(form: Form, number: type[Any]) -> DeviceFunction:
    """Make the function with which each work-item stages column f of `size` rows of chunk c, and returns its sum.

    Neighbours read distant numbers, and write neighbouring ones. With `own` all columns of the group are those of the
    rows; otherwise some are of the others.
    """
    zero, one = number(0), number(1)
    panel, chunk = form.panel, form.chunk

    @device_function
    def stage_column(  # type: ignore[no-untyped-def]
        own, c, f, size, data, d, shift, others, t, others_at, other_shift, weights, weighted, others_weighted, stage,
        to,
    ):  # fmt: skip
        total = zero
        if own:
            middle = shift[index(f)]
            at = (c * d + f) * BLOCK
            for row in range(size):
                x = data[index(at + row)] - middle
                weight = one
                if weighted != 0:
                    weight = weights[index(c * chunk + row)]
                    x = x * weight
                total = fma(x, weight, total)
                stage[index(to + row * panel)] = x
        else:
            # A work-item without such a column reads another column, and does not use it.
            of_rows, other = min(f, d - 1), max(min(f - others_at, t - 1), 0)
            middle, other_middle = shift[index(of_rows)], other_shift[index(other)]
            at, other_at = (c * d + of_rows) * BLOCK, (c * t + other) * BLOCK
            for row in range(size):
                weight, other_weight = one, one
                if weighted != 0:
                    weight = weights[index(c * chunk + row)]
                if others_weighted != 0:
                    other_weight = weight
                x = zero
                if f < d:
                    x = (data[index(at + row)] - middle) * weight
                elif f >= others_at and f < others_at + t:
                    weight = other_weight
                    x = (others[index(other_at + row)] - other_middle) * weight
                total = fma(x, weight, total)
                stage[index(to + row * panel)] = x
        return total

    return stage_column


def _multiply_many(form: Form, number: type[Any]) -> DeviceFunction:
    """Make the function with which each work-item multiplies its columns of a tile, which are staged row by row."""
    zero = number(0)
    lanes, left, panel = form.lanes, form.left, form.panel
    own = form.right // lanes  # columns of a tile that each work-item multiplies
    n_sums = left * own

    @device_function
    def multiply_tile(stage, x_at, y_at, size, partial, to, anew):  # type: ignore[no-untyped-def]
        sums = PrivateArray(n_sums, number)
        y = PrivateArray(own, number)
        for i in range(n_sums):
            sums[i] = zero
        for row in range(size):
            for j in range(own):
                y[j] = stage[index(y_at + row * panel + j * lanes)]
            for i in range(left):
                x = stage[index(x_at + row * panel + i)]
                for j in range(own):
                    sums[i * own + j] = fma(x, y[j], sums[i * own + j])
        _store_sums(sums, n_sums, lanes, partial, to, anew)

    return multiply_tile


@cache
def _many_kernel(given: np.dtype[Any], dtype: np.dtype[Any], wide: bool) -> Kernel:
    number = dtype.type
    zero = number(0)
    form = form_of(dtype, "many", wide)
    lanes, panel, chunk, tile_sums = form.lanes, form.panel, form.chunk, form.sums
    parts = panel // lanes
    stage_column = _stage_columns_of(form, number)
    multiply_tile = _multiply_many(form, number)

    @kernel(_signature(given), dtype)
    def many_products(  # type: ignore[no-untyped-def]
        item, data, d, shift, others, t, others_at, other_shift, weights, weighted, others_weighted, n, first, n_chunks,
        tiles, n_tiles, stage, n_columns, partial, totals,
    ):  # fmt: skip
        # stage: of each group (n_columns / panel, chunk, panel). totals: of each group (n_columns,), the weighted sums
        # of the columns.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        base = group * (n_columns * chunk)
        begin = first + group * n_chunks
        for c in range(begin, begin + n_chunks):
            size = max(min(n - c * chunk, chunk), 0)
            for part in range(n_columns // lanes):
                f = part * lanes + lane
                to = base + part // parts * (chunk * panel) + part % parts * lanes + lane
                total = zero
                own = (part + 1) * lanes <= d
                if own or part * lanes < others_at + t or c == begin:
                    total = stage_column(
                        own, c, f, size, data, d, shift, others, t, others_at, other_shift, weights, weighted,
                        others_weighted, stage, to,
                    )  # fmt: skip
                _store(total, totals, group * n_columns + f, c == begin)
            group_barrier(item.get_group())
            for tile in range(n_tiles):
                x_at = base + tiles[index(2 * tile)]
                y_at = base + tiles[index(2 * tile + 1)] + lane
                to = (group * n_tiles + tile) * tile_sums + lane
                multiply_tile(stage, x_at, y_at, size, partial, to, c == begin)
            group_barrier(item.get_group())  # before the stage is written again

    return many_products


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    single, double = map(np.dtype, (np.float32, np.float64))
    dtypes = ((single, single), (single, double), (double, double))
    forms = [("few", False), ("few", True), ("many", True), ("vectors", False), ("vectors", True)]
    for (given, dtype), (kind, wide) in itertools.product(dtypes, forms):
        yield products_kernel(given, dtype, kind, wide)
