"""The scores of estimators whose predictions are compared with the targets in this process."""

from __future__ import annotations

from typing import Any

from sklearn.base import is_classifier
from sklearn.metrics import accuracy_score, r2_score

from xpulab.checks import ONE_AT_A_TIME

__all__ = ["ScoredHere"]


class ScoredHere:
    """Gives an estimator scikit-learn's `score`, for several threads. Among the bases, it comes before theirs."""

    def score(self: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return a classifier's mean accuracy, or a regressor's coefficient of determination.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Rows to predict. Estimators of neighbours take None for the rows of the fit, each without itself.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            The right predictions. If a classifier has several outputs, a row counts as right if all of them are right.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows; 1 by default.

        Returns
        -------
        float

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError, KeyboardInterrupt
            As `predict`.
        """
        predicted = self.predict(X)
        with ONE_AT_A_TIME:
            return float(
                (accuracy_score if is_classifier(self) else r2_score)(y, predicted, sample_weight=sample_weight)
            )
