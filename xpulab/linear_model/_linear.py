"""`LinearRegression`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn
import sklearn.linear_model
from sklearn.utils.fixes import parse_version

from xpulab._sklearn import _fit_context
from xpulab.deploy.current import current_ranks
from xpulab.linear_model._fitted import non_negative, shortest
from xpulab.linear_model._proxy import LinearProxy

__all__ = ["LinearRegression", "way_taken"]

#: Since 1.9, scikit-learn passes `tol` to LAPACK for dense rows. Before, LAPACK used the rounding error of the dtype.
_TOL_IS_CUTOFF = parse_version(sklearn.__version__) >= parse_version("1.9")


def way_taken(solution: dict[str, Any]) -> str:
    """Return a text for the report that says how the ranks computed the coefficients."""
    if solution["coef"] is None:
        return "solved by the QR factorization of [X y] and the singular values of its triangle"
    if solution["by_rows"]:
        how = "from a QR factorization of the transposed rows" if solution["exact"] else "of the products of rows"
        return f"solved by an equation for each row, of which there are fewer than columns, {how}"
    passes = ", corrected by a pass over the residuals" if solution["steps"] else ""
    return f"solved by the normal equations of the centred, scaled columns{passes}"


class LinearRegression(LinearProxy, sklearn.linear_model.LinearRegression):
    """Ordinary least squares on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.LinearRegression`, for any number of engines.
    For well-conditioned columns the normal equations are solved, and the solution is corrected by the residuals of the
    rows. If there are more columns than rows, an equation for each row is solved. For all other columns, and if the
    equations are too ill-conditioned, a QR factorization over all engines is used. The notes of `report_` name the
    method.

    Parameters
    ----------
    fit_intercept : bool, default=True
        Whether the columns and the targets are centred.
    copy_X : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    tol : float, default=1e-6
        Singular values of the centred columns up to `tol` times the largest count as zero. As in scikit-learn before
        1.9, `tol` is ignored with these versions, and the rounding error of the dtype is used.
    n_jobs : int, default=None
        Accepted and ignored: all engines compute.
    positive : bool, default=False
        Whether all coefficients must be at least 0.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients of the columns.
    intercept_ : float or ndarray of shape (n_targets,)
        Constant term; one for each target.
    rank_ : int
        Rank of the centred columns; not set with `positive`.
    singular_ : ndarray of shape (min(n_samples, n_features),)
        Singular values of the centred columns; not set with `positive`.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.linear_model.LinearRegression : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import LinearRegression
    >>> with xpulab.XPUCluster(n=2):
    ...     LinearRegression().fit([[1, 1], [1, 2], [2, 2], [2, 3]], [6, 8, 9, 11]).coef_
    array([1., 2.])
    """

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> LinearRegression:
        """Fit the linear model.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_targets)
            Converted to the dtype of X.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative.

        Returns
        -------
        LinearRegression
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for CSR matrices, and if X and y are handles with different numbers of
            rows per rank or different dtypes. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_ranks()
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
                singular, self.rank_ = found["singular"], X.shape[1] if found["rank"] is None else found["rank"]
                if coef is None:
                    coef, singular, self.rank_ = shortest(triangle, rotated, np.zeros(n_targets), cutoff)
                self.singular_ = singular[: len(X)].astype(X.dtype)
            self._set_line(coef, found["mean"], found["target_mean"], y, X.dtype)
        return self

    def _cutoff(self, dtype: Any) -> float:
        return float(self.tol) if _TOL_IS_CUTOFF else float(np.finfo(dtype).eps)
