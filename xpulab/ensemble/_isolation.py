"""`IsolationForest`: scikit-learn's estimator, whose trees the engines follow for all rows."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.ensemble
from sklearn.tree import ExtraTreeRegressor
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _average_path_length, _fit_context
from xpulab.checks import ONE_AT_A_TIME, array_of
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.ensemble._following import TreesProxy, few_here
from xpulab.estimator.results_in_files import in_file

__all__ = ["IsolationForest"]


_PARAMETERS = tuple(ExtraTreeRegressor().get_params(deep=False))


class _Noting(ExtraTreeRegressor):
    """A tree that notes which rows scikit-learn has drawn for it, and is grown when they are here.

    In the place of rows, scikit-learn passes on their numbers, once in each column.
    """

    chosen: npt.NDArray[np.intp]
    weights: npt.NDArray[Any]

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """Return the names of the parameters; scikit-learn reads the signature five times for each tree."""
        return list(_PARAMETERS)

    def fit(self, X: Any, y: Any, check_input: bool = True) -> _Noting:
        """Note the rows, and how often each was drawn. For a fit without weights, scikit-learn passes on no others."""
        self.chosen, self.weights = np.unique(X[:, 0], return_counts=True)
        return self

    def grown(self, rows: np.ndarray, numbers: np.ndarray, y: np.ndarray, columns: np.ndarray) -> ExtraTreeRegressor:
        """Return scikit-learn's tree of the rows with these numbers, which have those that were drawn for it."""
        own = np.searchsorted(numbers, self.chosen)
        some = rows[own] if len(columns) == rows.shape[1] else np.ascontiguousarray(rows[own][:, columns])
        tree = ExtraTreeRegressor(**self.get_params(deep=False))
        with ONE_AT_A_TIME:
            return tree.fit(some, y[own], sample_weight=self.weights, check_input=False)


class _NotingWeights(_Noting):
    """The same for a fit with weights, for which scikit-learn passes on the weights of all rows in the tree."""

    def fit(  # type: ignore[override]
        self, X: Any, y: Any, sample_weight: Any = None, check_input: bool = True
    ) -> _NotingWeights:
        """Note the rows that have a weight, and the weights."""
        self.chosen = np.flatnonzero(sample_weight)
        self.weights = sample_weight[self.chosen]
        return self


