"""`EmpiricalCovariance`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.covariance
from sklearn.covariance import log_likelihood
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context
from xpulab.checks import ONE_AT_A_TIME
from xpulab.covariance._products import about, root
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.blas import few_threads
from xpulab.estimator.proxy import Proxy
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.rows import in_float64
from xpulab.estimator.sending import Result
from xpulab.sharing.answers import Products

__all__ = ["EmpiricalCovariance"]


class EmpiricalCovariance(Proxy, sklearn.covariance.EmpiricalCovariance):
    """Maximum likelihood covariance, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.covariance.EmpiricalCovariance`, for any number of engines.
    A fit takes one pass over the rows for the means, and another one for the products of the centred columns. The
    partial sums of a few thousand rows are added up in float64.

    Parameters
    ----------
    store_precision : bool, default=True
        Whether to compute `precision_` in the fit.
    assume_centered : bool, default=False
        Whether the means are taken as 0.

    Attributes
    ----------
    location_ : ndarray of shape (n_features,), float64
        Means; zeros if `assume_centered`.
    covariance_ : ndarray of shape (n_features, n_features), float64
        Covariance of the columns.
    precision_ : ndarray of shape (n_features, n_features) or None
        Pseudo-inverse of the covariance; None if `store_precision` is False.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.covariance.EmpiricalCovariance : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.covariance import EmpiricalCovariance
    >>> with xpulab.XPUCluster(n=2):
    ...     EmpiricalCovariance().fit([[1, 1], [1, 3], [4, 1], [6, 8]]).covariance_
    array([[4.5   , 4.25  ],
           [4.25  , 8.1875]])
    """

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}
    covariance_: np.ndarray
    location_: np.ndarray
    n_features_in_: int

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether the estimator is fitted: an interrupted first fit sets only the number of columns."""
        return hasattr(self, "covariance_")

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None
    ) -> EmpiricalCovariance:
        """Compute the mean and the covariance of the columns.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves.
        y : None
            Ignored.

        Returns
        -------
        EmpiricalCovariance
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
        rows: Any = self._checked(cluster, X, reset=True)
        self._forget()
        with self._fitting(rows):
            self.location_, covariance = self._moments(cluster, "fit", rows)
            self._set_covariance(covariance)
        return self

    def score(self, X_test: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> float:
        """Return the mean log-likelihood of the rows under a Gaussian with the fitted mean and covariance.

        Parameters
        ----------
        X_test : array-like or ShardedArray of shape (n_samples, n_features)
        y : None
            Ignored.

        Returns
        -------
        float

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
        check_is_fitted(self)
        cluster = self._cluster()
        X = self._checked(cluster, X_test, reset=False)
        found: Products = self._ask(cluster, "score", "products", X, centre=True).results[0]["products"]
        covariance = about(self.location_, found.weight, found.mean, found.gram)
        return float(log_likelihood(covariance, self.get_precision()))

    def mahalanobis(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Return the squared Mahalanobis distance of each row from the mean.

        The engines multiply the rows by a square root of the precision matrix, in float64 if their devices have it.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples,), float64

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
            return in_file(self.mahalanobis, X, out)
        check_is_fitted(self)
        cluster = self._cluster()
        rows = in_float64(self._checked(cluster, X, reset=False), cluster)
        matrix = root(self.get_precision())
        shift = self.location_.astype(rows.dtype)
        offset = (shift - self.location_.astype(np.float64)) @ matrix  # the rounding error of the shift
        # The smallest numbers of a dtype have an inverse that is too large for it.
        unit = 2.0 ** max(int(np.frexp(np.abs(matrix).max())[1]) - np.finfo(rows.dtype).maxexp * 3 // 4, 0)
        distances = Result(None, np.float64)
        self._ask(
            cluster,
            "mahalanobis",
            "squared_lengths",
            rows,
            result=distances,
            matrix=(matrix / unit).astype(rows.dtype),
            shift=shift,
            offset=(offset / unit).astype(rows.dtype),
        )
        found: np.ndarray = distances.value
        return found if unit == 1 else found * unit * unit

    def _moments(self, cluster: Ranks, method: str, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the covariance of the columns.

        With `assume_centered` these are zeros and the mean products of the columns.

        In both cases the engines subtract the means before they multiply, because products of large numbers lose
        precision.
        """
        if X.shape[0] == 1 and method == "fit":
            warnings.warn("Only one sample available. You may want to reshape your data array", stacklevel=4)
        found: Products = self._ask(cluster, method, "products", X, centre=True).results[0]["products"]
        location = np.zeros(X.shape[1]) if self.assume_centered else found.mean
        return location, about(location, found.weight, found.mean, found.gram)

    def _set_covariance(self, covariance: np.ndarray) -> None:
        with ONE_AT_A_TIME, few_threads(len(covariance)):
            super()._set_covariance(covariance)

    def _forget(self) -> None:
        """Delete the attributes of an earlier fit, so that an interrupted fit leaves none."""
        for name in {"covariance_", "location_", "precision_"} & set(vars(self)):
            delattr(self, name)
