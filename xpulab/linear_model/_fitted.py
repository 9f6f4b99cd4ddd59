"""Pure functions that compute the attributes of a linear model from sums over all rows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls
from sklearn.exceptions import UndefinedMetricWarning

from xpulab.centring import less_mean
from xpulab.csr import is_sparse
from xpulab.scanning import Scan

__all__ = ["Triangle", "intercept_of", "non_negative", "r2_of", "require_few", "shortest"]

#: Largest number of coefficients (columns times features) for which second derivatives are computed.
_MOST_SECOND = 1500


@dataclass(frozen=True)
class Triangle:
    """The triangle R of all rows [1 X y] of all batches, minus a shift; without an intercept, of the rows [X y].

    All batches have the same shift, because the difference of two shifts would have fewer correct digits than the rows.
    """

    r: np.ndarray
    shift: np.ndarray | None

    def merged(self, r: np.ndarray) -> Triangle:
        """Return the triangle with the rows of another triangle, which has the same shift."""
        return Triangle(np.asarray(np.linalg.qr(np.vstack([self.r, r]), mode="r")), self.shift)

    def joined(self, other: Triangle) -> Triangle:
        """Return the triangle with the rows of another triangle, which may have another shift.

        The difference of the shifts is a difference of the rows, so that its rounding is that of a row.
        """
        r = other.r.copy()
        if self.shift is not None and other.shift is not None:
            r[:, 1:] += r[:, :1] * (other.shift - self.shift)
        return self.merged(r)

    def centred(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the triangle of the centred [X y], and the means; without an intercept, that of [X y], and zeros."""
        if self.shift is None:
            return self.r, np.zeros(self.r.shape[1])
        return less_mean(self.r, self.shift)


def shortest(
    triangle: np.ndarray, rotated: np.ndarray, penalties: np.ndarray, cutoff: float
) -> tuple[np.ndarray, np.ndarray, int]:
    """Compute coefficients from the singular value decomposition of a triangle.

    If several sets of coefficients are equally good, the result is the shortest vector. The coefficient of a column of
    zeros is 0.

    Parameters
    ----------
    triangle : numpy.ndarray of shape (k, n_features)
        R of a QR factorization of the columns.
    rotated : numpy.ndarray of shape (k, n_targets)
        The target of R times the coefficients.
    penalties : numpy.ndarray of shape (n_targets,)
        Penalties on the squared coefficients of each target.
    cutoff : float
        Singular values up to this share of the largest count as zero.

    Returns
    -------
    coef : numpy.ndarray of shape (n_features, n_targets)
    singular : numpy.ndarray of shape (min(k, n_features),)
        Singular values in descending order.
    rank : int
        Number of singular values that do not count as zero.
    """
    used = triangle.any(axis=0)
    left, singular, right = np.linalg.svd(triangle[:, used], full_matrices=False)
    kept = singular > cutoff * singular.max(initial=0.0)
    values = singular[kept, None]
    coef = np.zeros((len(used), rotated.shape[1]))
    coef[used] = right[kept].T @ (left[:, kept].T @ rotated / (values + penalties / values))  # without squares
    return coef, np.pad(singular, (0, min(triangle.shape) - len(singular))), int(kept.sum())


def non_negative(triangle: np.ndarray, rotated: np.ndarray, penalties: np.ndarray) -> np.ndarray:
    """Compute non-negative coefficients of least squares, for each target separately.

    Parameters
    ----------
    triangle : numpy.ndarray of shape (k, n_features)
        R of a QR factorization of the columns.
    rotated : numpy.ndarray of shape (k, n_targets)
        The target of R times the coefficients.
    penalties : numpy.ndarray of shape (n_targets,)
        Penalties on the squared coefficients of each target.

    Returns
    -------
    numpy.ndarray of shape (n_features, n_targets)
    """
    n_features = triangle.shape[1]
    coef = np.empty((n_features, len(penalties)))
    for i, penalty in enumerate(penalties):
        below = np.sqrt(penalty) * np.eye(n_features) if penalty else np.empty((0, n_features))
        coef[:, i] = nnls(np.vstack([triangle, below]), np.concatenate([rotated[:, i], np.zeros(len(below))]))[0]
    return coef


def require_few(X: Any, n_columns: int, penalised: bool, others: str) -> None:
    """Raise ValueError if there are too many coefficients for all second derivatives.

    Parameters
    ----------
    X : Any
        The rows. Of fewer dense rows than features, there are second derivatives for the rows, with a penalty.
    n_columns : int
        Columns of coefficients.
    penalised : bool
    others : str
        The other solvers, for the message.
    """
    by_rows = penalised and not isinstance(X, Scan) and not is_sparse(X)
    if n_columns * (min(X.shape) if by_rows else X.shape[1]) > _MOST_SECOND:
        raise ValueError(
            f"solver='newton-cholesky' was given for {X.shape[1]} features and {n_columns} columns of coefficients; it "
            f"is computed for products of up to {_MOST_SECOND:,}, or, with a penalty, of so few rows and columns: use "
            f"solver={others}"
        )


def intercept_of(coef: np.ndarray, mean: np.ndarray, target_mean: np.ndarray) -> np.ndarray:
    """Return the intercepts (n_targets,) for coefficients (n_features, n_targets) of centred columns."""
    return target_mean - mean @ coef


def r2_of(residual: np.ndarray, squares: np.ndarray, n_samples: int) -> float:
    """Return the mean coefficient of determination of all targets, as in `sklearn.metrics.r2_score`.

    Parameters
    ----------
    residual : numpy.ndarray of shape (n_targets,)
        Weighted sums of squared residuals. Weights may be negative.
    squares : numpy.ndarray of shape (n_targets,)
        Weighted sums of squared differences of the targets from their means.
    n_samples : int
        Number of rows.
    """
    if n_samples < 2:
        warnings.warn("R^2 score is not well-defined with less than two samples.", UndefinedMetricWarning, stacklevel=4)
        return float("nan")
    with np.errstate(divide="ignore", invalid="ignore"):
        scores: Any = np.where(squares != 0, 1 - residual / squares, np.where(residual != 0, 0.0, 1.0))
    return float(scores.mean())
