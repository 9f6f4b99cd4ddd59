"""Base class of the naive Bayes classifiers whose parameters follow from sums over the rows of each class."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _check_partial_fit_first_call, _fit_context
from xpulab.checks import ONE_AT_A_TIME
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.labels import Labels, checked_labels
from xpulab.estimator.sending import Result
from xpulab.naive_bayes._predicting import Predicting
from xpulab.sharing.answers import ClassSums

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Counting"]


class Counting(Predicting):
    """Fits and predicts by one pass over the rows. Among the bases, it comes before scikit-learn's class."""

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric", "accept_sparse": "csr"}
    #: Whether numbers below zero are refused, as they are no counts.
    _counts: ClassVar[bool] = True

    class_count_: npt.NDArray[Any]
    class_log_prior_: npt.NDArray[Any]
    feature_count_: npt.NDArray[Any]
    feature_log_prob_: npt.NDArray[Any]

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray,
        sample_weight: npt.ArrayLike | None = None,
    ) -> Self:
        """Sum the columns over the rows of each class.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves.
        y : array-like or ShardedArray of shape (n_samples,)
            Labels: numbers or strings in an array, numbers in a handle.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows; 1 by default.

        Returns
        -------
        estimator
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        return self._see("fit", X, y, sample_weight, True, None)

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray,
        classes: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> Self:
        """Add the sums of more rows. If the call is interrupted, the estimator stays as it was.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            More rows.
        y : array-like or ShardedArray of shape (n_samples,)
            Their labels.
        classes : array-like of shape (n_classes,), optional
            All labels that this and later calls may have; the first call needs them.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows; 1 by default.

        Returns
        -------
        estimator
            This object. Errors are those of `fit`.
        """
        known = SimpleNamespace(classes_=getattr(self, "classes_", None))
        first = _check_partial_fit_first_call(known, classes)
        return self._see("partial_fit", X, y, sample_weight, first, known.classes_)

    def _see(self, method: str, X: Any, y: Any, sample_weight: Any, first: bool, classes: Any) -> Self:
        """Take the rows into account; `classes` are all classes, by default those of these rows."""
        cluster, plain = current_ranks(), self._plain()
        X = self._checked(cluster, X, reset=first)
        y = checked_labels(self, cluster, y, X)
        weights = self._weights(sample_weight, X, only_non_negative=False)
        alpha = plain._check_alpha()
        labels = Labels.of(self, cluster, y, weights)
        classes = labels.classes if classes is None else classes
        if self.class_prior is not None and len(self.class_prior) != len(classes):
            raise ValueError("Number of priors must match number of classes.")
        with self._fitting(X, weights):
            found: ClassSums = self._ask(
                cluster, method, "class_sums", X, y=labels.targets, sample_weight=weights, known=labels.known,
                n_classes=len(labels.classes), threshold=plain._threshold(),
            ).results[0]  # fmt: skip
            if self._counts and found["least"] < 0:
                raise ValueError(f"Negative values in data passed to {type(self).__name__} (input X).")
            if first:
                self.classes_ = classes
                plain._init_counters(len(classes), X.shape[1])
            there = np.isin(labels.classes, classes)  # other labels count for no class, as in scikit-learn
            places = np.searchsorted(classes, labels.classes[there])
            self.feature_count_[places] += found["sums"][there]
            self.class_count_[places] += found["weight"][there]
            self._add_up()
            plain._update_feature_log_prob(alpha)
            with ONE_AT_A_TIME:
                plain._update_class_log_prior(class_prior=self.class_prior)
        return self

    def _add_up(self) -> None:
        """Set attributes that follow from the sums."""

    def _plain(self) -> Any:
        """Return this object, whose methods of scikit-learn's class have no types."""
        return self

    def _threshold(self) -> float | None:
        """Return the number above which numbers count as 1, and up to which as 0; None if they count as they are."""
        return None

    def _functions(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the linear functions of rows that are the joint probabilities' logarithms: factors and constants."""
        return self.feature_log_prob_, self.class_log_prior_

    def _predicted(self, method: str, kind: str, X: Any) -> npt.NDArray[Any]:
        check_is_fitted(self)
        cluster = self._cluster()
        X = self._checked(cluster, X, reset=False)
        is_label = kind == "label"
        result = Result(None if is_label else len(self.classes_), np.int64 if is_label else np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            coef, intercept = self._functions()
        self._ask(
            cluster, method, "class_functions", X, result=result, kind=kind, coef=coef, intercept=intercept,
            threshold=self._threshold(),
        )  # fmt: skip
        found: npt.NDArray[Any] = result.value
        return found
