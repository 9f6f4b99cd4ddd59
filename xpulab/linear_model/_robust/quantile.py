"""`QuantileRegressor`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.linear_model

from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.rows import require_weight
from xpulab.linear_model._minimised import MinimisedFit, MinimisedInput, warn_of_iterations
from xpulab.linear_model._proxy import LinearProxy
from xpulab.sharing.linear_models import DistanceLoss, Minimisation

__all__ = ["QuantileRegressor"]

_TOL = 1e-9  # of the largest component of the gradient at coefficients of zero
_MAX_ITER = 10_000


@dataclass(frozen=True, kw_only=True)
class _Input(MinimisedInput):
    """A fit, and its loss."""

    loss: DistanceLoss


class QuantileRegressor(MinimisedFit[_Input], LinearProxy, sklearn.linear_model.QuantileRegressor):
    """Regression of a quantile on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.QuantileRegressor`, for any number of engines.
    scikit-learn solves a linear program with two variables for each row. Here, the engines compute the loss and its
    derivatives in one pass over the rows, and one of them runs Newton's method on smooth losses, whose limit is the
    pinball loss [1]_. If several sets of coefficients have the least objective, the result may be another of them.

    Parameters
    ----------
    quantile : float, default=0.5
        The share of targets that are below their predictions; between 0 and 1.
    alpha : float, default=1.0
        Factor of the l1 norm of the coefficients; not negative.
    fit_intercept : bool, default=True
        Whether there is a constant term.
    solver : {"highs", "highs-ds", "highs-ipm"}, default="highs"
        Accepted for compatibility with scikit-learn; it has no effect.
    solver_options : dict or None, default=None
        Of its entries, "maxiter" is the largest number of iterations. Others raise an error.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients, float64.
    intercept_ : float
        Constant term.
    n_iter_ : int
        Number of iterations.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. Its iterations have the loss (with the
        penalty) and the largest component of the (sub)gradient.

    See Also
    --------
    sklearn.linear_model.QuantileRegressor : The same in one process.

    References
    ----------
    .. [1] C. Chen, "A finite smoothing algorithm for quantile regression", Journal of Computational and Graphical
       Statistics 16 (2007), 136-164.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import QuantileRegressor
    >>> with xpulab.XPUCluster(n=2):
    ...     QuantileRegressor(alpha=0.0).fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 3.0]).predict([[1.5]]).round(6)
    array([2.5])
    """

    _rules: ClassVar[Mapping[str, Any]] = {"accept_sparse": "csr", "dtype": "numeric"}
    _stored_work: ClassVar[float] = 2.0  # a copy of sparse rows by column, and its values in float64
    _task: ClassVar[str] = "QuantileRegressor.fit"
    _left: ClassVar[tuple[str, str]] = ("coefficients", "model.fit(X, y)")

    quantile: float
    alpha: float
    solver: str
    solver_options: dict[str, Any] | None
    n_iter_: int

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: npt.ArrayLike | ShardedArray, y: Any, sample_weight: npt.ArrayLike | None = None
    ) -> QuantileRegressor:
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
        QuantileRegressor
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input and parameters that scikit-learn rejects, for entries of `solver_options` that the engines do not
            take, and if X and y are handles with different numbers of rows per rank or different dtypes. No rows have
            been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit. All engines have stopped at the same evaluation; `coef_` and `intercept_`
            are those of the last iteration. `resume` continues the fit, also as ``xpulab.interrupted().resume()``.
        """
        cluster = current_ranks()
        max_iter = self._most()
        rows, y, weights = self._read(cluster, X, y, sample_weight, multi_output=False)
        if isinstance(weights, np.ndarray):
            require_weight(weights.sum())
        solving = Minimisation(
            solver="kinks",
            start=np.zeros(rows.shape[1] + bool(self.fit_intercept)),
            fit_intercept=bool(self.fit_intercept),
            penalty=0.0,
            l1=float(self.alpha),
            tol=_TOL,
            max_iter=max_iter,
            verbose=0,
        )
        checked = _Input(
            X=rows,
            weights=weights,
            targets=y,
            max_iter=max_iter,
            solving=solving,
            loss=DistanceLoss(False, 0.0, 0.0, float(self.quantile), 1 - float(self.quantile)),
            parameters=self.get_params(deep=False),
        )
        return self._run(cluster, checked)

    def _most(self) -> int:
        """Return the largest number of iterations, after a check of the solver and its options."""
        if self.solver in ("interior-point", "revised simplex"):
            raise ValueError(f"solver={self.solver!r} was given, which SciPy has no more: leave it out")
        options = dict(self.solver_options or {})
        most = options.pop("maxiter", None)
        if options:
            raise ValueError(
                f"solver_options={self.solver_options!r} was given; the engines take only 'maxiter': leave the others "
                "out, or use sklearn.linear_model.QuantileRegressor"
            )
        if most is not None and not (isinstance(most, Integral) and int(most) > 0):
            raise ValueError(f"solver_options={self.solver_options!r} was given; 'maxiter' is a whole number from 1 on")
        return _MAX_ITER if most is None else int(most)

    def _arguments(self, cluster: Ranks, checked: _Input, state: Any) -> Any:
        return super()._arguments(cluster, checked, state) | {"loss": checked.loss}

    def _set(self, checked: _Input, coef: np.ndarray, n_iter: int) -> None:
        """Set the fitted attributes from coefficients in the layout of scikit-learn's solvers."""
        d = checked.X.shape[1]
        self.coef_ = coef[:d].copy()
        self.intercept_ = coef[d] if checked.solving.fit_intercept else 0.0
        self.n_iter_ = int(n_iter)

    def _tell(self, checked: _Input, answer: Mapping[str, Any]) -> None:
        said = f"QuantileRegressor has not converged in {checked.max_iter} iterations"
        warn_of_iterations(answer, said, f"solver_options={{'maxiter': {10 * checked.max_iter}}}")
