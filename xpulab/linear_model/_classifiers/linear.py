"""The base class of linear classifiers: decisions and labels of rows, and the share of labels that are right."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import balances_by_weight, class_weights
from xpulab.data import ShardedArray
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.columns import ScannedColumn
from xpulab.estimator.labels import Labels, checked_labels, places_of
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.rows import require_column_of_weights, require_weight
from xpulab.estimator.sending import Result
from xpulab.linear_model._proxy import LinearProxy
from xpulab.sharing.answers import Agreement
from xpulab.sharing.linear_models import Coding

__all__ = ["LinearClassifier", "ProbableClassifier"]


class LinearClassifier(LinearProxy):
    """Base of classifiers by linear functions of a row, whose `coef_` and `intercept_` a fit has set."""

    class_weight: Any
    coef_: Any
    classes_: npt.NDArray[Any]

    def _labelled(self, cluster: Ranks, y: Any, weights: Any) -> tuple[Labels, Coding]:
        """Return labels of at least two classes, and what the engines are told of the classes."""
        labels = Labels.of(self, cluster, y, weights if balances_by_weight() else None)
        if len(labels.classes) < 2:
            raise ValueError(
                "This solver needs samples of at least 2 classes in the data, but the data contains only one class: "
                f"{labels.classes[0]!r}"
            )
        class_weight = self.class_weight
        if class_weight is not None:
            class_weight = class_weights(class_weight, labels.classes, labels.totals)
        return labels, Coding(labels.known, class_weight, len(labels.classes))

    def decision_function(
        self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None
    ) -> np.ndarray:
        """Return the linear function of each row for each class.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes), float64 if X or the fit is
            For two classes, a positive number stands for the second class.

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
            return in_file(self.decision_function, X, out)
        return self._predicted("decision_function", "decision", X)

    def predict(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Return the label of the most probable class of each row.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples,), of the dtype of `classes_`

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `decision_function`.
        """
        if out is not None:
            return in_file(self.predict, X, out)
        codes = self._predicted("predict", "label", X)
        return self.classes_[codes]

    def _predicted(self, method: str, kind: str, X: Any) -> np.ndarray:
        check_is_fitted(self)
        cluster = self._cluster()
        X = self._checked(cluster, X, reset=False)
        coef, intercept = self._columns()
        if kind == "label":
            result = Result(None, np.int64)
        else:
            n_columns = len(self.classes_) if "proba" in kind else len(coef)
            result = Result(None if n_columns == 1 else n_columns, X.dtype)
        self._ask(
            cluster, method, "LogisticRegression.predict", X, result=result, coef=coef, intercept=intercept, kind=kind
        )
        return result.value

    def score(self, X: npt.ArrayLike | ShardedArray, y: Any, sample_weight: npt.ArrayLike | None = None) -> float:
        """Return the share of the rows whose label is predicted correctly.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        y : array-like or ShardedArray of shape (n_samples,)
            Labels. A prediction counts as wrong for a label that is not in `classes_`.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.

        Returns
        -------
        float
            The same as `sklearn.metrics.accuracy_score`. The engines return only sums.

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `decision_function`; ValueError also for labels that are strings where the classes are numbers.
        ZeroDivisionError
            If the weights add up to zero.
        """
        check_is_fitted(self)
        require_column_of_weights(sample_weight, "accuracy_score")
        cluster = self._cluster()
        rows: Any = self._checked(cluster, X, reset=False)
        y = checked_labels(self, cluster, y, rows)
        known = None
        if isinstance(y, ScannedColumn) and self.classes_.dtype.kind in "iuf" and y.rounds(self.classes_):
            y = y.gather()
        if isinstance(y, ShardedArray):
            known = y.code(self.classes_)
        else:
            y = places_of(y, self.classes_)
        coef, intercept = self._columns()
        sums: Agreement = self._ask(
            cluster,
            "score",
            "LogisticRegression.score",
            rows,
            y=y,
            sample_weight=self._weights(sample_weight, rows, only_non_negative=False),
            classes=known,
            coef=coef,
            intercept=intercept,
        ).results[0]
        require_weight(sums["weight"])
        return float(sums["equal"] / sums["weight"])

    def _columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients (n_columns, n_features) and intercepts (n_columns,), dense and in float64."""
        coef = self.coef_.toarray() if sparse.issparse(self.coef_) else self.coef_
        coef = np.atleast_2d(coef).astype(np.float64)
        return coef, np.broadcast_to(np.asarray(self.intercept_, np.float64), len(coef)).copy()


class ProbableClassifier(LinearClassifier):
    """Base of linear classifiers whose linear functions are logarithms of probabilities, but for a constant."""

    def predict_proba(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Return the probability of each class for each row.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), float64 if X or the fit is

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `decision_function`.
        """
        if out is not None:
            return in_file(self.predict_proba, X, out)
        return self._predicted("predict_proba", "proba", X)
