"""`Ridge`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.linear_model
from sklearn.exceptions import ConvergenceWarning

from xpulab._sklearn import _fit_context
from xpulab.csr import is_sparse
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.linear_model._fitted import non_negative, shortest
from xpulab.linear_model._linear import way_taken
from xpulab.linear_model._proxy import LinearProxy
from xpulab.report.rendering import format_size
from xpulab.sharing.linear_models import OfClasses

__all__ = ["Ridge", "RidgeFit", "penalties_of"]


def penalties_of(alpha: Any, n_targets: int, dtype: Any) -> np.ndarray:
    """Return one penalty for each target, in float64: an array of shape (n_targets,).

    Raises
    ------
    ValueError
        If the number of penalties is neither 1 nor `n_targets`.
    """
    alphas = np.ravel(np.asarray(alpha, dtype=dtype)).astype(np.float64)
    if len(alphas) not in (1, n_targets):
        raise ValueError(
            f"Number of targets and number of penalties do not correspond: {len(alphas)} != {n_targets}; give one "
            "alpha, or one for each target"
        )
    return np.broadcast_to(alphas, n_targets).copy()


class RidgeFit(LinearProxy):
    """Base of estimators that compute the coefficients of `Ridge`, and have its parameters."""

    _rules: ClassVar[Mapping[str, Any]] = {"accept_sparse": "csr"}
    _stored_work: ClassVar[float] = 2.0  # a copy of sparse rows by column, and its values in float64

    alpha: Any
    positive: bool
    solver: str

    def _solved(
        self, cluster: Ranks, X: Any, y: Any, weights: Any, n_targets: int, of_classes: OfClasses | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return coefficients (n_features, n_targets) and the means of columns and targets; set `solver_`, `n_iter_`.

        With `of_classes`, y has labels, each of which stands for `n_targets` targets.
        """
        penalties = penalties_of(self.alpha, n_targets, X.dtype)
        if is_sparse(X):
            return self._solved_sparse(cluster, X, y, weights, penalties, of_classes)
        # Without a penalty, singular values that differ from 0 only by rounding must count as zero.
        cutoff = X.shape[1] * np.finfo(np.float64).eps if penalties.min() == 0 else 0.0
        answer = self._ask(
            cluster,
            "fit",
            "least_squares",
            X,
            y=y,
            sample_weight=weights,
            centre=bool(self.fit_intercept),
            penalties=np.zeros(n_targets) if self.positive else penalties,
            cutoff=cutoff,
            refine=not self.positive,
            exact=self.solver == "svd",
            of_classes=of_classes,
        )
        found = answer.results[0]["solution"]
        self.report_.notes.append(way_taken(found))
        coef, triangle, rotated = found["coef"], found["triangle"], found["rotated"]
        if self.positive:
            coef = non_negative(triangle, rotated, penalties)
        elif coef is None:
            coef, _, _ = shortest(triangle, rotated, penalties, cutoff)
        self.n_iter_ = None
        named = {"auto": "lbfgs" if self.positive else "cholesky"}.get(self.solver, self.solver)
        self.solver_ = "svd" if named == "cholesky" and (found["coef"] is None or found["exact"]) else named
        return coef, found["mean"], found["target_mean"]

    def _solved_sparse(
        self, cluster: Ranks, X: Any, y: Any, weights: Any, penalties: np.ndarray, of_classes: OfClasses | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Fit sparse rows, by conjugate gradients up to rounding, as no solver of scikit-learn does."""
        if self.positive:
            size = format_size(X.shape[0] * X.shape[1] * X.dtype.itemsize)
            raise TypeError(f"positive=True was given with sparse rows, and it takes dense rows, which take {size}")
        found = self._ask(
            cluster,
            "fit",
            "sparse_least_squares",
            X,
            y=y,
            sample_weight=weights,
            centre=bool(self.fit_intercept),
            penalties=penalties,
            of_classes=of_classes,
            finish=lambda answer: answer.results[0]["converged"],
        ).results[0]
        if not found["converged"]:
            warnings.warn(
                f"{type(self).__name__}.fit of sparse rows has not converged; increase alpha, or scale the columns "
                "with MaxAbsScaler",
                ConvergenceWarning,
                stacklevel=5,
            )
        self.n_iter_ = None
        self.solver_ = "sparse_cg" if self.solver == "auto" else self.solver
        return found["coef"], found["mean"], found["target_mean"]

    def _check_solver(self) -> None:
        """Raise scikit-learn's errors about the solver."""
        if self.positive and self.solver not in ("auto", "lbfgs"):
            raise ValueError(
                f"solver='{self.solver}' does not support positive fitting. Please set the solver to 'auto' or "
                "'lbfgs', or set `positive=False`"
            )
        if self.solver == "lbfgs" and not self.positive:
            raise ValueError("'lbfgs' solver can be used only when positive=True. Please use another solver.")


class Ridge(RidgeFit, sklearn.linear_model.Ridge):
    """Least squares with a penalty on squared coefficients, on every device of the active cluster.

    Parameters and attributes are those of `sklearn.linear_model.Ridge`, for any number of engines. Every solver
    computes the exact minimiser. CSR matrices stay sparse: conjugate gradients end when only rounding is left.

    Parameters
    ----------
    alpha : float or array-like of shape (n_targets,), default=1.0
        The penalty, not negative.
    fit_intercept : bool, default=True
        Whether the columns and the targets are centred.
    copy_X : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    max_iter : int, default=None
        Accepted for compatibility with scikit-learn: no solver iterates.
    tol : float, default=1e-4
        Accepted for compatibility with scikit-learn: no solver iterates.
    solver : {"auto", "svd", "cholesky", "lsqr", "sparse_cg", "sag", "saga", "lbfgs"}, default="auto"
        "svd" uses a QR factorization of the rows, or, if there are more columns than rows, of the transposed rows, and
        the singular value decomposition of its triangle. "auto" and "cholesky" solve the normal equations, or, if there
        are more columns than rows, an equation for each row; they do the same as "svd" if these equations are too
        ill-conditioned.
        In scikit-learn, the other solvers iterate towards the same coefficients; here they do the same as "auto".
    positive : bool, default=False
        Whether all coefficients must be at least 0; with `solver` "auto" or "lbfgs" only, as in scikit-learn.
    random_state : int, RandomState instance or None, default=None
        Accepted for compatibility with scikit-learn: no solver needs random numbers.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients of the columns.
    intercept_ : float or ndarray of shape (n_targets,)
        Constant term; one for each target.
    n_iter_ : None
        No solver iterates.
    solver_ : str
        As in scikit-learn, the parameter `solver`. For "auto" it is "lbfgs" with `positive`, and otherwise "cholesky".
        It is "svd" if the normal equations were not solved. The notes of `report_` name the method.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.linear_model.Ridge : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import Ridge
    >>> with xpulab.XPUCluster(n=2):
    ...     Ridge(alpha=1.0).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0]).coef_
    array([0.66666667])
    """

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> Ridge:
        """Fit the model.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_targets)
            Converted to the dtype of X.
        sample_weight : float or array-like of shape (n_samples,), optional
            Weights of the rows, not negative.

        Returns
        -------
        Ridge
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for CSR matrices with `positive`, and if X and y are handles with
            different numbers of rows per rank or different dtypes. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        self._check_solver()
        cluster = current_ranks()
        X, y, weights = self._read(cluster, X, y, sample_weight)
        n_targets = 1 if y.ndim == 1 else y.shape[1]
        with self._fitting(X, weights):
            self._set_line(*self._solved(cluster, X, y, weights, n_targets), y, X.dtype)
            if n_targets == 1:
                self.coef_ = np.ravel(self.coef_)
        return self
