"""Products of columns, summed over the rows: of all columns with each other, or with those of other rows.

A work-group takes a chunk of the rows, writes what it multiplies column by column into a stage that stays in a core's
cache, and passes over it for each tile of products, which are summed in registers. Work-items stand for neighbouring
rows, so that a sum of their own is left of each, which the host adds up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.device import Array
from xpulab.kernels.language import Kernel, PrivateArray, fma, index, kernel
from xpulab.kernels.launch import launch
from xpulab.kernels.rows import BLOCK, Rows

__all__ = ["cross", "every_kernel", "gram"]

_TILE = 5  # columns on each side: with 25 sums, 5 + 1 numbers and no more, a CPU has them all in registers
_PANEL = 64  # tiles of columns that are passed over in a row: all of most rows, which a second cache holds
_STAGED_BYTES = 2048  # of a column in the stage: those of a tile stay in a core's first cache
_MOST_CHUNKS = 64  # that a work-group sums up: a work-item adds 64 numbers for each chunk, and then the chunks
_PARTIAL_BYTES = 32 << 20


def _lanes(dtype: np.dtype[Any]) -> int:
    """Work-items of a group: the numbers of a CPU's vector."""
    return 64 // dtype.itemsize


@cache
def _products_kernel(dtype: np.dtype[Any], sides: str) -> Kernel:
    """`sides`: "one" for the rows on both sides, "two" for the others on the right, "joint" for both on both.

    Unless there are two, the columns are staged once, and the weights count on both sides.
    """
    number = dtype.type
    zero, one = number(0), number(1)
    lanes = _lanes(dtype)
    chunk = _STAGED_BYTES // dtype.itemsize
    chunk_blocks = chunk // BLOCK
    tile = _TILE
    n_sums = tile * tile
    two, joint = sides == "two", sides == "joint"
    both = two or joint

    @kernel("T[] i8 T* T* i8 T* T* i4 i8 i8 i8 i4* i8 T* i8 T* T*", dtype)
    def products(  # type: ignore[no-untyped-def]
        item, data, d, shift, others, t, other_shift, weights, weighted, n, first, n_chunks, tiles, n_tiles, stage,
        width, partial, totals,
    ):  # fmt: skip
        # stage: of each group and block `width` columns: those of the rows, with zeros to fill up a tile, then those of
        # the others. tiles: the first columns of each. partial: of each group and tile (tile, tile, lanes).
        # totals: of each group (d, lanes), with `joint` (d + t, lanes), the weighted sums of the columns.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        sums = PrivateArray(n_sums, number)
        y = PrivateArray(tile, number)
        block_size = width * BLOCK
        left = group * (chunk_blocks * block_size) + lane
        d_full = (d + (tile - 1)) // tile * tile
        t_full = (t + (tile - 1)) // tile * tile
        right = left + (d_full * BLOCK if two else 0)
        begin = first + group * n_chunks
        for c in range(begin, begin + n_chunks):
            begin_block = c * chunk_blocks
            end_block = min(begin_block + chunk_blocks, (n + (BLOCK - 1)) // BLOCK)
            for block in range(begin_block, end_block):
                there = np.int32(min(n - block * BLOCK, BLOCK))
                to = left + (block - begin_block) * block_size
                for f in range(d):
                    middle = shift[index(f)]
                    total = zero
                    for part in range(BLOCK // lanes):
                        x = data[index((block * d + f) * BLOCK + part * lanes + lane)] - middle
                        weight = one
                        if weighted != 0:
                            weight = weights[index(block * BLOCK + part * lanes + lane)]
                            x = x * weight
                        x = x if np.int32(part * lanes + lane) < there else zero
                        stage[index(to + f * BLOCK + part * lanes)] = x
                        total = fma(x, weight, total)
                    if not two:
                        at = (group * (d + t if joint else d) + f) * lanes + lane
                        if block == begin * chunk_blocks:
                            totals[index(at)] = total
                        else:
                            totals[index(at)] += total
                for i in range(d * BLOCK, d_full * BLOCK, lanes):
                    stage[index(to + i)] = zero
                if both:
                    to = left + d_full * BLOCK + (block - begin_block) * block_size
                    for f in range(t):
                        middle = other_shift[index(f)]
                        total = zero
                        for part in range(BLOCK // lanes):
                            x = others[index((block * t + f) * BLOCK + part * lanes + lane)] - middle
                            weight = one
                            if joint and weighted != 0:
                                weight = weights[index(block * BLOCK + part * lanes + lane)]
                                x = x * weight
                            x = x if np.int32(part * lanes + lane) < there else zero
                            stage[index(to + f * BLOCK + part * lanes)] = x
                            total = fma(x, weight, total)
                        if joint:
                            at = (group * (d + t) + d + f) * lanes + lane
                            if block == begin * chunk_blocks:
                                totals[index(at)] = total
                            else:
                                totals[index(at)] += total
                    for i in range(t * BLOCK, t_full * BLOCK, lanes):
                        stage[index(to + i)] = zero
            size = max((end_block - begin_block) * BLOCK, 0)
            for place in range(n_tiles):
                x_at = left + tiles[index(2 * place)] * BLOCK
                y_at = right + tiles[index(2 * place + 1)] * BLOCK
                for i in range(n_sums):
                    sums[i] = zero
                for row in range(0, size, lanes):
                    at = row // BLOCK * block_size + row % BLOCK
                    for j in range(tile):
                        y[j] = stage[index(y_at + at + j * BLOCK)]
                    for i in range(tile):
                        x = stage[index(x_at + at + i * BLOCK)]
                        for j in range(tile):
                            sums[i * tile + j] = fma(x, y[j], sums[i * tile + j])
                to = (group * n_tiles + place) * (n_sums * lanes) + lane
                if c == begin:
                    for i in range(n_sums):
                        partial[index(to + i * lanes)] = sums[i]
                else:
                    for i in range(n_sums):
                        partial[index(to + i * lanes)] += sums[i]

    return products


def gram(
    rows: Rows,
    shift: npt.NDArray[Any] | None = None,
    others: Rows | None = None,
    other_shift: npt.NDArray[Any] | None = None,
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
    weights = rows.sample_weight
    if weights is not None:  # half of them on each side, so that both sides are one
        weights = rows.device.array(np.sqrt(rows.device.fetch(weights, copied=False)))
    middle = rows.shift_or_zero(shift)
    if others is None:
        products, totals = _products(rows, rows, "one", middle, middle, weights)
    else:
        _require_alike(rows, others)
        products, totals = _products(rows, others, "joint", middle, others.shift_or_zero(other_shift), weights)
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
    middle, other_middle = rows.shift_or_zero(shift), others.shift_or_zero(other_shift)
    return _products(rows, others, "two", middle, other_middle, rows.sample_weight)[0]


def _require_alike(rows: Rows, others: Rows) -> None:
    if (others.n_samples, others.dtype) != (rows.n_samples, rows.dtype):
        raise ValueError(
            f"{others.n_samples} other rows of {others.dtype} were given, {rows.n_samples} of {rows.dtype} expected"
        )


def _products(
    rows: Rows,
    others: Rows,
    sides: str,
    shift: npt.NDArray[Any],
    other_shift: npt.NDArray[Any],
    weights: Array | None,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Products and totals by `sides`, see `_products_kernel`; unless there are two, the upper tiles alone."""
    device, dtype, d, t = rows.device, rows.dtype, rows.n_features, others.n_features
    lanes, tile = _lanes(dtype), _TILE
    left, right = -(-d // tile), -(-t // tile)
    x_tiles = left + (right if sides == "joint" else 0)
    y_tiles = right if sides == "two" else x_tiles
    # Where the columns are among those that fill up tiles.
    x_columns = np.arange(d) if sides != "joint" else np.concatenate([np.arange(d), left * tile + np.arange(t)])
    y_columns = np.arange(t) if sides == "two" else x_columns
    found = np.zeros((x_tiles * tile, y_tiles * tile))
    totals = np.zeros(len(x_columns))
    if rows.n_samples == 0:
        return found[np.ix_(x_columns, y_columns)], totals
    tiles = _tiles(x_tiles, y_tiles, sides != "two")
    chunk = _STAGED_BYTES // dtype.itemsize
    all_chunks = -(-rows.n_samples // chunk)
    groups = min(all_chunks, 2 * device.compute_units)
    chunks = min(_MOST_CHUNKS, -(-all_chunks // groups))
    tile_size = tile * tile * lanes
    at_once = min(len(tiles), max(1, _PARTIAL_BYTES // (groups * tile_size * dtype.itemsize)))
    # Odd, since blocks that are a power of two apart would push each other out of the cache.
    width = (left + (right if sides != "one" else 0)) * tile | 1
    stage = device.empty(groups * width * chunk, dtype)
    partial = device.empty(groups * at_once * tile_size, dtype)
    total = device.empty(groups * len(totals) * lanes, dtype)
    middle, other_middle = device.array(shift), device.array(other_shift)
    for first_tile in range(0, len(tiles), at_once):
        part = tiles[first_tile : first_tile + at_once]
        places = device.array(part * np.int32(tile))
        sums = np.zeros(len(part) * tile_size)
        for first in range(0, all_chunks, groups * chunks):
            needed = -(-min(groups * chunks, all_chunks - first) // chunks)
            launch(
                device, _products_kernel(dtype, sides), needed, lanes,
                rows.data, np.int64(d), middle, others.data, np.int64(t), other_middle,
                middle if weights is None else weights, np.int32(weights is not None),
                np.int64(rows.n_samples), np.int64(first), np.int64(chunks), places, np.int64(len(part)), stage,
                np.int64(width), partial, total,
            )  # fmt: skip
            for one in device.fetch(partial, stop=needed * len(sums), copied=False).reshape(needed, -1):
                sums += one
            if sides != "two" and first_tile == 0:
                some = device.fetch(total, stop=needed * len(totals) * lanes, copied=False)
                totals += some.reshape(needed, len(totals), lanes).sum(axis=(0, 2), dtype=np.float64)
        by_tile = sums.reshape(len(part), tile, tile, lanes).sum(axis=3)
        view = found.reshape(x_tiles, tile, y_tiles, tile)
        view[part[:, 0], :, part[:, 1], :] = by_tile
    return found[np.ix_(x_columns, y_columns)], totals


def _tiles(x_tiles: int, y_tiles: int, symmetric: bool) -> npt.NDArray[np.int32]:
    """Tiles (n_tiles, 2) in the order in which they are computed: panel by panel, row by row."""
    x, y = np.divmod(np.arange(x_tiles * y_tiles), y_tiles)
    if symmetric:
        x, y = x[x <= y], y[x <= y]
    order = np.lexsort((y, x, y // _PANEL))
    return np.ascontiguousarray(np.stack((x[order], y[order]), axis=1), np.int32)


def every_kernel() -> Iterator[Kernel]:
    """All kernels of this module, for the catalogue."""
    for dtype, sides in itertools.product(map(np.dtype, (np.float32, np.float64)), ("one", "two", "joint")):
        yield _products_kernel(dtype, sides)
