"""`RidgeClassifier`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.linear_model
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context, class_weights
from xpulab.checks import array_of, type_of_target
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.labels import Labels, checked_labels
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.rows import checked_targets
from xpulab.linear_model._classifier import LinearClassifier
from xpulab.linear_model._fitted import intercept_of
from xpulab.linear_model._ridge import RidgeFit
from xpulab.sharing.linear_models import OfClasses

__all__ = ["RidgeClassifier"]


class RidgeClassifier(LinearClassifier, RidgeFit, sklearn.linear_model.RidgeClassifier):
    """Classification by `Ridge` regression of targets of -1 and 1, on every device of the active cluster.

    Parameters and attributes are those of `sklearn.linear_model.RidgeClassifier`, for any number of engines. There is a
    target for each class, or one for two classes, which the engines make from the labels. As for `Ridge`, every solver
    computes the exact minimiser, in one pass over dense rows for all classes.

    Parameters
    ----------
    alpha : float, default=1.0
        The penalty, not negative.
    fit_intercept : bool, default=True
        Whether the columns and the targets are centred.
    copy_X, max_iter, tol, random_state : as in scikit-learn
        Accepted for compatibility with scikit-learn: the input is never changed, and no solver iterates.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes.
    solver : {"auto", "svd", "cholesky", "lsqr", "sparse_cg", "sag", "saga", "lbfgs"}, default="auto"
        As for `Ridge`.
    positive : bool, default=False
        Whether all coefficients must be at least 0; with `solver` "auto" or "lbfgs" only, as in scikit-learn.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, in ascending order.
    coef_ : ndarray of shape (n_features,) or (n_classes, n_features)
        Coefficients of the columns.
    intercept_ : ndarray of shape (1,) or (n_classes,), or 0.0 without `fit_intercept`
        Constant terms.
    n_iter_ : None
        No solver iterates.
    solver_ : str
        As for `Ridge`.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.linear_model.RidgeClassifier : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import RidgeClassifier
    >>> with xpulab.XPUCluster(n=2):
    ...     RidgeClassifier().fit([[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"]).predict([[2.5]])
    array(['yes'], dtype='<U3')
    """

    _rules: ClassVar[Mapping[str, Any]] = {"accept_sparse": "csr", "dtype": "numeric"}

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: npt.ArrayLike | ShardedArray, y: Any, sample_weight: npt.ArrayLike | None = None
    ) -> RidgeClassifier:
        """Fit the model.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,)
            Labels: numbers or strings in an array, numbers in a handle. Or, in an array or sparse matrix of shape
            (n_samples, n_labels), ones and zeros that say which labels a row has.
        sample_weight : float or array-like of shape (n_samples,), optional
            Weights of the rows, not negative.

        Returns
        -------
        RidgeClassifier
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for CSR matrices with `positive`, and if X and y are handles with
            different numbers of rows per rank or different dtypes. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        self._check_solver()
        cluster = current_ranks()
        rows: Any = self._checked(cluster, X, reset=True)
        weights = self._weights(sample_weight, rows)
        binarizer = LabelBinarizer(pos_label=1, neg_label=-1)
        if _says_several(y):
            targets: Any = binarizer.fit_transform(y)
            sent, of_classes, n_targets = checked_targets(self, cluster, targets, rows), None, targets.shape[1]
            if self.class_weight:
                by_row = compute_sample_weight(self.class_weight, y)
                every = weights.gather() if isinstance(weights, ShardedArray) else weights
                weights = by_row if every is None else by_row * every
        else:
            labels = Labels.of(self, cluster, checked_labels(self, cluster, y, rows), None)
            by_class = class_weights(self.class_weight, labels.classes, labels.totals) if self.class_weight else None
            targets = binarizer.fit_transform(labels.classes).astype(np.float64)
            sent, of_classes, n_targets = labels.targets, OfClasses(labels.known, targets, by_class), targets.shape[1]
        with self._fitting(rows, weights):
            coef, mean, target_mean = self._solved(cluster, rows, sent, weights, n_targets, of_classes)
            self._label_binarizer = binarizer
            if not isinstance(getattr(type(self), "classes_", None), property):  # as it is up to 1.8
                self.classes_ = binarizer.classes_
            self.coef_ = np.ascontiguousarray((coef.T if n_targets > 1 else coef[:, 0]).astype(rows.dtype))
            self.intercept_ = intercept_of(coef, mean, target_mean).astype(rows.dtype) if self.fit_intercept else 0.0
        return self

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
        return float(accuracy_score(y, self.predict(X), sample_weight=sample_weight))

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
