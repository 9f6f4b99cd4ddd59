"""`Lasso`, `ElasticNet`, `LassoCV` and `ElasticNetCV`: coordinate descent on products that the engines compute."""

from __future__ import annotations

import numbers
import warnings
from typing import Any

import numpy as np
import sklearn.linear_model
from sklearn.model_selection import check_cv
from sklearn.utils import check_scalar
from sklearn.utils.metadata_routing import process_routing

from xpulab._sklearn import _fit_context, _raise_for_params, _routing_enabled
from xpulab.data import ShardedArray
from xpulab.deploy.cluster import current_cluster
from xpulab.deploy.tasks.answers import Answer
from xpulab.linear_model._folds import folds_of, groups_of
from xpulab.linear_model._path import Sums, converged, descended, grid_of, mean_squared_errors, sums_of
from xpulab.linear_model._proxy import LinearProxy

__all__ = ["ElasticNet", "ElasticNetCV", "Lasso", "LassoCV"]


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
    def fit(self, X: Any, y: Any, sample_weight: Any = None, check_input: bool = True) -> Any:
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
        cluster = current_cluster()
        given = None if isinstance(sample_weight, numbers.Number) else sample_weight
        X, y, weights = self._read(cluster, X, y, given)

        def descend(answer: Answer) -> bool:
            sums = sums_of(answer.results[0]["products"], X.shape[0])
            _check_precomputed(self.precompute, sums, X.shape[1], self.fit_intercept)
            return self._descend(sums, y, X)

        with self._fitting(X, weights):
            centre = bool(self.fit_intercept)
            self._ask(cluster, "fit", "linear_products", X, y=y, sample_weight=weights, centre=centre, then=descend)
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
                sums, n, k, [self.alpha], coef[:, k].copy(), l1_ratio=self.l1_ratio, **_how(self)
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


def _how(estimator: Any) -> dict[str, Any]:
    """Return the estimator's parameters of the descent."""
    names = ("max_iter", "tol", "positive", "random_state", "selection")
    return {name: getattr(estimator, name) for name in names}


def _check_precomputed(given: Any, sums: Sums, n_features: int, fit_intercept: bool) -> None:
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


