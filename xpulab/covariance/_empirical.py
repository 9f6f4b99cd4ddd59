"""`EmpiricalCovariance`: scikit-learn's estimator, computed by all engines of the active cluster."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import sklearn.covariance
from sklearn.base import _fit_context
from sklearn.covariance import log_likelihood
from sklearn.utils.validation import check_is_fitted

from xpulab.covariance._products import about, root
from xpulab.deploy.cluster import XPUCluster, current_cluster
from xpulab.estimator.proxy import Proxy, Result

__all__ = ["EmpiricalCovariance"]


class EmpiricalCovariance(Proxy, sklearn.covariance.EmpiricalCovariance):
    """Maximum likelihood covariance, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.covariance.EmpiricalCovariance`, for any number of engines.
    A fit passes over the rows for their means, and once more for the products of the columns less their means, which
    are added in float64 from a few thousand rows on.

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
    precision_ : ndarray of shape (n_features, n_features) or None
        Pseudo-inverse of the covariance; None if `store_precision` is False.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only when the input has column names that are all strings.
    report_ : FitReport
        What ran where, and how long each phase took.

    See Also
    --------
    sklearn.covariance.EmpiricalCovariance : The same in one process.

    Examples
    --------
    >>> with xpulab.XPUCluster(n=2):  # doctest: +SKIP
    ...     EmpiricalCovariance().fit([[1, 1], [1, 3], [4, 1], [6, 8]]).covariance_
    """

    covariance_: np.ndarray
    location_: np.ndarray
    n_features_in_: int

    def __sklearn_is_fitted__(self) -> bool:
        """An interrupted first fit leaves the number of columns, and nothing else."""
        return hasattr(self, "covariance_")

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> EmpiricalCovariance:
        """Mean and covariance of the columns.

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
            For input that scikit-learn refuses too.
        HandleError
            For a `ShardedArray` whose rows are elsewhere or gone.
        EngineError, EngineLostError
            If an engine raised or ended.
        KeyboardInterrupt
            Nothing is fitted then.
        """
        cluster = current_cluster()
        X = self._checked(cluster, X, reset=True)
        self._forget()
        with self._fitting(X):
            self.location_, covariance = self._moments(cluster, "fit", X)
            self._set_covariance(covariance)
        return self

    def score(self, X_test: Any, y: Any = None) -> float:
        """Log-likelihood of rows under the Gaussian of this mean and covariance; of a row, on average.

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
        NotFittedError, NoClusterError, ValueError, TypeError, HandleError
        """
        check_is_fitted(self)
        cluster = self._cluster()
        X = self._checked(cluster, X_test, reset=False)
        found = self._ask(cluster, "score", "products", X, centre=True).results[0]["products"]
        covariance = about(self.location_, found["weight"], found["mean"], found["gram"])
        return float(log_likelihood(covariance, self.get_precision()))

    def mahalanobis(self, X: Any) -> np.ndarray:
        """Squared Mahalanobis distance of each row from the mean.

        The engines multiply the rows by a root of the precision, in the dtype of X.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,), float64

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, TypeError, HandleError
        """
        check_is_fitted(self)
        cluster = self._cluster()
        X = self._checked(cluster, X, reset=False)
        matrix = root(self.get_precision())
        shift = self.location_.astype(X.dtype)
        offset = (shift - self.location_.astype(np.float64)) @ matrix  # what the rounding of the shift leaves
        distances = Result(None, np.float64)
        self._ask(
            cluster,
            "mahalanobis",
            "squared_lengths",
            X,
            result=distances,
            matrix=matrix.astype(X.dtype),
            shift=shift,
            offset=offset.astype(X.dtype),
        )
        found: np.ndarray = distances.value
        return found

    def _moments(self, cluster: XPUCluster, method: str, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of the columns; zeros, and their mean products, if `assume_centered`.

        The engines subtract the means before they multiply, whichever it is: products of large numbers are not precise.
        """
        if X.shape[0] == 1 and method == "fit":
            warnings.warn("Only one sample available. You may want to reshape your data array", stacklevel=4)
        found = self._ask(cluster, method, "products", X, centre=True).results[0]["products"]
        location = np.zeros(X.shape[1]) if self.assume_centered else found["mean"]
        return location, about(location, found["weight"], found["mean"], found["gram"])

    def _forget(self) -> None:
        """What an earlier fit has set: an interrupted one leaves nothing."""
        for name in {"covariance_", "location_", "precision_"} & set(vars(self)):
            delattr(self, name)
