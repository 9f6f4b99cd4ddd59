"""`Ridge`: scikit-learn's estimator, computed by all engines of the active cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import sklearn.linear_model
from sklearn.base import _fit_context

from xpulab.deploy.cluster import current_cluster
from xpulab.linear_model._fitted import non_negative, shortest
from xpulab.linear_model._linear import way_taken
from xpulab.linear_model._proxy import LinearProxy

__all__ = ["Ridge", "penalties_of"]


def penalties_of(alpha: Any, n_targets: int, dtype: Any) -> np.ndarray:
    """One penalty for each target, in float64.

    Raises
    ------
    ValueError
        If there are neither one nor as many as targets.
    """
    alphas = np.ravel(np.asarray(alpha, dtype=dtype)).astype(np.float64)
    if len(alphas) not in (1, n_targets):
        raise ValueError(
            f"Number of targets and number of penalties do not correspond: {len(alphas)} != {n_targets}; give one "
            "alpha, or one for each target"
        )
    return np.broadcast_to(alphas, n_targets).copy()


class Ridge(LinearProxy, sklearn.linear_model.Ridge):
    """Least squares with a penalty on squared coefficients, on every device of the active cluster.

    Parameters and attributes are those of `sklearn.linear_model.Ridge`. The minimiser is computed exactly, whichever
    solver is named, for any number of engines.

    Parameters
    ----------
    alpha : float or array-like of shape (n_targets,), default=1.0
        The penalty, not negative.
    fit_intercept : bool, default=True
        Whether the columns and the targets are centred.
    copy_X : bool, default=True
        Accepted for scikit-learn's sake: the input is never changed, whichever it is.
    max_iter : int, default=None
        Accepted for scikit-learn's sake: nothing is iterated.
    tol : float, default=1e-4
        As `max_iter`.
    solver : {"auto", "svd", "cholesky", "lsqr", "sparse_cg", "sag", "saga", "lbfgs"}, default="auto"
        "svd" solves by a QR factorization of the rows and the singular values of its triangle. "auto" and "cholesky"
        solve the normal equations where their condition allows it, else as "svd". The others iterate towards the same
        coefficients in scikit-learn; here they are names of the same minimiser, computed as with "auto".
    positive : bool, default=False
        Whether no coefficient may be below 0; with `solver` "auto" or "lbfgs" only, as in scikit-learn.
    random_state : int, RandomState instance or None, default=None
        Accepted for scikit-learn's sake: nothing is drawn.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
    intercept_ : float or ndarray of shape (n_targets,)
    n_iter_ : None
        Nothing is iterated.
    solver_ : str
        As in scikit-learn: the named solver; for "auto" "lbfgs" with `positive`, else "cholesky"; "svd" where the
        normal equations were too ill-conditioned. The notes of `report_` say what was computed.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only when the input has column names that are all strings.
    report_ : FitReport
        What ran where, and how long each phase took.

    See Also
    --------
    sklearn.linear_model.Ridge : The same in one process.
    """

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Ridge:
        """Fit the model.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_targets)
            Brought to the dtype of X.
        sample_weight : float or array-like of shape (n_samples,), optional
            Not negative.

        Returns
        -------
        Ridge
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
        self._check_solver()
        cluster = current_cluster()
        X, y, weights = self._read(cluster, X, y, sample_weight)
        n_targets = 1 if y.ndim == 1 else y.shape[1]
        penalties = penalties_of(self.alpha, n_targets, X.dtype)
        with self._fitting(X, weights):
            answer = self._ask(
                cluster,
                "fit",
                "least_squares",
                X,
                y=y,
                sample_weight=weights,
                centre=bool(self.fit_intercept),
                penalties=np.zeros(n_targets) if self.positive else penalties,
                cutoff=0.0,
                refine=not self.positive,
                exact=self.solver == "svd",
            )
            found = answer.results[0]["solution"]
            self.report_.notes.append(way_taken(found))
            coef, triangle, rotated = found["coef"], found["triangle"], found["rotated"]
            if self.positive:
                coef = non_negative(triangle, rotated, penalties)
            elif coef is None:
                # Without a penalty, what rounding leaves of a missing dimension would be divided by.
                cutoff = X.shape[1] * np.finfo(np.float64).eps if penalties.min() == 0 else 0.0
                coef, _, _ = shortest(triangle, rotated, penalties, cutoff)
            self._set_line(coef, found["mean"], found["target_mean"], y, X.dtype)
            if n_targets == 1:
                self.coef_ = np.ravel(self.coef_)
            self.n_iter_ = None
            named = {"auto": "lbfgs" if self.positive else "cholesky"}.get(self.solver, self.solver)
            self.solver_ = "svd" if named == "cholesky" and found["coef"] is None else named
        return self

    def _check_solver(self) -> None:
        """Refuse, in scikit-learn's words, what it refuses."""
        if self.positive and self.solver not in ("auto", "lbfgs"):
            raise ValueError(
                f"solver='{self.solver}' does not support positive fitting. Please set the solver to 'auto' or "
                "'lbfgs', or set `positive=False`"
            )
        if self.solver == "lbfgs" and not self.positive:
            raise ValueError("'lbfgs' solver can be used only when positive=True. Please use another solver.")
