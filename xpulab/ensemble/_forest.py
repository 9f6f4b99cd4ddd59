"""`RandomForestClassifier` and `RandomForestRegressor`: scikit-learn's forests, grown on all engines of the cluster."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.ensemble
from sklearn.metrics import accuracy_score, r2_score

from xpulab._sklearn import _fit_context
from xpulab.checks import ONE_AT_A_TIME
from xpulab.data import ShardedArray
from xpulab.ensemble._growing import ForestProxy
from xpulab.estimator.results_in_files import in_file

__all__ = ["RandomForestClassifier", "RandomForestRegressor"]


class RandomForestClassifier(ForestProxy, sklearn.ensemble.RandomForestClassifier):
    """A random forest for classification, grown on all engines of the active cluster.

    Parameters and attributes are those of `sklearn.ensemble.RandomForestClassifier` [1]_. The trees are grown from
    histograms [2]_: the values of each column are sorted into at most 255 bins, a split lies between two bins, and
    missing values have a bin of their own. A column with at most 255 different values has one bin for each value, so
    that every possible split is considered. The forest is the same for any number of engines. The CPUs of the engines'
    hosts grow it, even if the devices of the engines are GPUs.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    criterion : {"gini", "entropy", "log_loss"}, default="gini"
        The impurity of a node, which splits reduce.
    max_depth : int, optional
        Largest depth of a tree; not limited by default.
    min_samples_split : int or float, default=2
        Smallest number of rows, or share of the rows, of a node that is split.
    min_samples_leaf : int or float, default=1
        Smallest number of rows, or share of the rows, on each side of a split.
    min_weight_fraction_leaf : float, default=0.0
        Smallest share of the total weight on each side of a split.
    max_features : {"sqrt", "log2", None}, int or float, default="sqrt"
        Number, or share, of the columns in which the split of a node is searched. They are drawn anew for each node.
    max_leaf_nodes : int, optional
        Largest number of leaves of a tree; not limited by default. With a limit, the nodes whose splits reduce the
        impurity most are split first.
    min_impurity_decrease : float, default=0.0
        Smallest decrease of the weighted impurity by a split.
    bootstrap : bool, default=True
        Whether each tree is grown from rows that are drawn with replacement, or from all rows.
    oob_score : bool or callable, default=False
        Whether to predict each row with the trees that were grown without it, and to compute the score of these
        predictions; a callable computes the score from the targets and the predictions, in this process: for it, the
        targets of a handle are gathered.
    n_jobs : int, optional
        Accepted and ignored: all engines compute.
    random_state : int, RandomState instance or None, default=None
        The rows of each tree are drawn as scikit-learn draws them; the columns of the nodes are not.
    verbose : int, default=0
        Accepted and ignored: live views show the trees as they grow.
    warm_start : bool, default=False
        Whether `fit` adds trees to those of the last fit.
    class_weight : {"balanced", "balanced_subsample"}, dict or list of dict, optional
        Weights of the classes. "balanced" weights are inversely proportional to the numbers of rows of the classes, and
        "balanced_subsample" weights to their numbers among the rows that are drawn for a tree. scikit-learn 1.9 draws
        rows by all other weights: if the labels stay on the engines, this process does not have these weights, and
        `estimators_samples_` raises AttributeError.
    ccp_alpha : non-negative float, default=0.0
        Cost of a leaf, by which trees are pruned after they are grown.
    max_samples : int or float, optional
        Number of rows, or share of the rows, that are drawn for a tree; as many as X has by default.
    monotonic_cst : None
        Not supported: other values raise ValueError.

    Attributes
    ----------
    estimators_ : list of DecisionTreeClassifier
        scikit-learn's trees.
    classes_ : ndarray of shape (n_classes,), or a list of them for several outputs
        The classes, in ascending order.
    n_classes_ : int or list of int
    n_outputs_ : int
        Number of columns of y.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    feature_importances_ : ndarray of float64 of shape (`n_features_in_`,)
        Share of each column in the reduction of the impurity.
    oob_score_ : float
        Score of the predictions of rows by the trees that were grown without them; set only with `oob_score`.
    oob_decision_function_ : ndarray of float64 of shape (n_samples, n_classes) or (n_samples, n_classes, n_outputs)
        Class probabilities of these predictions; set only with `oob_score`.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.ensemble.RandomForestClassifier : The same in one process, with splits between any two values.

    References
    ----------
    .. [1] L. Breiman, "Random Forests", Machine Learning 45 (2001), 5-32.
    .. [2] G. Ke et al., "LightGBM: A Highly Efficient Gradient Boosting Decision Tree", NeurIPS 2017.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.ensemble import RandomForestClassifier
    >>> with xpulab.XPUCluster(n=2):
    ...     RandomForestClassifier(10, random_state=0).fit([[0.0], [1.0]] * 9, ["a", "b"] * 9).predict([[0.9]])
    array(['b'], dtype='<U1')
    """

    classes_: Any
    n_classes_: Any

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray,
        sample_weight: npt.ArrayLike | None = None,
    ) -> RandomForestClassifier:
        """Grow the trees.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Rows, which are converted to float32 as in scikit-learn. NaN is a missing value.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
            Labels. If X and y are handles with the same rows on each engine, the labels stay on the engines.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative; 1 by default.

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

    def predict(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Return the class of each row with the greatest mean of the trees' probabilities.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            As for `predict_proba`.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict_proba`.
        """
        return super().predict(X) if out is None else in_file(self.predict, X, out)

    def predict_proba(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Return the class probabilities of each row: the mean over the trees of the shares of the classes in its leaf.

        For a few rows this process computes the probabilities, without the engines.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of float64 of shape (n_samples, n_classes), or a list of them for several outputs

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If the engines are needed, and no cluster is running.
        ValueError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if out is not None:
            return in_file(self.predict_proba, X, out)
        means = self._means("predict_proba", X)
        if means is None:
            with ONE_AT_A_TIME:
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
    """A random forest for regression, grown on all engines of the active cluster.

    Parameters and attributes are those of `sklearn.ensemble.RandomForestRegressor`. The trees are grown from histograms
    as those of `RandomForestClassifier`, whose documentation names the sources of the algorithm.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    criterion : {"squared_error", "friedman_mse", "poisson"}, default="squared_error"
        The impurity of a node, which splits reduce. "friedman_mse" is the same as "squared_error", as in scikit-learn
        from 1.9 on. "absolute_error" raises ValueError, because histograms do not give medians.
    max_depth : int, optional
        Largest depth of a tree; not limited by default.
    min_samples_split : int or float, default=2
        Smallest number of rows, or share of the rows, of a node that is split.
    min_samples_leaf : int or float, default=1
        Smallest number of rows, or share of the rows, on each side of a split.
    min_weight_fraction_leaf : float, default=0.0
        Smallest share of the total weight on each side of a split.
    max_features : {"sqrt", "log2", None}, int or float, default=1.0
        Number, or share, of the columns in which the split of a node is searched. They are drawn anew for each node.
    max_leaf_nodes : int, optional
        Largest number of leaves of a tree; not limited by default. With a limit, the nodes whose splits reduce the
        impurity most are split first.
    min_impurity_decrease : float, default=0.0
        Smallest decrease of the weighted impurity by a split.
    bootstrap : bool, default=True
        Whether each tree is grown from rows that are drawn with replacement, or from all rows.
    oob_score : bool or callable, default=False
        Whether to predict each row with the trees that were grown without it, and to compute the score of these
        predictions; a callable computes the score from the targets and the predictions, in this process: for it, the
        targets of a handle are gathered.
    n_jobs : int, optional
        Accepted and ignored: all engines compute.
    random_state : int, RandomState instance or None, default=None
        The rows of each tree are drawn as scikit-learn draws them; the columns of the nodes are not.
    verbose : int, default=0
        Accepted and ignored: live views show the trees as they grow.
    warm_start : bool, default=False
        Whether `fit` adds trees to those of the last fit.
    ccp_alpha : non-negative float, default=0.0
        Cost of a leaf, by which trees are pruned after they are grown.
    max_samples : int or float, optional
        Number of rows, or share of the rows, that are drawn for a tree; as many as X has by default.
    monotonic_cst : None
        Not supported: other values raise ValueError.

    Attributes
    ----------
    estimators_ : list of DecisionTreeRegressor
        scikit-learn's trees.
    n_outputs_ : int
        Number of columns of y.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    feature_importances_ : ndarray of float64 of shape (`n_features_in_`,)
        Share of each column in the reduction of the impurity.
    oob_score_ : float
        Score of `oob_prediction_`; set only with `oob_score`.
    oob_prediction_ : ndarray of float64 of shape (n_samples,) or (n_samples, n_outputs)
        Predictions of rows by the trees that were grown without them; set only with `oob_score`.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.ensemble.RandomForestRegressor : The same in one process, with splits between any two values.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.ensemble import RandomForestRegressor
    >>> with xpulab.XPUCluster(n=2):
    ...     RandomForestRegressor(10, random_state=0).fit([[0.0], [1.0]] * 9, [0, 1] * 9).predict([[0.9]])
    array([1.])
    """

    oob_prediction_: np.ndarray

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray,
        sample_weight: npt.ArrayLike | None = None,
    ) -> RandomForestRegressor:
        """Grow the trees.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Rows, which are converted to float32 as in scikit-learn. NaN is a missing value.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
            Numbers. If X and y are handles with the same rows on each engine, the numbers stay on the engines.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative; 1 by default.

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

    def predict(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Return the prediction for each row: the mean over the trees of the value of its leaf.

        For a few rows this process computes the predictions, without the engines.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of float64 of shape (n_samples,) or (n_samples, n_outputs)

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If the engines are needed, and no cluster is running.
        ValueError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if out is not None:
            return in_file(self.predict, X, out)
        means = self._means("predict", X)
        if means is None:
            with ONE_AT_A_TIME:
                found: np.ndarray = super().predict(X)
            return self._in_range(found.reshape(len(found), -1, 1)).reshape(found.shape)
        return means[:, 0, 0].copy() if self.n_outputs_ == 1 else means[:, :, 0].copy()

    def _in_range(self, means: np.ndarray) -> np.ndarray:
        return np.clip(means, *self._range[:, :, None])

    def _correct_oob(self) -> None:
        found = self.oob_prediction_
        within = self._in_range(found.reshape(len(found), -1, 1)).reshape(found.shape)
        self.oob_prediction_ = np.where(found == 0, 0.0, within)  # 0 stands for rows that no tree predicts

    def _take_oob(self, means: np.ndarray, y: np.ndarray, scoring_function: Any) -> None:
        self.oob_prediction_ = means[:, 0, 0] if means.shape[1] == 1 else means[:, :, 0]
        self.oob_score_ = (scoring_function or r2_score)(y, self.oob_prediction_)
