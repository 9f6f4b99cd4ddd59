"""The kernel of `mixture`: responsibilities and sums of the components of a mixture, in one pass over the rows.

A work-group takes a chunk of the rows at a time. It multiplies the differences between the rows and each mean by the
factor of the component's precision matrix, which gives the logarithms of the densities, and from these the
responsibilities. While the chunk is in the cache, it sums for each component the responsibilities, and their products
with the differences and with the products of the differences. A work-item reads only what it has staged itself, so that
there are no barriers; its sums are over a few thousand rows at most, in the dtype of the rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from xpulab.kernels.language import DeviceFunction, Kernel, PrivateArray, device_function, fma, index, kernel
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.runtime.device import lanes_of

__all__ = ["Form", "Kind", "every_kernel", "form_of", "mixture_kernel"]

Kind = Literal["densities", "shares", "expectations"]


@dataclass(frozen=True)
class Form:
    """How the products of a chunk are cut, so that the sums stay in a CPU's registers.

    Attributes
    ----------
    lanes : int
        Work-items of a group; see `Device.lanes`.
    rows : int
        Rows of a work-item that are multiplied by a factor together.
    columns : int
        Columns of a factor that are multiplied together.
    side : int
        Columns on each side of a tile of products of differences.
    """

    lanes: int
    rows: int
    columns: int
    side: int


@cache
def form_of(dtype: np.dtype[Any], wide: bool) -> Form:
    single = dtype.itemsize == 4
    side = (5 if single else 3) if wide else (3 if single else 2)
    return Form(lanes_of(wide), rows=(16 if wide else 8) // dtype.itemsize, columns=5, side=side)


def _stage_shares(lanes: int) -> DeviceFunction:
    """Make the function that copies the given responsibilities of the blocks from `begin` to `end` to the stage."""

    @device_function
    def stage_shares(shares, k, begin, end, stage, base, column_size, lane):  # type: ignore[no-untyped-def]
        for block in range(begin, end):
            for j in range(k):
                to = base + j * column_size + (block - begin) * BLOCK
                for part in range(0, BLOCK, lanes):
                    share = shares[index((block * k + j) * BLOCK + part + lane)]
                    stage[index(to + part)] = share

    return stage_shares


def _full_logarithms(form: Form, number: type[Any]) -> DeviceFunction:
    """Make the function that stages the logarithms of the densities, for factors (k, tiles, d, columns of a tile)."""
    lanes, n_rows, n_columns = form.lanes, form.rows, form.columns
    n_sums = n_rows * n_columns
    zero, minus_half = number(0), number(-0.5)

    @device_function
    def stage_logarithms(  # type: ignore[no-untyped-def]
        data, d, begin, n_staged, constants, means, factors, k, stage, base, column_size, lane
    ):
        sums = PrivateArray(n_sums, number)
        x = PrivateArray(n_rows, number)
        tiles = (d + (n_columns - 1)) // n_columns
        # A CPU's compiler uses no vectors in a kernel whose loop over `f` is within more loops than these.
        for pair in range(k * tiles):  # of a component and a tile of columns of its factor
            j = pair // tiles
            tile = pair - j * tiles
            constant = constants[index(j)]
            by_at = pair * d * n_columns
            n_used = min(d, (tile + 1) * n_columns)  # below it the factor is 0
            for row in range(0, n_staged, lanes * n_rows):
                at = (begin + row // BLOCK) * d * BLOCK + row % BLOCK + lane
                for i in range(n_sums):
                    sums[i] = zero
                for f in range(n_used):
                    middle = means[index(j * d + f)]
                    for r in range(n_rows):
                        x[r] = data[index(at + f * BLOCK + r * lanes)] - middle
                    for i in range(n_columns):
                        by = factors[index(by_at + f * n_columns + i)]
                        for r in range(n_rows):
                            sums[i * n_rows + r] = fma(x[r], by, sums[i * n_rows + r])
                to = base + j * column_size + row
                for r in range(n_rows):
                    square = zero
                    for i in range(n_columns):
                        z = sums[i * n_rows + r]
                        square = fma(z, z, square)
                    before = constant if tile == 0 else stage[index(to + r * lanes)]
                    stage[index(to + r * lanes)] = fma(minus_half, square, before)

    return stage_logarithms


def _diagonal_logarithms(form: Form, number: type[Any]) -> DeviceFunction:
    """Make the function that stages the logarithms of the densities, for the diagonals of factors (k, d)."""
    lanes, n_rows = form.lanes, form.rows
    zero, minus_half = number(0), number(-0.5)

    @device_function
    def stage_logarithms(  # type: ignore[no-untyped-def]
        data, d, begin, n_staged, constants, means, factors, k, stage, base, column_size, lane
    ):
        squares = PrivateArray(n_rows, number)
        for j in range(k):
            constant = constants[index(j)]
            for row in range(0, n_staged, lanes * n_rows):
                at = (begin + row // BLOCK) * d * BLOCK + row % BLOCK + lane
                for r in range(n_rows):
                    squares[r] = zero
                for f in range(d):
                    middle = means[index(j * d + f)]
                    by = factors[index(j * d + f)]
                    for r in range(n_rows):
                        z = (data[index(at + f * BLOCK + r * lanes)] - middle) * by
                        squares[r] = fma(z, z, squares[r])
                to = base + j * column_size + row
                for r in range(n_rows):
                    stage[index(to + r * lanes)] = fma(minus_half, squares[r], constant)

    return stage_logarithms


def _normalise(lanes: int, summing: bool, number: type[Any]) -> DeviceFunction:
    """Make the function that turns the staged logarithms into responsibilities, and returns the sum of likelihoods.

    With `summing` the responsibilities stay in the stage, with 0 for what comes after the last of the n rows. Otherwise
    they go to `out`, with the logarithms of the mixture's density, from block `first_out` on.
    """
    zero, one = number(0), number(1)
    # Below this power the result would be denormal, and the exponential function of CPUs then takes ten times as long.
    least = number(np.ceil(np.log(np.finfo(number).tiny)))

    @device_function
    def normalise(stage, base, column_size, n_staged, k, begin, n, out, first_out, lane):  # type: ignore[no-untyped-def]
        likelihood = zero
        for row in range(0, n_staged, lanes):
            at = base + row
            most = stage[index(at)]
            for j in range(1, k):
                value = stage[index(at + j * column_size)]
                most = value if value > most else most
            total = zero
            for j in range(k):
                power = stage[index(at + j * column_size)] - most
                share = math.exp(power if power > least else least)
                share = share if power > least else zero
                stage[index(at + j * column_size)] = share
                total += share
            inverse = one / total
            norm = most + math.log(total)
            if summing:
                there = begin * BLOCK + row + lane < n
                inverse = inverse if there else zero
                likelihood += norm if there else zero
                for j in range(k):
                    stage[index(at + j * column_size)] *= inverse
            else:
                block = first_out + row // BLOCK
                to = block * (k + 1) * BLOCK + row % BLOCK + lane
                for j in range(k):
                    out[index(to + j * BLOCK)] = stage[index(at + j * column_size)] * inverse
                out[index(to + k * BLOCK)] = norm
        return likelihood

    return normalise


def _add_differences(lanes: int, full: bool, number: type[Any]) -> DeviceFunction:
    """Make the function that adds the sums of one component, whose responsibilities are staged, to those in `out`.

    These are its weight, the weighted differences from its mean, and their squares, or with `full` the differences
    themselves go to the stage, from `spread` on, times the roots of the responsibilities.
    """
    zero = number(0)

    @device_function
    def add_differences(  # type: ignore[no-untyped-def]
        data, d, begin, end, means, j, stage, column, column_size, spread, out, to, lane
    ):
        weight = zero
        for row in range(0, (end - begin) * BLOCK, lanes):
            share = stage[index(column + row)]
            weight += share
            stage[index(column + row)] = math.sqrt(share)
        out[index(to)] += weight
        for f in range(d):
            middle = means[index(j * d + f)]
            total = zero
            squared = zero
            for block in range(begin, end):
                at = (block * d + f) * BLOCK + lane
                staged = (block - begin) * BLOCK
                for part in range(0, BLOCK, lanes):
                    root = stage[index(column + staged + part)]
                    z = (data[index(at + part)] - middle) * root
                    total = fma(z, root, total)
                    if full:
                        stage[index(spread + f * column_size + staged + part)] = z
                    else:
                        squared = fma(z, z, squared)
            out[index(to + (1 + f) * lanes)] += total
            if not full:
                out[index(to + (1 + d + f) * lanes)] += squared

    return add_differences


def _add_products(form: Form, number: type[Any]) -> DeviceFunction:
    """Make the function that adds the products of the staged differences, tile by tile, to those in `out`."""
    lanes, side = form.lanes, form.side
    n_products = side * side
    zero = number(0)

    @device_function
    def add_products(stage, spread, column_size, n_staged, sides, out, to):  # type: ignore[no-untyped-def]
        products = PrivateArray(n_products, number)
        y = PrivateArray(side, number)
        for left in range(sides):
            for right in range(left, sides):
                x_at = spread + left * side * column_size
                y_at = spread + right * side * column_size
                for i in range(n_products):
                    products[i] = zero
                for row in range(0, n_staged, lanes):
                    for i in range(side):
                        y[i] = stage[index(y_at + i * column_size + row)]
                    for i in range(side):
                        z = stage[index(x_at + i * column_size + row)]
                        for r in range(side):
                            products[i * side + r] = fma(z, y[r], products[i * side + r])
                for i in range(n_products):
                    out[index(to + i * lanes)] += products[i]
                to += n_products * lanes

    return add_products


@cache
def mixture_kernel(dtype: np.dtype[Any], kind: Kind, full: bool, wide: bool) -> Kernel:
    """Return the kernel that sums for "densities" or for "shares", or that writes "expectations".

    Its argument `first` is the first block, and `chunk` a number of blocks. `factors` has (k, tiles, d, n_columns), or
    (k, d), and `shares` is in blocks. `stage` has for each work-group k columns of logarithms, shares and their roots,
    and padded columns of differences. `out` gets for each work-group the sums of each lane: for each component its
    weight, d sums, and d squares, or a tile of products for each pair of tiles; at the end the likelihood. Or it gets
    expectations (blocks, k + 1, BLOCK).
    """
    number = dtype.type
    zero = number(0)
    form = form_of(dtype, wide)
    lanes, side = form.lanes, form.side
    given, summing = kind == "shares", kind != "expectations"
    stage_shares = _stage_shares(lanes)
    stage_logarithms = _full_logarithms(form, number) if full else _diagonal_logarithms(form, number)
    normalise = _normalise(lanes, summing, number)
    add_differences = _add_differences(lanes, full, number)
    add_products = _add_products(form, number)

    @kernel("T[] i8 i8 i8 i8 i8 T* T* T* i8 T* T* T*", dtype)
    def mixture(  # type: ignore[no-untyped-def]
        item, data, d, n, first, chunk, n_chunks, constants, means, factors, k, shares, stage, out
    ):  # fmt: skip
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        column_size = chunk * BLOCK + lanes
        sides = (d + (side - 1)) // side
        n_own = 1 + 2 * d
        if full:
            n_own = 1 + d + sides * (sides + 1) // 2 * (side * side)
        base = group * (k + sides * side) * column_size + lane
        spread = base + k * column_size
        size = k * n_own + 1
        results = group * size * lanes + lane
        if summing:
            for i in range(size):
                out[index(results + i * lanes)] = zero
            for i in range(0, (sides * side - d) * column_size, lanes):
                stage[index(spread + d * column_size + i)] = zero
        n_blocks = (n + (BLOCK - 1)) // BLOCK
        for c in range(group * n_chunks, (group + 1) * n_chunks):
            begin = first + c * chunk
            end = min(begin + chunk, n_blocks)
            n_staged = (end - begin) * BLOCK
            if given:
                stage_shares(shares, k, begin, end, stage, base, column_size, lane)
            else:
                stage_logarithms(data, d, begin, n_staged, constants, means, factors, k, stage, base, column_size, lane)
                likelihood = normalise(stage, base, column_size, n_staged, k, begin, n, out, begin - first, lane)
                if summing:
                    out[index(results + (size - 1) * lanes)] += likelihood
            if summing:
                for j in range(k):
                    column = base + j * column_size
                    to = results + j * n_own * lanes
                    add_differences(data, d, begin, end, means, j, stage, column, column_size, spread, out, to, lane)
                    if full:
                        add_products(stage, spread, column_size, n_staged, sides, out, to + (1 + d) * lanes)

    return mixture


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    kinds: tuple[Kind, ...] = ("densities", "shares", "expectations")
    flags = (False, True)
    for dtype, kind, full, wide in itertools.product(map(np.dtype, (np.float32, np.float64)), kinds, flags, flags):
        yield mixture_kernel(dtype, kind, full, wide)