class IsolationForest(TreesProxy, sklearn.ensemble.IsolationForest):
    """Rows that few random splits separate from the others, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.ensemble.IsolationForest` [1]_, with the same trees for the
    same `random_state` and any number of engines. Only the rows that are drawn for the trees come to this process,
    which grows these; the engines follow them for the rows of predictions, and for `contamination`.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    max_samples : "auto", int or float, default="auto"
        Number, or share, of the rows that are drawn for a tree; "auto" are 256, or all if there are fewer.
    contamination : "auto" or float, default="auto"
        Share of the rows that count as outliers; at most 0.5. "auto" sets the threshold as in [1]_.
    max_features : int or float, default=1.0
        Number, or share, of the columns that are drawn for a tree.
    bootstrap : bool, default=False
        Whether rows are drawn with replacement.
    n_jobs : int, optional
        Accepted and ignored: all engines compute.
    random_state : int, RandomState instance or None, default=None
        Determines the rows and columns that are drawn, and the splits.
    verbose : int, default=0
        Whether scikit-learn prints what it draws.
    warm_start : bool, default=False
        Whether a fit keeps the trees of the previous fit, and adds more.

    Attributes
    ----------
    estimators_ : list of ExtraTreeRegressor
        The trees.
    estimators_features_ : list of ndarray
        The columns of each tree.
    estimators_samples_ : list of ndarray
        The rows that were drawn for each tree.
    max_samples_ : int
        Number of rows that are drawn for a tree.
    offset_ : float
        The score below which a row counts as an outlier.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.ensemble.IsolationForest : The same in one process.

    References
    ----------
    .. [1] F. T. Liu, K. M. Ting and Z.-H. Zhou, "Isolation Forest", Eighth IEEE International Conference on Data Mining
       (2008), 413-422.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.ensemble import IsolationForest
    >>> with xpulab.XPUCluster(n=2):
    ...     IsolationForest(random_state=0).fit_predict([[-1.1], [0.3], [0.5], [100.0]])
    array([ 1,  1,  1, -1])
    """

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": np.float32, "ensure_all_finite": "allow-nan"}

    n_estimators: int
    max_samples: Any
    contamination: Any
    random_state: Any
    warm_start: bool
    _noting: type[_Noting]
    max_samples_: int
    offset_: float
    estimators_features_: list[npt.NDArray[np.intp]]

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: npt.ArrayLike | None = None) -> IsolationForest:
        """Fit the model.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Converted to float32; may have NaN.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, by which they are drawn, or which the splits have, as in the installed scikit-learn.

        Returns
        -------
        IsolationForest
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input and parameters that scikit-learn rejects. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_ranks()
        with self._sent_once(X):
            X = self._checked(cluster, X, reset=True)
            weights: Any = self._weights(sample_weight, X, only_non_negative=False)
            if isinstance(weights, ShardedArray):  # a rank has passed the weights of its own rows
                weights = weights.gather()
            before = vars(self).copy()
            try:
                with self._fitting(X):
                    self._grow(cluster, X, weights)
            except Exception:  # the trees of an earlier fit stay
                self.__dict__.clear()
                self.__dict__.update(before)
                raise
        return self

    def _grow(self, cluster: Ranks, X: Any, weights: npt.NDArray[Any] | None) -> None:
        """Draw rows as scikit-learn does, grow the trees of them, and find the threshold."""
        n, d = X.shape
        values = check_random_state(self.random_state).uniform(size=n)
        self.max_samples_ = self._number_of_rows(n)
        kept = list(getattr(self, "estimators_", [])) if self.warm_start else []
        most = {"max_samples": self.max_samples_, "max_depth": int(np.ceil(np.log2(max(self.max_samples_, 2))))}
        numbers = np.broadcast_to(np.arange(n)[:, np.newaxis], (n, d))
        if kept:  # scikit-learn appends to the lists
            self.estimators_, self.estimators_features_ = kept.copy(), list(self.estimators_features_)
        self._noting = _Noting if weights is None else _NotingWeights
        with ONE_AT_A_TIME:
            # scikit-learn 1.6 passes on weights that are None, too, which a tree without weights does not take.
            given = {} if weights is None else {"sample_weight": weights}
            self._fit(numbers, values, **most, **given, check_input=False)
            del self._noting
            self.estimator_ = super()._get_estimator().set_params(max_depth=most["max_depth"])
        new = self.estimators_[len(kept) :]
        chosen = np.unique(np.concatenate([np.empty(0, np.intp), *(tree.chosen for tree in new)]))
        drawn = self._ask(
            cluster, "fit", "isolation.rows", X, send_more=lambda outgoing: {"chosen": outgoing.send(chosen)}
        ).results[0]["drawn"]
        rows = drawn.reshape(len(chosen), d)
        columns = self.estimators_features_[len(kept) :]
        grown = (tree.grown(rows, chosen, values[chosen], own) for tree, own in zip(new, columns, strict=True))
        self.estimators_ = [*kept, *grown]
        self._index = None
        self._note_lengths()
        self.offset_ = -0.5 if self.contamination == "auto" else self._percentile(cluster, X)

    def _get_estimator(self) -> Any:
        theirs = super()._get_estimator()
        return self._noting(**theirs.get_params(deep=False)) if hasattr(self, "_noting") else theirs

    def _number_of_rows(self, n: int) -> int:
        """Return the number of rows that are drawn for a tree."""
        if isinstance(self.max_samples, str):
            return min(256, n)
        if isinstance(self.max_samples, float):
            return int(self.max_samples * n)
        if self.max_samples > n:
            warnings.warn(
                f"max_samples ({self.max_samples}) is greater than the total number of samples ({n}). max_samples will "
                "be set to n_samples for estimation.",
                stacklevel=3,
            )
        return min(int(self.max_samples), n)

    def _note_lengths(self) -> None:
        """Keep the lengths of the ways to all nodes, as scikit-learn's `fit` does."""
        trees = [tree.tree_ for tree in self.estimators_]
        with ONE_AT_A_TIME:
            self._average_path_length_per_tree = tuple(_average_path_length(tree.n_node_samples) for tree in trees)
        self._decision_path_lengths = tuple(tree.compute_node_depths() for tree in trees)

    def _leaf_values(self, number: int, leaves: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        """Return the depths of leaves, with what the rows that came to each would add if they were separated."""
        depths: npt.NDArray[np.float64] = (
            self._decision_path_lengths[number][leaves] + self._average_path_length_per_tree[number][leaves] - 1.0
        )
        return depths[:, None]

    def _columns_of(self, number: int) -> npt.NDArray[np.intp] | None:
        return np.asarray(self.estimators_features_[number])

    @property
    def _unit(self) -> float:
        """The mean depth of rows that are no outliers; 0 if a tree has one row."""
        with ONE_AT_A_TIME:
            return float(_average_path_length([self._max_samples])[0])

    def _percentile(self, cluster: Ranks, X: Any) -> float:
        """Return the score below which the contamination's share of the rows is."""
        report = self.report_
        found = self._ask(
            cluster,
            "fit",
            "isolation.percentile",
            X,
            send_more=self._sending(cluster),
            unit=self._unit,
            share=100.0 * self.contamination,
        ).results[0]["percentile"]
        self.report_ = report
        return float(found)

    def score_samples(self, X: Any, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Return the opposite of the anomaly score of each row.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of float64 of shape (n_samples,)
            From -1 to 0; the lower, the more abnormal.

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
            return in_file(self.score_samples, X, out)
        check_is_fitted(self)
        if few_here(X, len(self.estimators_)):
            with ONE_AT_A_TIME:
                found: np.ndarray = super().score_samples(array_of(X))
            return found
        cluster = self._cluster()
        rows = self._checked(cluster, X, reset=False)
        depths = self._followed(cluster, "score_samples", rows, 1)[:, 0]
        unit = self._unit
        return -np.exp2(-depths / unit) if unit else np.full(len(depths), -0.5)
