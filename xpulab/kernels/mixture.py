"""The expectation and the maximisation step of a mixture of normal distributions, in one pass over the rows.

`mixture_pass` has the kernel. Its sums are about the present means, so that float32 loses no digits of the variances
[1]_. Each is over a few thousand rows at most, in the dtype of the rows, and is added to the others in float64.

References
----------
.. [1] T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance: analysis and
   recommendations", The American Statistician 37 (1983), 242-247: sums about a shift near the mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.layout import BLOCK
from xpulab.kernels.mixture_pass import Kind, form_of, mixture_kernel
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.launch import launch

if TYPE_CHECKING:
    from xpulab.kernels.runtime.device import Array

__all__ = ["Densities", "Sums", "expectations", "sums_of_densities", "sums_of_shares"]

_CHUNK_BYTES = 20 << 10  # of the products of a chunk of rows and the roots of their responsibilities
_MOST_ADDED = 128  # numbers that a work-item adds up before it adds the sum to those of other chunks
_MOST_CHUNKS = 64  # of a work-group, whose sums it adds up
_PARTIAL_BYTES = 32 << 20
_STAGE_BYTES = 8 << 20


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


class _Pass:
    """The arguments of a pass over rows, on the device.

    Attributes
    ----------
    chunk : int
        Number of blocks of a chunk.
    column : int
        Number of elements of a staged column.
    """

    def __init__(self, rows: Rows, kind: Kind, densities: Densities) -> None:
        device, dtype, d = rows.device, rows.dtype, rows.n_features
        self.rows, self.full = rows, densities.full
        self.k = len(densities.means)
        self.form = form_of(dtype, device.wide)
        self.kernel = mixture_kernel(dtype, kind, self.full, device.wide)
        self.centers = np.ascontiguousarray(densities.means, dtype)
        factors = np.ascontiguousarray(densities.factors, dtype)
        if self.full and kind != "shares":
            tiles = -(-d // self.form.columns)
            padded = np.zeros((self.k, d, tiles * self.form.columns), dtype)
            padded[:, :, :d] = factors
            factors = np.ascontiguousarray(padded.reshape(self.k, d, tiles, -1).swapaxes(1, 2))
        packed = np.concatenate([densities.constants.astype(dtype), self.centers.ravel(), factors.ravel()])
        point = device.scratch("parameters of a mixture", packed.size, dtype)
        device.store(packed, point)
        middle, end = self.k, self.k * (1 + d)
        self.parameters = point.part(0, middle), point.part(middle, end - middle), point.part(end, packed.size - end)
        self.sides = -(-d // self.form.side)
        most = max(1, min(_CHUNK_BYTES // (BLOCK * d * dtype.itemsize), _MOST_ADDED * self.form.lanes // BLOCK))
        self.chunk = min(most, max(1, rows.n_blocks))
        self.column = self.chunk * BLOCK + self.form.lanes

    def launch(self, first: int, groups: int, n_chunks: int, n: int, shares: Array | None, out: Array) -> None:
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


def _sums(rows: Rows, kind: Kind, densities: Densities, shares: Array | None = None) -> Sums:
    device, d, full, k = rows.device, rows.n_features, densities.full, len(densities.means)
    if not rows.n_samples:
        nothing = np.zeros((k, d, d) if full else (k, d))
        return Sums(0.0, densities.means.astype(rows.dtype).astype(float), np.zeros(k), np.zeros((k, d)), nothing)
    one_pass = _Pass(rows, kind, densities)
    form, sides = one_pass.form, one_pass.sides
    n_own = 1 + d + (sides * (sides + 1) // 2 * form.side**2 if full else d)
    size = (k * n_own + 1) * form.lanes
    all_chunks = -(-rows.n_blocks // one_pass.chunk)
    most = max(1, _PARTIAL_BYTES // (size * rows.dtype.itemsize))
    groups = min(all_chunks, most, max(2 * device.compute_units, -(-all_chunks // _MOST_CHUNKS)))
    n_chunks = -(-all_chunks // groups)
    groups = -(-all_chunks // n_chunks)
    partial = device.scratch("sums of a mixture", groups * size, rows.dtype)
    one_pass.launch(0, groups, n_chunks, rows.n_samples, shares, partial)
    found = device.fetch(partial, copied=False).reshape(groups, -1, form.lanes).sum(axis=(0, 2), dtype=np.float64)
    own = found[:-1].reshape(k, n_own)
    second = _squares(own[:, 1 + d :], d, form.side) if full else own[:, 1 + d :]
    return Sums(float(found[-1]), one_pass.centers.astype(np.float64), own[:, 0], own[:, 1 : 1 + d], second)


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
    device, one_pass = rows.device, _Pass(rows, "expectations", densities)
    width = one_pass.k + 1
    step = (
        max(1, min(rows.n_blocks, _STAGE_BYTES // (BLOCK * width * rows.dtype.itemsize)) // one_pass.chunk)
        * one_pass.chunk
    )
    out = device.empty(step * BLOCK * width, rows.dtype)
    for first in range(0, rows.n_blocks, step):
        n_blocks = min(step, rows.n_blocks - first)
        end = min((first + n_blocks) * BLOCK, rows.n_samples)
        one_pass.launch(first, -(-n_blocks // one_pass.chunk), 1, end, None, out)
        found = device.fetch(out, stop=n_blocks * BLOCK * width, copied=False).reshape(n_blocks, width, BLOCK)
        by_row = np.array(found.swapaxes(1, 2), order="C")  # a copy, because `out` is used again
        yield by_row.reshape(-1, width)[: end - first * BLOCK]
