"""`HistGradientBoostingClassifier` and `HistGradientBoostingRegressor`: scikit-learn's boosting on all engines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.ensemble

from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.ensemble._boosting import BoostingProxy
from xpulab.estimator.results_in_files import in_file

__all__ = ["HistGradientBoostingClassifier", "HistGradientBoostingRegressor"]


class HistGradientBoostingClassifier(BoostingProxy, sklearn.ensemble.HistGradientBoostingClassifier):
    """Gradient boosting [1]_ of trees from histograms [2]_ for classification, on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.ensemble.HistGradientBoostingClassifier`: the bins are the
    same, and the trees differ only where two splits are equal to rounding. The result is the same for any number of
    engines and any order of shards, because the ranks add up integers. The CPUs of the engines' hosts grow the trees,
    even if the devices of the engines are GPUs. All rows have to fit into the engines' memory.

    Parameters
    ----------
    loss : {"log_loss"}, default="log_loss"
        The loss.
    learning_rate : float, default=0.1
        Factor of the values of all trees.
    max_iter : int, default=100
        Largest number of iterations. Each grows a tree, or a tree for each class of three or more.
    max_leaf_nodes : int or None, default=31
        Largest number of leaves of a tree; None for any number.
    max_depth : int or None, default=None
        Largest depth of a tree; not limited by default.
    min_samples_leaf : int, default=20
        Smallest number of rows of a leaf.
    l2_regularization : float, default=0.0
        Added to the sums of second derivatives, by which those of gradients are divided.
    max_features : float, default=1.0
        Share of the columns in which the split of a node is searched. They are drawn anew for each node, as in
        scikit-learn.
    max_bins : int, default=255
        Largest number of bins of a column, at most 255. Missing values have a bin of their own.
    categorical_features : array-like, str or None, default="from_dtype"
        Columns of categories, by a mask, their numbers or their names; with "from_dtype" those of data frames and
        tables that have a dtype of categories. A split sends a set of categories to the left. There are at most
        `max_bins` of a column; missing values, and categories that the fit has not seen, go where most rows went.
        Strings are taken from tables whose columns have names.
    monotonic_cst : array-like of int of shape (n_features,), dict or None, default=None
        For each column 1 if predictions must not fall with it, -1 if they must not rise, 0 without a constraint.
    interaction_cst : {"pairwise", "no_interactions"} or sequence of lists, tuples or sets of int, default=None
        Groups of columns of X that may be on one path of a tree. (Up to 1.9, scikit-learn takes these numbers for
        others if columns of categories come after columns of numbers.)
    warm_start : bool, default=False
        Whether `fit` adds trees to those of the last fit.
    early_stopping : "auto" or bool, default="auto"
        Whether the fit ends when the score has not become better. "auto" means for more than 10,000 rows.
    scoring : str, callable or None, default="loss"
        What early stopping looks at: the loss, or a scorer by its name, the estimator's own `score` (None), or a
        function of an estimator, rows and targets. It is called in the process of an engine, and of the rows it may
        only ask the estimator for predictions. Of more than 10,000 rows for training, it scores as many.
    validation_fraction : int, float or None, default=0.1
        Number or share of the rows that early stopping holds out, drawn as scikit-learn draws them; None to look at the
        rows of the fit.
    n_iter_no_change : int, default=10
        Number of iterations without a better score after which early stopping ends the fit.
    tol : float, default=1e-7
        By how much a score must be better.
    verbose : int, default=0
        Accepted and ignored: live views show the trees as they grow.
    random_state : int, RandomState instance or None, default=None
        Rows that are held out, rows from which bins are chosen, and columns are drawn as scikit-learn draws them.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, in ascending order.
    n_iter_ : int
        Number of iterations.
    n_trees_per_iteration_ : int
        Number of trees of an iteration.
    do_early_stopping_ : bool
        Whether the fit could end early.
    train_score_ : ndarray of shape (`n_iter_` + 1,)
        The loss with the other sign before the first iteration and after each; empty without early stopping. The
        losses of all fits are in `report_`.
    validation_score_ : ndarray of shape (`n_iter_` + 1,)
        The same for the rows that were held out or given for validation; empty without these.
    is_categorical_ : ndarray of bool of shape (`n_features_in_`,) or None
        Which columns have categories; None if none has.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. Its iterations have the losses of the
        rows of the fit, and of those for validation.

    See Also
    --------
    sklearn.ensemble.HistGradientBoostingClassifier : The same in one process.

    References
    ----------
    .. [1] J. Friedman, "Greedy Function Approximation: A Gradient Boosting Machine", Annals of Statistics 29 (2001).
    .. [2] G. Ke et al., "LightGBM: A Highly Efficient Gradient Boosting Decision Tree", NeurIPS 2017.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.ensemble import HistGradientBoostingClassifier
    >>> with xpulab.XPUCluster(n=2):
    ...     HistGradientBoostingClassifier(max_iter=10).fit([[0.0], [1.0]] * 50, ["a", "b"] * 50).predict([[0.9]])
    array(['b'], dtype='<U1')
    """

    classes_: Any

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray,
        sample_weight: npt.ArrayLike | None = None,
        *,
        X_val: npt.ArrayLike | ShardedArray | None = None,
        y_val: npt.ArrayLike | ShardedArray | None = None,
        sample_weight_val: npt.ArrayLike | None = None,
    ) -> HistGradientBoostingClassifier:
        """Grow the trees.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Rows. NaN is a missing value, which goes to the side of a split that reduces the loss most.
        y : array-like or ShardedArray of shape (n_samples,)
            Labels. Those of a handle are gathered into this process.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows; 1 by default.
        X_val : array-like or ShardedArray of shape (n_val, n_features), optional
            Rows for validation, for early stopping. They are sent with each fit.
        y_val : array-like or ShardedArray of shape (n_val,), optional
            Their targets.
        sample_weight_val : array-like of shape (n_val,), optional
            Their weights.

        Returns
        -------
        HistGradientBoostingClassifier
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input and parameters that scikit-learn rejects, CSR matrices, and strings of columns without names. No
            rows have been sent, except for a column of too many categories.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit. The estimator has the trees of all complete iterations, and `resume`
            continues the fit, also as ``xpulab.interrupted().resume()``.
        """
        return self._boost(X, y, sample_weight, X_val, y_val, sample_weight_val)

    def predict(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Return the most probable class of each row.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples,)

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
            return in_file(self.predict, X, out)
        return self.classes_[self._classes_of(self._raw("predict", X))]

    def predict_proba(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Return the probability of each class for each row.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            As for `predict`.

        Returns
        -------
        ndarray of float64 of shape (n_samples, n_classes)

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict`.
        """
        if out is not None:
            return in_file(self.predict_proba, X, out)
        return self._loss.predict_proba(self._raw("predict_proba", X))

    def decision_function(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Return the sum of the values of all trees for each row.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            As for `predict`.

        Returns
        -------
        ndarray of float64 of shape (n_samples,) or (n_samples, n_classes)

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict`.
        """
        if out is not None:
            return in_file(self.decision_function, X, out)
        raw = self._raw("decision_function", X)
        return raw[:, 0] if raw.shape[1] == 1 else raw

    def staged_predict(self, X: npt.ArrayLike | ShardedArray) -> Iterator[Any]:
        """Return an iterator over the predictions after each iteration.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)

        Returns
        -------
        iterator of ndarray of shape (n_samples,)

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict`.
        """
        return (self.classes_[self._classes_of(raw)] for raw in self._staged_raw_predict(X))

    def staged_predict_proba(self, X: npt.ArrayLike | ShardedArray) -> Iterator[Any]:
        """Return an iterator over the class probabilities after each iteration.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)

        Returns
        -------
        iterator of ndarray of float64 of shape (n_samples, n_classes)

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict`.
        """
        return (self._loss.predict_proba(raw) for raw in self._staged_raw_predict(X))

    def staged_decision_function(self, X: npt.ArrayLike | ShardedArray) -> Iterator[Any]:
        """Return an iterator over the sums of the values of the trees after each iteration.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)

        Returns
        -------
        iterator of ndarray of float64 of shape (n_samples,) or (n_samples, n_classes)

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict`.
        """
        return (raw[:, 0] if raw.shape[1] == 1 else raw for raw in self._staged_raw_predict(X))


