"""`LogisticRegression`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.linear_model

from xpulab._sklearn import _fit_context
from xpulab.checks import ONE_AT_A_TIME
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.labels import checked_labels
from xpulab.estimator.rows import require_weight
from xpulab.linear_model._classifiers.logistic_loss import Checked, ClassesInput, LogisticClassifier
from xpulab.linear_model._fitted import require_few
from xpulab.linear_model._minimised import MinimisedFit, MinimisedInput
from xpulab.sharing.linear_models import Coding, Minimisation

__all__ = ["MORE", "LogisticInput", "LogisticRegression"]

#: What warnings of fits that did not converge have at their end.
MORE = (
    "Please also refer to the documentation for alternative solver options:\n"
    "    https://scikit-learn.org/stable/modules/linear_model.html#logistic-regression"
)


@dataclass(frozen=True, kw_only=True)
class LogisticInput(ClassesInput, MinimisedInput):
    """A fit, the classes of its rows, and how its loss is minimised."""


class _OnlyChecks(sklearn.linear_model.LogisticRegression):
    """scikit-learn's estimator up to the start of its solver: it raises and warns about parameters, and fits nothing.

    Which parameters are rejected or deprecated depends on the version of scikit-learn. All versions check them first,
    and then look for the coefficients from which a warm start begins.
    """

    @property
    def coef_(self) -> Any:
        raise Checked


class LogisticRegression(MinimisedFit[LogisticInput], LogisticClassifier, sklearn.linear_model.LogisticRegression):
    """Classification by logistic regression on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.LogisticRegression`, for any number of
    engines. The engines compute the loss and its gradient in one pass over the rows, which stay on the devices; one of
    them runs the solver of SciPy or scikit-learn, with the same stopping rule.

    The signature is that of the installed version of scikit-learn.

    Parameters
    ----------
    penalty, l1_ratio, C : as in scikit-learn
        The squared norm of the coefficients, their l1 norm, both (elastic net), or no penalty. As in scikit-learn, the
        l1 norm needs ``solver="saga"``.
    solver : {"lbfgs", "newton-cg", "newton-cholesky", "sag", "saga"}, default="lbfgs"
        "newton-cholesky" computes all second derivatives. The number of features times the number of classes (1 for
        two classes) may be at most 1,500 for it. With a penalty, the number of rows counts if it is smaller than that
        of features: an equation for each row and class gives the same steps. "sag" and "saga" have scikit-learn's
        penalties and none of its random steps: with the l1 norm, Newton's method and coordinate descent find the
        optimum [1]_, and L-BFGS-B where more than 1,500 coefficients are not zero; without it, these solvers are
        "lbfgs". "liblinear" raises an error.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes.
    warm_start : bool, default=False
        Whether a fit starts with the coefficients of the previous fit.
    verbose : int, default=0
        Whether to print messages. Those of the Newton solvers appear after the fit.
    tol : float, default=1e-4
        Tolerance of the solver's stopping rule, as in scikit-learn; of "sag" and "saga", that of "lbfgs": the largest
        component of the gradient; with the l1 norm, the largest of the smallest subgradient, as a share of the penalty
        of a row.
    max_iter : int, default=100
        Largest number of iterations of the solver.
    fit_intercept : bool, default=True
        Whether there is a constant term.
    dual, intercept_scaling, random_state, n_jobs : as in scikit-learn
        They have no effect with these solvers.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, in ascending order.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients, in the dtype of X.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts; zeros without `fit_intercept`.
    n_iter_ : ndarray of shape (1,)
        Number of iterations.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. Its iterations have the loss (with the
        penalty) and the largest component of the (sub)gradient. The fit ends when this component is at most `tol`.

    See Also
    --------
    sklearn.linear_model.LogisticRegression : The same in one process.

    References
    ----------
    .. [1] J. Friedman, T. Hastie, R. Tibshirani, "Regularization paths for generalized linear models via coordinate
       descent", Journal of Statistical Software 33 (2010); J. D. Lee, Y. Sun, M. A. Saunders, "Proximal Newton-type
       methods for minimizing composite functions", SIAM Journal on Optimization 24 (2014).

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import LogisticRegression
    >>> with xpulab.XPUCluster(n=2):
    ...     LogisticRegression().fit([[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"]).predict([[2.5]])
    array(['yes'], dtype='<U3')
    """

    n_iter_: np.ndarray

    _task: ClassVar[str] = "LogisticRegression.fit"
    _more: ClassVar[str | None] = MORE

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: npt.ArrayLike | ShardedArray, y: Any, sample_weight: npt.ArrayLike | None = None
    ) -> LogisticRegression:
        """Fit the model.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array
            (``np.load(path, mmap_mode="r")``) is read by the engines themselves.
        y : array-like or ShardedArray of shape (n_samples,)
            Labels: numbers or strings in an array, numbers in a handle.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.

        Returns
        -------
        LogisticRegression
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input and parameters that scikit-learn rejects, for solvers and penalties that are not
            supported, and if X and y are handles with different numbers of rows per rank or different dtypes. No rows
            have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit. All engines have stopped at the same evaluation; `coef_` and `intercept_`
            are those of the last iteration. `resume` continues the fit, also as ``xpulab.interrupted().resume()``.
        """
        cluster = current_ranks()
        self._check_parameters()
        rows: Any = self._checked(cluster, X, reset=True)
        y = checked_labels(self, cluster, y, rows)
        weights = self._weights(sample_weight, rows, only_non_negative=False)
        if isinstance(weights, np.ndarray):
            require_weight(weights.sum())
        labels, coding = self._labelled(cluster, y, weights)
        classes = labels.classes
        solving = self._solving(rows, coding)
        self.classes_ = classes
        checked = LogisticInput(
            X=rows,
            weights=weights,
            targets=labels.targets,
            classes=classes,
            coding=coding,
            max_iter=solving.max_iter,
            solving=solving,
            parameters=self.get_params(deep=False),
        )
        return self._run(cluster, checked)

    def _check_parameters(self) -> None:
        """Raise an error for parameters that are not supported; raise and warn as scikit-learn does for all others."""
        self._require_solver()
        some = {"class_weight": None, "verbose": 0, "warm_start": True}
        with ONE_AT_A_TIME, contextlib.suppress(Checked):
            _OnlyChecks(**self.get_params(deep=False) | some).fit([[-1.0], [1.0]], [0, 1])

    def _share_of_l1(self) -> float:
        """Return the share of the l1 norm in the penalty, which `penalty` says where it says anything."""
        shares = {"l1": 1.0, "l2": 0.0, None: 0.0}
        return shares.get(self.penalty, float(self.l1_ratio or 0.0))

    def _solving(self, X: Any, coding: Coding) -> Minimisation:
        """Return how the loss is minimised, after checks of what depends on the rows."""
        n_columns, d = coding.n_columns, X.shape[1]
        self._require_strategy(coding.n_classes)
        if self.solver == "newton-cholesky":
            require_few(X, n_columns, self.penalty is not None and np.isfinite(self.C), "'newton-cg' or 'lbfgs'")
        start = np.zeros((n_columns, d + bool(self.fit_intercept)))
        if self.warm_start and getattr(self, "coef_", None) is not None:
            coef, intercept = self._columns()
            before = np.hstack([coef, intercept[:, None]]) if self.fit_intercept else coef
            if before.shape != start.shape:
                raise ValueError(
                    f"Initialization coef is of shape {before.shape}, expected shape {start.shape}; with "
                    "warm_start=True, X and y must have the features and classes of the previous fit"
                )
            start = before
        strength, share = 0.0 if self.penalty is None else 1 / float(self.C), self._share_of_l1()
        return self._minimisation(start.ravel(order="F"), strength * (1 - share), strength * share)

    def _arguments(self, cluster: Ranks, checked: LogisticInput, state: dict[str, Any] | None) -> dict[str, Any]:
        return super()._arguments(cluster, checked, state) | {"coding": checked.coding}

    def _set(self, checked: LogisticInput, coef: np.ndarray, n_iter: int) -> None:
        """Set the fitted attributes from coefficients in the layout of scikit-learn's solvers."""
        self.classes_ = checked.classes
        n_columns = checked.coding.n_columns
        table = coef.reshape(n_columns, -1, order="F").astype(checked.X.dtype)
        d = checked.X.shape[1]
        self.coef_ = np.ascontiguousarray(table[:, :d])
        self.intercept_ = table[:, d].copy() if checked.solving.fit_intercept else np.zeros(n_columns, checked.X.dtype)
        self.n_iter_ = np.array([n_iter], np.int32)