class _DescentCV(LinearProxy):
    """Base class of `LassoCV` and `ElasticNetCV`, which choose the best penalties by cross-validation.

    The products of a fold's training rows are those of all rows minus those of its test rows.
    """

    alphas: Any
    eps: float
    cv: Any
    positive: bool

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None, **params: Any) -> Any:
        """Find the best penalty by cross-validation, and fit all rows with it.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,)
            Converted to the dtype of X. The splitter `cv` gets the targets in this process.
        sample_weight : float or array-like of shape (n_samples,), optional
            Weights of the rows in fits and in errors, not negative.
        **params : dict
            Parameters of the splitter, with scikit-learn's metadata routing.

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
        _raise_for_params(params, self, "fit")
        cluster = current_cluster()
        given = None if isinstance(sample_weight, numbers.Number) else sample_weight
        if getattr(y, "ndim", 1) > 1 and y.shape[1] > 1:
            raise ValueError(f"For multi-task outputs, use MultiTask{type(self).__name__}")
        X, y, weights = self._read(cluster, X, y, given, multi_output=False)
        n_alphas = self._n_alphas()
        if n_alphas is None:
            for index, alpha in enumerate(self.alphas):
                check_scalar(
                    alpha, f"alphas[{index}]", target_type=numbers.Real, min_val=0.0, include_boundaries="left"
                )
        ratios = np.atleast_1d(getattr(self, "l1_ratio", 1))
        if n_alphas is not None and (ratios == 0).any():
            grid_of(np.ones(1), 1.0, 0.0, self.eps, n_alphas, self.positive)  # raises
        splits = self._splits(X, y, given, params)
        groups, places = groups_of(splits, X.shape[0])

        def choose(answer: Answer) -> bool:
            found = answer.results[0]
            whole, folds = sums_of(found["products"], X.shape[0]), folds_of(found["folds"], places)
            return self._choose(whole, folds, ratios, X, y)

        with self._fitting(X, weights):
            self._ask(
                cluster,
                "fit",
                "linear_products",
                X,
                y=y,
                sample_weight=weights,
                centre=bool(self.fit_intercept),
                folds=groups,
                then=choose,
            )
        return self

    def _n_alphas(self) -> int | None:
        """Return the number of alphas to choose; None if the user passed the alphas."""
        asked = getattr(self, "n_alphas", "deprecated")  # before scikit-learn 1.9
        if isinstance(self.alphas, numbers.Integral):
            return int(self.alphas)
        if self.alphas is None or isinstance(self.alphas, str):
            return 100 if isinstance(asked, str) else int(asked)
        return None

    def _splits(
        self, X: Any, y: Any, sample_weight: Any, params: dict[str, Any]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        asked = {}
        if _routing_enabled():
            asked = process_routing(self, "fit", sample_weight=sample_weight, **params).splitter.split
        targets = y.gather() if isinstance(y, ShardedArray) else y
        rows = np.broadcast_to(np.zeros(1), (X.shape[0], 1))
        return list(check_cv(self.cv).split(rows, np.ravel(targets), **asked))

    def _choose(self, whole: Sums, folds: list[tuple[Sums, Sums]], ratios: np.ndarray, X: Any, y: Any) -> bool:
        n, n_alphas = X.shape[1], self._n_alphas()
        if n_alphas is None:
            grids = np.tile(np.sort(self.alphas)[::-1], (len(ratios), 1))
        else:
            cross = whole.products[:n, n]
            grids = np.stack(
                [grid_of(cross, whole.weight, ratio, self.eps, n_alphas, self.positive) for ratio in ratios]
            )
        errors = np.stack([[self._errors(fold, n, *one) for fold in folds] for one in zip(ratios, grids, strict=True)])
        self.mse_path_ = np.squeeze(np.moveaxis(errors, 2, 1))
        mean = errors.mean(axis=1)
        best, place = np.unravel_index(int(np.argmin(mean)), mean.shape)
        self.alpha_ = grids[best, place]
        self.alphas_ = grids[0] if n_alphas is None or len(ratios) == 1 else grids
        if hasattr(self, "l1_ratio"):
            self.l1_ratio_ = ratios[best]
        coef, gaps, n_iters = descended(whole, n, 0, [self.alpha_], l1_ratio=ratios[best], **_how(self))
        self.dual_gap_, self.n_iter_ = gaps[0], n_iters[0]
        self._set_line(coef, whole.mean[:n], whole.mean[n:], y, X.dtype)
        return converged(whole, n, 0, gaps[0], n_iters[0], self.max_iter, self.tol)

    def _errors(self, fold: tuple[Sums, Sums], n: int, l1_ratio: float, alphas: np.ndarray) -> np.ndarray:
        """Return the mean squared error of a fold's test rows for each alpha."""
        train, test = fold
        train = train.centred() if self.fit_intercept else train.about_zero()
        coef, _, _ = descended(train, n, 0, alphas, l1_ratio=l1_ratio, **_how(self))
        return mean_squared_errors(test, coef, train.mean[n] - train.mean[:n] @ coef)


