"""`RidgeClassifierCV`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.linear_model
from sklearn.utils.metadata_routing import process_routing

from xpulab._sklearn import _fit_context, _IdentityClassifier, _raise_for_params, _routing_enabled
from xpulab.checks import ONE_AT_A_TIME
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.linear_model._classifiers.ridge import RidgeClassifier
from xpulab.linear_model._classifiers.signs import SignClassifier, Signs
from xpulab.linear_model._ridge_cv import LeavingOneOut

__all__ = ["RidgeClassifierCV"]


class RidgeClassifierCV(SignClassifier, LeavingOneOut, sklearn.linear_model.RidgeClassifierCV):
    """`RidgeClassifier` with a penalty that is chosen by cross-validation, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.RidgeClassifierCV`, but for `scoring` with two
    classes, of which scikit-learn up to 1.9 at least takes the first penalty. Leave-one-out cross-validation takes two
    passes over the rows for all penalties and classes, as for `RidgeCV`.

    Parameters
    ----------
    alphas : float or array-like of shape (n_alphas,), default=(0.1, 1.0, 10.0)
        The penalties to try.
    fit_intercept : bool, default=True
        Whether the columns and the targets are centred.
    scoring : str, callable or None, default=None
        None is the negative mean squared error of the targets for leave-one-out, and the accuracy for folds. Any other
        score of leave-one-out is computed in this process, from a decision for each row.
    cv : int, cross-validation generator, iterable or None, default=None
        None leaves out each row once. Folds are fitted one by one, so X and y must be arrays, not a `ShardedArray`.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes.
    store_cv_results : bool, default=False
        Whether to set `cv_results_`; only with cv=None.

    Attributes
    ----------
    cv_results_ : ndarray of shape (n_samples, n_targets, n_alphas)
        Squared errors, or decisions with `scoring`; only with `store_cv_results`.
    coef_ : ndarray of shape (n_features,) or (n_classes, n_features)
        Coefficients of the columns.
    intercept_ : ndarray of shape (1,) or (n_classes,), or 0.0 without `fit_intercept`
        Constant terms.
    alpha_ : float
        The best penalty.
    best_score_ : float
        Score of the best penalty.
    classes_ : ndarray of shape (n_classes,)
        The labels, in ascending order.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.linear_model.RidgeClassifierCV : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import RidgeClassifierCV
    >>> X, y = [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]], ["no", "no", "no", "yes", "yes", "yes"]
    >>> with xpulab.XPUCluster(n=2):
    ...     RidgeClassifierCV(alphas=[0.01, 1.0, 100.0]).fit(X, y).alpha_
    1.0
    """

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}
    _one_penalty: ClassVar[type] = RidgeClassifier

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: npt.ArrayLike | ShardedArray, y: Any, sample_weight: npt.ArrayLike | None = None, **params: Any
    ) -> RidgeClassifierCV:
        """Find the best penalty by cross-validation, and fit all rows with it.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,)
            Labels: numbers or strings in an array, numbers in a handle. Or, in an array or sparse matrix of shape
            (n_samples, n_labels), ones and zeros that say which labels a row has.
        sample_weight : float or array-like of shape (n_samples,), optional
            Weights of the rows, not negative. As in scikit-learn, the scores of folds do not use them.
        **params : dict
            Parameters of the scorer, with scikit-learn's metadata routing.

        Returns
        -------
        RidgeClassifierCV
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for CSR matrices, and if X and y are handles with different numbers of
            rows per rank or different dtypes. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        _raise_for_params(params, self, "fit")
        alphas = self._checked_alphas()
        cluster = current_ranks()
        rows: Any = self._checked(cluster, X, reset=True)
        if self.cv is not None:
            self._require_here(rows, y, "folds of classes are")
        signs = Signs.of(self, cluster, rows, y, self._weights(sample_weight, rows))
        if self.cv is not None or self.scoring is not None:
            signs = signs.weighted_here()
        if self.cv is None and self.scoring is not None and signs.of_classes is None:
            raise ValueError(
                f"scoring={self.scoring!r} was given for several labels of a row, which folds have: pass a number of "
                "folds as cv, or leave scoring out"
            )
        with self._fitting(rows, signs.weights):
            if self.cv is None:
                found = self._fit_leaving_one_out(
                    cluster, rows, signs.sent, signs.weights, alphas, params, signs.n_targets, signs.of_classes
                )
                self._set_signs(signs, *found, rows.dtype)
            else:
                best = self._search(rows, y, signs.weights, alphas, params)
                self._set_binarizer(best._label_binarizer)
        return self

    def _scores(self, each: np.ndarray, y: Any, weights: np.ndarray | None, params: dict[str, Any]) -> np.ndarray:
        """Return the score of the decisions (n_samples, n_targets, n_alphas) for each alpha."""
        scorer = self._get_scorer()
        if _routing_enabled():
            more = process_routing(self, "fit", sample_weight=weights, **params).scorer.score
        else:
            more = {} if weights is None else {"sample_weight": weights}
        classes, codes = np.unique(y.gather() if isinstance(y, ShardedArray) else y, return_inverse=True)
        truth = _IdentityClassifier(classes=np.arange(len(classes)))
        decisions = each[:, 0] if len(classes) <= 2 else each
        with ONE_AT_A_TIME:
            return np.array([[scorer(truth, decisions[..., k], codes, **more) for k in range(each.shape[2])]])
