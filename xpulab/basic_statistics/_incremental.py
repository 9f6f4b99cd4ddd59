"""`IncrementalBasicStatistics` of scikit-learn-intelex on all engines of the active cluster."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from xpulab._sklearn import Interval, _fit_context
from xpulab.basic_statistics._basic import BasicStatistics
from xpulab.basic_statistics._statistics import joined
from xpulab.data import ShardedArray

__all__ = ["IncrementalBasicStatistics"]


class IncrementalBasicStatistics(BasicStatistics):
    """Statistics of columns, for rows that arrive in batches, on every device of the active cluster.

    Names of parameters and attributes are those of `sklearnex.basic_statistics.IncrementalBasicStatistics`.

    Parameters
    ----------
    result_options : str or list of str, default="all"
        The statistics to compute, as for `BasicStatistics`.
    batch_size : int or None, default=None
        Accepted for compatibility with scikit-learn-intelex. It sets `batch_size_`, with ``5 * n_features`` for None.
        `fit` reads all rows at once, which needs no more memory, and gives the same result.

    Attributes
    ----------
    min_, max_, sum_, mean_, variance_, standard_deviation_, variation_, sum_squares_, sum_squares_centered_, \
second_order_raw_moment_ : ndarray of shape (n_features,), float64
        The statistics of `BasicStatistics`.
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
    >>> from xpulab.basic_statistics import IncrementalBasicStatistics
    >>> statistics = IncrementalBasicStatistics()
    >>> with xpulab.XPUCluster(n=2):
    ...     for part in ([[1, 2], [3, 4]], [[5, 6]]):
    ...         statistics = statistics.partial_fit(part)
    >>> statistics.sum_
    array([ 9., 12.])
    """

    _one_d: ClassVar[bool] = False
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BasicStatistics._parameter_constraints,
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
    }

    n_samples_seen_: int
    n_features_in_: int
    #: The moments of all rows so far, from which the attributes are computed.
    _seen: dict[str, np.ndarray]

    def __init__(self, result_options: str | list[str] = "all", batch_size: int | None = None) -> None:
        super().__init__(result_options)
        self.batch_size = batch_size

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> IncrementalBasicStatistics:
        """Compute the statistics of these rows, and forget all earlier rows.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Factors by which the rows are multiplied, as in scikit-learn-intelex.

        Returns
        -------
        IncrementalBasicStatistics
            This object, fitted.

        Raises
        ------
        NoClusterError, ValueError, TypeError, HandleError, EngineError, EngineLostError, KeyboardInterrupt
            As `BasicStatistics.fit`.
        """
        self._see("fit", X, sample_weight)
        self.batch_size_ = self.batch_size or 5 * self.n_features_in_
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: npt.ArrayLike | ShardedArray, sample_weight: npt.ArrayLike | None = None, check_input: bool = True
    ) -> IncrementalBasicStatistics:
        """Add rows to the statistics. If the call is interrupted, the statistics stay as they were.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        sample_weight : array-like of shape (n_samples,), optional
            Factors of the rows, as in `fit`.
        check_input : bool, default=True
            Accepted for compatibility with scikit-learn-intelex: X is always checked.

        Returns
        -------
        IncrementalBasicStatistics
            This object.

        Raises
        ------
        NoClusterError, ValueError, TypeError, HandleError, EngineError, EngineLostError, KeyboardInterrupt
            As `fit`.
        """
        return self._see("partial_fit", X, sample_weight)

    def _see(self, method: str, X: Any, sample_weight: Any) -> IncrementalBasicStatistics:
        self._asked_for()
        first = method == "fit" or not hasattr(self, "_seen")
        found = self._facts(method, X, sample_weight, reset=first)
        self._have(found if first else joined(self._seen, found))
        return self

    def _have(self, facts: dict[str, np.ndarray]) -> None:
        self._seen = facts
        self.n_samples_seen_ = int(facts["count"][0])
        self._show(facts)

    def _absorb(self, others: Sequence[Any]) -> None:
        """Add the rows that other estimators have seen."""
        seen = [self._seen] if hasattr(self, "_seen") else []
        self._have(functools.reduce(joined, [*seen, *(each._seen for each in others)]))

    def _forget(self) -> None:
        super()._forget()
        if "_seen" in vars(self):
            del self._seen
