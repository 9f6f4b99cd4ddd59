"""`LinearRegression`: scikit-learn's estimator, computed by all engines of the active cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import sklearn
import sklearn.linear_model
from sklearn.base import _fit_context
from sklearn.utils.fixes import parse_version

from xpulab.deploy.cluster import current_cluster
from xpulab.linear_model._fitted import non_negative, shortest
from xpulab.linear_model._proxy import LinearProxy

__all__ = ["LinearRegression", "way_taken"]

#: From 1.9 on scikit-learn hands `tol` to LAPACK for dense rows; before, LAPACK took the rounding of the dtype.
_TOL_IS_CUTOFF = parse_version(sklearn.__version__) >= parse_version("1.9")


def way_taken(solution: dict[str, Any]) -> str:
    """How the ranks found the coefficients, for the report."""
    if solution["coef"] is None:
        return "solved by the QR factorization of [X y] and the singular values of its triangle"
    passes = ", corrected by a pass over the residuals" if solution["steps"] else ""
    return f"solved by the normal equations of the centred, scaled columns{passes}"


class LinearRegression(LinearProxy, sklearn.linear_model.LinearRegression):
    """Ordinary least squares on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.LinearRegression`, for any number of engines.
    Well-conditioned columns are solved by their normal equations, and corrected by the residuals of the rows; others,
    and wide or rank-deficient ones, by a QR factorization over all engines. The notes of `report_` say which.

    Parameters
    ----------
    fit_intercept : bool, default=True
        Whether the columns and the targets are centred.
    copy_X : bool, default=True
        Accepted for scikit-learn's sake: the input is never changed, whichever it is.
    tol : float, default=1e-6
        Singular values of the centred columns up to `tol` times the largest count as zero. Ignored with scikit-learn
        before 1.9, as there: the rounding of the dtype stands for it.
    n_jobs : int, default=None
        Accepted and ignored: all engines compute.
    positive : bool, default=False
        Whether no coefficient may be below 0.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
    intercept_ : float or ndarray of shape (n_targets,)
    rank_ : int
        Of the centred columns; not with `positive`.
    singular_ : ndarray of shape (min(n_samples, n_features),)
        Their singular values; not with `positive`.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only when the input has column names that are all strings.
    report_ : FitReport
        What ran where, and how long each phase took.

    See Also
    --------
    sklearn.linear_model.LinearRegression : The same in one process.

    Examples
    --------
    >>> with xpulab.XPUCluster(n=2):  # doctest: +SKIP
    ...     LinearRegression().fit([[1, 1], [1, 2], [2, 2], [2, 3]], [6, 8, 9, 11]).coef_
    """

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LinearRegression:
        """Fit the linear model.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_targets)
            Brought to the dtype of X.
        sample_weight : array-like of shape (n_samples,), optional
            Not negative.

        Returns
        -------
        LinearRegression
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn refuses too, and CSR; nothing has been sent then.
        HandleError
            For a `ShardedArray` whose rows are elsewhere or gone, or that is cut otherwise than y.
        EngineError, EngineLostError
            If an engine raised or ended.
        KeyboardInterrupt
            Nothing is fitted then.
        """
        cluster = current_cluster()
        X, y, weights = self._read(cluster, X, y, sample_weight)
        n_targets = 1 if y.ndim == 1 else y.shape[1]
        cutoff = 0.0 if self.positive else self._cutoff(X.dtype)
        with self._fitting(X, weights):
            answer = self._ask(
                cluster,
                "fit",
                "least_squares",
                X,
                y=y,
                sample_weight=weights,
                centre=bool(self.fit_intercept),
                penalties=np.zeros(n_targets),
                cutoff=cutoff,
                refine=not self.positive,
            )
            found = answer.results[0]["solution"]
            self.report_.notes.append(way_taken(found))
            coef, triangle, rotated = found["coef"], found["triangle"], found["rotated"]
            if self.positive:
                coef = non_negative(triangle, rotated, np.zeros(n_targets))
            else:
                singular, self.rank_ = found["singular"], X.shape[1]
                if coef is None:
                    coef, singular, self.rank_ = shortest(triangle, rotated, np.zeros(n_targets), cutoff)
                self.singular_ = singular[: len(X)].astype(X.dtype)
            self._set_line(coef, found["mean"], found["target_mean"], y, X.dtype)
        return self

    def _cutoff(self, dtype: Any) -> float:
        return float(self.tol) if _TOL_IS_CUTOFF else float(np.finfo(dtype).eps)
