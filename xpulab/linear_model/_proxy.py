"""The base class of linear models: checks of X, y and weights, fitted attributes, predictions, and their score."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from xpulab.data import ShardedArray
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.proxy import Proxy
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.rows import checked_targets, require_column_of_weights, require_weight
from xpulab.estimator.sending import Result
from xpulab.linear_model._fitted import intercept_of, r2_of

__all__ = ["LinearProxy"]


class LinearProxy(Proxy):
    """Base of linear models, which sets `coef_` and `intercept_`, and predicts rows on the engines."""

    _later_rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}
    _computes_as: ClassVar[str] = "coef_"
    _narrow: ClassVar[bool] = True

    fit_intercept: bool
    coef_: np.ndarray
    intercept_: Any

    def _read(
        self,
        cluster: Ranks,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        reset: bool = True,
        multi_output: bool = True,
        only_non_negative: bool = True,
    ) -> tuple[Any, Any, np.ndarray | None]:
        """Check X, y and the weights before anything is sent, and return them in a form that can be sent."""
        X = self._checked(cluster, X, reset=reset)
        y = checked_targets(self, cluster, y, X, multi_output=multi_output)
        return X, y, self._weights(sample_weight, X, only_non_negative=only_non_negative)

    def _set_line(self, coef: np.ndarray, mean: np.ndarray, target_mean: np.ndarray, y: Any, dtype: Any) -> None:
        """Set `coef_` and `intercept_` in the dtype of X, from coefficients (n_features, n_targets) in float64."""
        self.coef_ = np.ascontiguousarray((coef[:, 0] if y.ndim == 1 else coef.T).astype(dtype))
        if not self.fit_intercept:
            self.intercept_ = 0.0
            return
        intercept = intercept_of(coef, mean, target_mean).astype(dtype)
        self.intercept_ = intercept[0] if y.ndim == 1 else intercept

    def predict(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Predict targets with the linear model.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_targets), float64 if X or the fit is

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If no cluster is running.
        ValueError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if out is not None:
            return in_file(self.predict, X, out)
        check_is_fitted(self)
        cluster = self._cluster()
        rows: Any = self._checked(cluster, X, reset=False)
        coef, intercept = self._columns()
        predictions = Result(None if self.coef_.ndim == 1 else coef.shape[1], rows.dtype)
        self._ask(cluster, "predict", "project", rows, result=predictions, matrix=coef, offset=intercept)
        return predictions.value

    def _decision_function(self, X: Any) -> np.ndarray:
        return self.predict(X)

    def score(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> float:
        """Return the coefficient of determination of the predictions, averaged over all targets.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_targets)
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.

        Returns
        -------
        float
            The same as `sklearn.metrics.r2_score`. The engines return only sums.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If no cluster is running.
        ValueError
            For input that scikit-learn rejects.
        ZeroDivisionError
            If the weights add up to zero.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        check_is_fitted(self)
        cluster = self._cluster()
        require_column_of_weights(sample_weight, "r2_score")
        X, y, weights = self._read(cluster, X, y, sample_weight, reset=False, only_non_negative=False)
        coef, intercept = self._columns()
        if (n_targets := 1 if y.ndim == 1 else y.shape[1]) != coef.shape[1]:
            raise ValueError(f"y_true and y_pred have different number of output ({n_targets}!={coef.shape[1]})")
        answer = self._ask(
            cluster, "score", "linear_score", X, y=y, sample_weight=weights, coef=coef, intercept=intercept
        )
        sums = answer.results[0]
        require_weight(sums["weight"])
        return r2_of(sums["residual"], sums["squares"], X.shape[0])

    def _columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients (n_features, n_targets) and intercepts (n_targets,) in float64."""
        coef = np.atleast_2d(self.coef_).T.astype(np.float64)
        return coef, np.broadcast_to(np.asarray(self.intercept_, np.float64), coef.shape[1]).copy()
