"""Least squares, with a penalty or none, for more columns than rows: an equation for each row.

With the centred rows A, times the square roots of their weights, and the targets b, which were treated in the same way,
the coefficients are ``A.T @ z``, where ``(A @ A.T + penalty * I) @ z = b`` [1]_. Without a penalty z is that of the
shortest coefficients, from the decomposition of `WideRows`. What is left of a row if the others predict it follows from
the same matrix, and takes no pass over the rows [2]_.

References
----------
.. [1] C. Saunders, A. Gammerman, V. Vovk, "Ridge Regression Learning Algorithm in Dual Variables", ICML 1998, 515-521.
.. [2] R. Rifkin, R. Lippert, "Notes on Regularized Least Squares", MIT-CSAIL-TR-2007-025 (2007).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.wide_rows import WideRows

__all__ = ["ByRows", "LeftOut", "by_rows", "left_out"]

_ENOUGH = 1e-5  # relative error of z before its correction, which squares it
_EXACT = 1e-11  # relative error of z that needs no correction

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ByRows:
    """Coefficients, and what the rows have in common; arrays are right on rank 0 only.

    Attributes
    ----------
    coef : numpy.ndarray of shape (n_features, n_targets)
    mean : numpy.ndarray of shape (n_features,)
    target_mean : numpy.ndarray of shape (n_targets,)
    singular : numpy.ndarray of shape (n_samples,) or None
        Singular values of the rows in descending order; None with penalties.
    rank : int
        Number of singular values that do not count as zero.
    exact : bool
        Whether no products of rows were used; the same on all ranks.
    """

    coef: _Floats
    mean: _Floats
    target_mean: _Floats
    singular: _Floats | None = None
    rank: int = 0
    exact: bool = False


@dataclass(frozen=True)
class LeftOut:
    """Coefficients for each penalty, and what each row's target is beyond the prediction from the other rows.

    Attributes
    ----------
    coef : numpy.ndarray of shape (n_penalties, n_features, n_targets)
        Right on rank 0 only.
    mean : numpy.ndarray of shape (n_features,)
        Right on rank 0 only.
    target_mean : numpy.ndarray of shape (n_targets,)
    residual : numpy.ndarray of shape (n_samples, n_targets, n_penalties)
        Of rows with a weight; the same on all ranks.
    exact : bool
        Whether no products of rows were used.
    """

    coef: _Floats
    mean: _Floats
    target_mean: _Floats
    residual: _Floats
    exact: bool


def by_rows(rows: WideRows, penalties: np.ndarray, cutoff: float, exact: bool) -> ByRows | None:
    """Return the coefficients; None, on all ranks, if the numbers are out of the range of their squares.

    Parameters
    ----------
    rows : WideRows
        Rows with targets.
    penalties : numpy.ndarray of shape (n_targets,)
    cutoff : float
        Singular values up to this share of the largest count as zero.
    exact : bool
        Whether to compute no products of rows.
    """
    if not rows.weight > 0:
        return None
    if penalties.min() > 0 and not exact and (found := _by_products(rows, penalties)) is not None:
        return found
    spectrum = rows.spectrum(float(penalties.min()), exact)
    if spectrum is None:
        return None
    vectors, values = spectrum.vectors, spectrum.values
    kept = values > cutoff * values.max(initial=0.0)
    kept &= values > 0
    z = np.empty_like(rows.targets)
    if rows.comm.rank == 0:
        vectors, squares = vectors[:, kept], np.square(values[kept])[:, np.newaxis]
        z = vectors @ (vectors.T @ rows.targets / (squares + penalties))
    own = rows.times_transposed(z)
    singular = np.pad(values, (0, len(rows.roots) - len(values))) if not penalties.any() else None
    return ByRows(*_joined(rows, own), rows.target_mean, singular, int(kept.sum()), spectrum.exact)


def _by_products(rows: WideRows, penalties: np.ndarray) -> ByRows | None:
    """Return the coefficients from the products of the rows; None, on all ranks, if these are too ill-conditioned."""
    gram, solver = rows.gram(), None
    if gram is not None and np.isfinite(gram).all():
        solver = _solver(gram, penalties)
    error, z = np.inf, np.empty_like(rows.targets)
    if solver is not None:
        z, error = rows.expanded(solver[0](rows.along(rows.targets))), solver[1]
    error, z = rows.comm.bcast((error, z))
    if not error <= _ENOUGH:
        return None
    own = rows.rows.T @ z
    if error > _EXACT:
        predicted = rows.times(own)
        if solver is not None and predicted is not None:
            z = z + rows.expanded(solver[0](rows.along(rows.targets - predicted - penalties * z)))
        own = rows.times_transposed(z)
    return ByRows(*_joined(rows, own), rows.target_mean)


def _solver(gram: _Floats, penalties: np.ndarray) -> tuple[Callable[[_Floats], _Floats], float] | None:
    """Return a function that solves the equations of all targets, and its relative error; None if they are singular.

    Eigenvectors, which take longer than one inverse, serve all penalties.
    """
    eps, least = float(np.finfo(np.float64).eps), float(penalties.min())
    if not len(gram):
        return lambda right: right, 0.0
    if len(np.unique(penalties)) > 1:
        values, vectors = np.linalg.eigh(gram)
        error = float(eps * (values[-1] + least) / (values[0] + least)) if values[0] + least > 0 else np.inf
        return lambda right: vectors @ (vectors.T @ right / (values[:, np.newaxis] + penalties)), error
    matrix = gram + least * np.eye(len(gram))
    try:
        inverse: _Floats = np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        return None
    return lambda right: inverse @ right, eps * float(np.linalg.norm(matrix, 1) * np.linalg.norm(inverse, 1))


def left_out(rows: WideRows, penalties: np.ndarray, exact: bool) -> LeftOut | None:
    """Return the leave-one-out residuals [2]_ for each penalty; None if the numbers are out of the range of squares.

    Parameters
    ----------
    rows : WideRows
        Rows with targets.
    penalties : numpy.ndarray of shape (n_penalties,)
        All positive.
    exact : bool
        Whether to compute no products of rows.
    """
    spectrum = rows.spectrum(float(penalties.min()), exact) if rows.weight > 0 else None
    if spectrum is None:
        return None
    vectors = spectrum.vectors
    n, t, p = len(rows.roots), rows.targets.shape[1], len(penalties)
    z, residual = np.empty((n, t * p)), np.empty((n, t, p))
    if rows.comm.rank == 0:
        inverse = 1 / (np.square(spectrum.values)[:, np.newaxis] + penalties)
        along = (vectors.T @ rows.targets)[:, :, np.newaxis] * inverse[:, np.newaxis]
        z = vectors @ along.reshape(len(along), t * p)
        with np.errstate(divide="ignore", invalid="ignore"):  # of one centred row nothing is left
            residual = z.reshape(n, t, p) / (np.square(vectors) @ inverse)[:, np.newaxis]
        residual /= np.where(rows.roots > 0, rows.roots, 1.0)[:, np.newaxis, np.newaxis]
    coef, mean = _joined(rows, rows.times_transposed(z))
    residual = rows.comm.bcast_array(residual)
    return LeftOut(coef.reshape(-1, t, p).transpose(2, 0, 1), mean, rows.target_mean, residual, spectrum.exact)


def _joined(rows: WideRows, own: _Floats) -> tuple[_Floats, _Floats]:
    """Return the coefficients (n_features, k) and means of all columns, which rank 0 alone has."""
    joined = rows.of_all_columns(np.column_stack([own, rows.own_mean]))
    return (np.empty((0, own.shape[1])), np.empty(0)) if joined is None else (joined[:, :-1], joined[:, -1])
