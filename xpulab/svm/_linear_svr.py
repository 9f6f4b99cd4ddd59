"""`LinearSVR`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.svm

from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.linear_model._minimised import MinimisedInput
from xpulab.linear_model._proxy import LinearProxy
from xpulab.sharing.linear_models import DistanceLoss
from xpulab.svm._missed import SupportVectors

__all__ = ["LinearSVR"]


@dataclass(frozen=True, kw_only=True)
class _Input(MinimisedInput):
    """A fit, and its loss."""

    loss: DistanceLoss


class LinearSVR(SupportVectors[_Input], LinearProxy, sklearn.svm.LinearSVR):
    """Regression by linear support vectors on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.svm.LinearSVR`, for any number of engines. The engines
    compute the loss and its derivatives in one pass over the rows; one of them runs Newton's method, which ends nearer
    to the minimum than liblinear.

    Parameters
    ----------
    epsilon : float, default=0.0
        What a prediction may miss without a loss.
    tol : float, default=1e-4
        The fit ends when the largest component of the gradient is so small a share of that of zeros;
        "epsilon_insensitive" is the limit of smooth losses, the last of which differs from it by at most a hundredth of
        this share.
    C : float, default=1.0
        Inverse strength of the penalty.
    loss : {"epsilon_insensitive", "squared_epsilon_insensitive"}, default="epsilon_insensitive"
        By how much more than `epsilon` a prediction misses its target, or its square.
    fit_intercept : bool, default=True
        Whether there is a constant term. As in liblinear, it has a penalty, too.
    intercept_scaling : float, default=1.0
        The larger it is, the weaker is the penalty of the intercept.
    dual, random_state : as in scikit-learn
        They have no effect on the result; `dual` has to go with `loss`, as in scikit-learn.
    verbose : int, default=0
        Accepted for compatibility with scikit-learn.
    max_iter : int, default=1000
        Largest number of iterations.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients, float64.
    intercept_ : ndarray of shape (1,), or 0.0 without `fit_intercept`
        Intercept.
    n_iter_ : int
        Number of iterations.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. Its iterations have the loss (with the
        penalty) and the largest component of the gradient.

    See Also
    --------
    sklearn.svm.LinearSVR : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.svm import LinearSVR
    >>> with xpulab.XPUCluster(n=2):
    ...     LinearSVR(C=100.0).fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0]).predict([[1.5]]).round(3)
    array([1.5])
    """

    _task: ClassVar[str] = "LinearSVR.fit"

    epsilon: float
    n_iter_: int

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: Any, sample_weight: npt.ArrayLike | None = None) -> LinearSVR:
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
        LinearSVR
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
            If the user interrupted the fit. All engines have stopped at the same evaluation; `coef_` and `intercept_`
            are those of the last iteration. `resume` continues the fit, also as ``xpulab.interrupted().resume()``.
        """
        cluster = current_ranks()
        X, y, weights = self._read(cluster, X, y, sample_weight, multi_output=False)
        solving = self._solving(X, 1, "l2", "ovr")
        checked = _Input(
            X=X,
            weights=weights,
            targets=y,
            max_iter=solving.max_iter,
            solving=solving,
            loss=DistanceLoss(self.loss.startswith("squared"), self._constant(), float(self.epsilon)),
            parameters=self.get_params(deep=False),
        )
        return self._run(cluster, checked)

    def _arguments(self, cluster: Ranks, checked: _Input, state: Any) -> Any:
        return super()._arguments(cluster, checked, state) | {"loss": checked.loss}

    def _set(self, checked: _Input, coef: np.ndarray, n_iter: int) -> None:
        """Set the fitted attributes from coefficients in the layout of scikit-learn's solvers."""
        d = checked.X.shape[1]
        self.coef_ = coef[:d].copy()
        self.intercept_ = coef[d:] * checked.loss.constant if checked.solving.fit_intercept else 0.0
        self.n_iter_ = int(n_iter)
