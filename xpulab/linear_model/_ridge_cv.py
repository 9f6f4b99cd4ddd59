"""`RidgeCV`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import numbers
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn
import sklearn.linear_model
from sklearn.model_selection import GridSearchCV
from sklearn.utils import check_scalar
from sklearn.utils.metadata_routing import process_routing

from xpulab._sklearn import _fit_context, _IdentityRegressor, _raise_for_params, _routing_enabled
from xpulab.checks import ONE_AT_A_TIME
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.columns import ScannedColumn
from xpulab.estimator.sending import Result
from xpulab.linear_model._fitted import r2_of
from xpulab.linear_model._folds import folds_of, groups_of, splits_of
from xpulab.linear_model._path import Sums, mean_squared_errors, shrunk, sums_of
from xpulab.linear_model._proxy import LinearProxy
from xpulab.linear_model._ridge import Ridge
from xpulab.scanning import Scan
from xpulab.sharing.linear_models import OfClasses

__all__ = ["LeavingOneOut", "RidgeCV"]

#: Whether there was an equation for each row, and whether no products were used -> what the leverages come from.
_WAYS = {
    (False, False): "the products of the scaled columns and their eigenvalues",
    (False, True): "the QR factorization of [X y] and the singular values of its triangle",
    (True, False): "the products of the rows, of which there are fewer than columns, and their eigenvalues",
    (True, True): "the QR factorization of the transposed rows and the singular values of its triangle",
}
_MANY = 500  # columns, of which the products of each fold take longer than the calls of its fits


class LeavingOneOut(LinearProxy):
    """Base of estimators that choose a penalty of `Ridge` by the errors of each row that a fit leaves out."""

    #: The estimator with one penalty.
    _one_penalty: ClassVar[type] = Ridge

    alphas: Any
    alpha_per_target: bool
    cv: Any
    gcv_mode: str | None
    scoring: Any
    store_cv_results: bool
    alpha_: Any
    best_score_: Any

    def get_metadata_routing(self) -> Any:
        """Return which methods take which metadata, as scikit-learn's estimator does.

        Returns
        -------
        sklearn.utils.metadata_routing.MetadataRouter
        """
        with sklearn.config_context(enable_metadata_routing=True):  # without it, scikit-learn's scorer asks this again
            return super().get_metadata_routing()

    def _checked_alphas(self) -> np.ndarray:
        """Return the penalties; raise scikit-learn's errors about them, and about what folds do not have."""
        if self.cv is not None:
            for name in ("store_cv_results", "alpha_per_target"):
                if getattr(self, name):
                    raise ValueError(f"cv!=None and {name}=True are incompatible")
        bounds = "neither" if self.cv is None else "left"
        if isinstance(self.alphas, np.ndarray | list | tuple) and np.ndim(self.alphas):
            one = len(self.alphas) == 1
            for index, alpha in enumerate(self.alphas):
                name = "alphas" if one else f"alphas[{index}]"
                check_scalar(alpha, name, numbers.Real, min_val=0.0, include_boundaries=bounds)
        return np.atleast_1d(np.asarray(self.alphas, np.float64))

    def _fit_leaving_one_out(
        self,
        cluster: Ranks,
        X: Any,
        y: Any,
        weights: Any,
        alphas: np.ndarray,
        params: dict[str, Any],
        n_targets: int,
        of_classes: OfClasses | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find the best penalty; return its coefficients (n_features, n_targets), the means of columns and of targets.

        With `of_classes`, y has labels, each of which stands for `n_targets` targets.
        """
        n_alphas, is_table = len(alphas), y.ndim == 2 or of_classes is not None
        by_row = Result(n_targets * n_alphas, np.float64) if self.store_cv_results or self.scoring is not None else None
        answer = self._ask(
            cluster,
            "fit",
            "leave_one_out",
            X,
            y=y,
            sample_weight=weights,
            result=by_row,
            centre=bool(self.fit_intercept),
            penalties=alphas,
            predictions=self.scoring is not None,
            exact=self.gcv_mode == "svd",
            of_classes=of_classes,
        )
        found = answer.results[0]
        self.report_.notes.append(f"leverages from {_WAYS[found['by_rows'], found['exact']]}")
        each = None if by_row is None else np.array(by_row.value).reshape(-1, n_targets, n_alphas)
        if self.scoring is None:
            scores = -found["squared"] / X.shape[0]
            scores = scores if self.alpha_per_target else scores.mean(axis=0, keepdims=True)
        else:
            assert each is not None
            scores = self._scores(each, y, weights, params)
        best = scores.argmax(axis=1)  # for each target, or for all targets together
        coef = np.stack([found["coef"][k, :, i] for i, k in enumerate(np.broadcast_to(best, n_targets))], axis=1)
        own = self.alpha_per_target and n_targets > 1
        self.alpha_ = alphas[best] if own else float(alphas[best[0]])
        each_best = scores[np.arange(len(best)), best]
        self.best_score_ = each_best if self.alpha_per_target and is_table else each_best[0]
        if self.store_cv_results:
            assert each is not None
            self.cv_results_ = (each if is_table else each[:, 0]).astype(X.dtype)
        return coef, found["mean"], found["target_mean"]

    def _scores(self, each: np.ndarray, y: Any, weights: np.ndarray | None, params: dict[str, Any]) -> np.ndarray:
        """Return the scores of predictions (n_samples, n_targets, n_alphas) for each alpha, by target or for all."""
        scorer = self._get_scorer()
        if _routing_enabled():
            more = process_routing(self, "fit", sample_weight=weights, **params).scorer.score
        else:
            more = {} if weights is None else {"sample_weight": weights}
        right = y.gather() if isinstance(y, ShardedArray) else y
        columns = [[i] for i in range(each.shape[1])] if self.alpha_per_target else [list(range(each.shape[1]))]
        scores = np.empty((len(columns), each.shape[2]))
        for i, chosen in enumerate(columns):
            truth = right if right.ndim == 1 else right[:, chosen[0]] if self.alpha_per_target else right
            for k in range(each.shape[2]):
                scores[i, k] = scorer(_IdentityRegressor(), each[:, chosen, k].reshape(truth.shape), truth, **more)
        return scores

    def _require_here(self, X: Any, y: Any, which: str, instead: str = "") -> None:
        """Raise TypeError if rows or targets of folds that are fitted one by one are on the engines."""
        if any(isinstance(each, ShardedArray) and not isinstance(each, ScannedColumn) for each in (X, y)):
            raise TypeError(
                f"{which} fitted one by one, which needs the rows in this process, and X or y is a ShardedArray; pass "
                f"X.gather() and y.gather(), or cv=None{instead}"
            )

    def _search(self, X: Any, y: Any, weights: Any, alphas: np.ndarray, params: dict[str, Any]) -> Any:
        """Fit each fold with each penalty separately, and return the best estimator."""
        y = y.gather() if isinstance(y, ScannedColumn) else y
        ridge = self._one_penalty(fit_intercept=self.fit_intercept)
        if _routing_enabled():
            ridge.set_fit_request(sample_weight=True)
        search = GridSearchCV(ridge, {"alpha": alphas}, cv=self.cv, scoring=self._get_scorer())
        with ONE_AT_A_TIME:
            search.fit(X, y, **params, **({} if weights is None else {"sample_weight": weights}))
        best = search.best_estimator_
        self.alpha_, self.best_score_ = best.alpha, search.best_score_
        self.coef_, self.intercept_, self.report_ = best.coef_, best.intercept_, best.report_
        return best


class RidgeCV(LeavingOneOut, sklearn.linear_model.RidgeCV):
    """`Ridge` with a penalty that is chosen by cross-validation, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.RidgeCV`. Leave-one-out cross-validation takes
    two passes over the rows for all penalties: one for the products of columns, and one for the leverages of the rows.
    Folds take one pass, as for `ElasticNetCV`. Of more columns than rows, the products of rows take the place of those
    of columns, one pass is enough, and each fold is fitted by itself, unless the rows are on the engines.

    Parameters
    ----------
    alphas : float or array-like of shape (n_alphas,), default=(0.1, 1.0, 10.0)
        The penalties to try.
    fit_intercept : bool, default=True
        Whether the columns and the targets are centred.
    scoring : str, callable or None, default=None
        None is the negative mean squared error for leave-one-out, and R^2 for folds. Any other score is computed in
        this process, from a prediction for each row.
    cv : int, cross-validation generator, iterable or None, default=None
        None leaves out each row once. Folds with `scoring` or with weights are fitted one by one, so X and y must be
        arrays, not a `ShardedArray`.
    gcv_mode : {"auto", "svd", "eigen"} or None, default=None
        "svd" uses a QR factorization of the rows, and the singular values of its triangle. All others use the
        eigenvalues of the products of the scaled columns, or of the rows if these are fewer. They do the same as "svd"
        if the products are too ill-conditioned, and for float32 rows that are not fewer than the columns. The notes of
        `report_` name the method. Folds do not need it.
    store_cv_results : bool, default=False
        Whether to set `cv_results_`; only with cv=None.
    alpha_per_target : bool, default=False
        Whether each target gets its own penalty; only with cv=None.

    Attributes
    ----------
    cv_results_ : ndarray of shape (n_samples, n_alphas) or (n_samples, n_targets, n_alphas)
        Squared errors, or predictions with `scoring`; only with `store_cv_results`.
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients of the columns.
    intercept_ : float or ndarray of shape (n_targets,)
        Constant term; one for each target.
    alpha_ : float or ndarray of shape (n_targets,)
        The best penalty.
    best_score_ : float or ndarray of shape (n_targets,)
        Score of the best penalty.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.linear_model.RidgeCV : The same in one process.
    """

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None, **params: Any) -> RidgeCV:
        """Find the best penalty by cross-validation, and fit all rows with it.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_targets)
            Converted to the dtype of X.
        sample_weight : float or array-like of shape (n_samples,), optional
            Weights of the rows, not negative. As in scikit-learn, the scores of folds do not use them.
        **params : dict
            Parameters of the scorer, with scikit-learn's metadata routing.

        Returns
        -------
        RidgeCV
            This object, fitted.

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
        alphas = self._checked_alphas()
        cluster = current_ranks()
        X, y, weights = self._read(cluster, X, y, sample_weight)
        with self._fitting(X, weights):
            if self.cv is None:
                n_targets = 1 if y.ndim == 1 else y.shape[1]
                self._set(*self._fit_leaving_one_out(cluster, X, y, weights, alphas, params, n_targets), y, X)
            elif self.scoring is None and weights is None and not _wide(X, y):
                self._fit_folds(cluster, X, y, alphas)
            else:
                instead = ", or leave out scoring and sample_weight"
                self._require_here(X, y, "folds with scoring or sample_weight are", instead)
                self._search(X, y, weights, alphas, params)
        return self

    def _fit_folds(self, cluster: Ranks, X: Any, y: Any, alphas: np.ndarray) -> None:
        groups, places = groups_of(splits_of(self.cv, X.shape[0], y), X.shape[0])
        answer = self._ask(cluster, "fit", "linear_products", X, y=y, centre=True, folds=groups)
        found, n = answer.results[0], X.shape[1]
        scores = np.mean([self._r2(*fold, n, alphas) for fold in folds_of(found["folds"], places)], axis=0)
        best = int(scores.argmax())
        self.alpha_, self.best_score_ = alphas[best], scores[best]
        whole = sums_of(found["products"], X.shape[0])
        coef = shrunk(whole, n, alphas[[best]], bool(self.fit_intercept))[0]
        mean = whole.mean if self.fit_intercept else np.zeros(len(whole.mean))
        self._set(coef, mean[:n], mean[n:], y, X)

    def _r2(self, train: Sums, test: Sums, n: int, alphas: np.ndarray) -> np.ndarray:
        """Return R^2 on the test rows for each alpha."""
        squares = np.diag(test.centred().products)[n:]
        coef = shrunk(train, n, alphas, bool(self.fit_intercept))
        mean = train.centred().mean if self.fit_intercept else np.zeros(len(train.mean))
        residual = np.stack(
            [
                test.weight * mean_squared_errors(test, line.T, mean[n + i] - line @ mean[:n], i)
                for i, line in enumerate(np.moveaxis(coef, 2, 0))
            ]
        )
        return np.array([r2_of(each, squares, test.n_samples) for each in residual.T])

    def _set(self, coef: np.ndarray, mean: np.ndarray, target_mean: np.ndarray, y: Any, X: Any) -> None:
        self._set_line(coef, mean, target_mean, y, X.dtype)
        if len(target_mean) == 1:
            self.coef_ = np.ravel(self.coef_)


def _wide(X: Any, y: Any) -> bool:
    """Return whether a fit of each fold takes less time than the products of all columns, and may have its rows."""
    return X.shape[1] > max(X.shape[0], _MANY) and not any(isinstance(each, ShardedArray | Scan) for each in (X, y))
