"""The base class of linear models: checks of X, y and weights, fitted attributes, predictions, and their score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from xpulab.deploy.cluster import XPUCluster
from xpulab.estimator.proxy import Proxy, Result
from xpulab.estimator.rows import checked_targets
from xpulab.linear_model._fitted import intercept_of, r2_of

__all__ = ["LinearProxy"]


class LinearProxy(Proxy):
    """Base of linear models, which sets `coef_` and `intercept_`, and predicts rows on the engines."""

    _later_rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}

    fit_intercept: bool
    coef_: np.ndarray
    intercept_: Any

    def _read(
        self, cluster: XPUCluster, X: Any, y: Any, sample_weight: Any, *, reset: bool = True, multi_output: bool = True
    ) -> tuple[Any, Any, np.ndarray | None]:
        """Check X, y and the weights before anything is sent, and return them in a form that can be sent."""
        X = self._checked(cluster, X, reset=reset)
        y = checked_targets(self, cluster, y, X, multi_output=multi_output)
        return X, y, self._weights(sample_weight, X)

    def _set_line(self, coef: np.ndarray, mean: np.ndarray, target_mean: np.ndarray, y: Any, dtype: Any) -> None:
        """Set `coef_` and `intercept_` in the dtype of X, from coefficients (n_features, n_targets) in float64."""
        self.coef_ = np.ascontiguousarray((coef[:, 0] if y.ndim == 1 else coef.T).astype(dtype))
        if not self.fit_intercept:
            self.intercept_ = 0.0
            return
        intercept = intercept_of(coef, mean, target_mean).astype(dtype)
        self.intercept_ = intercept[0] if y.ndim == 1 else intercept

    def predict(self, X: Any) -> np.ndarray:
        """Predict targets with the linear model.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_targets), of the dtype of X

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
        check_is_fitted(self)
        cluster = self._cluster()
        X = self._checked(cluster, X, reset=False)
        coef, intercept = self._columns()
        predictions = Result(None if self.coef_.ndim == 1 else coef.shape[1], X.dtype)
        self._ask(cluster, "predict", "project", X, result=predictions, matrix=coef, offset=intercept)
        return predictions.value

    def _decision_function(self, X: Any) -> np.ndarray:
        return self.predict(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
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
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        check_is_fitted(self)
        cluster = self._cluster()
        X, y, weights = self._read(cluster, X, y, sample_weight, reset=False)
        coef, intercept = self._columns()
        if (n_targets := 1 if y.ndim == 1 else y.shape[1]) != coef.shape[1]:
            raise ValueError(f"y_true and y_pred have different number of output ({n_targets}!={coef.shape[1]})")
        answer = self._ask(
            cluster, "score", "linear_score", X, y=y, sample_weight=weights, coef=coef, intercept=intercept
        )
        sums = answer.results[0]
        return r2_of(sums["residual"], sums["squares"], X.shape[0])

    def _columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients (n_features, n_targets) and intercepts (n_targets,) in float64."""
        coef = np.atleast_2d(self.coef_).T.astype(np.float64)
        return coef, np.broadcast_to(np.asarray(self.intercept_, np.float64), coef.shape[1]).copy()
