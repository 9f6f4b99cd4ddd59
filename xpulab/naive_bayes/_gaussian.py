"""`GaussianNB`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.naive_bayes
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _check_partial_fit_first_call, _fit_context, dtype_of_naive_bayes
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.labels import Labels, checked_labels
from xpulab.estimator.sending import Result
from xpulab.naive_bayes._predicting import Predicting
from xpulab.sharing.answers import ClassMoments

__all__ = ["GaussianNB"]


class GaussianNB(Predicting, sklearn.naive_bayes.GaussianNB):
    """Classification by a normal distribution for each class and column, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.naive_bayes.GaussianNB`, for any number of engines. A fit
    passes over the rows two to four times: for the variances of the columns, and for the means and variances of each
    class, from differences that are added up in float64 every few thousand rows.

    Parameters
    ----------
    priors : array-like of shape (n_classes,), optional
        Probabilities of the classes; by default their shares of the rows.
    var_smoothing : float, default=1e-9
        Share of the largest variance of a column that is added to all variances.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, in ascending order.
    class_count_ : ndarray of shape (n_classes,)
        Sum of the weights of the rows of each class.
    class_prior_ : ndarray of shape (n_classes,)
        Probability of each class.
    theta_, var_ : ndarray of shape (n_classes, n_features)
        Mean and variance of each column in each class.
    epsilon_ : float
        What was added to the variances.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.naive_bayes.GaussianNB : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.naive_bayes import GaussianNB
    >>> with xpulab.XPUCluster(n=2):
    ...     GaussianNB().fit([[-1.0], [-2.0], [1.0], [2.0]], ["a", "a", "b", "b"]).predict([[0.8]])
    array(['b'], dtype='<U1')
    """

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}
    _computes_as: ClassVar[str] = "theta_"
    _narrow: ClassVar[bool] = True

    classes_: npt.NDArray[Any]
    class_count_: npt.NDArray[Any]
    class_prior_: npt.NDArray[Any]
    theta_: npt.NDArray[Any]
    var_: npt.NDArray[Any]

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray,
        sample_weight: npt.ArrayLike | None = None,
    ) -> GaussianNB:
        """Compute mean and variance of each column in each class.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves.
        y : array-like or ShardedArray of shape (n_samples,)
            Labels: numbers or strings in an array, numbers in a handle.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.

        Returns
        -------
        GaussianNB
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for sparse matrices, and for negative weights.
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
    ) -> GaussianNB:
        """Update the means and variances with more rows. If the call is interrupted, they stay as they were.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            More rows.
        y : array-like or ShardedArray of shape (n_samples,)
            Their labels.
        classes : array-like of shape (n_classes,), optional
            All labels that this and later calls may have; the first call needs them.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows; 1 by default.

        Returns
        -------
        GaussianNB
            This object. Errors are those of `fit`.
        """
        known = SimpleNamespace(classes_=getattr(self, "classes_", None))
        first = _check_partial_fit_first_call(known, classes)
        return self._see("partial_fit", X, y, sample_weight, first, known.classes_)

    def _see(self, method: str, X: Any, y: Any, sample_weight: Any, first: bool, classes: Any) -> GaussianNB:
        """Take the rows into account; `classes` are all classes, by default those of these rows."""
        cluster = current_ranks()
        X = self._checked(cluster, X, reset=first)
        y = checked_labels(self, cluster, y, X)
        weights = self._weights(sample_weight, X, only_non_negative=False)
        labels = Labels.of(self, cluster, y, weights)
        classes = labels.classes if classes is None else classes
        if not np.isin(labels.classes, classes).all():
            raise ValueError(
                f"The target label(s) {labels.classes[~np.isin(labels.classes, classes)]} in y do not exist in the "
                f"initial classes {classes}"
            )
        prior = self._checked_priors(len(classes), dtype_of_naive_bayes(X.dtype)) if first else self.class_prior_
        with self._fitting(X, weights):
            found: ClassMoments = self._ask(
                cluster, method, "GaussianNB.fit", X, y=labels.targets, sample_weight=weights, known=labels.known,
                n_classes=len(labels.classes),
            ).results[0]  # fmt: skip
            if first:
                self.classes_, self.class_prior_ = classes, prior
                self.class_count_, shape = np.zeros_like(prior), (len(classes), X.shape[1])
                self.theta_, self.var_ = np.zeros(shape, prior.dtype), np.zeros(shape, prior.dtype)
            self._merge(found, np.searchsorted(classes, labels.classes), X.dtype.type(found["variance"]), first)
        return self

    def _checked_priors(self, n_classes: int, dtype: Any) -> npt.NDArray[Any]:
        """Return the given probabilities of the classes, or zeros; raise scikit-learn's errors."""
        if self.priors is None:
            return np.zeros(n_classes, dtype)
        priors = np.asarray(self.priors, dtype)
        if len(priors) != n_classes:
            raise ValueError("Number of priors must match number of classes.")
        if not np.isclose(priors.sum(), 1.0):
            raise ValueError("The sum of the priors should be 1.")
        if (priors < 0).any():
            raise ValueError("Priors must be non-negative.")
        return priors

    def _merge(self, found: ClassMoments, places: npt.NDArray[np.intp], variance: Any, first: bool) -> None:
        """Update the attributes with the sums of new rows, as scikit-learn does."""
        self.epsilon_ = self.var_smoothing * variance
        if not first:
            self.var_ -= self.epsilon_  # as scikit-learn: the new one, though the one before was added
        new, past = found["weight"][:, None], self.class_count_[places, None].astype(np.float64)
        total = np.where(some := ~np.isclose(new, 0.0), new + past, 1.0)
        mean, var = self.theta_[places], self.var_[places]
        squares = past * var + found["squares"] + new * past / total * np.square(mean - found["mean"])
        self.theta_[places] = np.where(some, (new * found["mean"] + past * mean) / total, mean)
        self.var_[places] = np.where(some, squares / total, var)
        self.class_count_[places] += new[:, 0]
        self.var_ += self.epsilon_
        if self.priors is None:
            self.class_prior_ = self.class_count_ / self.class_count_.sum()

    def _predicted(self, method: str, kind: str, X: Any) -> npt.NDArray[Any]:
        check_is_fitted(self)
        cluster = self._cluster()
        X = self._checked(cluster, X, reset=False)
        is_label = kind == "label"
        dtype = np.dtype(np.int64) if is_label else np.result_type(X.dtype, self.var_.dtype)
        result = Result(None if is_label else len(self.classes_), dtype)
        var = self.var_.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            constants = np.log(self.class_prior_.astype(np.float64)) - np.log(2.0 * np.pi * var).sum(axis=1) / 2
            factors = 1 / np.sqrt(var)
        self._ask(
            cluster, method, "GaussianNB.predict", X, result=result, kind=kind, constants=constants,
            means=self.theta_.astype(np.float64), factors=factors,
        )  # fmt: skip
        return result.value
