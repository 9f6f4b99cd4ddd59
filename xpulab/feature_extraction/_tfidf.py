"""`TfidfTransformer`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.feature_extraction.text
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context
from xpulab.checks import ONE_AT_A_TIME, array_of, place_named
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.proxy import TransformerProxy
from xpulab.scanning import Scan, read_here, scanned
from xpulab.sharing.answers import Frequencies

__all__ = ["TfidfTransformer"]


class TfidfTransformer(
    TransformerProxy,
    sklearn.feature_extraction.text.TfidfTransformer,
    auto_wrap_output_keys=None,  # sparse results are in no data frame
):
    """Counts of words, weighted by how few documents have them, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.feature_extraction.text.TfidfTransformer`, for any number
    of engines. A fit is one pass over the columns of the stored values.

    Parameters
    ----------
    norm : {"l1", "l2"} or None, default="l2"
        Norm of each row of the result.
    use_idf : bool, default=True
        Whether counts are multiplied by ``log(n_samples / document_frequency) + 1``.
    smooth_idf : bool, default=True
        Whether to count as if there were one more document that has every word.
    sublinear_tf : bool, default=False
        Whether a count x becomes ``log(x) + 1`` first.

    Attributes
    ----------
    idf_ : ndarray of shape (n_features,), of the dtype of X
        Factors of the columns; only with `use_idf`.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit; only with `use_idf`.

    See Also
    --------
    sklearn.feature_extraction.text.TfidfTransformer : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.feature_extraction.text import TfidfTransformer
    >>> from scipy.sparse import csr_matrix
    >>> with xpulab.XPUCluster(n=2):
    ...     TfidfTransformer(norm=None).fit_transform(csr_matrix([[2, 0], [1, 3]])).toarray().round(3)
    array([[2.   , 0.   ],
           [1.   , 4.216]])
    """

    _rules: ClassVar[Mapping[str, Any]] = {"accept_sparse": "csr", "dtype": "numeric"}

    idf_: npt.NDArray[Any]

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> TfidfTransformer:
        """Count in how many rows each column has a value.

        Parameters
        ----------
        X : sparse matrix, array-like or ShardedArray of shape (n_samples, n_features)
            Counts. float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by
            the engines themselves.
        y : None
            Ignored.

        Returns
        -------
        TfidfTransformer
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_ranks()
        rows: Any = self._checked(cluster, X, reset=True, look_now=not self.use_idf)
        if self.use_idf or scanned(rows) is not None:  # the engines read files, and refuse NaN and infinity
            with self._fitting(rows):
                found: Frequencies = self._ask(cluster, "fit", "frequencies", rows).results[0]
        if hasattr(self, "idf_"):
            del self.idf_
        if self.use_idf:
            frequency = found["counts"].astype(rows.dtype) + rows.dtype.type(self.smooth_idf)
            n_samples = np.full_like(frequency, rows.shape[0] + int(self.smooth_idf))
            self.idf_ = np.log(n_samples / frequency) + rows.dtype.type(1)
        return self

    def transform(self, X: npt.ArrayLike | ShardedArray, copy: bool = True) -> Any:
        """Weight the counts, and scale the rows to the norm.

        Parameters
        ----------
        X : sparse matrix, array-like or ShardedArray of shape (n_samples, n_features)
            Counts. This process weights those of arrays and sparse matrices itself: it takes less time than to send
            them.
        copy : bool, default=True
            Whether a CSR matrix of float32 or float64 stays as it is; otherwise it gets the result.

        Returns
        -------
        sparse matrix or ShardedCSR of shape (n_samples, n_features), of the dtype of X
            A `ShardedCSR` if X is a `ShardedArray`; its rows stay on the engines. Otherwise a CSR matrix.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If X is a `ShardedArray`, and no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        check_is_fitted(self)
        given: Any = X
        if isinstance(given, ShardedArray) and given.stays:
            return self._transformed(
                "transform", "scale_stored", given, as_sparse=True, logarithm=bool(self.sublinear_tf),
                factor=getattr(self, "idf_", None), norm=self.norm,
            )  # fmt: skip
        if isinstance(given, ShardedArray):  # a rank has passed its own rows
            own = self._checked(self._cluster(), given, reset=False).values
            return super().transform(own, copy) if len(own) else sparse.csr_matrix(own.shape, dtype=own.dtype)
        with ONE_AT_A_TIME, place_named(given):
            return super().transform(read_here(given) if isinstance(given, Scan) else array_of(given), copy)
