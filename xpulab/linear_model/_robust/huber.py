"""`HuberRegressor`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.linear_model

from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.rows import require_weight
from xpulab.estimator.sending import Result
from xpulab.linear_model._minimised import MinimisedFit, MinimisedInput, warn_of_iterations
from xpulab.linear_model._proxy import LinearProxy
from xpulab.sharing.linear_models import Minimisation

__all__ = ["HuberRegressor"]


@dataclass(frozen=True, kw_only=True)
class _Input(MinimisedInput):
    """A fit, and beyond how many scales a row is an outlier."""

    epsilon: float


class HuberRegressor(MinimisedFit[_Input], LinearProxy, sklearn.linear_model.HuberRegressor):
    """Regression that outliers change little, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.HuberRegressor`, for any number of engines.
    The engines compute the loss and its derivatives in passes over the rows; one of them runs Newton's method, for the
    coefficients and the scale together, which ends nearer to the minimum than L-BFGS.

    Parameters
    ----------
    epsilon : float, default=1.35
        Rows are outliers whose residuals are larger than `epsilon` times the scale; at least 1.
    max_iter : int, default=100
        Largest number of iterations.
    alpha : float, default=0.0001
        Factor of the squared norm of the coefficients; not negative.
    warm_start : bool, default=False
        Whether a fit starts with the coefficients and the scale of the previous fit.
    fit_intercept : bool, default=True
        Whether there is a constant term.
    tol : float, default=1e-5
        The fit ends when no component of the gradient, of the sums over all rows, is larger.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients, float64.
    intercept_ : float
        Constant term.
    scale_ : float
        The scale of the residuals.
    n_iter_ : int
        Number of iterations.
    outliers_ : ndarray of bool of shape (n_samples,)
        Which rows are outliers. A fit that was interrupted has none.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. Its iterations have the mean loss (with
        the penalty) and the largest component of its gradient.

    See Also
    --------
    sklearn.linear_model.HuberRegressor : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import HuberRegressor
    >>> with xpulab.XPUCluster(n=2):
    ...     model = HuberRegressor(alpha=0.0).fit([[0.0], [1.0], [2.0], [3.0], [4.0]], [0.1, 1.0, 1.9, 3.1, 90.0])
    ...     model.outliers_
    array([False, False, False, False,  True])
    """

    _rules: ClassVar[Mapping[str, Any]] = {"accept_sparse": "csr"}
    _stored_work: ClassVar[float] = 2.0  # a copy of sparse rows by column, and its values in float64
    _task: ClassVar[str] = "HuberRegressor.fit"

    epsilon: float
    alpha: float
    tol: float
    max_iter: int
    warm_start: bool
    n_iter_: int
    scale_: float

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: npt.ArrayLike | ShardedArray, y: Any, sample_weight: npt.ArrayLike | None = None
    ) -> HuberRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,)
            Targets. Converted to the dtype of X.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative.

        Returns
        -------
        HuberRegressor
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input and parameters that scikit-learn rejects, and if X and y are handles with different numbers of
            rows per rank or different dtypes. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit. All engines have stopped at the same evaluation; `coef_`, `intercept_` and
            `scale_` are those of the last iteration. `resume` continues the fit, also as
            ``xpulab.interrupted().resume()``.
        """
        cluster = current_ranks()
        rows, y, weights = self._read(cluster, X, y, sample_weight, multi_output=False)
        if isinstance(weights, np.ndarray):
            require_weight(weights.sum())
        solving = Minimisation(
            solver="scaled",
            start=self._start(rows.shape[1]),
            fit_intercept=bool(self.fit_intercept),
            penalty=2 * float(self.alpha),
            tol=float(self.tol),
            max_iter=int(self.max_iter),
            verbose=0,
        )
        checked = _Input(
            X=rows,
            weights=weights,
            targets=y,
            max_iter=solving.max_iter,
            solving=solving,
            epsilon=float(self.epsilon),
            parameters=self.get_params(deep=False),
        )
        return self._run(cluster, checked)

    def _start(self, d: int) -> np.ndarray:
        """Return coefficients, intercept and scale, as the solver takes them."""
        if not (self.warm_start and hasattr(self, "coef_")):
            return np.zeros(d + bool(self.fit_intercept) + 1)
        if self.coef_.shape != (d,):
            raise ValueError(
                f"warm_start=True was given, and the {len(self.coef_)} coefficients of the previous fit do not go with "
                f"the {d} columns of X: give as many columns, or warm_start=False"
            )
        return np.concatenate([self.coef_, [self.intercept_] if self.fit_intercept else [], [self.scale_]])

    def _labels(self, checked: _Input) -> Result:
        return Result(None, np.bool_)

    def _arguments(self, cluster: Ranks, checked: _Input, state: Any) -> Any:
        return super()._arguments(cluster, checked, state) | {"epsilon": checked.epsilon}

    def _keep_state(self, checked: _Input, state: dict[str, Any], labels: Any) -> None:
        super()._keep_state(checked, state, labels)
        if "outliers_" in vars(self):
            del self.outliers_

    def _keep(self, checked: _Input, answer: dict[str, Any], labels: Any) -> None:
        super()._keep(checked, answer, labels)
        self.outliers_ = labels

    def _set(self, checked: _Input, coef: np.ndarray, n_iter: int) -> None:
        """Set the fitted attributes from coefficients in the layout of scikit-learn's solvers, and the scale."""
        d = checked.X.shape[1]
        self.coef_ = coef[:d].copy()
        self.intercept_ = coef[d] if checked.solving.fit_intercept else 0.0
        self.scale_ = coef[-1]
        self.n_iter_ = int(n_iter)

    def _tell(self, checked: _Input, answer: Mapping[str, Any]) -> None:
        said = f"HuberRegressor has not converged in {checked.max_iter} iterations"
        warn_of_iterations(answer, said, f"max_iter={10 * max(checked.max_iter, 1)}")
