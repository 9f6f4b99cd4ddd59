"""`LinearSVC`: scikit-learn's estimator on all engines of the active cluster."""

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
from xpulab.estimator.labels import checked_labels
from xpulab.linear_model._classifiers.linear import LinearClassifier
from xpulab.linear_model._classifiers.logistic import LogisticInput
from xpulab.sharing.linear_models import MarginLoss
from xpulab.svm._missed import SupportVectors

__all__ = ["LinearSVC"]


@dataclass(frozen=True, kw_only=True)
class _Input(LogisticInput):
    """A fit, and its loss."""

    loss: MarginLoss


class LinearSVC(SupportVectors[_Input], LinearClassifier, sklearn.svm.LinearSVC):
    """Classification by linear support vectors on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.svm.LinearSVC`, for any number of engines. The engines
    compute the loss and its derivatives in one pass over the rows, for all classes; one of them runs Newton's method,
    which ends nearer to the minimum than liblinear.

    Parameters
    ----------
    penalty : {"l1", "l2"}, default="l2"
        The norm of the coefficients.
    loss : {"hinge", "squared_hinge"}, default="squared_hinge"
        By how much a row falls short of the margin of its class, or its square.
    dual, random_state : as in scikit-learn
        They have no effect on the result; `dual` has to go with `penalty` and `loss`, as in scikit-learn.
    tol : float, default=1e-4
        The fit ends when the largest component of the gradient is so small a share of that of zeros; "hinge" is the
        limit of smooth losses, the last of which differs from it by at most a hundredth of this share.
    C : float, default=1.0
        Inverse strength of the penalty.
    multi_class : {"ovr", "crammer_singer"}, default="ovr"
        "crammer_singer" raises an error.
    fit_intercept : bool, default=True
        Whether there is a constant term. As in liblinear, it has a penalty, too.
    intercept_scaling : float, default=1.0
        The larger it is, the weaker is the penalty of the intercept.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes.
    verbose : int, default=0
        Accepted for compatibility with scikit-learn.
    max_iter : int, default=1000
        Largest number of iterations.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, in ascending order.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients, float64.
    intercept_ : ndarray of shape (1,) or (n_classes,), or 0.0 without `fit_intercept`
        Intercepts.
    n_iter_ : int
        Number of iterations, of all classes together.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. Its iterations have the loss (with the
        penalty) and the largest component of the (sub)gradient.

    See Also
    --------
    sklearn.svm.LinearSVC : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.svm import LinearSVC
    >>> with xpulab.XPUCluster(n=2):
    ...     LinearSVC().fit([[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"]).predict([[2.5]])
    array(['yes'], dtype='<U3')
    """

    #: For each row, the number of its class and its weight; both exist twice while they are computed.
    _work_memory: ClassVar[tuple[float, float]] = (32.0, 0.0)
    _stored_work: ClassVar[float] = 2.0  # a copy of sparse rows by column, and its values in float64
    _task: ClassVar[str] = "LinearSVC.fit"

    multi_class: str
    penalty: str
    n_iter_: int

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: Any, sample_weight: npt.ArrayLike | None = None) -> LinearSVC:
        """Fit the model.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,)
            Labels: numbers or strings in an array, numbers in a handle.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative.

        Returns
        -------
        LinearSVC
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input and parameters that scikit-learn rejects, for ``multi_class="crammer_singer"``, and if X and y
            are handles with different numbers of rows per rank or different dtypes. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit. All engines have stopped at the same evaluation; `coef_` and `intercept_`
            are those of the last iteration. `resume` continues the fit, also as ``xpulab.interrupted().resume()``.
        """
        cluster = current_ranks()
        if self.multi_class != "ovr":
            raise ValueError(
                f"multi_class={self.multi_class!r} was given; the engines compute 'ovr': leave it out, or use "
                "sklearn.svm.LinearSVC"
            )
        rows: Any = self._checked(cluster, X, reset=True)
        y = checked_labels(self, cluster, y, rows)
        weights = self._weights(sample_weight, rows)
        labels, coding = self._labelled(cluster, y, weights)
        solving = self._solving(rows, coding.n_columns, self.penalty, self.multi_class)
        checked = _Input(
            X=rows,
            weights=weights,
            targets=labels.targets,
            classes=labels.classes,
            coding=coding,
            max_iter=solving.max_iter,
            solving=solving,
            loss=MarginLoss(self.loss == "squared_hinge", coding, self._constant()),
            parameters=self.get_params(deep=False),
        )
        return self._run(cluster, checked)

    def _arguments(self, cluster: Ranks, checked: _Input, state: Any) -> Any:
        return super()._arguments(cluster, checked, state) | {"loss": checked.loss}

    def _set(self, checked: _Input, coef: np.ndarray, n_iter: int) -> None:
        """Set the fitted attributes from coefficients in the layout of scikit-learn's solvers."""
        table, d = coef.reshape(checked.coding.n_columns, -1, order="F"), checked.X.shape[1]
        self.classes_ = checked.classes
        self.coef_ = np.ascontiguousarray(table[:, :d])
        self.intercept_ = table[:, d] * checked.loss.constant if checked.solving.fit_intercept else 0.0
        self.n_iter_ = int(n_iter)
