"""`IncrementalLinearRegression` and `IncrementalRidge` of sklearnex: least squares over batches of rows."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.linear_model
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import gen_batches
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import Interval, _fit_context
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.columns import ScannedColumn
from xpulab.linear_model._fitted import Triangle, shortest
from xpulab.linear_model._proxy import LinearProxy

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["IncrementalLinearRegression", "IncrementalRidge"]

_SENT = 64 << 20  # largest number of bytes of rows that are sent at once, if no batch size is given


class _Incremental(LinearProxy, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Base class of both estimators. It merges the `Triangle` of all rows so far with the triangle of each batch."""

    _own = ("report_", "batch_size_", "n_samples_seen_", "_triangle", "_n_targets", "n_jobs", "batch_size")

    n_features_in_: int
    _triangle: Triangle | None = None

    def _penalty(self) -> float:
        return 0.0

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any) -> Self:
        """Fit the model with all rows, some batches at a time, and forget all earlier rows.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            The rows of a handle are one batch, because they are on the engines already.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_targets)

        Returns
        -------
        object
            This estimator, fitted.

        Raises
        ------
        NoClusterError, ValueError, TypeError, HandleError, EngineError, EngineLostError, KeyboardInterrupt
            As `LinearRegression.fit`.
        """
        cluster = current_ranks()
        X, y, _ = self._read(cluster, X, y, None)
        self.batch_size_ = self.batch_size or 5 * X.shape[1]
        triangle = None
        with self._fitting(X):
            for batch in self._batches(X, y):
                some = X[batch] if batch else X
                right = y.part(batch, some) if isinstance(y, ScannedColumn) else y[batch] if batch else y
                triangle = self._with(triangle, cluster, "fit", some, right)
            assert triangle is not None
            self.n_samples_seen_ = X.shape[0]
            self._keep(triangle, X, y)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, check_input: bool = True) -> Self:
        """Fit the model with these rows, as one batch, and with the rows of earlier calls.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_targets)
        check_input : bool, default=True
            Accepted for compatibility with sklearnex: the input is always checked.

        Returns
        -------
        object
            This estimator, fitted.

        Raises
        ------
        NoClusterError, ValueError, TypeError, HandleError, EngineError, EngineLostError, KeyboardInterrupt
            As `LinearRegression.fit`. The estimator then stays as it was.
        """
        cluster = current_ranks()
        before = self._triangle
        X, y, _ = self._read(cluster, X, y, None, reset=before is None)
        shape = y.shape[1:]
        if before is not None and shape != self._n_targets:
            raise ValueError(f"y has targets of shape {shape}; earlier batches had targets of shape {self._n_targets}")
        with self._fitting(X):
            triangle = self._with(before, cluster, "partial_fit", X, y)
            self.n_samples_seen_ = X.shape[0] + (0 if before is None else self.n_samples_seen_)
            self._keep(triangle, X, y)
        return self

    def _batches(self, X: Any, y: Any) -> list[slice | None]:
        """Return slices of the rows that are sent at once; None stands for all rows."""
        if isinstance(X, ShardedArray) or (isinstance(y, ShardedArray) and not isinstance(y, ScannedColumn)):
            return [None]
        size = self.batch_size_
        if self.batch_size is None:
            size *= max(1, _SENT // (size * X.shape[1] * X.dtype.itemsize))
        return list(gen_batches(X.shape[0], size))

    def _with(self, before: Triangle | None, cluster: Ranks, method: str, X: Any, y: Any) -> Triangle:
        """Return the triangle of the earlier rows and these rows."""
        if self.fit_intercept:
            shift = None if before is None else before.shift
            result = self._ask(cluster, method, "shifted_triangle", X, y=y, shift=shift).results[0]
        else:
            result = self._ask(cluster, method, "triangular", X, y=y, centre=False).results[0]
        return Triangle(result["r"], result.get("shift")) if before is None else before.merged(result["r"])

    def _absorb(self, others: Sequence[Any]) -> None:
        """Add the rows that other estimators have seen."""
        triangles = [each._triangle for each in (self, *others) if each._triangle is not None]
        self.n_samples_seen_ = getattr(self, "n_samples_seen_", 0) + sum(each.n_samples_seen_ for each in others)
        X, y = np.empty((0, self.n_features_in_), others[0].coef_.dtype), np.empty((0, *others[0]._n_targets))
        self._keep(functools.reduce(Triangle.joined, triangles), X, y)

    def _keep(self, triangle: Triangle, X: Any, y: Any) -> None:
        self._triangle, self._n_targets = triangle, y.shape[1:]
        n = X.shape[1]
        r, mean = triangle.centred()
        penalties = np.full(len(mean) - n, self._penalty())
        coef, _, _ = shortest(r[:n, :n], r[:n, n:], penalties, n * np.finfo(np.float64).eps)
        self._set_line(coef, mean[:n], mean[n:], y, X.dtype)

    def predict(  # type: ignore[override]  # sklearnex has y in the second position
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray | None = None,
        out: str | os.PathLike[str] | None = None,
    ) -> np.ndarray:
        """Predict targets with the linear model.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        y : None
            Ignored; sklearnex has an argument in this position.
        out : path-like, optional
            File for the result, as in `LinearRegression.predict`.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_targets), of the dtype of X

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `LinearRegression.predict`.
        """
        return super().predict(X, out)

    def _plain(self) -> Any:
        raise NotImplementedError

    def to_sklearn(self) -> Any:
        """Return scikit-learn's estimator with the same parameters and fitted attributes. It needs no cluster.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        """
        check_is_fitted(self)
        plain = self._plain()
        for name in ("coef_", "intercept_", "n_features_in_", "feature_names_in_"):
            if hasattr(self, name):
                setattr(plain, name, getattr(self, name))
        return plain


class IncrementalLinearRegression(_Incremental):
    """Ordinary least squares over batches of rows, on every device of the active cluster.

    Names and attributes are those of `sklearnex.linear_model.IncrementalLinearRegression`. Between batches the
    estimator keeps a triangle of a QR factorization, rather than products of columns. Therefore ill-conditioned columns
    lose no more digits than in one fit of all rows. With fewer rows than columns, the coefficients have minimal norm.

    Parameters
    ----------
    fit_intercept : bool, default=True
        Whether the columns and the targets are centred.
    copy_X : bool, default=True
        Accepted for compatibility with sklearnex: the input is never changed.
    n_jobs : int, default=None
        Accepted and ignored: all engines compute.
    batch_size : int, default=None
        Number of rows that `fit` sends at once. By default `batch_size_` is ``5 * n_features``, and `fit` sends as many
        such batches at once as fit into 64 MiB. The result is the same.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients of the columns.
    intercept_ : float or ndarray of shape (n_targets,)
        Constant term; one for each target.
    n_samples_seen_ : int
        Number of rows of all batches.
    batch_size_ : int
        Number of rows of a batch; only after `fit`.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        Report on the last batch.

    See Also
    --------
    LinearRegression : All rows at once.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "fit_intercept": ["boolean"],
        "copy_X": ["boolean"],
        "n_jobs": [Interval(Integral, -1, None, closed="left"), None],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
    }

    def __init__(
        self,
        *,
        fit_intercept: bool = True,
        copy_X: bool = True,
        n_jobs: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.fit_intercept = fit_intercept
        self.copy_X = copy_X
        self.n_jobs = n_jobs
        self.batch_size = batch_size

    def _plain(self) -> Any:
        return sklearn.linear_model.LinearRegression(fit_intercept=self.fit_intercept, copy_X=self.copy_X)


class IncrementalRidge(_Incremental):
    """Least squares with a penalty on squared coefficients, over batches of rows, on every device of the cluster.

    Names and attributes are those of `sklearnex.linear_model.IncrementalRidge`. `IncrementalLinearRegression` describes
    the computation.

    Parameters
    ----------
    fit_intercept : bool, default=True
        Whether the columns and the targets are centred.
    alpha : float, default=1.0
        The penalty, not negative.
    copy_X : bool, default=True
        Accepted for compatibility with sklearnex: the input is never changed.
    n_jobs : int, default=None
        Accepted and ignored: all engines compute.
    batch_size : int, default=None
        As for `IncrementalLinearRegression`.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients of the columns.
    intercept_ : float or ndarray of shape (n_targets,)
        Constant term; one for each target.
    n_samples_seen_ : int
        Number of rows of all batches.
    batch_size_ : int
        Number of rows of a batch; only after `fit`.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        Report on the last batch.

    See Also
    --------
    Ridge : All rows at once.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "fit_intercept": ["boolean"],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "copy_X": ["boolean"],
        "n_jobs": [Integral, None],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
    }

    def __init__(
        self,
        fit_intercept: bool = True,
        alpha: float = 1.0,
        copy_X: bool = True,
        n_jobs: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.fit_intercept = fit_intercept
        self.alpha = alpha
        self.copy_X = copy_X
        self.n_jobs = n_jobs
        self.batch_size = batch_size

    def _penalty(self) -> float:
        return float(self.alpha)

    def _plain(self) -> Any:
        return sklearn.linear_model.Ridge(self.alpha, fit_intercept=self.fit_intercept, copy_X=self.copy_X)
