"""`BayesianRidge`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.linear_model
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context
from xpulab.deploy.current import current_ranks
from xpulab.estimator.sending import Result
from xpulab.linear_model._fitted import Triangle
from xpulab.linear_model._proxy import LinearProxy

__all__ = ["BayesianRidge"]

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Reduced:
    """Rows and targets that a rotation makes of all rows, centred if there is an intercept, as singular vectors.

    Attributes
    ----------
    values : numpy.ndarray of shape (k,)
        Singular values of the rows, k = min(n_samples, n_features).
    right : numpy.ndarray of shape (n_features, n_features)
        Right singular vectors, as rows, also those of no singular value.
    along : numpy.ndarray of shape (k,)
        The targets in the basis of the left singular vectors.
    beside : float
        Squared length of the targets beside them.
    weight, variance : float
        Sum of the weights of all rows, and the weighted variance of the targets.
    n_samples : int
    """

    values: _Floats
    right: _Floats
    along: _Floats
    beside: float
    weight: float
    variance: float
    n_samples: int

    @classmethod
    def of(cls, triangle: Triangle, n_samples: int, centre: bool) -> tuple[_Reduced, _Floats]:
        """Return what is left of all rows, and the means of columns and targets, or zeros."""
        d = triangle.r.shape[1] - 2
        assert triangle.shift is not None
        centred, means = triangle.centred()
        weight = float(triangle.r[0, 0] ** 2)
        variance = float(np.square(centred[:, d]).sum()) / weight
        rest: _Floats = centred if centre else triangle.r[:, 1:] + triangle.r[:, :1] * triangle.shift
        r: _Floats = rest if centre else np.asarray(np.linalg.qr(rest, mode="r"))
        left, values, right = np.linalg.svd(r[:, :d], full_matrices=True)
        k = min(n_samples, d, len(values))
        along = left[:, :k].T @ r[:, d]
        beside = float(np.square(r[:, d] - left[:, :k] @ along).sum())
        found = cls(values[:k], right, along, beside, weight, variance, n_samples)
        return found, means if centre else np.zeros(d + 1)

    def coefficients(self, ratio: float) -> tuple[_Floats, float]:
        """Return coefficients and the sum of squared errors for a penalty."""
        shares = self.values / (np.square(self.values) + ratio)
        errors = self.along * (1 - self.values * shares)
        return (shares * self.along) @ self.right[: len(shares)], float(np.square(errors).sum()) + self.beside


class BayesianRidge(LinearProxy, sklearn.linear_model.BayesianRidge):
    """Least squares whose penalty and noise the data choose, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.BayesianRidge` [1]_, for any number of
    engines. One QR factorization of the rows and the targets leaves a triangle, from which the iterations go on.

    Parameters
    ----------
    max_iter : int, default=300
        Largest number of iterations.
    tol : float, default=1e-3
        The fit ends when the coefficients change by less.
    alpha_1, alpha_2 : float, default=1e-6
        Shape and inverse scale of the gamma distribution of `alpha_`.
    lambda_1, lambda_2 : float, default=1e-6
        Shape and inverse scale of the gamma distribution of `lambda_`.
    alpha_init, lambda_init : float, optional
        First values of `alpha_`, by default the inverse variance of y, and of `lambda_`, by default 1.
    compute_score : bool, default=False
        Whether `scores_` has the logarithm of the marginal likelihood for each iteration.
    fit_intercept : bool, default=True
        Whether the columns and the targets are centred.
    copy_X : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    verbose : bool, default=False
        Whether to print when the fit has converged.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Means of the coefficients' distribution.
    intercept_ : float
        Constant term.
    alpha_, lambda_ : float
        Precision of the noise, and of the coefficients.
    sigma_ : ndarray of shape (n_features, n_features)
        Covariance of the coefficients.
    scores_ : ndarray of shape (`n_iter_` + 1,)
        If `compute_score`.
    n_iter_ : int
        Number of iterations.
    X_offset_, X_scale_ : ndarray of shape (n_features,)
        What is subtracted from the columns, and ones.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.linear_model.BayesianRidge : The same in one process.

    References
    ----------
    .. [1] D. J. C. MacKay, "Bayesian Interpolation", Neural Computation 4 (1992), 415-447.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import BayesianRidge
    >>> with xpulab.XPUCluster(n=2):
    ...     BayesianRidge().fit([[0.0], [1.0], [2.0], [3.0]], [0.1, 0.9, 2.1, 2.9]).predict([[1.5]]).round(3)
    array([1.5])
    """

    max_iter: int
    tol: float
    alpha_1: float
    alpha_2: float
    lambda_1: float
    lambda_2: float
    alpha_init: float | None
    lambda_init: float | None
    compute_score: bool
    verbose: bool
    X_offset_: np.ndarray
    sigma_: np.ndarray
    alpha_: Any

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> BayesianRidge:
        """Fit the model.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,)
            Converted to the dtype of X.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative.

        Returns
        -------
        BayesianRidge
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, and if X and y are handles with different numbers of rows per rank or
            different dtypes. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_ranks()
        X, y, weights = self._read(cluster, X, y, sample_weight, multi_output=False)
        with self._fitting(X, weights):
            found = self._ask(cluster, "fit", "shifted_triangle", X, y=y, sample_weight=weights).results[0]
            reduced, means = _Reduced.of(Triangle(found["r"], found["shift"]), X.shape[0], bool(self.fit_intercept))
            coef = self._iterate(reduced, X.dtype)
            self._set_line(coef[:, None], means[:-1], means[-1:], y, X.dtype)
            self.X_offset_ = means[:-1].astype(X.dtype)
            self.X_scale_ = np.ones(X.shape[1], X.dtype)
        return self

    def _iterate(self, reduced: _Reduced, dtype: Any) -> _Floats:
        """Find the two precisions; set the attributes but those of the line, and return the coefficients."""
        alpha = (
            1.0 / (reduced.variance + float(np.finfo(np.float64).eps)) if self.alpha_init is None else self.alpha_init
        )
        strength = 1.0 if self.lambda_init is None else self.lambda_init
        squares, scores, before = np.square(reduced.values), [], None
        for n_iter in range(1, self.max_iter + 1):
            coef, errors = reduced.coefficients(strength / alpha)
            if self.compute_score:
                scores.append(self._score_of(reduced, alpha, strength, coef, errors))
            gamma = float((alpha * squares / (strength + alpha * squares)).sum())
            strength = (gamma + 2 * self.lambda_1) / (float(np.square(coef).sum()) + 2 * self.lambda_2)
            alpha = (reduced.weight - gamma + 2 * self.alpha_1) / (errors + 2 * self.alpha_2)
            if before is not None and np.abs(before - coef).sum() < self.tol:
                if self.verbose:
                    print("Convergence after ", str(n_iter - 1), " iterations")
                break
            before = coef
        self.n_iter_ = n_iter
        coef, errors = reduced.coefficients(strength / alpha)
        self.scores_: Any = []
        if self.compute_score:
            self.scores_ = np.array([*scores, self._score_of(reduced, alpha, strength, coef, errors)])
        whole = np.zeros(len(reduced.right))
        whole[: len(squares)] = squares
        self.alpha_, self.lambda_ = dtype.type(alpha), dtype.type(strength)
        self.sigma_ = ((reduced.right.T / (alpha * whole + strength)) @ reduced.right).astype(dtype)
        return coef

    def _score_of(self, reduced: _Reduced, alpha: float, strength: float, coef: _Floats, errors: float) -> float:
        """Return the logarithm of the marginal likelihood."""
        d, squares = len(coef), np.square(reduced.values)
        rest = np.full(d, strength)
        rest[: len(squares)] += alpha * squares
        score = self.lambda_1 * log(strength) - self.lambda_2 * strength + self.alpha_1 * log(alpha)
        score -= self.alpha_2 * alpha
        fit = d * log(strength) + reduced.weight * log(alpha) - alpha * errors - strength * float(np.square(coef).sum())
        return score + 0.5 * (fit - float(np.log(rest).sum()) - reduced.weight * log(2 * np.pi))

    def predict(  # type: ignore[override]  # scikit-learn's second argument is another one
        self, X: Any, return_std: bool = False, out: str | os.PathLike[str] | None = None
    ) -> Any:
        """Predict targets with the linear model.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        return_std : bool, default=False
            Whether to return the standard deviations of the predictions, too.
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`. Not with `return_std`.

        Returns
        -------
        y_mean : ndarray of shape (n_samples,), float64 if X or the fit is
        y_std : ndarray of shape (n_samples,)
            If `return_std`.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If no cluster is running.
        ValueError
            For input that scikit-learn rejects, and for `out` with `return_std`.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if not return_std:
            return super().predict(X, out)
        if out is not None:
            raise ValueError("out and return_std=True were given; a file has the means: leave one of them out")
        check_is_fitted(self)
        with self._sent_once(X):
            means = super().predict(X)
            cluster = self._cluster()
            rows: Any = self._checked(cluster, X, reset=False)
            spread = Result(None, rows.dtype)
            self._ask(
                cluster, "predict", "linear_spread", rows, result=spread, shift=self.X_offset_.astype(np.float64),
                covariance=self.sigma_.astype(np.float64), noise=float(1 / self.alpha_),
            )  # fmt: skip
        return means, spread.value
