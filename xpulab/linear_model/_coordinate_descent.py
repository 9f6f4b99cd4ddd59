"""`Lasso` and `ElasticNet`: coordinate descent on products that the engines compute."""

from __future__ import annotations

import numbers
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import sklearn.linear_model

from xpulab._sklearn import _fit_context
from xpulab.deploy.current import current_ranks
from xpulab.deploy.tasks.answers import Answer
from xpulab.linear_model._path import Sums, converged, descended, how_of, of_one_sign, sums_of
from xpulab.linear_model._proxy import LinearProxy

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ElasticNet", "Lasso", "check_precomputed"]


class _Descent(LinearProxy):
    """Base class of `Lasso` and `ElasticNet`."""

    alpha: float
    l1_ratio: float
    precompute: Any
    max_iter: int
    tol: float
    warm_start: bool
    positive: bool
    random_state: Any
    selection: str

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None, check_input: bool = True) -> Self:
        """Fit the model by coordinate descent on the Gram matrix, which the engines compute once.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_targets)
            Converted to the dtype of X. Several targets are fitted one after the other.
        sample_weight : float or array-like of shape (n_samples,), optional
            Weights of the rows, not negative. They are scaled so that they add up to n_samples.
        check_input : bool, default=True
            Accepted for compatibility with scikit-learn: the input is always checked.

        Returns
        -------
        object
            This estimator, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for CSR matrices, and if X and y are handles with different numbers of
            rows per rank or different dtypes. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        if self.alpha == 0:
            warnings.warn(
                "With alpha=0, this algorithm does not converge well. You are advised to use the LinearRegression "
                "estimator",
                stacklevel=2,
            )
        cluster = current_ranks()
        given = None if isinstance(sample_weight, numbers.Number) else of_one_sign(sample_weight)
        X, y, weights = self._read(cluster, X, y, given)

        def descend(answer: Answer) -> bool:
            sums = sums_of(answer.results[0]["products"], X.shape[0])
            check_precomputed(self.precompute, sums, X.shape[1], self.fit_intercept)
            return self._descend(sums, y, X)

        with self._fitting(X, weights):
            centre = bool(self.fit_intercept)
            self._ask(cluster, "fit", "linear_products", X, y=y, sample_weight=weights, centre=centre, finish=descend)
        return self

    def _descend(self, sums: Sums, y: Any, X: Any) -> bool:
        """Set the attributes from sums, centred if there is an intercept; return whether all targets converged."""
        n, dtype = X.shape[1], X.dtype
        n_targets = len(sums.mean) - n
        coef = np.zeros((n, n_targets))
        if self.warm_start and hasattr(self, "coef_"):
            coef[:] = np.atleast_2d(self.coef_).T
        gaps, n_iters = np.zeros(n_targets, dtype), []
        for k in range(n_targets):
            found, gap, n_iter = descended(
                sums, n, k, [self.alpha], coef[:, k].copy(), l1_ratio=self.l1_ratio, **how_of(self)
            )
            coef[:, k], gaps[k] = found[:, 0], gap[0]
            n_iters.append(n_iter[0])
        one = n_targets == 1
        self.n_iter_ = n_iters[0] if one else n_iters
        self.dual_gap_ = gaps[0] if one else gaps
        self._set_line(coef, sums.mean[:n], sums.mean[n:], y, dtype)
        if one:
            self.coef_ = np.ravel(self.coef_)
        if not (np.isfinite(self.coef_).all() and np.isfinite(self.intercept_).all()):
            raise ValueError(
                "Coordinate descent iterations resulted in non-finite parameter values. The input data may contain "
                "large values and need to be preprocessed."
            )
        return all(converged(sums, n, k, gaps[k], n_iters[k], self.max_iter, self.tol) for k in range(n_targets))


def check_precomputed(given: Any, sums: Sums, n_features: int, fit_intercept: bool) -> None:
    """Check a Gram matrix that the user passed: warn if it is not used, raise if it is wrong, as in scikit-learn.

    The descent always uses the matrix from the engines.
    """
    if not hasattr(given, "__array__"):
        return
    given = np.asarray(given)
    if fit_intercept and not np.allclose(sums.mean[:n_features], 0):
        warnings.warn(
            "Gram matrix was provided but X was centered to fit intercept: recomputing Gram matrix.",
            UserWarning,
            stacklevel=6,
        )
        return
    share = sums.n_samples / sums.weight
    computed = share * sums.products[:n_features, :n_features]
    rtol = 1e-4 if given.dtype == np.float32 else 1e-7
    if given.shape != computed.shape or not np.allclose(given, computed, rtol=rtol, atol=1e-5):
        raise ValueError(
            "Gram matrix passed in via 'precompute' parameter did not pass validation - please check that it was "
            f"computed properly: expected the Gram matrix of these rows, of shape {computed.shape}"
        )


class ElasticNet(_Descent, sklearn.linear_model.ElasticNet):
    """Least squares with L1 and L2 penalties on the coefficients, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.ElasticNet`. The engines compute the Gram
    matrix in one pass over the rows, after a pass for the means. scikit-learn's coordinate descent runs on this matrix
    in this process, in float64.

    Parameters
    ----------
    alpha : float, default=1.0
        Factor of the penalties.
    l1_ratio : float, default=0.5
        Share of the L1 penalty; the rest is the L2 penalty.
    fit_intercept : bool, default=True
        Whether the columns and the targets are centred.
    precompute : bool or array-like of shape (n_features, n_features), default=False
        The Gram matrix is always computed. A matrix that is passed is only compared with it.
    max_iter : int, default=1000
        Largest number of passes over the coefficients.
    copy_X : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    tol : float, default=1e-4
        The descent ends when the duality gap is at most `tol` times the squared length of the target.
    warm_start : bool, default=False
        Whether the descent begins with the coefficients of the last fit.
    positive : bool, default=False
        Whether all coefficients must be at least 0.
    random_state : int, RandomState instance or None, default=None
        Random order of the coefficients if `selection` is "random".
    selection : {"cyclic", "random"}, default="cyclic"
        Order in which the coefficients are updated.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients of the columns.
    sparse_coef_ : sparse array of shape (n_targets, n_features)
        The coefficients as a sparse array.
    intercept_ : float or ndarray of shape (n_targets,)
        Constant term; one for each target.
    n_iter_ : int or list of int
        Number of passes over the coefficients.
    dual_gap_ : float or ndarray of shape (n_targets,)
        Duality gap at the end of the descent.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.linear_model.ElasticNet : The same in one process.
    """


class Lasso(_Descent, sklearn.linear_model.Lasso):
    """Least squares with an L1 penalty on the coefficients, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.Lasso`. The engines compute the Gram matrix,
    and scikit-learn's coordinate descent runs on it in this process, as for `ElasticNet` with the `l1_ratio` 1.

    Parameters
    ----------
    alpha : float, default=1.0
        Factor of the penalty.
    fit_intercept : bool, default=True
        Whether the columns and the targets are centred.
    precompute : bool or array-like of shape (n_features, n_features), default=False
        The Gram matrix is always computed. A matrix that is passed is only compared with it.
    copy_X : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    max_iter : int, default=1000
        Largest number of passes over the coefficients.
    tol : float, default=1e-4
        The descent ends when the duality gap is at most `tol` times the squared length of the target.
    warm_start : bool, default=False
        Whether the descent begins with the coefficients of the last fit.
    positive : bool, default=False
        Whether all coefficients must be at least 0.
    random_state : int, RandomState instance or None, default=None
        Random order of the coefficients if `selection` is "random".
    selection : {"cyclic", "random"}, default="cyclic"
        Order in which the coefficients are updated.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients of the columns.
    sparse_coef_ : sparse array of shape (n_targets, n_features)
        The coefficients as a sparse array.
    intercept_ : float or ndarray of shape (n_targets,)
        Constant term; one for each target.
    n_iter_ : int or list of int
        Number of passes over the coefficients.
    dual_gap_ : float or ndarray of shape (n_targets,)
        Duality gap at the end of the descent.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    ElasticNet : With an L2 penalty, too.
    sklearn.linear_model.Lasso : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import Lasso
    >>> with xpulab.XPUCluster(n=2):
    ...     Lasso(alpha=0.1).fit([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]], [0.0, 1.0, 2.0]).coef_
    array([0.85, 0.  ])
    """
