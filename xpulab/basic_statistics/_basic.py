"""`BasicStatistics` of scikit-learn-intelex on all engines of the active cluster."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator

from xpulab._sklearn import StrOptions, _fit_context
from xpulab.basic_statistics._statistics import OPTIONS, statistics
from xpulab.checks import check_array
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.proxy import Proxy
from xpulab.estimator.rows import FLOATS

__all__ = ["BasicStatistics"]


class BasicStatistics(Proxy, BaseEstimator):
    """Statistics of columns, on every device of the active cluster.

    Names of parameters and attributes are those of `sklearnex.basic_statistics.BasicStatistics`. Only the attributes
    in `result_options` are set. All statistics are computed in one pass over the rows.

    Parameters
    ----------
    result_options : str or list of str, default="all"
        The statistics to compute: "min", "max", "sum", "mean", "variance", "variation", "sum_squares",
        "standard_deviation", "sum_squares_centered", "second_order_raw_moment", a list of these, or "all".

    Attributes
    ----------
    min_, max_, sum_, mean_ : ndarray of shape (n_features,), float64
        Minimum, maximum, sum and mean of each column.
    variance_, standard_deviation_ : ndarray of shape (n_features,), float64
        Sample variance, with the divisor n_samples - 1, and its square root.
    variation_ : ndarray of shape (n_features,), float64
        Standard deviation divided by the mean; NaN if the mean is 0.
    sum_squares_, sum_squares_centered_ : ndarray of shape (n_features,), float64
        Sum of the squares, and of the squared differences from the mean.
    second_order_raw_moment_ : ndarray of shape (n_features,), float64
        Mean of the squares.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.basic_statistics import BasicStatistics
    >>> with xpulab.XPUCluster(n=2):
    ...     BasicStatistics(result_options=["sum", "min"]).fit([[1, 2], [3, 4]]).sum_
    array([4., 6.])
    """

    _one_d: ClassVar[bool] = True
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"result_options": [StrOptions({"all", *OPTIONS}), list]}

    def __init__(self, result_options: str | list[str] = "all") -> None:
        self.result_options = result_options

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether the estimator is fitted: an interrupted first fit sets only the number of columns."""
        return any(hasattr(self, f"{name}_") for name in OPTIONS)

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: Any, y: npt.ArrayLike | ShardedArray | None = None, sample_weight: npt.ArrayLike | None = None
    ) -> BasicStatistics:
        """Compute the statistics of each column.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features), or array-like of shape (n_samples,)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves. If X has one dimension, the statistics are numbers instead of arrays.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Factors by which the rows are multiplied, as in scikit-learn-intelex: the statistics are those of
            ``sample_weight[:, None] * X``.

        Returns
        -------
        BasicStatistics
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For NaN, infinity and sparse matrices, and for an unknown name in `result_options`.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        self._asked_for()
        one_d = (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) == 1
        flat = one_d and not getattr(X, "stays", False)  # the engines have a handle's rows in its shape
        if flat:
            numbers: Any = X if isinstance(X, ShardedArray) else check_array(X, ensure_2d=False, dtype=FLOATS)
            X = numbers.reshape(-1, 1)
        found = self._facts("fit", X, sample_weight, reset=True)
        self._show({name: value[0] for name, value in found.items()} if flat else found)
        return self

    def to_sklearn(self) -> Any:
        """Raise an error, because scikit-learn has no such estimator.

        Raises
        ------
        TypeError
            Always.
        """
        raise TypeError(
            f"scikit-learn has no {type(self).__name__}; its fitted attributes are NumPy arrays, and need no cluster"
        )

    def _asked_for(self) -> list[str]:
        """Return the names of the statistics in `result_options`."""
        options = self.result_options
        names = list(OPTIONS) if options in ("all", ["all"]) else [options] if isinstance(options, str) else options
        if unknown := [name for name in names if name not in OPTIONS]:
            raise ValueError(
                f"result_options has {', '.join(map(repr, unknown))}; expected 'all', or some of {', '.join(OPTIONS)}"
            )
        return list(names)

    def _facts(self, method: str, X: Any, sample_weight: Any, reset: bool) -> dict[str, np.ndarray]:
        """Return the moments of the columns, from the ranks."""
        cluster = current_ranks()
        X = self._checked(cluster, X, reset=reset)
        weights = self._weights(sample_weight, X, only_non_negative=False)
        if method == "fit":
            self._forget()
        with self._fitting(X, weights):
            answer = self._ask(cluster, method, "moments_of_weighted", X, sample_weight=weights)
            found: dict[str, np.ndarray] = vars(answer.results[0]["moments"])
        return found

    def _show(self, facts: dict[str, np.ndarray]) -> None:
        """Set the attributes in `result_options`."""
        found = statistics(facts)
        for name in self._asked_for():
            setattr(self, f"{name}_", found[name])

    def _forget(self) -> None:
        """Delete the attributes of an earlier fit, so that an interrupted fit leaves none."""
        for name in {f"{option}_" for option in OPTIONS} & set(vars(self)):
            delattr(self, name)
