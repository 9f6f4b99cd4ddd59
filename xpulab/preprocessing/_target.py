"""`TargetEncoder`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.preprocessing
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from xpulab._sklearn import _fit_context
from xpulab.checks import ONE_AT_A_TIME, array_of, check_y, type_of_target
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.sending import Result
from xpulab.preprocessing._categories import CategoriesProxy, FromDistinct
from xpulab.scanning import Scan
from xpulab.sharing.answers import TargetSums
from xpulab.tables import coded

__all__ = ["TargetEncoder"]


class TargetEncoder(CategoriesProxy, sklearn.preprocessing.TargetEncoder):
    """Encode each category of a column by the mean of its targets, on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.preprocessing.TargetEncoder` for numbers, and for strings
    of tables: data frames, scans and handles with named columns. The engines add up the targets of each category, of
    all folds in one pass. This process needs the targets for the folds: those of handles and scans are read.

    Parameters
    ----------
    categories : "auto" or list of array-like, default="auto"
        The categories of each column, numbers in ascending order; with "auto", those of the fit.
    target_type : {"auto", "continuous", "binary", "multiclass"}, default="auto"
        What the targets are.
    smooth : "auto" or float, default="auto"
        How much the mean of a category is drawn to the mean of all targets; "auto" is an empirical Bayes estimate.
    cv : int or cross-validation generator, default=5
        The folds of `fit_transform`.
    shuffle : bool
        Whether `fit_transform` permutes the rows before it makes folds.
    random_state : int, RandomState instance or None
        For this permutation.

    Attributes
    ----------
    encodings_ : list of ndarray of shape (n_categories,)
        The numbers of the categories of each column, and of each class if there are more than two.
    categories_ : list of ndarray of shape (n_categories,)
        The categories of each column, in the dtype of the column.
    target_type_ : str
        What the targets are.
    target_mean_ : float or ndarray of shape (n_classes,)
        Mean of all targets.
    classes_ : ndarray of shape (n_classes,) or None
        The classes of targets that are labels.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.preprocessing.TargetEncoder : The same in one process.

    Examples
    --------
    >>> import pyarrow
    >>> import xpulab
    >>> from xpulab.preprocessing import TargetEncoder
    >>> with xpulab.XPUCluster(n=2) as c:
    ...     table = c.scatter(pyarrow.table({"carrier": ["DL", "AA", "DL", "AA"]}))
    ...     TargetEncoder(smooth=0.0).fit(table, [3.5, 1.0, 4.5, 2.0]).transform(table).gather().ravel()
    array([4. , 1.5, 4. , 1.5])
    """

    encodings_: list[npt.NDArray[Any]]
    target_mean_: Any
    target_type_: str
    classes_: Any

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray) -> TargetEncoder:
        """Find the categories of each column, and the mean of their targets.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Numbers, or a table with strings. NaN is a category. Files are read by the engines themselves.
        y : array-like or ShardedArray of shape (n_samples,)
            Numbers or labels.

        Returns
        -------
        TargetEncoder
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for sparse matrices, for objects that are no strings of a table, and
            for whole numbers of 2^53 or more.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        numbers = self._read_targets(X, y)
        self._fit_means(coded(X, current_ranks()), numbers, None)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def fit_transform(  # type: ignore[override]
        self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray, **params: Any
    ) -> npt.NDArray[Any] | ShardedArray:
        """Fit, and encode the rows of each fold by the means of the other folds.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        y : array-like or ShardedArray of shape (n_samples,)
        **params : dict
            As scikit-learn's method takes them, for the folds.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_features) or (n_samples, n_features * n_classes)
            A `ShardedArray` if X is one; its rows stay on the engines. Errors are those of `fit`.
        """
        labels = _here(y, self.target_type)
        numbers = self._read_targets(X, labels)
        folds = _Folds(**self.get_params(deep=False)).of(self, labels, numbers, params)
        X = coded(X, current_ranks())  # strings are looked for once, not in each pass
        encodings = self._fit_means(X, numbers, folds)
        return self._replaced("fit_transform", X, encodings, folds.numbers)

    def transform(
        self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None
    ) -> npt.NDArray[Any] | ShardedArray:
        """Encode rows.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_features) or (n_samples, n_features * n_classes)
            A `ShardedArray` of X's dtype if X is one; its rows stay on the engines.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if out is not None:
            return in_file(self.transform, X, out)
        check_is_fitted(self)
        means = np.atleast_1d(self.target_mean_)
        n = len(means)
        columns = [np.stack(self.encodings_[at : at + n], axis=1) for at in range(0, len(self.encodings_), n)]
        return self._replaced("transform", X, [[np.vstack([each, means]) for each in columns]], None)

    def _read_targets(self, X: Any, y: Any) -> npt.NDArray[np.float64]:
        """Set what follows from the targets, and return them as numbers (n_samples, 1 or n_classes)."""
        y = _here(y, self.target_type)
        n = X.shape[0] if hasattr(X := array_of(X), "shape") else len(X)
        check_consistent_length(np.empty((n, 0)), y)
        kind = self.target_type
        if kind == "auto":
            kind = type_of_target(y, input_name="y")
            if kind not in ("binary", "multiclass", "continuous"):
                raise ValueError(
                    f"Unknown label type: Target type was inferred to be {kind!r}. Only ('binary', 'multiclass', "
                    "'continuous') are supported."
                )
        self.target_type_, self.classes_ = kind, None
        if kind == "continuous":
            numbers = check_y(y, y_numeric=True, estimator=self).astype(np.float64)
        else:
            with ONE_AT_A_TIME:
                encoder = getattr(sklearn.preprocessing, "LabelEncoder" if kind == "binary" else "LabelBinarizer")()
                numbers = encoder.fit_transform(y).astype(np.float64)
            self.classes_ = encoder.classes_
        self.target_mean_ = np.mean(numbers, axis=0)
        return numbers.reshape(n, -1)

    def _fit_means(self, X: Any, numbers: npt.NDArray[np.float64], folds: _Folds | None) -> list[Any]:
        """Set the encodings of all rows; return those of the rows outside of each fold, with a mean at the end."""
        cluster = current_ranks()
        self._fit_categories(cluster, X, _settled)
        rows, categories, places = self._with_places(cluster, X)
        mean = np.atleast_1d(self.target_mean_)
        found: TargetSums = self._ask(
            cluster, "fit", "encoding.target_sums", rows, categories=categories, places=places,
            n_folds=1 if folds is None else folds.n_folds, middle=mean,
            send_more=lambda outgoing: {
                "numbers": outgoing.send(numbers),
                "folds": None if folds is None else outgoing.send(folds.numbers),
            },
        ).results[0]  # fmt: skip
        total = [each.sum(axis=0) for each in found["sums"]]
        whole = [_smoothed(each, mean, mean, numbers.var(axis=0), self.smooth) for each in total]
        self.encodings_ = [column for each in whole for column in each.T]
        if folds is None:
            return []
        return [
            [
                np.vstack(
                    [
                        _smoothed(of_all - column[fold], mean, folds.means[fold], variance, self.smooth),
                        folds.means[-1],  # scikit-learn gives unknown values of all folds that of the last
                    ]
                )
                for of_all, column in zip(total, found["sums"], strict=True)
            ]
            for fold, variance in enumerate(folds.variances(numbers))
        ]

    def _replaced(self, method: str, X: Any, encodings: list[Any], folds: npt.NDArray[Any] | None) -> Any:
        """Have the engines replace each value by the encodings of its category, those of the row's fold."""
        cluster = self._cluster()
        rows, categories, places = self._with_places(cluster, X)
        result = Result(
            sum(each.shape[1] for each in encodings[0]),
            rows.dtype if isinstance(rows, ShardedArray) else np.float64,
            rows=True,
            nan=False,
        )
        self._ask(
            cluster, method, "encoding.target_replace", rows, result=result, categories=categories, places=places,
            encodings=encodings,
            send_more=lambda outgoing: {"folds": None if folds is None else outgoing.send(folds)},
        )  # fmt: skip
        return result.value

    def _with_places(self, cluster: Ranks, X: Any) -> tuple[Any, list[Any], list[npt.NDArray[Any]]]:
        """Return checked rows, the numbers of the categories in them, and their places; the last is of unknown ones."""
        places = [np.arange(len(each) + 1, dtype=np.int32) for each in self.categories_]
        rows, categories, places = self._prepared(X, places)
        return self._checked(cluster, rows, reset=False), categories, places


class _Distinct(FromDistinct, sklearn.preprocessing.TargetEncoder):
    """scikit-learn's encoder, which gets the distinct values of each column, and no rows."""


def _settled(values: list[Any], counts: list[Any], n_samples: int, params: Mapping[str, Any]) -> _Distinct:
    """Check the categories against the distinct values, set the attributes that follow, and return the encoder."""
    plain = _Distinct(**params)
    plain.distinct = values, counts, n_samples
    plain._fit(np.zeros((1, len(values))), handle_unknown="ignore", ensure_all_finite="allow-nan")
    return plain


class _Folds(sklearn.preprocessing.TargetEncoder):
    """scikit-learn's encoder of a column of one category, which notes the folds that it makes.

    Attributes
    ----------
    numbers : numpy.ndarray of int32 of shape (n_samples,)
        The fold of each row.
    means : list of numpy.ndarray
        Mean of the targets outside of each fold.
    """

    numbers: npt.NDArray[np.int32]
    means: list[npt.NDArray[np.float64]]

    def of(self, like: TargetEncoder, y: Any, numbers: npt.NDArray[np.float64], params: Mapping[str, Any]) -> _Folds:
        """Make the folds, and return this object."""
        self.target_type_, self.classes_, self.n_features_in_ = like.target_type_, like.classes_, 1
        self._targets = numbers if like.target_type_ == "multiclass" else numbers[:, 0]
        self.numbers, self.means = np.zeros(len(numbers), np.int32), []
        self.fit_transform(np.zeros((len(numbers), 1)), y, **params)
        return self

    @property
    def n_folds(self) -> int:
        """How many there are."""
        return len(self.means)

    def variances(self, numbers: npt.NDArray[np.float64]) -> list[npt.NDArray[np.float64]]:
        """Return the variance of the targets outside of each fold."""
        return [numbers[self.numbers != fold].var(axis=0) for fold in range(self.n_folds)]

    def _fit_encodings_all(self, X: Any, y: object) -> tuple[Any, ...]:
        return np.zeros(X.shape, np.int64), np.ones(X.shape, bool), self._targets, np.array([1])

    def _transform_X_ordinal(self, X_out: object, X_ordinal: object, unknown: object, rows: Any, *others: Any) -> None:
        self.numbers[rows] = len(self.means)
        self.means.append(np.atleast_1d(others[1]))


def _here(y: Any, kind: str) -> Any:
    """Return targets of a kind in this process."""
    if isinstance(y, ShardedArray):
        found = y.gather()
        if kind != "continuous":
            y.require_exact(found)
        return y.labels(found)
    return y.read() if isinstance(y, Scan) else y


def _smoothed(
    sums: npt.NDArray[Any], middle: npt.NDArray[Any], mean: npt.NDArray[Any], variance: npt.NDArray[Any], smooth: Any
) -> npt.NDArray[Any]:
    """Return the encodings (n_categories, n_targets) from sums over the rows of each category.

    Parameters
    ----------
    sums : numpy.ndarray of shape (3, n_categories, n_targets)
        Numbers of rows, and sums of the targets less `middle` and of their squares.
    mean, variance : numpy.ndarray of shape (n_targets,)
        Of the targets of all these rows.
    smooth : "auto" or float
    """
    count, first, squares = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        means = first / count + middle
        if smooth != "auto":
            found = (smooth * mean + first + count * middle) / (smooth + count)
            return np.where(smooth + count == 0, mean, found)
        spread = np.maximum(squares - first**2 / count, 0) / count
        share = variance * count / (variance * count + spread)
        return np.where(np.isnan(share), mean, share * means + (1 - share) * mean)
