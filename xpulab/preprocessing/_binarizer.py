"""`Binarizer`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy.typing as npt
import sklearn.preprocessing

from xpulab.data import ShardedArray
from xpulab.estimator.results_in_files import in_file
from xpulab.preprocessing._row_wise import RowWise

__all__ = ["Binarizer"]


class Binarizer(RowWise, sklearn.preprocessing.Binarizer):
    """Replace each number by 1 if it is above a threshold, and by 0 otherwise, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.preprocessing.Binarizer`, for any number of engines. A fit
    sends no rows.

    Parameters
    ----------
    threshold : float, default=0.0
        In the dtype of X, as in scikit-learn.
    copy : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.

    Attributes
    ----------
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.

    See Also
    --------
    sklearn.preprocessing.Binarizer : The same in one process; it takes sparse matrices too.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.preprocessing import Binarizer
    >>> with xpulab.XPUCluster(n=2):
    ...     Binarizer(threshold=1).fit_transform([[1.0, -1.0, 2.0], [2.0, 0.0, 0.0]])
    array([[0., 0., 1.],
           [1., 0., 0.]])
    """

    _keeps: ClassVar[str] = "fbiu"

    def transform(
        self, X: npt.ArrayLike | ShardedArray, copy: bool | None = None, out: str | os.PathLike[str] | None = None
    ) -> Any:
        """Compare each number with the threshold.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        copy : bool, optional
            Accepted for compatibility with scikit-learn.
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_features), of the dtype of X
            1 and 0. A `ShardedArray` if X is one; its rows stay on the engines.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, and for sparse matrices.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if out is not None:
            return in_file(self.transform, X, out)
        return self._transformed("transform", "binarise", X, threshold=float(self.threshold))
