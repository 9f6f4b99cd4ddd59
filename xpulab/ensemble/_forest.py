"""`RandomForestClassifier` and `RandomForestRegressor`: scikit-learn's forests, grown by all engines of the cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import sklearn.ensemble
from sklearn.base import _fit_context
from sklearn.metrics import accuracy_score, r2_score

from xpulab.ensemble._growing import ForestProxy

__all__ = ["RandomForestClassifier", "RandomForestRegressor"]


class RandomForestClassifier(ForestProxy, sklearn.ensemble.RandomForestClassifier):
    """A random forest that votes, grown by every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.ensemble.RandomForestClassifier` [1]_. The trees are grown
    from histograms [2]_: each column's values are sorted into at most 255 places, between which splits are looked for,
    and missing values have one more. Columns of at most 255 different values lose nothing by it. The forest is the same
    for any number of engines. The processors of the engines grow it, also where their devices are GPUs.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    criterion : {"gini", "entropy", "log_loss"}, default="gini"
        What splits make smaller.
    max_depth : int, optional
    min_samples_split : int or float, default=2
        Rows, or share of the rows, that a node needs to be split.
    min_samples_leaf : int or float, default=1
        Rows, or share of the rows, on each side of a split.
    min_weight_fraction_leaf : float, default=0.0
        Share of the weight on each side of a split.
    max_features : {"sqrt", "log2", None}, int or float, default="sqrt"
        Columns that a node looks at, drawn anew for each.
    max_leaf_nodes : int, optional
        With it, the nodes whose split is best are split first.
    min_impurity_decrease : float, default=0.0
    bootstrap : bool, default=True
        Whether each tree gets rows that are drawn with replacement.
    oob_score : bool or callable, default=False
        Whether the rows that a tree did not get are predicted by it, and scored.
    n_jobs : int, optional
        Accepted and ignored: all engines compute.
    random_state : int, RandomState instance or None, default=None
        The rows of each tree are drawn as scikit-learn draws them; the columns of the nodes are not.
    verbose : int, default=0
        Accepted and ignored: views show the trees as they grow.
    warm_start : bool, default=False
        Whether `fit` adds trees to those that are there.
    class_weight : {"balanced", "balanced_subsample"}, dict or list of dict, optional
    ccp_alpha : non-negative float, default=0.0
        Cost of a leaf for pruning.
    max_samples : int or float, optional
        Rows that are drawn for a tree.
    monotonic_cst : None
        Anything else is refused.

    Attributes
    ----------
    estimators_ : list of DecisionTreeClassifier
        scikit-learn's trees.
    classes_ : ndarray of shape (n_classes,), or a list of them for several outputs
    n_classes_ : int or list of int
    n_outputs_ : int
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only when the input has column names that are all strings.
    feature_importances_ : ndarray of shape (n_features_in_,)
    oob_score_ : float
        Only with `oob_score`.
    oob_decision_function_ : ndarray of shape (n_samples, n_classes) or (n_samples, n_classes, n_outputs)
        Only with `oob_score`.
    report_ : FitReport
        What each engine did, and how long each phase took.

    See Also
    --------
    sklearn.ensemble.RandomForestClassifier : The same in one process, with exact splits.

    References
    ----------
    .. [1] L. Breiman, "Random Forests", Machine Learning 45 (2001).
    .. [2] G. Ke et al., "LightGBM: A Highly Efficient Gradient Boosting Decision Tree", NeurIPS 2017.

    Examples
    --------
    >>> with xpulab.XPUCluster(n=2):  # doctest: +SKIP
    ...     RandomForestClassifier(10, random_state=0).fit([[0.0], [1.0]] * 9, ["a", "b"] * 9).predict([[0.9]])
    """

    classes_: Any
    n_classes_: Any

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> RandomForestClassifier:
        """Grow the trees.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Converted to float32, as by scikit-learn. NaN is a missing value.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
            Labels. Those of a handle are gathered in this process.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative.

        Returns
        -------
        RandomForestClassifier
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for CSR matrices, and for `monotonic_cst`. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        return self._grow(X, y, sample_weight)

    def predict_proba(self, X: Any) -> Any:
        """Mean shares of the classes in the leaves that rows come to.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)

        Returns
        -------
        ndarray of float64 of shape (n_samples, n_classes), or a list of them for several outputs

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
        """
        means = self._means("predict_proba", X)
        if means is None:
            return super().predict_proba(X)
        shares = [np.ascontiguousarray(means[:, o, :n]) for o, n in enumerate(np.atleast_1d(self.n_classes_))]
        return shares[0] if len(shares) == 1 else shares

    def _decapsulated(self) -> RandomForestClassifier:
        if self.n_outputs_ == 1 and isinstance(self.classes_, list):
            self.classes_, self.n_classes_ = self.classes_[0], self.n_classes_[0]
        return self

    def _take_oob(self, means: np.ndarray, y: np.ndarray, scoring_function: Any) -> None:
        shares = means.swapaxes(1, 2)
        self.oob_decision_function_ = shares[:, :, 0] if shares.shape[2] == 1 else shares
        self.oob_score_ = (scoring_function or accuracy_score)(y, np.argmax(self.oob_decision_function_, axis=1))


class RandomForestRegressor(ForestProxy, sklearn.ensemble.RandomForestRegressor):
    """A random forest that averages numbers, grown by every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.ensemble.RandomForestRegressor`; the trees are grown as
    those of `RandomForestClassifier`.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    criterion : {"squared_error", "friedman_mse", "poisson"}, default="squared_error"
        What splits make smaller; "friedman_mse" is "squared_error", as in scikit-learn from 1.9 on. "absolute_error"
        is refused: medians do not follow from histograms.
    max_depth : int, optional
    min_samples_split : int or float, default=2
        Rows, or share of the rows, that a node needs to be split.
    min_samples_leaf : int or float, default=1
        Rows, or share of the rows, on each side of a split.
    min_weight_fraction_leaf : float, default=0.0
        Share of the weight on each side of a split.
    max_features : {"sqrt", "log2", None}, int or float, default=1.0
        Columns that a node looks at, drawn anew for each.
    max_leaf_nodes : int, optional
        With it, the nodes whose split is best are split first.
    min_impurity_decrease : float, default=0.0
    bootstrap : bool, default=True
        Whether each tree gets rows that are drawn with replacement.
    oob_score : bool or callable, default=False
        Whether the rows that a tree did not get are predicted by it, and scored.
    n_jobs : int, optional
        Accepted and ignored: all engines compute.
    random_state : int, RandomState instance or None, default=None
        The rows of each tree are drawn as scikit-learn draws them; the columns of the nodes are not.
    verbose : int, default=0
        Accepted and ignored: views show the trees as they grow.
    warm_start : bool, default=False
        Whether `fit` adds trees to those that are there.
    ccp_alpha : non-negative float, default=0.0
        Cost of a leaf for pruning.
    max_samples : int or float, optional
        Rows that are drawn for a tree.
    monotonic_cst : None
        Anything else is refused.

    Attributes
    ----------
    estimators_ : list of DecisionTreeRegressor
        scikit-learn's trees.
    n_outputs_ : int
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only when the input has column names that are all strings.
    feature_importances_ : ndarray of shape (n_features_in_,)
    oob_score_ : float
        Only with `oob_score`.
    oob_prediction_ : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        Only with `oob_score`.
    report_ : FitReport
        What each engine did, and how long each phase took.

    See Also
    --------
    sklearn.ensemble.RandomForestRegressor : The same in one process, with exact splits.

    Examples
    --------
    >>> with xpulab.XPUCluster(n=2):  # doctest: +SKIP
    ...     RandomForestRegressor(10, random_state=0).fit([[0.0], [1.0]] * 9, [0, 1] * 9).predict([[0.9]])
    """

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> RandomForestRegressor:
        """Grow the trees.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Converted to float32, as by scikit-learn. NaN is a missing value.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
            Numbers. Those of a handle are gathered in this process.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative.

        Returns
        -------
        RandomForestRegressor
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for CSR matrices, "absolute_error" and `monotonic_cst`. No rows have
            been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        return self._grow(X, y, sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """Mean of the values of the leaves that rows come to.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)

        Returns
        -------
        ndarray of float64 of shape (n_samples,) or (n_samples, n_outputs)

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
        """
        means = self._means("predict", X)
        if means is None:
            found: np.ndarray = super().predict(X)
            return found
        return means[:, 0, 0].copy() if self.n_outputs_ == 1 else means[:, :, 0].copy()

    def _take_oob(self, means: np.ndarray, y: np.ndarray, scoring_function: Any) -> None:
        self.oob_prediction_ = means[:, 0, 0] if means.shape[1] == 1 else means[:, :, 0]
        self.oob_score_ = (scoring_function or r2_score)(y, self.oob_prediction_)
