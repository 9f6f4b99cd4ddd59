"""Products of columns, summed over the rows: of all columns with each other, or with those of other rows.

A work-group takes a chunk of the rows and stages it, and then passes over the stage once for each tile of products,
whose sums are in registers. Few columns are staged column by column, and the work-items stand for neighbouring rows:
the host adds up what each of them has. Many columns are staged row by row, in panels of 16. Each work-item then
multiplies its own column of a panel by all columns of the tile, as in the matrix products of [1]_. Its stage takes
longer to write, and its sums need not be added up.

The stage and the sums may be of float64 where the rows are of float32: products of two float32 are exact in float64.

References
----------
.. [1] K. Goto, R. A. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM Transactions on
   Mathematical Software 34 (2008).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.device import Array
from xpulab.kernels.language import Kernel, PrivateArray, fma, group_barrier, index, kernel
from xpulab.kernels.launch import launch
from xpulab.kernels.rows import BLOCK, Rows

__all__ = ["cross", "every_kernel", "gram"]

_LANES = 16  # work-items of a group: a CPU's compiler makes no vectors of fewer
#: Columns from which on they are staged row by row, by `Device.wide` and the bytes of a product.
_MANY = {True: {4: 256, 8: 96}, False: {4: 128, 8: 64}}
_MOST_CHUNKS = 64  # whose sums a work-group adds up, which are sums of at most as many products
_PARTIAL_BYTES = 32 << 20


@dataclass(frozen=True)
class _Form:
    """How the products of one dtype are cut.

    Attributes
    ----------
    left, right : int
        Columns of a tile on each side; `left` divides `right`. The sums and what is multiplied fit a CPU's registers:
        32 with AVX-512, 16 of half the size with AVX2.
    chunk : int
        Rows that are staged at a time: the columns of a tile stay in a core's first cache.
    sums : int
        Numbers that are left of a tile: the products, or those of each work-item.
    """

    many: bool
    left: int
    right: int
    chunk: int
    sums: int


@cache
def _form(dtype: np.dtype[Any], many: bool, wide: bool) -> _Form:
    if many:
        left = (64 if wide else 32) // dtype.itemsize
        return _Form(many, left, _LANES, BLOCK, left * _LANES)
    side = (5 if dtype.itemsize == 4 else 3) if wide else (3 if dtype.itemsize == 4 else 2)
    return _Form(many, side, side, 2048 // dtype.itemsize, side * side * _LANES)


@cache
def _products_kernel(given: np.dtype[Any], dtype: np.dtype[Any], many: bool, wide: bool) -> Kernel:
    """`given`: of the rows; `dtype`: of all other numbers."""
    number = dtype.type
    zero, one = number(0), number(1)
    form = _form(dtype, many, wide)
    lanes, tile_left, tile_right, chunk = _LANES, form.left, form.right, form.chunk
    tile_sums = form.sums
    n_sums = tile_left if many else tile_left * tile_right
    panel_size = chunk * lanes
    column_size = _column_size(form)
    chunk_blocks = chunk // BLOCK

    data_type = f"{given.kind}{given.itemsize}"

    @kernel(f"{data_type}[] i8 T* {data_type}* i8 i8 T* T* i4 i4 i8 i8 i8 i8* i8 T* i8 T* T*", dtype)
    def products(  # type: ignore[no-untyped-def]
        item, data, d, shift, others, t, others_at, other_shift, weights, weighted, others_weighted, n, first, n_chunks,
        tiles, n_tiles, stage, n_columns, partial, totals,
    ):  # fmt: skip
        # The columns of `data` come first, those of `others` from others_at on; the rest of the n_columns are zeros.
        # stage: of each group (n_columns, column_size), with `many` (n_columns / lanes, chunk, lanes).
        # tiles: the places in it of the first columns of each. partial: of each group and tile its sums.
        # totals: of each group (n_columns, lanes), the weighted sums of the columns.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        sums = PrivateArray(n_sums, number)
        y = PrivateArray(tile_right, number)
        base = group * (n_columns * (chunk if many else column_size))
        step = lanes if many else 1
        begin = first + group * n_chunks
        for c in range(begin, begin + n_chunks):
            size = max(min(n - c * chunk, chunk), 0)
            for f in range(n_columns):
                total = zero
                if many:
                    to = base + f // lanes * panel_size + f % lanes + lane * lanes
                else:
                    to = base + f * column_size + lane
                other = f - others_at
                if f < d:
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
                        stage[index(to + row * step)] = x
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
                        stage[index(to + row * step)] = x
                elif c == begin:
                    for row in range(0, chunk, lanes):
                        stage[index(to + row * step)] = zero
                at = (group * n_columns + f) * lanes + lane
                if c == begin:
                    totals[index(at)] = total
                else:
                    totals[index(at)] += total
            if many:
                group_barrier(item.get_group())
            for place in range(n_tiles):
                x_at = base + tiles[index(2 * place)]
                y_at = base + tiles[index(2 * place + 1)] + lane
                for i in range(n_sums):
                    sums[i] = zero
                if many:
                    for row in range(size):
                        one_y = stage[index(y_at + row * lanes)]
                        for i in range(tile_left):
                            sums[i] = fma(stage[index(x_at + row * lanes + i)], one_y, sums[i])
                else:
                    x_at += lane
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
            if many:
                group_barrier(item.get_group())  # before the stage is written again

    return products


def _column_size(form: _Form) -> int:
    """Numbers from one column of the stage to the next: columns a power of two apart would share lines of a cache."""
    return form.chunk + _LANES


def gram(
    rows: Rows,
    shift: npt.NDArray[Any] | None = None,
    others: Rows | None = None,
    other_shift: npt.NDArray[Any] | None = None,
    precise: bool = False,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Sums over the rows of ``w * outer(z, z)``, and of ``w * z``, where z is ``x - shift``.

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
    upper = np.triu(products)
    return upper + np.triu(upper, 1).T, totals


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
    """Products and totals: with `joint` the upper tiles of all columns, with the others' after those of the rows.

    Without it the products are those of the columns of the rows with those of the others. Numbers other than the rows
    are of `dtype`.
    """
    device, d = rows.device, rows.n_features
    t = 0 if others is None else others.n_features
    form = _form(dtype, d + t >= _MANY[device.wide][dtype.itemsize], device.wide)
    others_at = d if joint else -(-d // form.right) * form.right
    width = others_at + t
    right = -(-width // form.right)
    left = -(-(width if joint else d) // form.left)
    columns = right * form.right
    found, totals = np.zeros((left * form.left, columns)), np.zeros(columns)
    if rows.n_samples:
        tiles = _tiles(form, left, range(0 if joint else others_at // form.right, right), joint)
        places = tiles * (form.left, form.right)  # their first columns, and then where these are in the stage
        if form.many:
            places = places // _LANES * (form.chunk * _LANES) + places % _LANES
        else:
            places *= _column_size(form)
        all_chunks = -(-rows.n_samples // form.chunk)
        groups = min(all_chunks, 2 * device.compute_units)
        chunks = min(_MOST_CHUNKS, -(-all_chunks // groups))
        at_once = min(len(tiles), max(1, _PARTIAL_BYTES // (groups * form.sums * dtype.itemsize)))
        stage = device.empty(groups * columns * (form.chunk if form.many else _column_size(form)), dtype)
        partial = device.empty(groups * at_once * form.sums, dtype)
        total = device.empty(groups * columns * _LANES, dtype)
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
                    device, _products_kernel(rows.dtype, dtype, form.many, device.wide), needed, _LANES,
                    rows.data, np.int64(d), middle, (others or rows).data, np.int64(t), np.int64(others_at),
                    other_middle, middle if weights is None else weights, np.int32(weights is not None),
                    np.int32(joint and weights is not None), np.int64(rows.n_samples), np.int64(first),
                    np.int64(chunks), some_places, np.int64(n_tiles), stage, np.int64(columns), partial, total,
                )  # fmt: skip
                for one in device.fetch(partial, stop=needed * len(sums), copied=False).reshape(needed, -1):
                    sums += one
                if first_tile == 0:
                    by_item = device.fetch(total, stop=needed * columns * _LANES, copied=False)
                    totals += by_item.reshape(needed, columns, _LANES).sum(axis=(0, 2), dtype=np.float64)
            by_tile = sums.reshape(n_tiles, form.left, form.right, -1).sum(axis=3)
            view = found.reshape(left, form.left, right, form.right)
            view[tiles[part, 0], :, tiles[part, 1], :] = by_tile
    return (found[:width, :width], totals[:width]) if joint else (found[:d, others_at:width], totals[:d])


def _as(shift: npt.NDArray[Any] | None, size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A shift in a dtype; zeros for None."""
    return np.zeros(size, dtype) if shift is None else np.ascontiguousarray(shift, dtype)


def _tiles(form: _Form, left: int, right: range, symmetric: bool) -> npt.NDArray[np.int64]:
    """Tiles (n_tiles, 2), as places on the left and on the right, in the order in which they are computed."""
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(left), np.array(right, np.int64), indexing="ij"))
    if symmetric:
        upper = x * form.left < (y + 1) * form.right
        x, y = x[upper], y[upper]
    return np.stack((x, y), axis=1)


def every_kernel() -> Iterator[Kernel]:
    """All kernels of this module, for the catalogue."""
    single, double = map(np.dtype, (np.float32, np.float64))
    dtypes = ((single, single), (single, double), (double, double))
    for (given, dtype), many, wide in itertools.product(dtypes, (False, True), (False, True)):
        yield _products_kernel(given, dtype, many, wide)
