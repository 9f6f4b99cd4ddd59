"""The algebra of a triangle of columns with a column of ones before them, which the ranks and estimators share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["less_mean"]


def less_mean(
    r: npt.NDArray[np.float64], shift: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Compute the triangle of the centred columns, and their means, from the triangle of a column of ones and them.

    What is left of a constant column is the rounding of its mean. It would count as a column like any other, because
    it is not small compared with itself, so it becomes zero.

    Parameters
    ----------
    r : numpy.ndarray of float64 of shape (m, 1 + n_columns)
        The triangle of a QR decomposition of ones and of the columns minus the shift, times the roots of weights.
    shift : numpy.ndarray of float64 of shape (n_columns,)

    Returns
    -------
    r : numpy.ndarray of float64 of shape (m - 1, n_columns)
    mean : numpy.ndarray of float64 of shape (n_columns,)
    """
    away = r[0, 1:] / r[0, 0] if r[0, 0] else np.zeros(len(shift))
    mean = shift + away
    rounding = np.finfo(np.float64).eps * abs(r[0, 0]) * np.maximum(np.abs(mean), np.abs(away))
    centred = r[1:, 1:]
    constant = np.abs(centred).max(axis=0, initial=0.0) <= rounding
    return np.where(constant, 0.0, centred), mean
