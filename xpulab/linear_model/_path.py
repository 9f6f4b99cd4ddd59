"""Pure functions for linear models from products of columns, with scikit-learn's coordinate descent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.linear_model import enet_path

from xpulab.data import ShardedArray
from xpulab.scanning import Scan
from xpulab.sharing.answers import Products

__all__ = [
    "Sums",
    "converged",
    "descended",
    "grid_of",
    "how_of",
    "mean_squared_errors",
    "of_one_sign",
    "shrunk",
    "sums_of",
    "without",
]


@dataclass(frozen=True)
class Sums:
    """Weighted sums over some rows, of columns and targets minus a shift; all arrays are float64.

    Attributes
    ----------
    n_samples : int
        Number of rows.
    weight : float
        Sum of the weights.
    mean : numpy.ndarray of shape (n_features + n_targets,)
        The shift: the means if centred, or zeros, or values near the means.
    total : numpy.ndarray of shape (n_features + n_targets,)
        Weighted sums after the shift was subtracted; zeros if centred.
    products : numpy.ndarray of shape (n_features + n_targets, n_features + n_targets)
        Weighted sums of products after the shift was subtracted.
    """

    n_samples: int
    weight: float
    mean: np.ndarray
    total: np.ndarray
    products: np.ndarray

    def centred(self) -> Sums:
        """Return the sums of the same rows, minus their means."""
        away = self.total / self.weight
        return replace(
            self,
            mean=self.mean + away,
            total=np.zeros_like(self.total),
            products=self.products - self.weight * np.outer(away, away),
        )

    def about_zero(self) -> Sums:
        """Return the sums of the same rows, without a shift."""
        mean, cross = self.mean, np.outer(self.mean, self.total)
        return replace(
            self,
            mean=np.zeros_like(mean),
            total=self.total + self.weight * mean,
            products=self.products + cross + cross.T + self.weight * np.outer(mean, mean),
        )


def of_one_sign(sample_weight: Any) -> Any:
    """Return weights without their sign, if none is positive: they count as shares of their sum."""
    if sample_weight is None or isinstance(sample_weight, ShardedArray | Scan):
        return sample_weight
    weights = np.asarray(sample_weight)
    negative = weights.dtype.kind in "if" and weights.size > 0 and weights.max() <= 0
    return -weights if negative else sample_weight


def sums_of(found: Products, n_samples: int) -> Sums:
    """Return the sums of all rows, from the `Products` of the ranks."""
    mean = np.concatenate([found.mean, found.target_mean])
    whole = np.block([[found.gram, found.cross], [found.cross.T, found.target_gram]])
    return Sums(n_samples, found.weight, mean, np.zeros_like(mean), whole)


def without(all_rows: Sums, some: Sums) -> Sums:
    """Return the sums of all rows but `some`. Both must have the same shift."""
    return replace(
        all_rows,
        n_samples=all_rows.n_samples - some.n_samples,
        weight=all_rows.weight - some.weight,
        total=all_rows.total - some.total,
        products=all_rows.products - some.products,
    )


def how_of(estimator: Any) -> dict[str, Any]:
    """Return the parameters of an estimator that `descended` takes."""
    names = ("max_iter", "tol", "positive", "random_state", "selection")
    return {name: getattr(estimator, name) for name in names}


def descended(
    sums: Sums, n_features: int, target: int, alphas: Any, start: np.ndarray | None = None, **parameters: Any
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Compute coefficients for each alpha by `sklearn.linear_model.enet_path` on the Gram matrix.

    As in scikit-learn, the weights are scaled so that they add up to the number of rows.

    Parameters
    ----------
    sums : Sums
        Centred sums, or, without an intercept, sums without a shift.
    n_features : int
        Number of columns.
    target : int
        Index of the target.
    alphas : array-like of shape (n_alphas,)
        Penalties in descending order.
    start : numpy.ndarray of shape (n_features,), optional
        Initial coefficients; zeros by default.
    **parameters : Any
        Parameters of `enet_path`.

    Returns
    -------
    coef : numpy.ndarray of shape (n_features, n_alphas)
        Coefficients for each alpha.
    gaps : numpy.ndarray of shape (n_alphas,)
        Duality gaps.
    n_iters : list of int
        Number of passes over the coefficients for each alpha.
    """
    share = sums.n_samples / sums.weight
    place = n_features + target
    # enet_path reads only the shape and the dtype of these rows, and the squared length of the target.
    rows = np.broadcast_to(np.zeros(1), (sums.n_samples, n_features))
    length = np.array([np.sqrt(max(share * sums.products[place, place], 0.0))])
    _, coef, gaps, n_iters = enet_path(
        rows,
        length,
        alphas=list(alphas),
        precompute=np.ascontiguousarray(share * sums.products[:n_features, :n_features]),
        Xy=np.ascontiguousarray(share * sums.products[:n_features, place]),
        coef_init=start,
        check_input=False,
        return_n_iter=True,
        **parameters,
    )
    return coef, gaps, n_iters


