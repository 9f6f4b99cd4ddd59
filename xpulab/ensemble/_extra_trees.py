"""`ExtraTreesClassifier` and `ExtraTreesRegressor`: scikit-learn's forests of splits that are drawn, on all engines."""

from __future__ import annotations

from typing import ClassVar

import sklearn.ensemble

from xpulab.ensemble._predicting import ForestOfClasses, ForestOfNumbers

__all__ = ["ExtraTreesClassifier", "ExtraTreesRegressor"]


class ExtraTreesClassifier(ForestOfClasses, sklearn.ensemble.ExtraTreesClassifier):
    """Extremely randomized trees for classification, grown on all engines of the active cluster.

    Parameters and attributes are those of `sklearn.ensemble.ExtraTreesClassifier` [1]_. In each of some columns, a
    split of a node is drawn between the least and the largest value there, and the best of these splits is taken. The
    values of each column are sorted into at most 255 bins, and a split lies between two bins; in a column with at most
    255 different values, every split has the probability that it has in scikit-learn. Missing values go to a side that
    is drawn. The forest is the same for any number of engines. The CPUs of the engines' hosts grow it, even if the
    devices of the engines are GPUs.

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
    bootstrap : bool, default=False
        Whether each tree is grown from rows that are drawn with replacement, or from all rows.
    oob_score : bool or callable, default=False
        Whether to predict each row with the trees that were grown without it, and to compute the score of these
        predictions; a callable computes the score from the targets and the predictions, in this process: for it, the
        targets of a handle are gathered.
    n_jobs : int, optional
        Accepted and ignored: all engines compute.
    random_state : int, RandomState instance or None, default=None
        The rows of each tree are drawn as scikit-learn draws them; the columns and the splits of the nodes are not.
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
    monotonic_cst : array-like of int of shape (n_features,), optional
        For each column 1 or -1 if the probability of the second class must not decrease, or not increase, with its
        values, and 0 otherwise; for two classes and one output.

    Attributes
    ----------
    estimators_ : list of ExtraTreeClassifier
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
    sklearn.ensemble.ExtraTreesClassifier : The same in one process, with splits between any two values.
    RandomForestClassifier : Takes the best of all splits.

    References
    ----------
    .. [1] P. Geurts, D. Ernst, L. Wehenkel, "Extremely randomized trees", Machine Learning 63 (2006), 3-42.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.ensemble import ExtraTreesClassifier
    >>> with xpulab.XPUCluster(n=2):
    ...     ExtraTreesClassifier(10, random_state=0).fit([[0.0], [1.0]] * 9, ["a", "b"] * 9).predict([[0.9]])
    array(['b'], dtype='<U1')
    """

    _splitter: ClassVar[str] = "random"


class ExtraTreesRegressor(ForestOfNumbers, sklearn.ensemble.ExtraTreesRegressor):
    """Extremely randomized trees for regression, grown on all engines of the active cluster.

    Parameters and attributes are those of `sklearn.ensemble.ExtraTreesRegressor`. The trees are grown as those of
    `ExtraTreesClassifier`, whose documentation names the source of the algorithm.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    criterion : {"squared_error", "absolute_error", "friedman_mse", "poisson"}, default="squared_error"
        The impurity of a node, which splits reduce. "friedman_mse" is the same as "squared_error", as in scikit-learn
        from 1.9 on. With "absolute_error", leaves have medians, and a tree takes five to twenty times as long.
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
    bootstrap : bool, default=False
        Whether each tree is grown from rows that are drawn with replacement, or from all rows.
    oob_score : bool or callable, default=False
        Whether to predict each row with the trees that were grown without it, and to compute the score of these
        predictions; a callable computes the score from the targets and the predictions, in this process: for it, the
        targets of a handle are gathered.
    n_jobs : int, optional
        Accepted and ignored: all engines compute.
    random_state : int, RandomState instance or None, default=None
        The rows of each tree are drawn as scikit-learn draws them; the columns and the splits of the nodes are not.
    verbose : int, default=0
        Accepted and ignored: live views show the trees as they grow.
    warm_start : bool, default=False
        Whether `fit` adds trees to those of the last fit.
    ccp_alpha : non-negative float, default=0.0
        Cost of a leaf, by which trees are pruned after they are grown.
    max_samples : int or float, optional
        Number of rows, or share of the rows, that are drawn for a tree; as many as X has by default.
    monotonic_cst : array-like of int of shape (n_features,), optional
        For each column 1 or -1 if predictions must not decrease, or not increase, with its values, and 0 otherwise; for
        one output.

    Attributes
    ----------
    estimators_ : list of ExtraTreeRegressor
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
    sklearn.ensemble.ExtraTreesRegressor : The same in one process, with splits between any two values.
    RandomForestRegressor : Takes the best of all splits.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.ensemble import ExtraTreesRegressor
    >>> with xpulab.XPUCluster(n=2):
    ...     ExtraTreesRegressor(10, random_state=0).fit([[0.0], [1.0]] * 9, [0, 1] * 9).predict([[0.9]])
    array([1.])
    """

    _splitter: ClassVar[str] = "random"
