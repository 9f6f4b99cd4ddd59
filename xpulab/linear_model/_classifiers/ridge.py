"""`RidgeClassifier`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy.typing as npt
import sklearn.linear_model

from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.linear_model._classifiers.signs import SignClassifier, Signs
from xpulab.linear_model._ridge import RidgeFit

__all__ = ["RidgeClassifier"]


class RidgeClassifier(SignClassifier, RidgeFit, sklearn.linear_model.RidgeClassifier):
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
        signs = Signs.of(self, cluster, rows, y, self._weights(sample_weight, rows))
        with self._fitting(rows, signs.weights):
            coef, mean, target_mean = self._solved(
                cluster, rows, signs.sent, signs.weights, signs.n_targets, signs.of_classes
            )
            self._set_signs(signs, coef, mean, target_mean, rows.dtype)
        return self
