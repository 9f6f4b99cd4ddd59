"""`PolynomialFeatures`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.preprocessing
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context
from xpulab.checks import ONE_AT_A_TIME
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.proxy import TransformerProxy
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.rows import FLOATS
from xpulab.scanning import scanned

__all__ = ["PolynomialFeatures"]


class PolynomialFeatures(TransformerProxy, sklearn.preprocessing.PolynomialFeatures):
    """Compute products of columns up to a degree, on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.preprocessing.PolynomialFeatures`, for any number of
    engines. A fit depends on the number of columns only, and sends no rows; of a memory-mapped array, the engines look
    for NaN and infinity. The hosts of the engines multiply the
    columns, some rows at a time.

    Parameters
    ----------
    degree : int or tuple (min_degree, max_degree), default=2
        Largest degree of a product, or the least and the largest.
    interaction_only : bool, default=False
        Whether each column is at most once in a product.
    include_bias : bool, default=True
        Whether the first column of the result is 1.
    order : {"C", "F"}, default="C"
        Order of the result in memory, if X is an array.

    Attributes
    ----------
    powers_ : ndarray of shape (`n_output_features_`, `n_features_in_`)
        The power of each column in each product.
    n_output_features_ : int
        Number of products.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.

    See Also
    --------
    sklearn.preprocessing.PolynomialFeatures : The same in one process; it takes sparse matrices too.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.preprocessing import PolynomialFeatures
    >>> with xpulab.XPUCluster(n=2):
    ...     PolynomialFeatures().fit_transform([[0, 1], [2, 3]])
    array([[1., 0., 1., 0., 0., 1.],
           [1., 2., 3., 4., 6., 9.]])
    """

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}
    _keeps: ClassVar[str] = "f"
    _later_rules: ClassVar[Mapping[str, Any]] = {"dtype": FLOATS}
    n_features_in_: int

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> PolynomialFeatures:
        """Find the products for the number of columns.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        y : None
            Ignored.

        Returns
        -------
        PolynomialFeatures
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, and for sparse matrices.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        cluster = current_ranks()
        rows: Any = self._checked(cluster, X, reset=True, look_now=True)
        if scanned(rows) is not None:  # the engines read the file, and refuse NaN and infinity
            self._ask(cluster, "fit", "moments", rows)
        with ONE_AT_A_TIME:
            plain = self.sklearn_class()(**self.get_params()).fit(np.zeros((1, rows.shape[1])))
        for name, value in vars(plain).items():
            setattr(self, name, value)
        return self

    def transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Compute the products, in the dtype of X.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, `n_output_features_`), of the dtype of X
            A `ShardedArray` if X is one; its rows stay on the engines.

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
        combinations = [
            tuple(map(int, factors))
            for factors in self._combinations(
                self.n_features_in_, self._min_degree, self._max_degree, self.interaction_only, self.include_bias
            )
        ]
        found = self._transformed(
            "transform", "columns.products", X, self.n_output_features_, combinations=combinations
        )
        return np.asfortranarray(found) if self.order == "F" and isinstance(found, np.ndarray) else found
