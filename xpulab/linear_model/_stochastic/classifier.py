"""`SGDClassifier`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.linear_model

from xpulab._sklearn import _check_partial_fit_first_call, _fit_context, class_weights
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.labels import Labels, checked_labels, places_of
from xpulab.linear_model._classifiers.linear import LinearClassifier
from xpulab.linear_model._stochastic.base import StochasticFit, StochasticInput

__all__ = ["SGDClassifier"]


class SGDClassifier(StochasticFit, LinearClassifier, sklearn.linear_model.SGDClassifier):
    """Linear classification by stochastic gradient descent on every device of the active cluster.

    Parameters and attributes are those of `sklearn.linear_model.SGDClassifier`. A step is one for a batch of rows, on
    all engines at once, and not for a row. It is as long as the steps for these rows would be together, as far as the
    loss cannot rise, and coefficients are means over the last steps [1]_. So a fit takes fewer iterations, and ends
    nearer to the minimum. The rows are dealt once to batches, and an iteration changes the order of these. The result
    is the same for any number of engines, to rounding; it is not scikit-learn's, which is another for another
    `random_state`, too.

    Parameters
    ----------
    loss : str, default="hinge"
        What a row loses: "hinge", "log_loss", "modified_huber", "squared_hinge", "perceptron", or a loss of
        `SGDRegressor` for targets of 1 and -1.
    penalty : {"l2", "l1", "elasticnet"} or None, default="l2"
        The norm of the coefficients.
    alpha : float, default=0.0001
        Factor of the penalty. With "optimal", the learning rate depends on it, too.
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
        Without, the rows are dealt in turn.
    verbose : int, default=0
        Whether to print what scikit-learn prints, after the fit.
    epsilon : float, default=0.1
        Of the losses "huber" and "epsilon_insensitive": what may be missed.
    n_jobs : int or None, default=None
        It has no effect: all engines fit one class after the other.
    random_state : int, RandomState instance or None, default=None
        The random numbers by which the rows are dealt.
    learning_rate : {"optimal", "constant", "invscaling", "adaptive"}, default="optimal"
        How long steps are. The rates of single rows, "pa1" and "pa2", raise an error.
    eta0 : float, default=0.01
        The first learning rate, of a row; "optimal" has its own.
    power_t : float, default=0.5
        The exponent of "invscaling".
    early_stopping : bool, default=False
        Whether some rows are held out, and the share of them that is classified correctly says when a fit ends.
    validation_fraction : float, default=0.1
        Share of the rows that are held out.
    n_iter_no_change : int, default=5
        See `tol`.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes.
    warm_start : bool, default=False
        Whether a fit begins with the coefficients of the one before.
    average : bool or int, default=False
        Whether `coef_` are averages; a number is that of the row from which on they are.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, in ascending order.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients; of more than two classes, each against all others.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    n_iter_ : int
        Number of iterations; of several classes, the largest.
    t_ : float
        Number of rows of all iterations, plus 1.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. Its iterations have the objective, and
        the score with `early_stopping`; a run is that of a class.

    See Also
    --------
    sklearn.linear_model.SGDClassifier : The same in one process, with a step for each row.
    LogisticRegression : The minimum of the logistic loss.

    References
    ----------
    .. [1] S. Shalev-Shwartz, Y. Singer, N. Srebro, A. Cotter, "Pegasos: primal estimated sub-gradient solver for SVM",
       Mathematical Programming 127 (2011), 3-30; P. Jain, S. M. Kakade, R. Kidambi, P. Netrapalli, A. Sidford,
       "Parallelizing stochastic gradient descent for least squares regression", Journal of Machine Learning Research
       18 (2018), 1-42.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import SGDClassifier
    >>> with xpulab.XPUCluster(n=2):
    ...     SGDClassifier().fit([[-2.0], [-1.0], [1.0], [2.0]], ["no", "no", "yes", "yes"]).predict([[1.5]])
    array(['yes'], dtype='<U3')
    """

    n_jobs: int | None

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: Any,
        coef_init: npt.ArrayLike | None = None,
        intercept_init: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> SGDClassifier:
        """Fit the model.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,)
            Labels: numbers or strings in an array, numbers in a handle.
        coef_init : array-like of shape (1, n_features) or (n_classes, n_features), optional
            First coefficients.
        intercept_init : array-like of shape (1,) or (n_classes,), optional
            First intercepts.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative.

        Returns
        -------
        SGDClassifier
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
        rows: Any = self._checked(cluster, X, reset=True)
        y = checked_labels(self, cluster, y, rows)
        weights = self._weights(sample_weight, rows)
        labels = Labels.of(self, cluster, y, None)
        n_columns = _columns_of(labels.classes)
        start = self._first(n_columns, rows.shape[1], coef_init, intercept_init)
        held_out = self._held_out(y, weights)
        return self._run(cluster, self._input(rows, weights, labels, start, held_out))

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: Any,
        classes: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> SGDClassifier:
        """Make one iteration with these rows, from the present coefficients on.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        y : array-like or ShardedArray of shape (n_samples,)
        classes : array-like of shape (n_classes,), optional
            All labels that any call has; needed in the first one.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative.

        Returns
        -------
        SGDClassifier
            This object.

        Raises
        ------
        NoClusterError, ValueError, TypeError, HandleError, EngineError, EngineLostError
            As `fit`; ValueError also without `classes` in the first call, and for labels that are not in `classes`.
        KeyboardInterrupt
            If the user interrupted the call; the coefficients are those before it.
        """
        cluster = current_ranks()
        first = not hasattr(self, "classes_")
        if first:
            self._require_parameters(partial=True)
            if self.class_weight == "balanced":  # the sums of all rows are not known; scikit-learn says so
                self.unfitted_sklearn().partial_fit([[0.0]], [0], classes=[0, 1])
        rows: Any = self._checked(cluster, X, reset=first)
        y = checked_labels(self, cluster, y, rows)
        weights = self._weights(sample_weight, rows)
        _check_partial_fit_first_call(self, classes)
        try:
            n_columns, labels = _columns_of(self.classes_), self._among_classes(cluster, y)
            checked = self._input(rows, weights, labels, self._present(n_columns, rows.shape[1]), partial=True)
            return self._run(cluster, checked, method="partial_fit")
        except BaseException:
            if first:  # the next call is the first one, and may name other classes
                self.__dict__.pop("classes_", None)
            raise

    def _among_classes(self, cluster: Ranks, y: Any) -> Labels:
        """Return the labels as numbers of all classes.

        Raises
        ------
        ValueError
            If a label is not in the classes.
        """
        found = Labels.of(self, cluster, y, None)
        places = places_of(found.classes, self.classes_)
        if (places < 0).any():
            raise ValueError(
                f"y has the labels {found.classes[places < 0][:5]}, and classes are {self.classes_[:5]}; name all "
                "labels in the first call: partial_fit(X, y, classes=...)"
            )
        totals = np.zeros(len(self.classes_))
        totals[places] = found.totals
        if found.known is None:
            return Labels(self.classes_, places[found.targets], None, totals)
        return Labels(self.classes_, found.targets, y.code(self.classes_), totals)

    def _input(
        self,
        X: Any,
        weights: Any,
        labels: Labels,
        start: npt.NDArray[np.float64],
        held_out: Any = None,
        partial: bool = False,
    ) -> StochasticInput:
        n, by_class = len(labels.classes), np.ones(len(labels.classes))
        if self.class_weight is not None:
            by_class = class_weights(self.class_weight, labels.classes, labels.totals)
        columns = [(place, float(by_class[place]), 1.0) for place in range(n)]
        if n == 2:
            columns = [(1, float(by_class[1]), float(by_class[0]))]
        descent = self._descent(len(columns), partial, held_out, known=labels.known, columns=tuple(columns))
        return StochasticInput(
            X=X,
            weights=weights,
            targets=labels.targets,
            n_init=len(columns),
            max_iter=descent.max_iter,
            parameters=self.get_params(deep=False),
            descent=descent,
            start=start,
            partial=partial,
            classes=labels.classes,
        )


def _columns_of(classes: npt.NDArray[Any]) -> int:
    """Return the number of columns of coefficients.

    Raises
    ------
    ValueError
        If there is one class only.
    """
    if len(classes) < 2:
        raise ValueError(
            f"The number of classes has to be greater than one; got {len(classes)} class: {classes[0]!r}; pass rows of "
            "two classes or more"
        )
    return 1 if len(classes) == 2 else len(classes)
