"""`KBinsDiscretizer`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.preprocessing
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context, rows_of_bins
from xpulab.checks import ONE_AT_A_TIME
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.parts import or_drawn
from xpulab.estimator.proxy import TransformerProxy
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.rows import FLOATS
from xpulab.preprocessing._sparse import as_csr, require_dense_output
from xpulab.scanning import scanned
from xpulab.sharing.answers import BinEdges

__all__ = ["KBinsDiscretizer"]


class KBinsDiscretizer(TransformerProxy, sklearn.preprocessing.KBinsDiscretizer):
    """Replace each number by the bin of its column in which it is, on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.preprocessing.KBinsDiscretizer`, for any number of engines.
    The engines take turns: each gets all numbers of a column, whose bins scikit-learn finds. The hosts of the engines
    then look the numbers up, some rows at a time. `inverse_transform` takes arrays, and this process computes it.

    Parameters
    ----------
    n_bins : int or array-like of shape (n_features,), default=5
        Number of bins of each column, at least 2.
    encode : {"onehot", "onehot-dense", "ordinal"}, default="onehot"
        A column of 0 and 1 for each bin, in a CSR matrix or in rows, or the number of the bin.
    strategy : {"uniform", "quantile", "kmeans"}, default="quantile"
        Bins of the same width, bins with the same number of rows, or those of k-means of the column.
    quantile_method : str
        How quantiles are computed, as in `numpy.percentile`; since scikit-learn 1.7.
    dtype : {numpy.float32, numpy.float64}, optional
        The dtype of the result, by default that of the input.
    subsample : int or None, default=200_000
        Number of rows that a fit draws; None for all rows.
    random_state : int, RandomState instance or None, default=None
        Determines which rows are drawn. They are those that scikit-learn draws.

    Attributes
    ----------
    bin_edges_ : ndarray of shape (n_features,) of arrays of shape (`n_bins_` + 1,)
        The edges of the bins of each column.
    n_bins_ : ndarray of shape (n_features,)
        Number of bins of each column, without those that were too narrow.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.preprocessing.KBinsDiscretizer : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.preprocessing import KBinsDiscretizer
    >>> with xpulab.XPUCluster(n=2):
    ...     KBinsDiscretizer(3, encode="ordinal", strategy="uniform").fit_transform([[-2, 1], [-1, 2], [0, 3], [1, 4]])
    array([[0., 0.],
           [1., 1.],
           [2., 2.],
           [2., 2.]])
    """

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}
    _later_rules: ClassVar[Mapping[str, Any]] = {"dtype": FLOATS}
    n_features_in_: int
    _encoder: sklearn.preprocessing.OneHotEncoder

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: npt.ArrayLike | ShardedArray, y: None = None, sample_weight: npt.ArrayLike | None = None
    ) -> KBinsDiscretizer:
        """Find the bins of each column.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.

        Returns
        -------
        KBinsDiscretizer
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, and for sparse matrices.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_ranks()
        rows: Any = self._checked(cluster, X, reset=True)
        weights: Any = self._weights(sample_weight, rows, only_non_negative=False)
        n_bins = self._validate_n_bins(rows.shape[1])
        how = {name: value for name, value in self.get_params().items() if name in ("strategy", "quantile_method")}
        with ONE_AT_A_TIME:  # refuse parameters before rows are sent
            few = self.sklearn_class()(2, encode="ordinal", subsample=None, **how)
            few.fit([[0.0], [1.0]], sample_weight=None if weights is None else [1, 1])
        every = weights.gather() if isinstance(weights, ShardedArray) else weights
        chosen, weighted = rows_of_bins(self, rows.shape[0], every)
        if chosen is None and self.subsample is not None and scanned(rows) is not None:
            chosen = np.arange(rows.shape[0])  # so few rows are taken in a pass
        with self._fitting(rows, weights), or_drawn("subsample=200_000" if self.subsample is None else None):
            edges_of: BinEdges = self._ask(
                cluster, "fit", "bins.edges", rows, sample_weight=weights if weighted else None, chosen=chosen,
                n_bins=n_bins, how=how, at_once=chosen is None,
            ).results[0]  # fmt: skip
            found = edges_of["columns"]
            for column, (_, said) in enumerate(found):
                for category, message in said:
                    warnings.warn(message.replace("eature 0 ", f"eature {column} "), category, stacklevel=3)
            edges = np.empty(len(found), object)
            edges[:] = [each for each, _ in found]
            self._settle(edges, rows.dtype)
        return self

    def _settle(self, edges: npt.NDArray[Any], dtype: Any) -> None:
        """Set the fitted attributes, as scikit-learn does."""
        self.bin_edges_, self.n_bins_ = edges, np.array([len(each) - 1 for each in edges])
        if hasattr(self, "_encoder"):
            del self._encoder
        if self.encode != "ordinal":
            self._encoder = sklearn.preprocessing.OneHotEncoder(
                categories=[np.arange(n) for n in self.n_bins_],
                sparse_output=self.encode == "onehot",
                dtype=dtype if self.dtype is None else self.dtype,
            )
            with ONE_AT_A_TIME:
                self._encoder.fit(np.zeros((1, len(edges))))

    def transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Find the bin of each number.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray, sparse matrix or ShardedArray of shape (n_samples, n_features or the number of all bins)
            A `ShardedArray` if X is one; its rows stay on the engines, which have dense rows. Of an array, a CSR
            matrix with ``encode="onehot"``.

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
        sparse_output = self.encode == "onehot" and not (isinstance(X, ShardedArray) and X.stays)
        require_dense_output(self, "encode='onehot'" if sparse_output else "", "encode='onehot-dense'")
        dtype = np.dtype(self.dtype or getattr(X, "dtype", float))
        dtype = dtype if dtype in (np.float32, np.float64) else np.dtype(float)
        ordinal, n_columns = self.encode == "ordinal", int(self.n_bins_.sum())
        first = np.concatenate([[0], np.cumsum(self.n_bins_)[:-1]]) * (not ordinal)
        n_encoded = None if ordinal or sparse_output else n_columns
        found = self._transformed(
            "transform", "bins.find", X, n_encoded, dtype=np.int32 if sparse_output else dtype,
            edges=list(self.bin_edges_), compared=dtype.str, first=first, n_encoded=n_encoded,
        )  # fmt: skip
        return as_csr(found, n_columns, dtype) if sparse_output else found
