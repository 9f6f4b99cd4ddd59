"""Products of columns, summed over the rows: of all columns with each other, or with those of other rows.

A work-group takes a chunk of the rows and stages it, and then passes over the stage once for each tile of products,
whose sums are in registers. Few columns are staged column by column, and the work-items stand for neighbouring rows:
the host adds up what each of them has. Many columns are staged row by row, in panels, and the columns of a tile are
multiplied by all columns on the other side, as in the matrix products of [1]_. This stage takes longer to write, and
its sums need not be added up. On a GPU each work-item has its own columns of a tile. On a CPU a work-group is a single
work-item, which computes with vectors: it stages the columns by transposing them in registers, and gathers nothing.

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
import numpy.typing as npt

from xpulab.kernels.language import (
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
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.device import Array, Device, lanes_of
from xpulab.kernels.runtime.launch import launch

__all__ = ["cross", "every_kernel", "gram"]

#: Columns from which on they are staged row by row, by the bytes of a product; on CPUs also by `Device.wide`.
_MANY = {4: 256, 8: 96}
_VECTORS = {True: {4: 240, 8: 56}, False: {4: 320, 8: 112}}
_MOST_ROWS = {"few": 1 << 15, "many": 1 << 12, "vectors": 1 << 13}  # whose sums a work-group adds up
_PARTIAL_BYTES = 32 << 20
_VECTORS_CHUNK = 128  # rows; two panels of a chunk fit a core's first cache


@dataclass(frozen=True)
class _Form:
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


@cache
def _form(dtype: np.dtype[Any], kind: str, wide: bool) -> _Form:
    lanes, single = lanes_of(wide), dtype.itemsize == 4
    if kind == "vectors":
        size = (64 if wide else 32) // dtype.itemsize
        left, right = (size, 16) if wide else (4, 3 * size)
        return _Form(kind, 1, left, right, size, _VECTORS_CHUNK, left * right)
    if kind == "many":
        left, right = 64 // dtype.itemsize, 16
        return _Form(kind, lanes, left, right, math.lcm(left, right), BLOCK, left * right)
    side = (5 if single else 3) if wide else (3 if single else 2)
    return _Form(kind, lanes, side, side, side, 2048 // dtype.itemsize, side * side * lanes)


def _products_kernel(given: np.dtype[Any], dtype: np.dtype[Any], kind: str, wide: bool) -> Kernel:
    """Return the kernel for rows of the dtype `given`; all other numbers have `dtype`."""
    make = {"few": _few_kernel, "many": _many_kernel, "vectors": _vector_kernel}[kind]
    return make(given, dtype, wide)


def _signature(given: np.dtype[Any]) -> str:
    """Return the types of the arguments, which are the same for both kernels.

    The columns of `data` come first, those of `others` from others_at on; the rest of the n_columns are zeros. `tiles`
    has the places in the stage of the first columns of each tile, and `partial` gets the sums of each group and tile.
    """
    rows = given.str[1:]
    return f"{rows}[] i8 T* {rows}* i8 i8 T* T* i4 i4 i8 i8 i8 i8* i8 T* i8 T* T*"


@cache
def _few_kernel(given: np.dtype[Any], dtype: np.dtype[Any], wide: bool) -> Kernel:
    number = dtype.type
    zero, one = number(0), number(1)
    form = _form(dtype, "few", wide)
    lanes, tile_left, tile_right, chunk = form.lanes, form.left, form.right, form.chunk
    tile_sums = form.sums
    n_sums = tile_left * tile_right
    column_size = _column_size(form)
    chunk_blocks = chunk // BLOCK
    parts = BLOCK // lanes

    @device_function
    def stage_whole(source, first, step, middle, stage, to):  # type: ignore[no-untyped-def]
        # A column of a whole chunk without weights: nothing to decide for each row. Returns the column's sum.
        total = zero
        for block in range(chunk_blocks):
            some = zero
            for part in range(parts):
                x = source[index(first + block * step + part * lanes)] - middle
                some += x
                stage[index(to + block * BLOCK + part * lanes)] = x
            total += some
        return total

    @kernel(_signature(given), dtype)
    def few_products(  # type: ignore[no-untyped-def]
        item, data, d, shift, others, t, others_at, other_shift, weights, weighted, others_weighted, n, first, n_chunks,
        tiles, n_tiles, stage, n_columns, partial, totals,
    ):  # fmt: skip
        # stage: of each group (n_columns, column_size). totals: of each group (n_columns, lanes), the weighted sums of
        # the columns.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        sums = PrivateArray(n_sums, number)
        y = PrivateArray(tile_right, number)
        base = group * (n_columns * column_size)
        begin = first + group * n_chunks
        for c in range(begin, begin + n_chunks):
            size = max(min(n - c * chunk, chunk), 0)
            for f in range(n_columns):
                total = zero
                to = base + f * column_size + lane
                other = f - others_at
                if f < d and size == chunk and weighted == 0:
                    at = (c * chunk_blocks * d + f) * BLOCK + lane
                    total = stage_whole(data, at, d * BLOCK, shift[index(f)], stage, to)
                elif other >= 0 and other < t and size == chunk and others_weighted == 0:
                    at = (c * chunk_blocks * t + other) * BLOCK + lane
                    total = stage_whole(others, at, t * BLOCK, other_shift[index(other)], stage, to)
                elif f < d:
                    middle = shift[index(f)]
                    for row in range(0, size, lanes):
                        block = c * chunk_blocks + row // BLOCK
                        x = data[index((block * d + f) * BLOCK + row % BLOCK + lane)] - middle
                        weight = one
                        if weighted != 0:
                            weight = weights[index(c * chunk + row + lane)]
                            x = x * weight
                        x = x if row + lane < size else zero
                        total = fma(x, weight, total)
                        stage[index(to + row)] = x
                elif other >= 0 and other < t:
                    middle = other_shift[index(other)]
                    for row in range(0, size, lanes):
                        block = c * chunk_blocks + row // BLOCK
                        x = others[index((block * t + other) * BLOCK + row % BLOCK + lane)] - middle
                        weight = one
                        if others_weighted != 0:
                            weight = weights[index(c * chunk + row + lane)]
                            x = x * weight
                        x = x if row + lane < size else zero
                        total = fma(x, weight, total)
                        stage[index(to + row)] = x
                elif c == begin:
                    for row in range(0, chunk, lanes):
                        stage[index(to + row)] = zero
                at = (group * n_columns + f) * lanes + lane
                if c == begin:
                    totals[index(at)] = total
                else:
                    totals[index(at)] += total
            # The next chunk is prefetched in parts while the tiles are multiplied; otherwise reading and multiplying
            # would take turns.
            burst = 0
            if c + 1 < begin + n_chunks and (c + 2) * chunk <= n:
                burst = (chunk * d + n_tiles - 1) // n_tiles
            for place in range(n_tiles):
                x_at = base + tiles[index(2 * place)] + lane
                y_at = base + tiles[index(2 * place + 1)] + lane
                if burst != 0 and lane == 0:
                    prefetch(data, index((c + 1) * chunk * d + place * burst), index(burst))
                for i in range(n_sums):
                    sums[i] = zero
                for row in range(0, size, lanes):
                    for j in range(tile_right):
                        y[j] = stage[index(y_at + row + j * column_size)]
                    for i in range(tile_left):
                        x = stage[index(x_at + row + i * column_size)]
                        for j in range(tile_right):
                            sums[i * tile_right + j] = fma(x, y[j], sums[i * tile_right + j])
                to = (group * n_tiles + place) * tile_sums + lane
                if c == begin:
                    for i in range(n_sums):
                        partial[index(to + i * lanes)] = sums[i]
                else:
                    for i in range(n_sums):
                        partial[index(to + i * lanes)] += sums[i]

    return few_products


@cache
def _vector_kernel(given: np.dtype[Any], dtype: np.dtype[Any], wide: bool) -> Kernel:
    number = dtype.type
    zero, one = number(0), number(1)
    form = _form(dtype, "vectors", wide)
    size, chunk, left, right = form.panel, form.chunk, form.left, form.right // form.panel
    tile_sums = form.sums
    chunk_blocks = chunk // BLOCK

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
            burst = 0
            if c + 1 < begin + n_chunks and (c + 2) * chunk <= n:
                burst = (chunk * d + n_tiles - 1) // n_tiles
            for place in range(n_tiles):
                if burst != 0:
                    prefetch(data, index((c + 1) * chunk * d + place * burst), index(burst))
                multiply_columns(
                    stage, base + tiles[index(2 * place)], base + tiles[index(2 * place + 1)], size * chunk, there,
                    left, right, size, partial, (group * n_tiles + place) * tile_sums, c == begin,
                )  # fmt: skip

    return vector_products


@cache
def _many_kernel(given: np.dtype[Any], dtype: np.dtype[Any], wide: bool) -> Kernel:
    number = dtype.type
    zero, one = number(0), number(1)
    form = _form(dtype, "many", wide)
    lanes, tile_left, panel, chunk = form.lanes, form.left, form.panel, form.chunk
    tile_sums = form.sums
    own = form.right // lanes  # columns of a tile that each work-item multiplies
    n_sums = tile_left * own
    parts = panel // lanes

    @kernel(_signature(given), dtype)
    def many_products(  # type: ignore[no-untyped-def]
        item, data, d, shift, others, t, others_at, other_shift, weights, weighted, others_weighted, n, first, n_chunks,
        tiles, n_tiles, stage, n_columns, partial, totals,
    ):  # fmt: skip
        # stage: of each group (n_columns / panel, chunk, panel). totals: of each group (n_columns,), the weighted sums
        # of the columns.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        sums = PrivateArray(n_sums, number)
        y = PrivateArray(own, number)
        base = group * (n_columns * chunk)
        begin = first + group * n_chunks
        for c in range(begin, begin + n_chunks):
            size = max(min(n - c * chunk, chunk), 0)
            for part in range(n_columns // lanes):
                # Each work-item copies a column: neighbours read distant numbers, and write neighbouring ones.
                f = part * lanes + lane
                to = base + part // parts * (chunk * panel) + part % parts * lanes + lane
                total = zero
                if (part + 1) * lanes <= d:
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
                elif part * lanes < others_at + t or c == begin:
                    # What a work-item reads of a column that it does not have, it does not use.
                    mine, other = min(f, d - 1), max(min(f - others_at, t - 1), 0)
                    middle, other_middle = shift[index(mine)], other_shift[index(other)]
                    at, other_at = (c * d + mine) * BLOCK, (c * t + other) * BLOCK
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
                at = group * n_columns + f
                if c == begin:
                    totals[index(at)] = total
                else:
                    totals[index(at)] += total
            group_barrier(item.get_group())
            for place in range(n_tiles):
                x_at = base + tiles[index(2 * place)]
                y_at = base + tiles[index(2 * place + 1)] + lane
                for i in range(n_sums):
                    sums[i] = zero
                for row in range(size):
                    for j in range(own):
                        y[j] = stage[index(y_at + row * panel + j * lanes)]
                    for i in range(tile_left):
                        x = stage[index(x_at + row * panel + i)]
                        for j in range(own):
                            sums[i * own + j] = fma(x, y[j], sums[i * own + j])
                to = (group * n_tiles + place) * tile_sums + lane
                if c == begin:
                    for i in range(n_sums):
                        partial[index(to + i * lanes)] = sums[i]
                else:
                    for i in range(n_sums):
                        partial[index(to + i * lanes)] += sums[i]
            group_barrier(item.get_group())  # before the stage is written again

    return many_products


def _column_size(form: _Form) -> int:
    """Return how many numbers lie between two columns of the stage; at a power of two they would share cache lines."""
    return form.chunk + 16


def gram(
    rows: Rows,
    shift: npt.NDArray[Any] | None = None,
    others: Rows | None = None,
    other_shift: npt.NDArray[Any] | None = None,
    precise: bool = False,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Sum ``w * outer(z, z)`` and ``w * z`` over the rows, where z is ``x - shift``.

    Parameters
    ----------
    rows : Rows
        ``w`` are their weights, none of them negative, or all ones.
    shift : numpy.ndarray of shape (n_features,) or None
        Brought to the dtype of the rows; near the mean, for precision.
    others : Rows, optional
        As many, in the same dtype, such as targets: z goes on with ``y - other_shift``, y being the other row at the
        same place. Their weights are not used.
    other_shift : numpy.ndarray of shape (n_targets,) or None
    precise : bool
        Whether to subtract, multiply and add in float64, of which the device must be capable, whatever the rows are.

    Returns
    -------
    products : numpy.ndarray of float64 of shape (n_features + n_targets, n_features + n_targets)
        Symmetric.
    totals : numpy.ndarray of float64 of shape (n_features + n_targets,)

    Raises
    ------
    ValueError
        If the number of rows or their dtypes differ.
    """
    dtype = np.dtype(np.float64) if precise else rows.dtype
    weights = rows.sample_weight
    if weights is not None:  # half of them on each side, so that both sides are one
        roots = np.zeros(rows.n_blocks * BLOCK, dtype)
        roots[: rows.n_samples] = np.sqrt(rows.host_weights())
        weights = rows.device.array(roots)
    if others is not None:
        _require_alike(rows, others)
    products, totals = _products(rows, others, shift, other_shift, weights, dtype, joint=True)
    np.copyto(products, products.T, where=np.tri(len(products), k=-1, dtype=bool))
    return products, totals


