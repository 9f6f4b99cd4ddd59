"""`SGDRegressor`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.linear_model

from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.linear_model._proxy import LinearProxy
from xpulab.linear_model._stochastic.base import StochasticFit, StochasticInput

__all__ = ["SGDRegressor"]


class SGDRegressor(StochasticFit, LinearProxy, sklearn.linear_model.SGDRegressor):
    """Linear regression by stochastic gradient descent on every device of the active cluster.

    Parameters and attributes are those of `sklearn.linear_model.SGDRegressor`. A step is one for a batch of rows, on
    all engines at once, and not for a row; see `SGDClassifier` for what differs. Targets of a mean far from zero, and
    columns of different scales, take many iterations, as in scikit-learn.

    Parameters
    ----------
    loss : {"squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive"}, default="squared_error"
        What a prediction that misses its target loses.
    penalty : {"l2", "l1", "elasticnet"} or None, default="l2"
        The norm of the coefficients.
    alpha : float, default=0.0001
        Factor of the penalty.
    l1_ratio : float or None, default=0.15
        The share of the l1 norm with "elasticnet".
    fit_intercept : bool, default=True
        Whether there is a constant term.
    max_iter : int, default=1000
        Largest number of iterations: passes over the rows.
    tol : float or None, default=1e-3
        A fit ends after `n_iter_no_change` iterations in which the objective, or the score of rows for validation, has
        not improved by this much. None takes all iterations.
    shuffle : bool, default=True
        Whether the rows are dealt to batches at random, and the batches come in another order in each iteration.
    verbose : int, default=0
        Whether to print what scikit-learn prints, after the fit.
    epsilon : float, default=0.1
        Of the losses "huber" and "epsilon_insensitive": what may be missed.
    random_state : int, RandomState instance or None, default=None
        The random numbers by which the rows are dealt.
    learning_rate : {"optimal", "constant", "invscaling", "adaptive"}, default="invscaling"
        How long steps are.
    eta0 : float, default=0.01
        The first learning rate, of a row.
    power_t : float, default=0.25
        The exponent of "invscaling".
    early_stopping : bool, default=False
        Whether some rows are held out, and their R² says when a fit ends.
    validation_fraction : float, default=0.1
        Share of the rows that are held out.
    n_iter_no_change : int, default=5
        See `tol`.
    warm_start : bool, default=False
        Whether a fit begins with the coefficients of the one before.
    average : bool or int, default=False
        Whether `coef_` are averages; a number is that of the row from which on they are.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients.
    intercept_ : ndarray of shape (1,)
        Intercept.
    n_iter_ : int
        Number of iterations.
    t_ : float
        Number of rows of all iterations, plus 1.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. Its iterations have the objective, and
        the score with `early_stopping`.

    See Also
    --------
    sklearn.linear_model.SGDRegressor : The same in one process, with a step for each row.
    Ridge : The minimum of the squared loss, in one pass.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import SGDRegressor
    >>> with xpulab.XPUCluster(n=2):
    ...     SGDRegressor(tol=1e-6).fit([[-1.0], [0.0], [1.0], [2.0]], [-1.0, 1.0, 3.0, 5.0]).predict([[1.5]]).round(1)
    array([4.])
    """

    _computes_as: ClassVar[str] = "intercept_"  # always float64, as that of scikit-learn

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: Any,
        coef_init: npt.ArrayLike | None = None,
        intercept_init: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> SGDRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,)
            Targets. Converted to the dtype of X.
        coef_init : array-like of shape (n_features,), optional
            First coefficients.
        intercept_init : array-like of shape (1,), optional
            First intercept.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative.

        Returns
        -------
        SGDRegressor
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input and parameters that scikit-learn rejects, for learning rates of single rows, and if X and y are
            handles with different numbers of rows per rank or different dtypes. No rows have been sent. Also if
            coefficients become infinite.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        NotEnoughMemoryError
            If X is read from a file that does not fit into the engines' memory; `partial_fit` takes parts of it.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit. All engines have stopped at the same step; `coef_` and `intercept_` are
            those of the last iteration. `resume` continues the fit, also as ``xpulab.interrupted().resume()``.
        """
        cluster = current_ranks()
        self._require_parameters()
        X, y, weights = self._read(cluster, X, y, sample_weight, multi_output=False)
        start = self._first(1, self.n_features_in_, coef_init, intercept_init)
        return self._run(cluster, self._input(X, y, weights, start, False))

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: npt.ArrayLike | ShardedArray, y: Any, sample_weight: npt.ArrayLike | None = None
    ) -> SGDRegressor:
        """Make one iteration with these rows, from the present coefficients on.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        y : array-like or ShardedArray of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative.

        Returns
        -------
        SGDRegressor
            This object.

        Raises
        ------
        NoClusterError, ValueError, TypeError, HandleError, EngineError, EngineLostError
            As `fit`.
        KeyboardInterrupt
            If the user interrupted the call; the coefficients are those before it.
        """
        cluster = current_ranks()
        first = getattr(self, "coef_", None) is None
        if first:
            self._require_parameters(partial=True)
        X, y, weights = self._read(cluster, X, y, sample_weight, reset=first, multi_output=False)
        checked = self._input(X, y, weights, self._present(1, self.n_features_in_), True)
        return self._run(cluster, checked, method="partial_fit")

    def _input(self, X: Any, y: Any, weights: Any, start: npt.NDArray[np.float64], partial: bool) -> StochasticInput:
        descent = self._descent(1, partial, None if partial else self._held_out(y, weights))
        return StochasticInput(
            X=X,
            weights=weights,
            targets=y,
            max_iter=descent.max_iter,
            parameters=self.get_params(deep=False),
            descent=descent,
            start=start,
            partial=partial,
            classes=None,
        )

    def _columns(self) -> tuple[np.ndarray, np.ndarray]:
        coef = np.atleast_2d(self.coef_.toarray() if hasattr(self.coef_, "toarray") else self.coef_)
        return coef.T.astype(np.float64), np.asarray(self.intercept_, np.float64).reshape(1)
