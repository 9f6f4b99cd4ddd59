"""`LabelEncoder`: scikit-learn's encoder of targets, for targets that the engines have or read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.preprocessing
from sklearn.utils.validation import check_is_fitted

from xpulab.calls import public_methods
from xpulab.checks import ONE_AT_A_TIME
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.deploy.tasks.answers import Answer
from xpulab.estimator.call import Call, Functions
from xpulab.estimator.sending import Result
from xpulab.scanning import Scan
from xpulab.sharing.answers import Encoded
from xpulab.sources.coded import codes_of, labels_of
from xpulab.tables import coded, columns_of_rows, refuse_rounded

__all__ = ["LabelEncoder"]


@public_methods("LabelEncoder.")
class LabelEncoder(sklearn.preprocessing.LabelEncoder):
    """Encode labels as the numbers from 0 to one less than the number of classes.

    Attributes and results are those of `sklearn.preprocessing.LabelEncoder`. The engines find and encode the labels of
    handles and of columns of scans, numbers or strings of tables; those of arrays stay in this process, where they are.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The distinct labels, in ascending order.

    See Also
    --------
    sklearn.preprocessing.LabelEncoder : The same in one process.

    Examples
    --------
    >>> import pyarrow
    >>> import xpulab
    >>> from xpulab.preprocessing import LabelEncoder
    >>> with xpulab.XPUCluster(n=2) as c:
    ...     table = c.scatter(pyarrow.table({"carrier": ["DL", "AA", "DL"]}))
    ...     encoder = LabelEncoder()
    ...     encoder.fit_transform(table["carrier"]).gather()
    array([1., 0., 1.])
    >>> encoder.classes_
    array(['AA', 'DL'], dtype=object)
    """

    classes_: npt.NDArray[Any]

    def fit(self, y: npt.ArrayLike | ShardedArray | Scan) -> LabelEncoder:
        """Find the classes.

        Parameters
        ----------
        y : array-like, ShardedArray or Scan of shape (n_samples,)

        Returns
        -------
        LabelEncoder
            This object, fitted.

        Raises
        ------
        ValueError
            For input that scikit-learn rejects, and for NaN in a handle.
        NoClusterError
            If y is a handle or a scan, and no cluster is running.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if not isinstance(y, ShardedArray | Scan):
            with ONE_AT_A_TIME:
                super().fit(y)
            return self
        cluster = current_ranks()
        column = _column(cluster, y)
        with Call(Functions("preprocessing"), "LabelEncoder.fit", column, cluster) as call:
            found: npt.NDArray[Any] = call.ask("labels.classes").results[0]["classes"]
        self.classes_ = _labels(column, found)
        return self

    def transform(self, y: npt.ArrayLike | ShardedArray | Scan) -> Any:
        """Encode labels.

        Parameters
        ----------
        y : array-like, ShardedArray or Scan of shape (n_samples,)

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples,)
            A `ShardedArray` of y's dtype if y is one; its rows stay on the engines.

        Raises
        ------
        NotFittedError
            If the encoder is not fitted.
        ValueError
            For labels that are no classes. Other errors are those of `fit`.
        """
        check_is_fitted(self)
        if not isinstance(y, ShardedArray | Scan):
            with ONE_AT_A_TIME:
                return super().transform(y)
        cluster = current_ranks()
        column = _column(cluster, y)
        if self.classes_.dtype.kind in "iu":
            refuse_rounded(columns_of_rows(column, 1)[0], self.classes_.astype(np.float64))
        result = Result(None, y.dtype if isinstance(y, ShardedArray) else np.int64, rows=True, nan=False)
        with Call(Functions("preprocessing"), "LabelEncoder.transform", column, cluster) as call:
            answer = call.ask(
                "encoding.encode",
                result=result,
                categories=[codes_of(columns_of_rows(column, 1)[0], self.classes_)],
                places=[np.append(np.arange(len(self.classes_)), -1).astype(np.float64)],
            )
        _require_known(column, answer)
        return result.value

    def fit_transform(self, y: npt.ArrayLike | ShardedArray | Scan) -> Any:
        """Find the classes, and encode the labels.

        Parameters
        ----------
        y : array-like, ShardedArray or Scan of shape (n_samples,)

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples,)
            As `transform`. Errors are those of `fit`.
        """
        return self.fit(y).transform(y)


def _column(cluster: Ranks, y: ShardedArray | Scan) -> Any:
    """Return one column of labels in the form that the engines take."""
    if y.ndim != 1:
        raise ValueError(f"y should be a 1d array, got a {type(y).__name__} of shape {y.shape} instead.")
    if isinstance(y, ShardedArray):
        y.source(cluster)
        y.require_finite("y")
        return y
    return coded(y, cluster)


def _labels(y: ShardedArray | Scan, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the labels for which numbers stand, in the dtype of their column."""
    column = columns_of_rows(y, 1)[0]
    refuse_rounded(column, numbers)
    if column.categories is None and column.numeric is not None:
        return numbers.astype(column.numeric)
    return labels_of(column, numbers)


def _require_known(y: ShardedArray | Scan, answer: Answer) -> None:
    found: Encoded = answer.results[0]
    if len(found["unknown"][0]):
        raise ValueError(f"y contains previously unseen labels: {_labels(y, found['unknown'][0]).tolist()}")