def cross(
    rows: Rows,
    others: Rows,
    shift: npt.NDArray[Any] | None = None,
    other_shift: npt.NDArray[Any] | None = None,
) -> npt.NDArray[np.float64]:
    """Sum over the rows of ``w * outer(x - shift, y - other_shift)``, where y is the other row at the same place.

    Parameters
    ----------
    rows : Rows
        ``w`` are their weights, or all ones.
    others : Rows
        As many, in the same dtype, such as targets. Their weights are not used.
    shift : numpy.ndarray of shape (n_features,) or None
    other_shift : numpy.ndarray of shape (n_targets,) or None

    Returns
    -------
    numpy.ndarray of float64 of shape (n_features, n_targets)

    Raises
    ------
    ValueError
        If the number of rows or their dtypes differ.
    """
    _require_alike(rows, others)
    return _products(rows, others, shift, other_shift, rows.sample_weight, rows.dtype, joint=False)[0]


def _require_alike(rows: Rows, others: Rows) -> None:
    if (others.n_samples, others.dtype) != (rows.n_samples, rows.dtype):
        raise ValueError(
            f"{others.n_samples} other rows of {others.dtype} were given, {rows.n_samples} of {rows.dtype} expected"
        )


def _products(
    rows: Rows,
    others: Rows | None,
    shift: npt.NDArray[Any] | None,
    other_shift: npt.NDArray[Any] | None,
    weights: Array | None,
    dtype: np.dtype[Any],
    joint: bool,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Compute the products and the totals of the columns.

    With `joint` these are the products of all columns with each other, where the columns of the others come after those
    of the rows, and only the upper tiles are computed. Without it they are the products of the columns of the rows with
    those of the others. All numbers but the rows have `dtype`.
    """
    device, d = rows.device, rows.n_features
    t = 0 if others is None else others.n_features
    form = _form(dtype, _kind(device, d + t, dtype), device.wide)
    own_totals = form.kind != "vectors"
    others_at = d if joint else -(-d // form.right) * form.right
    width = others_at + t
    staged = width + (joint and not own_totals)  # with a column of weights
    right = -(-staged // form.right)
    left = -(-(staged if joint else d) // form.left)
    columns = -(-staged // math.lcm(form.right, form.panel)) * math.lcm(form.right, form.panel)
    found, totals = np.zeros((left * form.left, right * form.right)), np.zeros(columns)
    if rows.n_samples:
        tiles = _tiles(form, left, range(0 if joint else others_at // form.right, right), joint)
        places = tiles * (form.left, form.right)  # their first columns, and then where these are in the stage
        if form.kind == "few":
            places *= _column_size(form)
        else:
            places = places // form.panel * (form.chunk * form.panel) + places % form.panel
        all_chunks = -(-rows.n_samples // form.chunk)
        groups = min(all_chunks, 2 * device.compute_units)
        chunks = min(_MOST_ROWS[form.kind] // form.chunk, -(-all_chunks // groups))
        at_once = min(len(tiles), max(1, _PARTIAL_BYTES // (groups * form.sums * dtype.itemsize)))
        column_size = _column_size(form) if form.kind == "few" else form.chunk
        stage = device.scratch("stage of products", groups * columns * column_size, dtype)
        partial = device.scratch("sums of products", groups * at_once * form.sums, dtype)
        by_column = form.lanes if form.kind == "few" else 1  # totals of each column
        total = device.empty(groups * columns * by_column if own_totals else 1, dtype)
        middle = device.array(_as(shift, d, dtype))
        other_middle = device.array(_as(other_shift, max(t, 1), dtype))
        for first_tile in range(0, len(tiles), at_once):
            part = slice(first_tile, first_tile + at_once)
            n_tiles = len(tiles[part])
            some_places = device.array(places[part])
            sums = np.zeros(n_tiles * form.sums)
            for first in range(0, all_chunks, groups * chunks):
                needed = -(-min(groups * chunks, all_chunks - first) // chunks)
                launch(
                    device, _products_kernel(rows.dtype, dtype, form.kind, device.wide), needed, form.lanes,
                    rows.data, np.int64(d), middle, (others or rows).data, np.int64(t), np.int64(others_at),
                    other_middle, middle if weights is None else weights, np.int32(weights is not None),
                    np.int32(joint and weights is not None), np.int64(rows.n_samples), np.int64(first),
                    np.int64(chunks), some_places, np.int64(n_tiles), stage, np.int64(columns), partial, total,
                )  # fmt: skip
                for one in device.fetch(partial, stop=needed * len(sums), copied=False).reshape(needed, -1):
                    sums += one
                if first_tile == 0 and own_totals:
                    by_item = device.fetch(total, stop=needed * columns * by_column, copied=False)
                    totals += by_item.reshape(needed, columns, by_column).sum(axis=(0, 2), dtype=np.float64)
            by_tile = sums.reshape(n_tiles, form.left, form.right, -1).sum(axis=3)
            view = found.reshape(left, form.left, right, form.right)
            view[tiles[part, 0], :, tiles[part, 1], :] = by_tile
    if not joint:
        return found[:d, others_at:width], totals[:d]
    return found[:width, :width], (totals if own_totals else found[:, width])[:width]


def _kind(device: Device, columns: int, dtype: np.dtype[Any]) -> str:
    """Return how so many columns are staged."""
    if device.is_cpu:
        return "vectors" if columns >= _VECTORS[device.wide][dtype.itemsize] else "few"
    return "many" if columns >= _MANY[dtype.itemsize] else "few"


def _as(shift: npt.NDArray[Any] | None, size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert a shift to a dtype; return zeros for None."""
    return np.zeros(size, dtype) if shift is None else np.ascontiguousarray(shift, dtype)


def _tiles(form: _Form, left: int, right: range, symmetric: bool) -> npt.NDArray[np.int64]:
    """Return the places of the tiles on the left and on the right (n_tiles, 2), in the order of their computation."""
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(left), np.array(right, np.int64), indexing="ij"))
    if symmetric:
        upper = x * form.left < (y + 1) * form.right
        x, y = x[upper], y[upper]
    return np.stack((x, y), axis=1)


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    single, double = map(np.dtype, (np.float32, np.float64))
    dtypes = ((single, single), (single, double), (double, double))
    forms = [("few", False), ("few", True), ("many", True), ("vectors", False), ("vectors", True)]
    for (given, dtype), (kind, wide) in itertools.product(dtypes, forms):
        yield _products_kernel(given, dtype, kind, wide)
