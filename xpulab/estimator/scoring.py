"""The scores of estimators whose predictions are compared with the targets in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, is_classifier
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.validation import check_consistent_length

from xpulab.checks import ONE_AT_A_TIME, array_of
from xpulab.data import ShardedArray
from xpulab.scanning import Scan, read_here
from xpulab.tables import ShardedColumn

__all__ = ["ScoredHere"]

_ROWS = 1 << 20  # of a scan, whose predictions are in this process at a time


class ScoredHere:
    """Gives an estimator scikit-learn's `score`, for several threads. Among the bases, it comes before theirs."""

    def score(
        self: Any,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray,
        sample_weight: npt.ArrayLike | None = None,
    ) -> float:
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
        if isinstance(X, Scan) and X.shape[0] > _ROWS:
            return _by_blocks(self, X, y, sample_weight)
        predicted, y = self.predict(X), array_of(y)
        if isinstance(y, ShardedColumn):
            found = y.gather()
            if is_classifier(self):
                y.require_exact(found)
            y = y.labels(found)
        with ONE_AT_A_TIME:
            return float(
                (accuracy_score if is_classifier(self) else r2_score)(y, predicted, sample_weight=sample_weight)
            )


def _by_blocks(estimator: BaseEstimator, X: Scan, y: Any, sample_weight: Any) -> float:
    """Return the score of a scan's rows, of which this process has the predictions of some at a time."""
    check_consistent_length(*(np.empty((len(each), 0)) for each in (X, y, sample_weight) if each is not None))
    sums = (_right_of if is_classifier(estimator) else _errors_of)(_compared(estimator, X, y, sample_weight))
    return float(np.mean(sums))


def _compared(estimator: BaseEstimator, X: Scan, y: Any, sample_weight: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield right predictions, the estimator's predictions, and weights of some rows."""
    for first in range(0, X.shape[0], _ROWS):
        part = slice(first, first + _ROWS)
        right = read_here(y[part])
        weights = np.ones(len(right)) if sample_weight is None else read_here(sample_weight[part])
        yield right, estimator.predict(X[part]), weights


def _right_of(parts: Iterator[tuple[Any, Any, Any]]) -> float:
    """Return the share of right predictions."""
    right = weight = 0.0
    for truth, predicted, weights in parts:
        with ONE_AT_A_TIME:
            right += float(accuracy_score(truth, predicted, normalize=False, sample_weight=weights))
        weight += float(np.sum(weights))
    return right / weight


def _errors_of(parts: Iterator[tuple[Any, Any, Any]]) -> npt.NDArray[Any]:
    """Return the coefficient of determination of each output.

    The sums are of differences from the mean of the first rows, so that those of large targets lose nothing.
    """
    middle, sums = None, np.zeros(4)[:, None]
    for given, guessed, weights in parts:
        truth, predicted = (np.asarray(each, np.float64).reshape(len(given), -1) for each in (given, guessed))
        middle = truth.mean(axis=0) if middle is None else middle
        away, errors = truth - middle, np.square(truth - predicted)
        sums = sums + np.stack([weights @ each for each in (errors, away**2, away, np.ones_like(away))])
    errors, squares, first, weight = sums
    spread = squares - first**2 / weight
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread > 0, 1 - errors / spread, np.where(errors == 0, 1.0, 0.0))