class ElasticNetCV(_DescentCV, sklearn.linear_model.ElasticNetCV):
    """`ElasticNet` with penalties that are chosen by cross-validation, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.ElasticNetCV`. One pass over the rows is
    enough for all folds: the products of a fold's training rows are those of all rows minus those of its test rows,
    and its errors follow from the products of its test rows. scikit-learn's coordinate descent runs on the products in
    this process.

    Parameters
    ----------
    l1_ratio : float or list of float, default=0.5
        The shares of the L1 penalty to try.
    eps : float, default=1e-3
        Ratio of the smallest to the largest alpha.
    alphas : int or array-like, default=100
        Number of alphas to try, or the alphas.
    fit_intercept : bool, default=True
        Whether the columns and the target are centred.
    precompute : "auto", bool or array-like, default="auto"
        Accepted for compatibility with scikit-learn: the Gram matrix is always computed.
    max_iter : int, default=1000
        Largest number of passes over the coefficients.
    tol : float, default=1e-4
        Tolerance of the descent, as in `ElasticNet`.
    cv : int, cross-validation generator or iterable, default=None
        The folds; five by default. A split must not contain a row twice.
    copy_X : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    verbose : bool or int, default=0
        Accepted and ignored.
    n_jobs : int, default=None
        Accepted and ignored: all engines compute.
    positive : bool, default=False
        Whether all coefficients must be at least 0.
    random_state : int, RandomState instance or None, default=None
        Random order of the coefficients if `selection` is "random".
    selection : {"cyclic", "random"}, default="cyclic"
        Order in which the coefficients are updated.

    Attributes
    ----------
    alpha_ : float
        The best penalty.
    l1_ratio_ : float
        The best share of the penalty on the absolute values.
    coef_ : ndarray of shape (n_features,)
        Coefficients of the columns.
    intercept_ : float
        Constant term; one for each target.
    mse_path_ : ndarray of shape (n_l1_ratio, n_alphas, n_folds) or (n_alphas, n_folds)
        Mean squared errors of the test rows. For float32 rows they are computed from products, too, so errors below a
        millionth of the target's mean square are rounding errors.
    alphas_ : ndarray of shape (n_alphas,) or (n_l1_ratio, n_alphas)
        The penalties that were tried.
    dual_gap_ : float
        Duality gap at the end of the descent.
    n_iter_ : int
        Number of passes over the coefficients.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.linear_model.ElasticNetCV : The same in one process.
    """


class LassoCV(_DescentCV, sklearn.linear_model.LassoCV):
    """`Lasso` with a penalty that is chosen by cross-validation, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.LassoCV`. One pass over the rows is enough for
    all folds, as for `ElasticNetCV`.

    Parameters
    ----------
    eps : float, default=1e-3
        Ratio of the smallest to the largest alpha.
    alphas : int or array-like, default=100
        Number of alphas to try, or the alphas.
    fit_intercept : bool, default=True
        Whether the columns and the target are centred.
    precompute : "auto", bool or array-like, default="auto"
        Accepted for compatibility with scikit-learn: the Gram matrix is always computed.
    max_iter : int, default=1000
        Largest number of passes over the coefficients.
    tol : float, default=1e-4
        Tolerance of the descent, as in `Lasso`.
    copy_X : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    cv : int, cross-validation generator or iterable, default=None
        The folds; five by default. A split must not contain a row twice.
    verbose : bool or int, default=0
        Accepted and ignored.
    n_jobs : int, default=None
        Accepted and ignored: all engines compute.
    positive : bool, default=False
        Whether all coefficients must be at least 0.
    random_state : int, RandomState instance or None, default=None
        Random order of the coefficients if `selection` is "random".
    selection : {"cyclic", "random"}, default="cyclic"
        Order in which the coefficients are updated.

    Attributes
    ----------
    alpha_ : float
        The best penalty.
    coef_ : ndarray of shape (n_features,)
        Coefficients of the columns.
    intercept_ : float
        Constant term; one for each target.
    mse_path_ : ndarray of shape (n_alphas, n_folds)
        Mean squared errors of the test rows. For float32 rows they are computed from products, too, so errors below a
        millionth of the target's mean square are rounding errors.
    alphas_ : ndarray of shape (n_alphas,)
        The penalties that were tried.
    dual_gap_ : float
        Duality gap at the end of the descent.
    n_iter_ : int
        Number of passes over the coefficients.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    ElasticNetCV : With an L2 penalty, too.
    sklearn.linear_model.LassoCV : The same in one process.
    """
