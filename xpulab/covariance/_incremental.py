"""`IncrementalEmpiricalCovariance` of scikit-learn-intelex on all engines of the active cluster."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.covariance
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import Interval, _fit_context
from xpulab.covariance._empirical import EmpiricalCovariance
from xpulab.covariance._products import joined
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks

__all__ = ["IncrementalEmpiricalCovariance"]


class IncrementalEmpiricalCovariance(EmpiricalCovariance):
    """Maximum likelihood covariance of rows that arrive in batches, on every device of the active cluster.

    Names of parameters and attributes are those of `sklearnex.covariance.IncrementalEmpiricalCovariance`. Means and
    covariances of the batches are kept and merged in float64.

    Parameters
    ----------
    store_precision : bool, default=False
        Whether to compute `precision_` in each fit.
    assume_centered : bool, default=False
        Whether the means are taken as 0.
    batch_size : int or None, default=None
        Accepted for compatibility with scikit-learn-intelex. It sets `batch_size_`, with ``5 * n_features`` for None.
        `fit` reads all rows at once, which needs no more memory, and gives the same result.
    copy : bool, default=True
        Accepted for compatibility with scikit-learn-intelex: the input is never changed.

    Attributes
    ----------
    location_ : ndarray of shape (n_features,), float64
        Means; zeros if `assume_centered`.
    covariance_ : ndarray of shape (n_features, n_features), float64
        Covariance of the columns.
    precision_ : ndarray of shape (n_features, n_features) or None
        Pseudo-inverse of the covariance; None if `store_precision` is False.
    n_samples_seen_ : int
        Number of rows.
    batch_size_ : int
        Number of rows of a batch; only after `fit`.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.covariance import IncrementalEmpiricalCovariance
    >>> covariance = IncrementalEmpiricalCovariance()
    >>> with xpulab.XPUCluster(n=2):
    ...     for part in ([[1, 1], [1, 3]], [[4, 1], [6, 8]]):
    ...         covariance = covariance.partial_fit(part)
    >>> covariance.covariance_
    array([[4.5   , 4.25  ],
           [4.25  , 8.1875]])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **sklearn.covariance.EmpiricalCovariance._parameter_constraints,
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "copy": ["boolean"],
    }

    n_samples_seen_: int

    def __init__(
        self,
        *,
        store_precision: bool = False,
        assume_centered: bool = False,
        batch_size: int | None = None,
        copy: bool = True,
    ) -> None:
        super().__init__(store_precision=store_precision, assume_centered=assume_centered)
        self.batch_size = batch_size
        self.copy = copy

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None
    ) -> IncrementalEmpiricalCovariance:
        """Compute the mean and the covariance of these rows, and forget all earlier rows.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves.
        y : None
            Ignored.

        Returns
        -------
        IncrementalEmpiricalCovariance
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
        self._forget()
        self._see("fit", X)
        self.batch_size_ = self.batch_size or 5 * self.n_features_in_
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None, check_input: bool = True
    ) -> IncrementalEmpiricalCovariance:
        """Add rows to the mean and the covariance. If the call is interrupted, both stay as they were.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        y : None
            Ignored.
        check_input : bool, default=True
            Accepted for compatibility with scikit-learn-intelex: X is always checked.

        Returns
        -------
        IncrementalEmpiricalCovariance
            This object.

        Raises
        ------
        NoClusterError, ValueError, TypeError, HandleError, EngineError, EngineLostError, KeyboardInterrupt
            As `fit`.
        """
        return self._see("partial_fit", X)

    def to_sklearn(self) -> sklearn.covariance.EmpiricalCovariance:
        """Return a `sklearn.covariance.EmpiricalCovariance` with this mean and covariance, which needs no cluster.

        Returns
        -------
        sklearn.covariance.EmpiricalCovariance

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        """
        check_is_fitted(self)
        plain = sklearn.covariance.EmpiricalCovariance(
            store_precision=self.store_precision, assume_centered=self.assume_centered
        )
        for name in ("location_", "covariance_", "precision_", "n_features_in_", "feature_names_in_"):
            if hasattr(self, name):
                setattr(plain, name, getattr(self, name))
        return plain

    def _see(self, method: str, X: Any) -> IncrementalEmpiricalCovariance:
        cluster = current_ranks()
        first = not hasattr(self, "covariance_")
        X = self._checked(cluster, X, reset=first)
        with self._fitting(X):
            location, covariance = self._moments(cluster, method, X)
            self._add(X.shape[0], location, covariance)
        return self

    def _add(self, n_samples: int, location: np.ndarray, covariance: np.ndarray) -> None:
        """Add rows with this mean and covariance."""
        n = self.n_samples_seen_ if hasattr(self, "covariance_") else 0
        if n:
            location, covariance = joined(n, self.location_, self.covariance_, n_samples, location, covariance)
        self.n_samples_seen_ = n + n_samples
        self.location_ = location
        self._set_covariance(covariance)

    def _absorb(self, others: Sequence[Any]) -> None:
        """Add the rows that other estimators have seen."""
        for each in others:
            self._add(each.n_samples_seen_, each.location_, each.covariance_)