def converged(sums: Sums, n_features: int, target: int, gap: float, n_iter: int, max_iter: int, tol: float) -> bool:
    """Return whether a descent ended because its duality gap was small enough, as in scikit-learn."""
    place = n_features + target
    return n_iter < max_iter or bool(gap * sums.weight <= tol * sums.products[place, place])


def shrunk(sums: Sums, n_features: int, penalties: np.ndarray, centre: bool) -> np.ndarray:
    """Compute ridge coefficients of shape (n_penalties, n_features, n_targets).

    Parameters
    ----------
    sums : Sums
        Sums of the rows, about any shift.
    n_features : int
        Number of columns.
    penalties : numpy.ndarray of shape (n_penalties,)
    centre : bool
        Whether there is an intercept.
    """
    sums = sums.centred()
    gram, cross = sums.products[:n_features, :n_features], sums.products[:n_features, n_features:]
    if centre:
        return np.stack([_solved(gram + penalty * np.eye(n_features), cross) for penalty in penalties])
    # Without an intercept, the products about zero would lose what differs between the rows if the means are large. The
    # sum of the predictions is therefore an unknown of its own, of which the equation has the means as they are.
    mean, target_mean = sums.mean[:n_features, None], sums.mean[None, n_features:]
    right = np.concatenate([cross, target_mean])
    found = []
    for penalty in penalties:
        left = np.block([[gram + penalty * np.eye(n_features), mean], [mean.T, np.array([[-1 / sums.weight]])]])
        found.append(_solved(left, right)[:n_features])
    return np.stack(found)


def _solved(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve symmetric equations, of which unknowns may differ in size by many orders of magnitude."""
    size = np.sqrt(np.abs(left.diagonal()))
    size[size == 0] = 1.0
    scaled = left / np.outer(size, size)
    size *= np.sqrt(np.abs(scaled).max(axis=1))
    return np.linalg.solve(left / np.outer(size, size), right / size[:, None]) / size[:, None]


def grid_of(cross: np.ndarray, weight: float, l1_ratio: float, eps: float, n_alphas: int, positive: bool) -> np.ndarray:
    """Return alphas from the smallest that makes all coefficients zero down to `eps` times it, as in scikit-learn.

    Parameters
    ----------
    cross : numpy.ndarray of shape (n_features,)
        Weighted sums of columns times target.
    weight : float
        Sum of the weights.
    l1_ratio, eps : float
    n_alphas : int
    positive : bool
        Parameters of the estimator.

    Returns
    -------
    numpy.ndarray of shape (n_alphas,)

    Raises
    ------
    ValueError
        If `l1_ratio` is 0.
    """
    if l1_ratio == 0:
        raise ValueError(
            "Automatic alpha grid generation is not supported for l1_ratio=0. Please supply a grid by providing your "
            "estimator with the appropriate `alphas=` argument."
        )
    most = (max(0.0, cross.max()) if positive else np.abs(cross).max()) / (weight * l1_ratio)
    resolution = np.finfo(np.float64).resolution
    if most <= resolution:
        return np.full(n_alphas, resolution)
    return np.geomspace(most, most * eps, num=n_alphas)


def mean_squared_errors(test: Sums, coef: np.ndarray, intercept: np.ndarray, target: int = 0) -> np.ndarray:
    """Compute weighted mean squared errors of linear models on some rows, from the products of the rows.

    Parameters
    ----------
    test : Sums
        Sums of the rows.
    coef : numpy.ndarray of shape (n_features, n_lines)
        Coefficients of each model.
    intercept : numpy.ndarray of shape (n_lines,)
        Intercept of each model.
    target : int
        Index of the target.

    Returns
    -------
    numpy.ndarray of shape (n_lines,)
    """
    lines = np.zeros((len(test.mean), coef.shape[1]))
    lines[: len(coef)], lines[len(coef) + target] = coef, -1.0
    rest = intercept + test.mean @ lines  # prediction minus target at the shift
    squares = np.einsum("il,ij,jl->l", lines, test.products, lines, optimize=True)
    return np.maximum(squares + 2 * rest * (test.total @ lines) + test.weight * rest**2, 0.0) / test.weight
