"""Products of columns, summed over the rows: of all columns with each other, or with those of other rows.

`products_kernels` has the kernels, and says how the products are cut into tiles.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.layout import BLOCK
from xpulab.kernels.products_kernels import Form, form_of, products_kernel
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.device import Array, Device
from xpulab.kernels.runtime.launch import launch

__all__ = ["cross", "gram"]

#: Columns from which on they are staged row by row, by the bytes of a product; on CPUs also by `Device.wide`.
_MANY = {4: 256, 8: 96}
_VECTORS = {True: {4: 240, 8: 56}, False: {4: 320, 8: 112}}
_MOST_ROWS = {"few": 1 << 15, "many": 1 << 12, "vectors": 1 << 13}  # whose sums a work-group adds up
_PARTIAL_BYTES = 32 << 20


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
        As many, in the same dtype, such as targets: z goes on with ``y - other_shift``, where y is the row of the same
        index. Their weights are not used.
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
    if rows.are_few(rows.n_features + (0 if others is None else others.n_features)):
        return _gram_of_few(rows, shift, others, other_shift, dtype)
    weights = rows.sample_weight
    if weights is not None:  # half of them on each side, so that both sides are one
        roots = np.zeros(rows.n_blocks * BLOCK, dtype)
        roots[: rows.n_samples] = np.sqrt(rows.weights_on_cpu())
        weights = rows.device.array(roots)
    if others is not None:
        _require_alike(rows, others)
    products, totals = _products(rows, others, shift, other_shift, weights, dtype, joint=True)
    np.copyto(products, products.T, where=np.tri(len(products), k=-1, dtype=bool))
    return products, totals


def _gram_of_few(
    rows: Rows,
    shift: npt.NDArray[Any] | None,
    others: Rows | None,
    other_shift: npt.NDArray[Any] | None,
    dtype: np.dtype[Any],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Compute `gram` in float64 on the CPU, without a launch; shifts are of `dtype`."""
    if others is not None:
        _require_alike(rows, others)
    with rows.device.computing(), np.errstate(over="ignore", invalid="ignore"):
        away = [
            part.columns_of_few().astype(np.float64) - (0 if middle is None else np.asarray(middle, dtype)[:, None])
            for part, middle in ((rows, shift), (others, other_shift))
            if part is not None
        ]
        z = np.concatenate(away)
        weighted = z if rows.sample_weight is None else z * rows.weights_on_cpu()
        products, totals = weighted @ z.T, weighted.sum(axis=1)
    np.copyto(products, products.T, where=np.tri(len(products), k=-1, dtype=bool))
    return products, totals


def cross(
    rows: Rows,
    others: Rows,
    shift: npt.NDArray[Any] | None = None,
    other_shift: npt.NDArray[Any] | None = None,
) -> npt.NDArray[np.float64]:
    """Sum over the rows of ``w * outer(x - shift, y - other_shift)``, where y is the other row of the same index.

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
    form = form_of(dtype, _kind(device, d + t, dtype), device.wide)
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
        starts = tiles * (form.left, form.right)  # their first columns, and then where these are in the stage
        if form.kind == "few":
            starts *= form.column_size
        else:
            starts = starts // form.panel * (form.chunk * form.panel) + starts % form.panel
        all_chunks = -(-rows.n_samples // form.chunk)
        groups = min(all_chunks, 2 * device.compute_units)
        chunks = min(_MOST_ROWS[form.kind] // form.chunk, -(-all_chunks // groups))
        at_once = min(len(tiles), max(1, _PARTIAL_BYTES // (groups * form.sums * dtype.itemsize)))
        stage = device.scratch("stage of products", groups * columns * form.column_size, dtype)
        partial = device.scratch("sums of products", groups * at_once * form.sums, dtype)
        by_column = form.lanes if form.kind == "few" else 1  # totals of each column
        total = device.empty(groups * columns * by_column if own_totals else 1, dtype)
        middle = device.array(_as(shift, d, dtype))
        other_middle = device.array(_as(other_shift, max(t, 1), dtype))
        for first_tile in range(0, len(tiles), at_once):
            part = slice(first_tile, first_tile + at_once)
            n_tiles = len(tiles[part])
            starts_of_part = device.array(starts[part])
            sums = np.zeros(n_tiles * form.sums)
            for first in range(0, all_chunks, groups * chunks):
                needed = -(-min(groups * chunks, all_chunks - first) // chunks)
                launch(
                    device, products_kernel(rows.dtype, dtype, form.kind, device.wide), needed, form.lanes,
                    rows.data, np.int64(d), middle, (others or rows).data, np.int64(t), np.int64(others_at),
                    other_middle, middle if weights is None else weights, np.int32(weights is not None),
                    np.int32(joint and weights is not None), np.int64(rows.n_samples), np.int64(first),
                    np.int64(chunks), starts_of_part, np.int64(n_tiles), stage, np.int64(columns), partial, total,
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


def _tiles(form: Form, left: int, right: range, symmetric: bool) -> npt.NDArray[np.int64]:
    """Return which tile of the left and of the right each product is of (n_tiles, 2), in the order of computation."""
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(left), np.array(right, np.int64), indexing="ij"))
    if symmetric:
        upper = x * form.left < (y + 1) * form.right
        x, y = x[upper], y[upper]
    return np.stack((x, y), axis=1)
