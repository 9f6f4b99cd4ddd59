"""The expectation and the maximisation step of a mixture of normal distributions, in one pass over the rows.

A work-group takes a chunk of the rows at a time. It multiplies the differences between the rows and each mean by the
factor of the component's precision matrix, which gives the logarithms of the densities, and from these the
responsibilities. While the chunk is in the cache, it sums for each component the responsibilities, and their products
with the differences and with the products of the differences. The sums are about the present means, so that float32
loses no digits of the variances [1]_. A work-item reads only what it has staged itself, so that there are no barriers;
its sums are over a few thousand rows at most, in the dtype of the rows, and the host adds them up in float64.

References
----------
.. [1] T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance: analysis and
   recommendations", The American Statistician 37 (1983), 242-247: sums about a shift near the mean.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xpulab.kernels.language import Kernel, PrivateArray, fma, index, kernel
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.device import lanes_of
from xpulab.kernels.runtime.launch import launch

__all__ = ["Densities", "Sums", "every_kernel", "expectations", "sums_of_densities", "sums_of_shares"]

_CHUNK_BYTES = 20 << 10  # of the products of a chunk of rows and the roots of their responsibilities
_MOST_ADDED = 128  # numbers that a work-item adds up before it adds the sum to those of other chunks
_MOST_CHUNKS = 64  # of a work-group, whose sums it adds up
_PARTIAL_BYTES = 32 << 20
_STAGE_BYTES = 8 << 20

_Kind = Literal["densities", "shares", "expectations"]


@dataclass(frozen=True)
class Densities:
    """Normal densities, each times the weight of its component.

    The logarithm of a density is ``constants[k] - |(x - means[k]) @ factors[k]|**2 / 2``.

    Attributes
    ----------
    constants : numpy.ndarray of shape (n_components,)
    means : numpy.ndarray of shape (n_components, n_features)
    factors : numpy.ndarray of shape (n_components, n_features, n_features) or (n_components, n_features)
        Upper triangular matrices, or their diagonals.
    """

    constants: npt.NDArray[np.float64]
    means: npt.NDArray[np.float64]
    factors: npt.NDArray[np.float64]

    @property
    def full(self) -> bool:
        """Whether the factors are matrices."""
        return self.factors.ndim == 3


@dataclass(frozen=True)
class Sums:
    """Sums over some rows, for each component; all are float64.

    Attributes
    ----------
    likelihood : float
        Sum of the logarithms of the densities of the mixture; 0 if the responsibilities were given.
    centers : numpy.ndarray of shape (n_components, n_features)
        The points that were subtracted from the rows: the means, rounded to the dtype of the rows.
    weight : numpy.ndarray of shape (n_components,)
        Sums of the responsibilities.
    first : numpy.ndarray of shape (n_components, n_features)
        Sums of the responsibilities times the differences from the centers.
    second : numpy.ndarray of shape (n_components, n_features, n_features) or (n_components, n_features)
        Sums of the responsibilities times the products of these differences, or times their squares.
    """

    likelihood: float
    centers: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float64]
    first: npt.NDArray[np.float64]
    second: npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Form:
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
def _form(dtype: np.dtype[Any], wide: bool) -> _Form:
    single = dtype.itemsize == 4
    side = (5 if single else 3) if wide else (3 if single else 2)
    return _Form(lanes_of(wide), rows=(16 if wide else 8) // dtype.itemsize, columns=5, side=side)


@cache
def _mixture_kernel(dtype: np.dtype[Any], kind: _Kind, full: bool, wide: bool) -> Kernel:
    """Return the kernel that sums for "densities" or for "shares", or that writes "expectations"."""
    number = dtype.type
    zero, one, minus_half = number(0), number(1), number(-0.5)
    # Below this power the result would be denormal, and the exponential function of CPUs then takes ten times as long.
    least = number(np.ceil(np.log(np.finfo(dtype).tiny)))
    form = _form(dtype, wide)
    lanes, n_rows, n_columns, side = form.lanes, form.rows, form.columns, form.side
    n_sums, n_products = n_rows * n_columns, side * side
    given, summing = kind == "shares", kind != "expectations"

    @kernel("T[] i8 i8 i8 i8 i8 T* T* T* i8 T* T* T*", dtype)
    def mixture(  # type: ignore[no-untyped-def]
        item, data, d, n, first, chunk, n_chunks, constants, means, factors, k, shares, stage, out
    ):  # fmt: skip
        # first: the first block. chunk: in blocks. factors: (k, tiles, d, n_columns), or (k, d). shares: in blocks.
        # stage: of each group k columns of logarithms, shares and their roots, and padded columns of differences.
        # out: of each group the sums of each lane: for each component its weight, d sums, and d squares, or a tile of
        # products for each pair of tiles; at the end the likelihood. Or expectations (blocks, k + 1, BLOCK).
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        column_size = chunk * BLOCK + lanes
        tiles = (d + (n_columns - 1)) // n_columns
        sides = (d + (side - 1)) // side
        n_own = 1 + 2 * d
        if full:
            n_own = 1 + d + sides * (sides + 1) // 2 * n_products
        base = group * (k + sides * side) * column_size + lane
        spread = base + k * column_size
        size = k * n_own + 1
        results = group * size * lanes + lane
        sums = PrivateArray(n_sums, number)
        x = PrivateArray(n_rows, number)
        squares = PrivateArray(n_rows, number)
        products = PrivateArray(n_products, number)
        y = PrivateArray(side, number)
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
                for block in range(begin, end):
                    for j in range(k):
                        to = base + j * column_size + (block - begin) * BLOCK
                        for part in range(0, BLOCK, lanes):
                            share = shares[index((block * k + j) * BLOCK + part + lane)]
                            stage[index(to + part)] = share
            elif full:
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
            else:
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
            if not given:
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
                        block = begin - first + row // BLOCK
                        to = block * (k + 1) * BLOCK + row % BLOCK + lane
                        for j in range(k):
                            out[index(to + j * BLOCK)] = stage[index(at + j * column_size)] * inverse
                        out[index(to + k * BLOCK)] = norm
                if summing:
                    out[index(results + (size - 1) * lanes)] += likelihood
            if summing:
                for j in range(k):
                    column = base + j * column_size
                    to = results + j * n_own * lanes
                    weight = zero
                    for row in range(0, n_staged, lanes):
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
                    if full:
                        to += (1 + d) * lanes
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

    return mixture


class _Pass:
    """The arguments of a pass over rows, on the device.

    Attributes
    ----------
    chunk : int
        Number of blocks of a chunk.
    column : int
        Number of elements of a staged column.
    """

    def __init__(self, rows: Rows, kind: _Kind, densities: Densities) -> None:
        device, dtype, d = rows.device, rows.dtype, rows.n_features
        self.rows, self.full = rows, densities.full
        self.k = len(densities.means)
        self.form = _form(dtype, device.wide)
        self.kernel = _mixture_kernel(dtype, kind, self.full, device.wide)
        self.centers = np.ascontiguousarray(densities.means, dtype)
        factors = np.ascontiguousarray(densities.factors, dtype)
        if self.full and kind != "shares":
            tiles = -(-d // self.form.columns)
            padded = np.zeros((self.k, d, tiles * self.form.columns), dtype)
            padded[:, :, :d] = factors
            factors = np.ascontiguousarray(padded.reshape(self.k, d, tiles, -1).swapaxes(1, 2))
        host = np.concatenate([densities.constants.astype(dtype), self.centers.ravel(), factors.ravel()])
        point = device.scratch("parameters of a mixture", host.size, dtype)
        device.store(host, point)
        middle, end = self.k, self.k * (1 + d)
        self.parameters = point.part(0, middle), point.part(middle, end - middle), point.part(end, host.size - end)
        self.sides = -(-d // self.form.side)
        most = max(1, min(_CHUNK_BYTES // (BLOCK * d * dtype.itemsize), _MOST_ADDED * self.form.lanes // BLOCK))
        self.chunk = min(most, max(1, rows.n_blocks))
        self.column = self.chunk * BLOCK + self.form.lanes

    def launch(self, first: int, groups: int, n_chunks: int, n: int, shares: Any, out: Any) -> None:
        """Pass over the rows up to row `n`, from block `first` on."""
        rows, device = self.rows, self.rows.device
        size = groups * (self.k + self.sides * self.form.side) * self.column
        stage = device.scratch("stage of a mixture", size, rows.dtype)
        launch(
            device, self.kernel, groups, self.form.lanes,
            rows.data, np.int64(rows.n_features), np.int64(n), np.int64(first), np.int64(self.chunk),
            np.int64(n_chunks), *self.parameters, np.int64(self.k), shares or stage, stage, out,
        )  # fmt: skip


def sums_of_densities(rows: Rows, densities: Densities) -> Sums:
    """Compute the responsibilities of the components for each row, and sum as `Sums` says.

    Parameters
    ----------
    rows : Rows
        Their weights are not used.
    densities : Densities
        They are rounded to the dtype of the rows.

    Returns
    -------
    Sums
    """
    return _sums(rows, "densities", densities)


def sums_of_shares(rows: Rows, shares: Rows, centers: npt.NDArray[Any], full: bool) -> Sums:
    """Sum as `Sums` says for given responsibilities.

    Parameters
    ----------
    rows : Rows
        Their weights are not used.
    shares : Rows
        As many rows of the same dtype; column k has the responsibilities of component k.
    centers : numpy.ndarray of shape (n_components, n_features)
        Points near the means.
    full : bool
        Whether to sum all products of differences, and not only squares.

    Returns
    -------
    Sums
    """
    k, d = centers.shape
    if (shares.n_samples, shares.n_features) != (rows.n_samples, k):
        raise ValueError(
            f"responsibilities of shape {(shares.n_samples, shares.n_features)} were given for {rows.n_samples} rows "
            f"and {k} components"
        )
    densities = Densities(np.zeros(k), centers, np.zeros((k, d, d) if full else (k, d)))
    return _sums(rows, "shares", densities, shares.data)


def _sums(rows: Rows, kind: _Kind, densities: Densities, shares: Any = None) -> Sums:
    device, d, full, k = rows.device, rows.n_features, densities.full, len(densities.means)
    if not rows.n_samples:
        nothing = np.zeros((k, d, d) if full else (k, d))
        return Sums(0.0, densities.means.astype(rows.dtype).astype(float), np.zeros(k), np.zeros((k, d)), nothing)
    turn = _Pass(rows, kind, densities)
    form, sides = turn.form, turn.sides
    n_own = 1 + d + (sides * (sides + 1) // 2 * form.side**2 if full else d)
    size = (k * n_own + 1) * form.lanes
    all_chunks = -(-rows.n_blocks // turn.chunk)
    most = max(1, _PARTIAL_BYTES // (size * rows.dtype.itemsize))
    groups = min(all_chunks, most, max(2 * device.compute_units, -(-all_chunks // _MOST_CHUNKS)))
    n_chunks = -(-all_chunks // groups)
    groups = -(-all_chunks // n_chunks)
    partial = device.scratch("sums of a mixture", groups * size, rows.dtype)
    turn.launch(0, groups, n_chunks, rows.n_samples, shares, partial)
    found = device.fetch(partial, copied=False).reshape(groups, -1, form.lanes).sum(axis=(0, 2), dtype=np.float64)
    own = found[:-1].reshape(k, n_own)
    second = _squares(own[:, 1 + d :], d, form.side) if full else own[:, 1 + d :]
    return Sums(float(found[-1]), turn.centers.astype(np.float64), own[:, 0], own[:, 1 : 1 + d], second)


def _squares(tiles: npt.NDArray[np.float64], d: int, side: int) -> npt.NDArray[np.float64]:
    """Join the tiles of the upper triangle (n_components, tiles * side * side) to symmetric matrices (.., d, d)."""
    sides = -(-d // side)
    whole = np.empty((len(tiles), sides, side, sides, side))
    left, right = np.triu_indices(sides)
    parts = tiles.reshape(len(tiles), -1, side, side).swapaxes(0, 1)
    whole[:, left, :, right, :] = parts
    whole[:, right, :, left, :] = parts.swapaxes(2, 3)
    return whole.reshape(len(tiles), sides * side, sides * side)[:, :d, :d].copy()


def expectations(rows: Rows, densities: Densities) -> Iterator[npt.NDArray[Any]]:
    """Compute the responsibilities of the components for each row, a part of the rows at a time.

    Parameters
    ----------
    rows : Rows
    densities : Densities
        They are rounded to the dtype of the rows.

    Yields
    ------
    numpy.ndarray of shape (m, n_components + 1), in the dtype of the rows
        For the next m rows the responsibilities, and at the end the logarithm of the mixture's density.
    """
    if not rows.n_samples:
        return
    device, turn = rows.device, _Pass(rows, "expectations", densities)
    width = turn.k + 1
    step = max(1, min(rows.n_blocks, _STAGE_BYTES // (BLOCK * width * rows.dtype.itemsize)) // turn.chunk) * turn.chunk
    out = device.empty(step * BLOCK * width, rows.dtype)
    for first in range(0, rows.n_blocks, step):
        n_blocks = min(step, rows.n_blocks - first)
        end = min((first + n_blocks) * BLOCK, rows.n_samples)
        turn.launch(first, -(-n_blocks // turn.chunk), 1, end, None, out)
        found = device.fetch(out, stop=n_blocks * BLOCK * width, copied=False).reshape(n_blocks, width, BLOCK)
        by_row = np.array(found.swapaxes(1, 2), order="C")  # a copy, because `out` is used again
        yield by_row.reshape(-1, width)[: end - first * BLOCK]


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    kinds: tuple[_Kind, ...] = ("densities", "shares", "expectations")
    flags = (False, True)
    for dtype, kind, full, wide in itertools.product(map(np.dtype, (np.float32, np.float64)), kinds, flags, flags):
        yield _mixture_kernel(dtype, kind, full, wide)
