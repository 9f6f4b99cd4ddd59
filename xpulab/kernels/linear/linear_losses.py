"""The loss of a linear model with its gradient, or with products of its second derivatives, in one pass.

A work-group takes a chunk of the rows at a time. It multiplies the rows by the coefficients, computes from these
products the loss and the residual of each row, and multiplies the rows by the residuals while they are still in the
cache. A work-item reads only what it has staged itself, so that there are no barriers; its sums are over a few thousand
rows at most, in the dtype of the rows, and the CPU adds them up in float64. The losses of rows are in `residuals.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.language import DeviceFunction, Kernel, PrivateArray, device_function, fma, index, kernel
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.linear.residuals import KINDS, Kind, residual_function
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.device import Array, lanes_of
from xpulab.kernels.runtime.launch import Prepared, prepare

__all__ = ["Loss", "LossSums", "Repeated", "every_kernel", "second_products"]

_CHUNK_BYTES = 32 << 10  # of rows, which are then still in a core's cache when they are read again
_MOST_ADDED = 128  # numbers that a work-item adds up before it adds the sum to those of other chunks
_MOST_CHUNKS = 64  # of a work-group, whose sums it adds up
_PARTIAL_BYTES = 32 << 20


@dataclass(frozen=True)
class Loss:
    """What the rows of a linear model lose.

    Attributes
    ----------
    kind : {"binary", "multinomial", "log", "identity", "margin", "margins", "distance"}
    n_columns : int
        Columns of coefficients: the number of classes of "multinomial" and "margins", and otherwise 1.
    settings : tuple of float
        Of "log" and "identity", the power of the mean that is the variance. See `residual_function` for the others.
    """

    kind: Kind
    n_columns: int = 1
    settings: tuple[float, ...] = (0.0,)


@dataclass(frozen=True)
class LossSums:
    """Weighted sums over some rows; all are float64.

    Attributes
    ----------
    loss : float
        Sum of the losses.
    gradient : numpy.ndarray of shape (n_columns, n_features + 1)
        Sums of the residuals times the features, and at the end the sums of the residuals.
    """

    loss: float
    gradient: npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Form:
    """How the products of a chunk are cut, so that the sums stay in a CPU's registers.

    Attributes
    ----------
    kind : str
        That of the loss.
    lanes : int
        Work-items of a group; see `Device.lanes`.
    rows : int
        Rows of a work-item that are multiplied by the coefficients together.
    columns : int
        Columns of coefficients of a tile.
    features : int
        Features that are multiplied by a tile of residuals together.
    """

    kind: Kind
    lanes: int
    rows: int
    columns: int
    features: int


@cache
def _form(dtype: np.dtype[Any], kind: Kind, wide: bool) -> _Form:
    if kind not in ("multinomial", "margins"):
        return _Form(kind, lanes_of(wide), rows=16 // dtype.itemsize, columns=1, features=8)
    size = (16 if wide else 8) // dtype.itemsize
    return _Form(kind, lanes_of(wide), rows=size, columns=5, features=size)


def _multiply(form: _Form, number: type[Any]) -> DeviceFunction:
    """Make the function that multiplies the blocks from `begin` to `end` by a tile of coefficients, to the stage."""
    lanes, n_rows, n_columns = form.lanes, form.rows, form.columns
    n_sums = n_rows * n_columns

    @device_function
    def multiply(data, d, begin, end, matrix, offset, tile, stage, base, column_size, lane):  # type: ignore[no-untyped-def]
        sums = PrivateArray(n_sums, number)
        x = PrivateArray(n_rows, number)
        for block in range(begin, end):
            for part in range(0, BLOCK, lanes * n_rows):
                for j in range(n_columns):
                    for r in range(n_rows):
                        sums[j * n_rows + r] = offset[index(tile * n_columns + j)]
                at = block * d * BLOCK + part + lane
                for f in range(d):
                    for r in range(n_rows):
                        x[r] = data[index(at + f * BLOCK + r * lanes)]
                    for j in range(n_columns):
                        by = matrix[index((tile * d + f) * n_columns + j)]
                        for r in range(n_rows):
                            sums[j * n_rows + r] = fma(x[r], by, sums[j * n_rows + r])
                to = base + tile * n_columns * column_size + (block - begin) * BLOCK + part
                for j in range(n_columns):
                    for r in range(n_rows):
                        stage[index(to + j * column_size + r * lanes)] = sums[j * n_rows + r]

    return multiply


def _add_gradient(form: _Form, number: type[Any]) -> DeviceFunction:
    """Make the function that adds the sums of a tile of residuals, alone and times the features, to those in `out`."""
    lanes, n_columns, n_features = form.lanes, form.columns, form.features
    n_products = n_features * n_columns
    zero = number(0)

    @device_function
    def add_gradient(data, d, begin, end, padded, stage, first, column_size, out, to, lane):  # type: ignore[no-untyped-def]
        products = PrivateArray(n_products, number)
        y = PrivateArray(n_columns, number)
        for j in range(n_columns):
            total = zero
            at = first + j * column_size
            for row in range(0, (end - begin) * BLOCK, lanes):
                total += stage[index(at + row)]
            out[index(to + (j * (padded + 1) + padded) * lanes)] += total
        for feature in range(0, d, n_features):
            for i in range(n_products):
                products[i] = zero
            for block in range(begin, end):
                at = first + (block - begin) * BLOCK
                for part in range(0, BLOCK, lanes):
                    for j in range(n_columns):
                        y[j] = stage[index(at + j * column_size + part)]
                    for i in range(n_features):
                        f = min(feature + i, d - 1)
                        x = data[index((block * d + f) * BLOCK + part + lane)]
                        for j in range(n_columns):
                            products[i * n_columns + j] = fma(x, y[j], products[i * n_columns + j])
            for j in range(n_columns):
                for i in range(n_features):
                    out[index(to + (j * (padded + 1) + feature + i) * lanes)] += products[i * n_columns + j]

    return add_gradient


@cache
def _pass_kernel(dtype: np.dtype[Any], second: bool, form: _Form) -> Kernel:
    """Return the kernel of a pass; with `second` it computes products of second derivatives, not loss and gradient.

    Its argument `chunk` is a number of blocks. `matrix` has (tiles, d, n_columns), and with `second` twice as many
    tiles, padded with zeros, as has `offset`. `stage` has for each work-group (padded columns, rows of a chunk).
    `partial` gets for each work-group (padded columns, padded d + 1, lanes), and the loss of each lane.
    """
    number = dtype.type
    zero, one = number(0), number(1)
    lanes, n_columns, n_features = form.lanes, form.columns, form.features
    multiply = _multiply(form, number)
    residual_of = residual_function(form.kind, second, number)
    add_gradient = _add_gradient(form, number)

    @kernel("T[] i8 i8 i8 i8 T* T* i8 T* T* T* i4 T* i8 T*", dtype)
    def linear_loss(  # type: ignore[no-untyped-def]
        item, data, d, n, chunk, n_chunks, matrix, offset, k, settings, targets, weights, weighted, stage, n_tiles,
        partial,
    ):  # fmt: skip
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        column_size = chunk * BLOCK + lanes
        padded = (d + (n_features - 1)) // n_features * n_features
        tiles = n_tiles * 2 if second else n_tiles
        second_at = n_tiles * n_columns * column_size
        base = group * tiles * n_columns * column_size + lane
        size = n_tiles * n_columns * (padded + 1) + 1
        results = group * size * lanes + lane
        for i in range(size):
            partial[index(results + i * lanes)] = zero
        n_blocks = (n + (BLOCK - 1)) // BLOCK
        for c in range(group * n_chunks, (group + 1) * n_chunks):
            begin = c * chunk
            end = min(begin + chunk, n_blocks)
            for tile in range(tiles):
                multiply(data, d, begin, end, matrix, offset, tile, stage, base, column_size, lane)
            total = zero
            for row in range(begin * BLOCK, end * BLOCK, lanes):
                at = base + row - begin * BLOCK
                weight = one
                if weighted != 0:
                    weight = weights[index(row + lane)]
                weight = weight if row + lane < n else zero
                target = targets[index(row + lane)]
                total += residual_of(stage, at, at + second_at, column_size, k, target, weight, settings)
            partial[index(results + (size - 1) * lanes)] += total
            for tile in range(n_tiles):
                first = base + tile * n_columns * column_size
                to = results + tile * n_columns * (padded + 1) * lanes
                add_gradient(data, d, begin, end, padded, stage, first, column_size, partial, to, lane)

    return linear_loss


def second_products(
    rows: Rows,
    targets: Rows,
    loss: Loss,
    coef: npt.NDArray[Any],
    intercept: npt.NDArray[Any],
    coef_step: npt.NDArray[Any],
    intercept_step: npt.NDArray[Any],
) -> npt.NDArray[np.float64]:
    """Multiply the second derivatives at `coef` and `intercept` by a step; the result is laid out as a gradient.

    Parameters
    ----------
    rows : Rows
        With or without weights.
    targets : Rows
        As many, of one column in the same dtype: numbers of classes, from 0, or numbers.
    loss : Loss
    coef : numpy.ndarray of shape (n_columns, n_features)
    intercept : numpy.ndarray of shape (n_columns,)
        Both are rounded to the dtype of the rows.
    coef_step, intercept_step : numpy.ndarray
        Of the shapes of `coef` and `intercept`.

    Returns
    -------
    numpy.ndarray of float64 of shape (n_columns, n_features + 1)
    """
    device, dtype, d = rows.device, rows.dtype, rows.n_features
    k = loss.n_columns
    _require_fitting(rows, targets, loss, coef)
    if not rows.n_samples:
        return np.zeros((k, d + 1))
    form = _form(dtype, loss.kind, device.wide)
    tiles = -(-k // form.columns)
    by_tile = _by_tile(np.stack([coef, coef_step]), form, dtype)
    offset = np.zeros((2, tiles * form.columns), dtype)
    offset[:, :k] = intercept, intercept_step
    point = device.scratch("coefficients of losses", by_tile.size, dtype)
    device.store(by_tile, point)
    plan = _Plan.of(rows, targets, loss, True, point, device.array(offset))
    plan.start()
    return plan.sums(device.fetch(plan.partial, copied=False)).gradient


def _require_fitting(rows: Rows, targets: Rows, loss: Loss, coef: npt.NDArray[Any]) -> None:
    if coef.shape != (loss.n_columns, rows.n_features) or targets.n_samples != rows.n_samples:
        raise ValueError(
            f"coefficients of shape {coef.shape} and {targets.n_samples} targets were given for {rows.n_samples} "
            f"rows of {rows.n_features} features and {loss.n_columns} columns of coefficients"
        )


def _by_tile(coef: npt.NDArray[Any], form: _Form, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return coefficients (1 or 2, n_columns, n_features) tile by tile, the last of which zeros fill up."""
    n, k, d = coef.shape
    if form.columns == 1:
        return np.ascontiguousarray(coef, dtype)
    tiles = -(-k // form.columns)
    matrix = np.zeros((n, tiles * form.columns, d), dtype)
    matrix[:, :k] = coef
    return np.ascontiguousarray(matrix.reshape(n * tiles, form.columns, d).swapaxes(1, 2))


@dataclass(frozen=True)
class _Plan:
    """A pass over rows, whose coefficients are on the device, and where its sums will be.

    Attributes
    ----------
    start : Prepared
        Starts the kernel.
    partial : Array
        What it computes.
    groups, lanes, columns, padded : int
        The shape of `partial` (groups, columns * (padded + 1) + 1, lanes).
    shape : tuple of int
        Numbers of columns of coefficients, and of features.
    """

    start: Prepared
    partial: Array
    groups: int
    lanes: int
    columns: int
    padded: int
    shape: tuple[int, int]

    @classmethod
    def of(cls, rows: Rows, targets: Rows, loss: Loss, second: bool, point: Array, offset: Array) -> _Plan:
        """Cut the rows into chunks for the work-groups."""
        device, dtype, d, k = rows.device, rows.dtype, rows.n_features, loss.n_columns
        form = _form(dtype, loss.kind, device.wide)
        tiles = -(-k // form.columns)
        chunk = min(max(1, _CHUNK_BYTES // (BLOCK * d * dtype.itemsize)), _MOST_ADDED * form.lanes // BLOCK)
        all_chunks = -(-rows.n_blocks // chunk)
        padded = -(-d // form.features) * form.features
        size = (tiles * form.columns * (padded + 1) + 1) * form.lanes
        most = max(1, _PARTIAL_BYTES // (size * dtype.itemsize))
        groups = min(all_chunks, most, max(2 * device.compute_units, -(-all_chunks // _MOST_CHUNKS)))
        n_chunks = -(-all_chunks // groups)
        groups = -(-all_chunks // n_chunks)
        stage = device.scratch("stage of losses", groups * offset.size * (chunk * BLOCK + form.lanes), dtype)
        partial = device.scratch("sums of losses", groups * size, dtype)
        weights, weighted = rows.weights_or(stage)
        settings = device.array(np.array(loss.settings, dtype))
        start = prepare(
            device, _pass_kernel(dtype, second, form), groups, form.lanes,
            rows.data, np.int64(d), np.int64(rows.n_samples), np.int64(chunk), np.int64(n_chunks),
            point, offset, np.int64(k), settings, targets.data, weights, weighted,
            stage, np.int64(tiles), partial,
        )  # fmt: skip
        return cls(start, partial, groups, form.lanes, tiles * form.columns, padded, (k, d))

    def sums(self, partial: npt.NDArray[Any]) -> LossSums:
        """Add up what the kernel has computed."""
        k, d = self.shape
        found = partial.reshape(self.groups, -1, self.lanes).sum(axis=(0, 2), dtype=np.float64)
        gradient = found[:-1].reshape(self.columns, self.padded + 1)[:k]
        return LossSums(float(found[-1]), np.hstack([gradient[:, :d], gradient[:, self.padded :]]))


class Repeated:
    """Sums the losses of rows and their gradients, for other coefficients each time; only the first time prepares it.

    Parameters
    ----------
    rows, targets, loss : Any
        As for `second_products`; at least one row.
    """

    def __init__(self, rows: Rows, targets: Rows, loss: Loss) -> None:
        self._rows, self._targets, self._loss, device = rows, targets, loss, rows.device
        self._form = _form(rows.dtype, loss.kind, device.wide)
        columns = self._form.columns
        self._offsets = np.zeros(-(-loss.n_columns // columns) * columns, rows.dtype)
        self._point = device.scratch("coefficients of losses", len(self._offsets) * rows.n_features, rows.dtype)
        self._offset = device.scratch("offsets of losses", len(self._offsets), rows.dtype)
        self._plan = _Plan.of(rows, targets, loss, False, self._point, self._offset)

    def __call__(self, coef: npt.NDArray[Any], intercept: npt.NDArray[Any]) -> LossSums:
        """Return the sums for coefficients (n_columns, n_features) and intercepts, rounded to the dtype of the rows."""
        device = self._rows.device
        _require_fitting(self._rows, self._targets, self._loss, coef)
        self._offsets[: len(intercept)] = intercept
        device.store(_by_tile(coef[None], self._form, self._rows.dtype), self._point)
        device.store(self._offsets, self._offset)
        self._plan.start()
        return self._plan.sums(device.fetch(self._plan.partial, copied=False))


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    flags, dtypes = (False, True), map(np.dtype, (np.float32, np.float64))
    for dtype, second, kind, wide in itertools.product(dtypes, flags, KINDS, flags):
        yield _pass_kernel(dtype, second, _form(dtype, kind, wide))
