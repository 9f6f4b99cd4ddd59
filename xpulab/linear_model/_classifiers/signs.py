"""Targets of -1 and 1 for the labels of rows, and the base class of the classifiers that fit them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import class_weights
from xpulab.checks import ONE_AT_A_TIME, array_of, type_of_target
from xpulab.data import ShardedArray
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.labels import Labels, checked_labels
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.rows import checked_targets
from xpulab.linear_model._classifiers.linear import LinearClassifier
from xpulab.linear_model._fitted import intercept_of
from xpulab.sharing.linear_models import OfClasses

__all__ = ["SignClassifier", "Signs"]


@dataclass(frozen=True)
class Signs:
    """Targets of -1 and 1.

    Attributes
    ----------
    binarizer : LabelBinarizer
        Fitted to the labels.
    sent : array or ShardedArray
        What is sent as targets: numbers or labels of classes, or the targets themselves.
    of_classes : OfClasses or None
        What the classes stand for; None if the targets are sent.
    n_targets : int
    weights : array, ShardedArray or None
        Weights of the rows.
    """

    binarizer: LabelBinarizer
    sent: Any
    of_classes: OfClasses | None
    n_targets: int
    weights: Any

    @classmethod
    def of(cls, estimator: Any, cluster: Ranks, rows: Any, y: Any, weights: Any) -> Signs:
        """Check labels before anything is sent, and find the targets and, with `class_weight`, the weights."""
        binarizer, class_weight = LabelBinarizer(pos_label=1, neg_label=-1), estimator.class_weight
        if _says_several(y):
            with ONE_AT_A_TIME:
                targets: Any = binarizer.fit_transform(y)
            sent = checked_targets(estimator, cluster, targets, rows)
            if class_weight:
                with ONE_AT_A_TIME:
                    by_row = compute_sample_weight(class_weight, y)
                every = weights.gather() if isinstance(weights, ShardedArray) else weights
                weights = by_row if every is None else by_row * every
            return cls(binarizer, sent, None, targets.shape[1], weights)
        labels = Labels.of(estimator, cluster, checked_labels(estimator, cluster, y, rows), None)
        by_class = class_weights(class_weight, labels.classes, labels.totals) if class_weight else None
        with ONE_AT_A_TIME:
            table = binarizer.fit_transform(labels.classes).astype(np.float64)
        return cls(binarizer, labels.targets, OfClasses(labels.known, table, by_class), table.shape[1], weights)

    def weighted_here(self) -> Signs:
        """Return the same with the weights of the classes in those of the rows, in an array of this process."""
        weights = self.weights.gather() if isinstance(self.weights, ShardedArray) else self.weights
        of_classes = self.of_classes
        if of_classes is not None and of_classes.weights is not None:
            labels = self.sent.gather() if isinstance(self.sent, ShardedArray) else self.sent
            codes = labels if of_classes.known is None else np.searchsorted(of_classes.known, labels)
            by_row = of_classes.weights[codes]
            weights = by_row if weights is None else by_row * weights
            of_classes = replace(of_classes, weights=None)
        return replace(self, weights=weights, of_classes=of_classes)


class SignClassifier(LinearClassifier):
    """Base of classifiers that fit targets of -1 and 1, of one or several labels of a row."""

    def _set_signs(
        self, signs: Signs, coef: npt.NDArray[Any], mean: npt.NDArray[Any], target_mean: npt.NDArray[Any], dtype: Any
    ) -> None:
        """Set the fitted attributes from coefficients (n_features, n_targets) and means in float64."""
        self._set_binarizer(signs.binarizer)
        self.coef_ = np.ascontiguousarray((coef.T if signs.n_targets > 1 else coef[:, 0]).astype(dtype))
        self.intercept_ = intercept_of(coef, mean, target_mean).astype(dtype) if self.fit_intercept else 0.0

    def _set_binarizer(self, binarizer: LabelBinarizer) -> None:
        """Set what the labels are turned into, and the classes."""
        self._label_binarizer = binarizer
        if not isinstance(getattr(type(self), "classes_", None), property):  # as it is up to 1.8
            self.classes_ = binarizer.classes_

    def predict(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> npt.NDArray[Any]:
        """Return the label of each row or, after a fit of several labels of each row, ones and zeros for all labels.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_labels)

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `decision_function`.
        """
        if out is not None:
            return in_file(self.predict, X, out)
        check_is_fitted(self)
        if not self._several:
            return super().predict(X)
        found: npt.NDArray[Any] = self._label_binarizer.inverse_transform(2.0 * (self.decision_function(X) > 0) - 1)
        return found

    def score(self, X: npt.ArrayLike | ShardedArray, y: Any, sample_weight: npt.ArrayLike | None = None) -> float:
        """Return the share of the rows whose label, or whose labels all, are predicted correctly.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        y : array-like or ShardedArray of shape (n_samples,), or array-like of shape (n_samples, n_labels)
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.

        Returns
        -------
        float
            The same as `sklearn.metrics.accuracy_score`.

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `decision_function`; ValueError also for labels that are strings where the classes are numbers.
        ZeroDivisionError
            If the weights add up to zero.
        """
        check_is_fitted(self)
        if not self._several:
            return super().score(X, y, sample_weight)
        predictions = self.predict(X)
        with ONE_AT_A_TIME:
            return float(accuracy_score(y, predictions, sample_weight=sample_weight))

    @property
    def _several(self) -> bool:
        """Whether the rows of the fit had several labels."""
        return bool(self._label_binarizer.y_type_.startswith("multilabel"))


def _says_several(y: Any) -> bool:
    """Return whether y is a table of ones and zeros that say which labels a row has."""
    if isinstance(y, ShardedArray):
        return False
    y = array_of(y)
    n_dimensions = len(y.shape) if hasattr(y, "shape") else np.ndim(y)
    return n_dimensions == 2 and bool(type_of_target(y).startswith("multilabel"))