class HistGradientBoostingRegressor(BoostingProxy, sklearn.ensemble.HistGradientBoostingRegressor):
    """Gradient boosting of trees from histograms for regression, on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.ensemble.HistGradientBoostingRegressor`, as
    `HistGradientBoostingClassifier` describes.

    Parameters
    ----------
    loss : {"squared_error", "absolute_error", "gamma", "poisson", "quantile"}, default="squared_error"
        The loss. For "absolute_error" and "quantile", the ranks send each other all residuals, tree by tree.
    quantile : float, optional
        The quantile for ``loss="quantile"``.
    learning_rate : float, default=0.1
        Factor of the values of all trees.
    max_iter : int, default=100
        Largest number of iterations. Each grows a tree, or a tree for each class of three or more.
    max_leaf_nodes : int or None, default=31
        Largest number of leaves of a tree; None for any number.
    max_depth : int or None, default=None
        Largest depth of a tree; not limited by default.
    min_samples_leaf : int, default=20
        Smallest number of rows of a leaf.
    l2_regularization : float, default=0.0
        Added to the sums of second derivatives, by which those of gradients are divided.
    max_features : float, default=1.0
        Share of the columns in which the split of a node is searched. They are drawn anew for each node, as in
        scikit-learn.
    max_bins : int, default=255
        Largest number of bins of a column, at most 255. Missing values have a bin of their own.
    categorical_features : array-like, str or None, default="from_dtype"
        Columns of categories, by a mask, their numbers or their names; with "from_dtype" those of data frames and
        tables that have a dtype of categories. A split sends a set of categories to the left. There are at most
        `max_bins` of a column; missing values, and categories that the fit has not seen, go where most rows went.
        Strings are taken from tables whose columns have names.
    monotonic_cst : array-like of int of shape (n_features,), dict or None, default=None
        For each column 1 if predictions must not fall with it, -1 if they must not rise, 0 without a constraint.
    interaction_cst : {"pairwise", "no_interactions"} or sequence of lists, tuples or sets of int, default=None
        Groups of columns of X that may be on one path of a tree. (Up to 1.9, scikit-learn takes these numbers for
        others if columns of categories come after columns of numbers.)
    warm_start : bool, default=False
        Whether `fit` adds trees to those of the last fit.
    early_stopping : "auto" or bool, default="auto"
        Whether the fit ends when the score has not become better. "auto" means for more than 10,000 rows.
    scoring : str, callable or None, default="loss"
        What early stopping looks at: the loss, or a scorer by its name, the estimator's own `score` (None), or a
        function of an estimator, rows and targets. It is called in the process of an engine, and of the rows it may
        only ask the estimator for predictions. Of more than 10,000 rows for training, it scores as many.
    validation_fraction : int, float or None, default=0.1
        Number or share of the rows that early stopping holds out, drawn as scikit-learn draws them; None to look at the
        rows of the fit.
    n_iter_no_change : int, default=10
        Number of iterations without a better score after which early stopping ends the fit.
    tol : float, default=1e-7
        By how much a score must be better.
    verbose : int, default=0
        Accepted and ignored: live views show the trees as they grow.
    random_state : int, RandomState instance or None, default=None
        Rows that are held out, rows from which bins are chosen, and columns are drawn as scikit-learn draws them.

    Attributes
    ----------
    n_iter_ : int
        Number of iterations.
    n_trees_per_iteration_ : int
        Number of trees of an iteration.
    do_early_stopping_ : bool
        Whether the fit could end early.
    train_score_ : ndarray of shape (`n_iter_` + 1,)
        The loss with the other sign before the first iteration and after each; empty without early stopping. The
        losses of all fits are in `report_`.
    validation_score_ : ndarray of shape (`n_iter_` + 1,)
        The same for the rows that were held out or given for validation; empty without these.
    is_categorical_ : ndarray of bool of shape (`n_features_in_`,) or None
        Which columns have categories; None if none has.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. Its iterations have the losses of the
        rows of the fit, and of those for validation.

    See Also
    --------
    sklearn.ensemble.HistGradientBoostingRegressor : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.ensemble import HistGradientBoostingRegressor
    >>> with xpulab.XPUCluster(n=2):
    ...     HistGradientBoostingRegressor(max_iter=10).fit([[0.0], [1.0]] * 50, [1.0, 1.0] * 50).predict([[0.9]])
    array([1.])
    """

    quantile: Any

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray,
        sample_weight: npt.ArrayLike | None = None,
        *,
        X_val: npt.ArrayLike | ShardedArray | None = None,
        y_val: npt.ArrayLike | ShardedArray | None = None,
        sample_weight_val: npt.ArrayLike | None = None,
    ) -> HistGradientBoostingRegressor:
        """Grow the trees.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Rows. NaN is a missing value, which goes to the side of a split that reduces the loss most.
        y : array-like or ShardedArray of shape (n_samples,)
            Targets. Those of a handle are gathered into this process.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows; 1 by default.
        X_val : array-like or ShardedArray of shape (n_val, n_features), optional
            Rows for validation, for early stopping. They are sent with each fit.
        y_val : array-like or ShardedArray of shape (n_val,), optional
            Their targets.
        sample_weight_val : array-like of shape (n_val,), optional
            Their weights.

        Returns
        -------
        HistGradientBoostingRegressor
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input and parameters that scikit-learn rejects, CSR matrices, and strings of columns without names. No
            rows have been sent, except for a column of too many categories.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit. The estimator has the trees of all complete iterations, and `resume`
            continues the fit, also as ``xpulab.interrupted().resume()``.
        """
        return self._boost(X, y, sample_weight, X_val, y_val, sample_weight_val)

    def predict(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Return the prediction for each row.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of float64 of shape (n_samples,)

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
            return in_file(self.predict, X, out)
        raw: np.ndarray = self._raw("predict", X)[:, 0]
        return self._loss.link.inverse(raw)

    def staged_predict(self, X: npt.ArrayLike | ShardedArray) -> Iterator[Any]:
        """Return an iterator over the predictions after each iteration.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)

        Returns
        -------
        iterator of ndarray of float64 of shape (n_samples,)

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict`.
        """
        return (self._loss.link.inverse(raw[:, 0]) for raw in self._staged_raw_predict(X))
