"""The losses of batches of sparse rows, and steps of a descent over them, on one core of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from xpulab.kernels.linear.linear_losses import Loss
from xpulab.kernels.on_cpu.host import at, functions
from xpulab.kernels.on_cpu.sparse_functions import KINDS

if TYPE_CHECKING:
    from scipy import sparse

__all__ = ["SparseSteps"]

_Floats = npt.NDArray[np.float64]
_F8, _I4, _I8 = (np.dtype(name) for name in ("f8", "i4", "i8"))


class SparseSteps:
    """Batches of sparse rows.

    Parameters
    ----------
    matrix : scipy.sparse.csr_matrix of shape (n, n_features)
        Float32 or float64, with the rows of each batch one after the other.
    bounds : numpy.ndarray of int64 of shape (n_batches + 1,)
        Batch k has the rows from bounds[k] up to, not including, bounds[k + 1].
    loss : Loss
        Of one column.
    scale : float
        By what products are multiplied, and losses divided.
    """

    def __init__(self, matrix: sparse.csr_matrix, bounds: npt.NDArray[np.int64], loss: Loss, scale: float) -> None:
        self._functions, self._d, self._bounds = functions(matrix.dtype), matrix.shape[1], bounds
        # Arrays whose addresses the machine code gets; they live as long as this object.
        self._arrays = matrix.data, matrix.indices.astype(_I4, copy=False), matrix.indptr.astype(_I8)
        values, columns, starts = self._arrays
        self._rows = at(values, matrix.dtype), at(columns, _I4), at(starts, _I8)
        self._facts = np.zeros(8)
        self._facts[: len(loss.settings) + 1] = scale, *loss.settings
        self._kind = KINDS[loss.kind]

    def gradient(self, batch: int, targets: _Floats, weights: _Floats, point: _Floats) -> tuple[float, _Floats]:
        """Return the sum of the losses of a batch at a point (n_features + 1,), and its gradient.

        `targets` and `weights` have a number for each row of all batches.
        """
        gradient = np.zeros(self._d + 1)
        loss = self._functions.add_gradients(
            *self._rows, *self._bounds[batch : batch + 2].tolist(), at(targets, _F8), at(weights, _F8), self._kind,
            at(self._facts, _F8), self._d, at(point, _F8), at(gradient, _F8),
        )  # fmt: skip
        return loss, gradient

    def take(
        self,
        order: npt.NDArray[np.int64],
        sizes: tuple[_Floats, _Floats],
        targets: _Floats,
        weights: _Floats,
        penalty: tuple[float, float, bool],
        point: _Floats,
        mean: _Floats,
    ) -> tuple[float, float]:
        """Take a step for each batch, in this order; changes `point` and `mean`, both (n_features + 1,).

        Parameters
        ----------
        order : numpy.ndarray of int64 of shape (n_steps,)
        sizes : tuple of two numpy.ndarray of float64 of shape (n_steps,)
            The length of each step, and the share of the way to the point after it that the mean goes.
        targets, weights : numpy.ndarray of float64 of shape (n,)
        penalty : tuple of float, float and bool
            Factors of half the sum of squares and of the l1 norm of the coefficients, and whether there is an
            intercept.
        point, mean : numpy.ndarray of float64 of shape (n_features + 1,)

        Returns
        -------
        losses, penalties : float
            Sums over the rows, each before the step of its batch.
        """
        lengths, shares = sizes
        gradient, sums = np.empty(self._d + 1), np.empty(2)
        self._functions.take_steps(
            *self._rows, at(self._bounds, _I8), at(targets, _F8), at(weights, _F8), self._kind, at(self._facts, _F8),
            self._d, at(order, _I8), at(lengths, _F8), at(shares, _F8), len(order), *penalty, at(point, _F8),
            at(mean, _F8), at(gradient, _F8), at(sums, _F8),
        )  # fmt: skip
        losses, penalties = sums.tolist()
        return losses, penalties
