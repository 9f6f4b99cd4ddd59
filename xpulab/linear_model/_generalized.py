"""Generalised linear models: scikit-learn's estimators on all engines of the active cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import sklearn.linear_model
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.rows import require_weight
from xpulab.estimator.sending import Result
from xpulab.linear_model._fitted import require_few
from xpulab.linear_model._minimised import MinimisedFit, MinimisedInput
from xpulab.linear_model._proxy import LinearProxy
from xpulab.sharing.linear_models import Deviances, Distribution, Minimisation

__all__ = ["GammaRegressor", "PoissonRegressor", "TweedieRegressor"]


@dataclass(frozen=True, kw_only=True)
class _Input(MinimisedInput):
    """A fit of a distribution."""

    distribution: Distribution


ModelT = TypeVar("ModelT", bound="_GeneralizedLinear")


class _GeneralizedLinear(MinimisedFit[_Input], LinearProxy):
    """Base of the models of a distribution's mean, among the bases before scikit-learn's class.

    The engines compute half the deviance and its gradient in one pass over the rows, which stay on the devices; one of
    them runs the solver of SciPy or scikit-learn, with the same stopping rule.
    """

    _rules: ClassVar[Mapping[str, Any]] = {"accept_sparse": "csr"}
    _later_rules: ClassVar[Mapping[str, Any]] = {}
    _narrow: ClassVar[bool] = False

    alpha: float
    solver: str
    tol: float
    max_iter: int
    warm_start: bool
    verbose: int
    n_iter_: int
    _base_loss: Any
    _get_loss: Callable[[], Any]  # scikit-learn's: it has targets' range, and `to_sklearn()` predicts with it

    _task: ClassVar[str] = "GeneralizedLinear.fit"

    def _distribution(self) -> Distribution:
        raise NotImplementedError

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self: ModelT, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> ModelT:
        """Fit the model.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,)
            Targets, which the distribution has. Converted to the dtype of X.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.

        Returns
        -------
        self
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input and parameters that scikit-learn rejects, and if X and y are handles with different numbers of
            rows per rank or different dtypes. Of arrays, no rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit. All engines have stopped at the same evaluation; `coef_` and `intercept_`
            are those of the last iteration. `resume` continues the fit, also as ``xpulab.interrupted().resume()``.
        """
        cluster = current_ranks()
        X, y, weights = self._read(cluster, X, y, sample_weight, multi_output=False, only_non_negative=False)
        loss = self._get_loss()
        self._require_range(loss, y)
        if isinstance(weights, np.ndarray):
            require_weight(weights.sum())
        if self.solver == "newton-cholesky":
            require_few(X, 1, self.alpha > 0, "'lbfgs'")
        solving = Minimisation(
            solver=self.solver,
            start=self._start(X.shape[1]),
            fit_intercept=bool(self.fit_intercept),
            penalty=float(self.alpha),
            tol=float(self.tol),
            max_iter=int(self.max_iter),
            verbose=int(self.verbose),
        )
        self._base_loss = loss
        checked = _Input(
            X=X,
            weights=weights,
            targets=y,
            max_iter=solving.max_iter,
            solving=solving,
            distribution=self._distribution(),
            parameters=self.get_params(deep=False),
        )
        return self._run(cluster, checked)

    @staticmethod
    def _require_range(loss: Any, y: Any) -> None:
        """Raise scikit-learn's error for targets of this process that the distribution does not have."""
        if isinstance(y, np.ndarray) and not loss.in_y_true_range(y):
            raise ValueError(
                f"Some value(s) of y are out of the valid range of the loss {type(loss).__name__!r}: the lowest is "
                f"{y.min():g}."
            )

    def _start(self, d: int) -> np.ndarray | None:
        """Return the coefficients of a warm start, with the intercept at their end; None without one."""
        if not (self.warm_start and hasattr(self, "coef_")):
            return None
        start = np.append(self.coef_, self.intercept_) if self.fit_intercept else np.asarray(self.coef_)
        if len(start) != d + bool(self.fit_intercept):
            raise ValueError(
                f"X has {d} features, and warm_start=True goes on from {len(self.coef_)} coefficients; give rows with "
                "the features of the previous fit, or set warm_start=False"
            )
        return start.astype(np.float64)

    def _arguments(self, cluster: Ranks, checked: _Input, state: dict[str, Any] | None) -> dict[str, Any]:
        return {**super()._arguments(cluster, checked, state), "distribution": checked.distribution}

    def _set(self, checked: _Input, coef: np.ndarray, n_iter: int) -> None:
        """Set the fitted attributes from coefficients in the layout of the solvers."""
        d, found = checked.X.shape[1], coef.astype(checked.X.dtype)
        self.coef_ = found[:d].copy()
        self.intercept_ = found[d] if checked.solving.fit_intercept else 0.0
        self.n_iter_ = int(n_iter)

    def predict(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Predict the mean of each row.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples,), float64 if X or the fit is

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If no cluster is running.
        ValueError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if out is not None:
            return in_file(self.predict, X, out)
        check_is_fitted(self)
        cluster = self._cluster()
        rows: Any = self._checked(cluster, X, reset=False)
        coef, intercept = self._columns()
        means = Result(None, rows.dtype)
        self._ask(
            cluster, "predict", "GeneralizedLinear.predict", rows, result=means, coef=coef, intercept=intercept,
            distribution=self._distribution(),
        )  # fmt: skip
        return means.value

    def score(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> float:
        """Return the share of the deviance that the model explains, D².

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        y : array-like or ShardedArray of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.

        Returns
        -------
        float
            1 for exact predictions, and 0 for those of the weighted mean of y. The engines return only sums.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If no cluster is running.
        ValueError
            For input that scikit-learn rejects, such as targets that the distribution does not have.
        ZeroDivisionError
            If the weights add up to zero.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        check_is_fitted(self)
        cluster = self._cluster()
        X, y, weights = self._read(
            cluster, X, y, sample_weight, reset=False, multi_output=False, only_non_negative=False
        )
        self._require_range(self._base_loss, y)
        coef, intercept = self._columns()
        sums: Deviances = self._ask(
            cluster,
            "score",
            "GeneralizedLinear.score",
            X,
            y=y,
            sample_weight=weights,
            coef=coef,
            intercept=intercept,
            distribution=self._distribution(),
        ).results[0]
        require_weight(sums["weight"])
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(1 - np.float64(sums["own"]) / sums["null"])


class PoissonRegressor(_GeneralizedLinear, sklearn.linear_model.PoissonRegressor):
    """Regression of counts with a Poisson distribution, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.PoissonRegressor`, for any number of engines.
    The logarithm of the mean is a linear function of the columns.

    Parameters
    ----------
    alpha : float, default=1
        Factor of half the squared norm of the coefficients; not negative.
    fit_intercept : bool, default=True
        Whether there is a constant term.
    solver : {"lbfgs", "newton-cholesky"}, default="lbfgs"
        "newton-cholesky" computes all second derivatives, for at most 1,500 features. With a penalty, the number of
        rows counts if it is smaller.
    max_iter : int, default=100
        Largest number of iterations of the solver.
    tol : float, default=1e-4
        The fit ends when no component of the gradient is larger.
    warm_start : bool, default=False
        Whether a fit starts with the coefficients of the previous fit.
    verbose : int, default=0
        Whether "newton-cholesky" prints messages, which appear after the fit.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients, in the dtype of X.
    intercept_ : float
        Constant term.
    n_iter_ : int
        Number of iterations.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. Its iterations have the loss (half the
        mean deviance without what is constant, and the penalty) and the largest component of the gradient.

    See Also
    --------
    sklearn.linear_model.PoissonRegressor : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import PoissonRegressor
    >>> with xpulab.XPUCluster(n=2):
    ...     PoissonRegressor(alpha=0.0).fit([[0.0], [1.0], [0.0], [1.0]], [1, 3, 1, 5]).predict([[1.0]]).round(2)
    array([4.])
    """

    def _distribution(self) -> Distribution:
        return Distribution(1.0, "log", "HalfPoissonLoss")


class GammaRegressor(_GeneralizedLinear, sklearn.linear_model.GammaRegressor):
    """Regression of positive amounts with a gamma distribution, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.GammaRegressor`, for any number of engines.
    The logarithm of the mean is a linear function of the columns.

    Parameters
    ----------
    alpha : float, default=1
        Factor of half the squared norm of the coefficients; not negative.
    fit_intercept : bool, default=True
        Whether there is a constant term.
    solver : {"lbfgs", "newton-cholesky"}, default="lbfgs"
        "newton-cholesky" computes all second derivatives, for at most 1,500 features. With a penalty, the number of
        rows counts if it is smaller.
    max_iter : int, default=100
        Largest number of iterations of the solver.
    tol : float, default=1e-4
        The fit ends when no component of the gradient is larger.
    warm_start : bool, default=False
        Whether a fit starts with the coefficients of the previous fit.
    verbose : int, default=0
        Whether "newton-cholesky" prints messages, which appear after the fit.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients, in the dtype of X.
    intercept_ : float
        Constant term.
    n_iter_ : int
        Number of iterations.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. Its iterations have the loss (half the
        mean deviance without what is constant, and the penalty) and the largest component of the gradient.

    See Also
    --------
    sklearn.linear_model.GammaRegressor : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import GammaRegressor
    >>> with xpulab.XPUCluster(n=2):
    ...     GammaRegressor(alpha=0.0).fit([[0.0], [1.0], [0.0], [1.0]], [1, 3, 1, 5]).predict([[1.0]]).round(2)
    array([4.])
    """

    def _distribution(self) -> Distribution:
        return Distribution(2.0, "log", "HalfGammaLoss")


class TweedieRegressor(_GeneralizedLinear, sklearn.linear_model.TweedieRegressor):
    """Regression with a Tweedie distribution, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.TweedieRegressor`, for any number of engines.

    Parameters
    ----------
    power : float, default=0
        The power of the mean that the variance is: 0 for a normal distribution, 1 for Poisson's, 2 for gamma, 3 for the
        inverse of a normal one. Between 1 and 2, targets may be 0.
    alpha : float, default=1
        Factor of half the squared norm of the coefficients; not negative.
    fit_intercept : bool, default=True
        Whether there is a constant term.
    link : {"auto", "identity", "log"}, default="auto"
        Whether the mean or its logarithm is a linear function of the columns. "auto" is "identity" for a `power` of at
        most 0, and otherwise "log".
    solver : {"lbfgs", "newton-cholesky"}, default="lbfgs"
        "newton-cholesky" computes all second derivatives, for at most 1,500 features. With a penalty, the number of
        rows counts if it is smaller.
    max_iter : int, default=100
        Largest number of iterations of the solver.
    tol : float, default=1e-4
        The fit ends when no component of the gradient is larger.
    warm_start : bool, default=False
        Whether a fit starts with the coefficients of the previous fit.
    verbose : int, default=0
        Whether "newton-cholesky" prints messages, which appear after the fit.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients, in the dtype of X.
    intercept_ : float
        Constant term.
    n_iter_ : int
        Number of iterations.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. Its iterations have the loss (half the
        mean deviance without what is constant, and the penalty) and the largest component of the gradient.

    See Also
    --------
    sklearn.linear_model.TweedieRegressor : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import TweedieRegressor
    >>> with xpulab.XPUCluster(n=2):
    ...     model = TweedieRegressor(power=1.5, alpha=0.0).fit([[0.0], [1.0], [0.0], [1.0]], [0, 3, 2, 5])
    ...     model.predict([[1.0]]).round(2)
    array([4.])
    """

    power: float
    link: str

    def _distribution(self) -> Distribution:
        link = ("identity" if self.power <= 0 else "log") if self.link == "auto" else self.link
        return Distribution(float(self.power), link, "HalfTweedieLoss" + ("Identity" if link == "identity" else ""))
