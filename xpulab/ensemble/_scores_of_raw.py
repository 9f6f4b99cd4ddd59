"""Early stopping by a scorer: its function of an estimator and rows becomes one of raw predictions, for the engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.ensemble
from sklearn.base import is_classifier

__all__ = ["ScoreOfRaw"]


class _Classifier(sklearn.ensemble.HistGradientBoostingClassifier):
    """A classifier whose rows are their raw predictions."""

    def _raw_predict(self, X: npt.NDArray[Any], n_threads: int | None = None) -> npt.NDArray[Any]:
        return X


class _Regressor(sklearn.ensemble.HistGradientBoostingRegressor):
    """A regressor whose rows are their raw predictions."""

    def _raw_predict(self, X: npt.NDArray[Any], n_threads: int | None = None) -> npt.NDArray[Any]:
        return X


#: What the methods of a fitted estimator use beside raw predictions.
_OWN = ("classes_", "n_trees_per_iteration_", "_loss")


@dataclass(frozen=True)
class ScoreOfRaw:
    """The score of raw predictions (n, k) of rows, whose targets are numbers of classes or numbers.

    Attributes
    ----------
    scorer : callable
        scikit-learn's, of an estimator, rows and targets.
    estimator : _Classifier or _Regressor
    """

    scorer: Any
    estimator: Any

    @classmethod
    def of(cls, estimator: Any, scorer: Any) -> ScoreOfRaw:
        """Return the function for an estimator that is being fitted."""
        made = _Classifier() if is_classifier(estimator) else _Regressor()
        made.__dict__.update({name: getattr(estimator, name) for name in _OWN if hasattr(estimator, name)})
        return cls(scorer, made)

    def __call__(self, raw: npt.NDArray[Any], y: npt.NDArray[Any], weights: npt.NDArray[Any] | None) -> float:
        """Return the score."""
        if is_classifier(self.estimator):
            y = self.estimator.classes_[y.astype(np.intp)]
        given = {} if weights is None else {"sample_weight": weights}
        return float(self.scorer(self.estimator, raw, y, **given))
