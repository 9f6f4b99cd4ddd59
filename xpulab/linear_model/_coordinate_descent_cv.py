"""`LassoCV` and `ElasticNetCV`: penalties that are chosen by cross-validation, on products that the engines compute."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import sklearn.linear_model
from sklearn.utils import check_scalar
from sklearn.utils.metadata_routing import process_routing

from xpulab._sklearn import _fit_context, _raise_for_params, _routing_enabled
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.tasks.answers import Answer
from xpulab.estimator.rows import require_weight
from xpulab.linear_model._folds import folds_of, groups_of, splits_of
from xpulab.linear_model._path import (
    Sums,
    converged,
    descended,
    grid_of,
    how_of,
    mean_squared_errors,
    of_one_sign,
    sums_of,
)
from xpulab.linear_model._proxy import LinearProxy

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ElasticNetCV", "LassoCV"]


class _DescentCV(LinearProxy):
    """Base class of `LassoCV` and `ElasticNetCV`, which choose the best penalties by cross-validation.

    The products of a fold's training rows are those of all rows minus those of its test rows.
    """

    alphas: Any
    eps: float
    cv: Any
    positive: bool

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None, **params: Any) -> Self:
        """Find the best penalty by cross-validation, and fit all rows with it.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,)
            Converted to the dtype of X. A splitter `cv` gets the targets in this process.
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
        cluster = current_ranks()
        given = None if isinstance(sample_weight, numbers.Number) else of_one_sign(sample_weight)
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
                finish=choose,
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
        return splits_of(self.cv, X.shape[0], y if isinstance(y, ShardedArray) else np.ravel(y), **asked)

    def _choose(self, whole: Sums, folds: list[tuple[Sums, Sums]], ratios: np.ndarray, X: Any, y: Any) -> bool:
        n, n_alphas = X.shape[1], self._n_alphas()
        if n_alphas is None:
            grids = np.tile(np.sort(self.alphas)[::-1], (len(ratios), 1))
        else:
            cross = whole.products[:n, n]
            grids = np.stack(
                [grid_of(cross, whole.weight, ratio, self.eps, n_alphas, self.positive) for ratio in ratios]
            )
        for train, test in folds:
            if train.weight == 0:
                raise ValueError("the rows of which a fold is fitted have no weight; choose other folds (cv)")
            require_weight(test.weight)
        errors = np.stack([[self._errors(fold, n, *one) for fold in folds] for one in zip(ratios, grids, strict=True)])
        self.mse_path_ = np.squeeze(np.moveaxis(errors, 2, 1))
        mean = errors.mean(axis=1)
        best, place = np.unravel_index(int(np.argmin(mean)), mean.shape)
        self.alpha_ = grids[best, place]
        self.alphas_ = grids[0] if n_alphas is None or len(ratios) == 1 else grids
        if hasattr(self, "l1_ratio"):
            self.l1_ratio_ = ratios[best]
        coef, gaps, n_iters = descended(whole, n, 0, [self.alpha_], l1_ratio=ratios[best], **how_of(self))
        self.dual_gap_, self.n_iter_ = X.dtype.type(gaps[0]), n_iters[0]
        self._set_line(coef, whole.mean[:n], whole.mean[n:], y, X.dtype)
        return converged(whole, n, 0, gaps[0], n_iters[0], self.max_iter, self.tol)

    def _errors(self, fold: tuple[Sums, Sums], n: int, l1_ratio: float, alphas: np.ndarray) -> np.ndarray:
        """Return the mean squared error of a fold's test rows for each alpha."""
        train, test = fold
        train = train.centred() if self.fit_intercept else train.about_zero()
        coef, _, _ = descended(train, n, 0, alphas, l1_ratio=l1_ratio, **how_of(self))
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
