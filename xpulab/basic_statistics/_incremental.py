"""`IncrementalBasicStatistics`: that of scikit-learn-intelex, computed by all engines of the active cluster."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn.base import _fit_context
from sklearn.utils._param_validation import Interval

from xpulab.basic_statistics._basic import BasicStatistics
from xpulab.basic_statistics._statistics import joined

__all__ = ["IncrementalBasicStatistics"]


class IncrementalBasicStatistics(BasicStatistics):
    """Statistics of columns whose rows come in parts, on every device of the active cluster.

    Names of parameters and attributes are those of `sklearnex.basic_statistics.IncrementalBasicStatistics`.

    Parameters
    ----------
    result_options : str or list of str, default="all"
        As of `BasicStatistics`.
    batch_size : int or None, default=None
        Accepted for scikit-learn-intelex's sake, and told in `batch_size_`; None is ``5 * n_features``. `fit` takes all
        rows at once: it needs no more memory for that, and the result is the same.

    Attributes
    ----------
    min_, max_, sum_, mean_, variance_, standard_deviation_, variation_, sum_squares_, sum_squares_centered_, \
second_order_raw_moment_ : ndarray of shape (n_features,), float64
        As of `BasicStatistics`.
    n_samples_seen_ : int
        Rows.
    batch_size_ : int
        Set by `fit`.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only when the input has column names that are all strings.
    report_ : FitReport
        What ran where, and how long each phase took.

    Examples
    --------
    >>> with xpulab.XPUCluster(n=2):  # doctest: +SKIP
    ...     statistics = IncrementalBasicStatistics()
    ...     for part in parts:
    ...         statistics.partial_fit(part)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BasicStatistics._parameter_constraints,
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
    }

    n_samples_seen_: int
    n_features_in_: int
    #: The moments of all rows so far, of which the attributes are made.
    _seen: dict[str, np.ndarray]

    def __init__(self, result_options: str | list[str] = "all", batch_size: int | None = None) -> None:
        super().__init__(result_options)
        self.batch_size = batch_size

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> IncrementalBasicStatistics:
        """Statistics of each column of these rows alone.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            What the rows are multiplied by, as in scikit-learn-intelex.

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
        self, X: Any, y: Any = None, sample_weight: Any = None, check_input: bool = True
    ) -> IncrementalBasicStatistics:
        """Take more rows into the statistics; after an interrupt they are as they were before.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        y : None
            Ignored; scikit-learn expects it in this place.
        sample_weight : array-like of shape (n_samples,), optional
        check_input : bool, default=True
            Accepted for scikit-learn-intelex's sake: X is checked, whichever it is.

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
        self._seen = found if first else joined(self._seen, found)
        self.n_samples_seen_ = int(self._seen["count"][0])
        self._show(self._seen)
        return self

    def _forget(self) -> None:
        super()._forget()
        if "_seen" in vars(self):
            del self._seen
