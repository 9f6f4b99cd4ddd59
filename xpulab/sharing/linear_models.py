"""Linear models whose loss a solver minimises: what a proxy tells the ranks, the state of a fit, and their answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from xpulab.sharing.answers import OwnRows

__all__ = [
    "Coding",
    "Descended",
    "Descent",
    "DescentState",
    "Deviances",
    "DistanceLoss",
    "Distribution",
    "MarginLoss",
    "Minimisation",
    "Minimised",
    "OfClasses",
    "Paths",
    "PathsFound",
    "PathsState",
    "Scatter",
    "ScatterOfClasses",
    "ScatterOfEach",
    "ScattersOfClasses",
    "Solution",
    "State",
]

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Distribution:
    """A Tweedie distribution.

    Attributes
    ----------
    power : float
        The power of the mean that is the variance: 0 of the normal distribution, 1 of Poisson's, 2 of the gamma.
    link : {"log", "identity"}
        Whether a row's product with the coefficients is the logarithm of the mean, or the mean.
    name : str
        scikit-learn's name of its loss, for messages.
    """

    power: float
    link: str
    name: str = ""


@dataclass(frozen=True)
class DistanceLoss:
    """By how much more than `epsilon` products miss their targets.

    Attributes
    ----------
    squared : bool
    constant : float
        The constant column whose coefficient, which has a penalty, times itself is the intercept; 0 for an intercept
        without a penalty.
    epsilon : float
    below, above : float
        By what the losses of products below and above their targets are multiplied.
    """

    squared: bool
    constant: float
    epsilon: float
    below: float = 1.0
    above: float = 1.0


@dataclass(frozen=True)
class OfClasses:
    """What the label of a row stands for.

    Attributes
    ----------
    known : numpy.ndarray of shape (n_classes,) or None
        The labels in ascending order; None if the numbers of the classes are given in their place.
    targets : numpy.ndarray of shape (n_classes, n_targets)
        The targets of a row of each class.
    weights : numpy.ndarray of shape (n_classes,) or None
        By which the weight of a row of each class is multiplied.
    """

    known: npt.NDArray[Any] | None
    targets: _Floats
    weights: _Floats | None = None


@dataclass(frozen=True)
class Coding:
    """The classes of labels.

    Attributes
    ----------
    known : numpy.ndarray of shape (n_classes,) or None
        The labels in ascending order; None if the numbers of the classes are given in their place.
    class_weight : numpy.ndarray of shape (n_classes,) or None
        By which the weight of a row of each class is multiplied.
    n_classes : int
    """

    known: npt.NDArray[Any] | None
    class_weight: npt.NDArray[Any] | None
    n_classes: int

    @property
    def n_columns(self) -> int:
        """Columns of coefficients: one for two classes, of the second; otherwise one for each."""
        return 1 if self.n_classes == 2 else self.n_classes


@dataclass(frozen=True)
class MarginLoss:
    """By how much products fall short of the margin of their class.

    Attributes
    ----------
    squared : bool
        Whether the loss is the square of what is missed.
    coding : Coding
        The classes.
    constant : float
        As for `DistanceLoss`.
    """

    squared: bool
    coding: Coding
    constant: float


@dataclass(frozen=True)
class Minimisation:
    """How a solver minimises a loss.

    Attributes
    ----------
    solver : {"lbfgs", "newton-cg", "newton-cholesky", "sag", "l1", "squares", "kinks", "scaled"}
    start : numpy.ndarray or None
        First coefficients, in the layout of scikit-learn's solvers; None for those of the mean of all targets. Of
        "scaled", the scale is at the end, or 0 for that of the residuals.
    fit_intercept : bool
    penalty, l1 : float
        Factors of half the squared norm of the coefficients, and of their l1 norm, which only the solvers "l1",
        "squares" and "kinks" take, beside the mean loss or, of classes and Huber's loss, the sum.
    tol : float
    max_iter, verbose : int
    """

    solver: str
    start: _Floats | None
    fit_intercept: bool
    penalty: float
    tol: float
    max_iter: int
    verbose: int
    l1: float = 0.0


@dataclass(frozen=True)
class Descent:
    """How a loss is minimised by steps for batches of rows, for one column of coefficients after the other.

    Names and meanings are those of the parameters of scikit-learn's `SGDClassifier`, where nothing else is said.

    Attributes
    ----------
    loss, learning_rate : str
    epsilon, alpha, eta0, power_t : float
    l1_ratio : float
        The share of the l1 norm in the penalty: 0 with "l2", 1 with "l1".
    penalty : bool
        Whether there is a penalty.
    fit_intercept, shuffle, early_stopping : bool
    max_iter, n_iter_no_change, verbose : int
    tol : float
        Minus infinity for None.
    average : int
        Number of rows after which coefficients are averaged; 0 for no average.
    seed : int
        Of the generator that deals the rows to batches.
    seeds : tuple of int
        Of the generator of the order of the batches, for each column.
    t : float
        Number of rows seen so far, plus 1.
    known : numpy.ndarray of shape (n_classes,) or None
        Labels of classes in ascending order; None if the targets are numbers of classes, or those of a regression.
    columns : tuple of (int, float, float)
        For each column, the number of its class, by what the weights of rows of this class are multiplied, and by what
        those of others; empty for a regression.
    held_out : numpy.ndarray of uint8 or None
        Packed bits of all rows: 1 for those for validation.
    """

    loss: str
    learning_rate: str
    epsilon: float
    alpha: float
    eta0: float
    power_t: float
    l1_ratio: float
    penalty: bool
    fit_intercept: bool
    shuffle: bool
    early_stopping: bool
    max_iter: int
    n_iter_no_change: int
    verbose: int
    tol: float
    average: int
    seed: int
    seeds: tuple[int, ...]
    t: float
    known: npt.NDArray[Any] | None = None
    columns: tuple[tuple[int, float, float], ...] = ()
    held_out: npt.NDArray[np.uint8] | None = None


class DescentState(TypedDict):
    """A descent after an iteration: one pass over the batches.

    `points` has coefficients and intercepts (n_columns, n_features + 1), and `averages` their averages since an earlier
    row or, without such averages, those of the last steps; `n_iter` the iterations of each column, `run` the number of
    the present one, and `random` the generator of its order. `eta` is the learning rate of "adaptive"; `best` the
    lowest objective, or the best score with another sign, and `stale` the iterations since.
    """

    run: int
    iteration: int
    points: _Floats
    averages: _Floats
    n_iter: list[int]
    random: Any
    eta: float
    best: float
    stale: int


class Descended(OwnRows, total=False):
    """Of a descent; other ranks than rank 0 have only their number of rows."""

    state: DescentState
    converged: bool
    said: str
    history: list[tuple[int, int, float, float, float]]
    every_run: bool


@dataclass(frozen=True)
class Paths:
    """Fits of the training rows of folds, each of which has all paths.

    Attributes
    ----------
    groups : list of (numpy.ndarray of shape (n_samples,), int)
    places : list of (int, int, int)
        As `xpulab.linear_model._folds.groups_of` returns them.
    fits : list of list of Minimisation
        The fits of each path; each but the first of a path starts at the coefficients of the one before.
    refit : bool, tuple of (int, int), or None
        Whether all rows are fitted with the penalty that has the best mean accuracy; or the path and the number of the
        fit that has the penalty; or None if it is not known yet.
    """

    groups: list[tuple[npt.NDArray[np.int32], int]]
    places: list[tuple[int, int, int]]
    fits: list[list[Minimisation]]
    refit: bool | tuple[int, int] | None

    @staticmethod
    def best_of(scores: _Floats) -> tuple[int, int]:
        """Return path and number of the fit with the best sum of the scores (n_folds, n_paths, n_fits).

        Of equal ones, it is the first fit, and of these the first path.
        """
        number, path = divmod(int(np.argmax(scores.sum(axis=0).T)), scores.shape[1])
        return path, number

    def weights_of(self, fold: int, rows: slice) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return which of some rows a fold is fitted to, and which it is tested with."""
        assignment, train, test = self.places[fold]
        groups = self.groups[assignment][0][rows]
        return (groups != test) if train < 0 else (groups == train), groups == test


class PathsState(TypedDict):
    """What the fits so far have found.

    `coefs` are the coefficients of each in the layout of scikit-learn's solvers, `scores` the weights of its test rows
    that are classified correctly and of all, and `told` what else its solution has.
    """

    run: int
    iteration: int
    coefs: _Floats
    scores: _Floats
    told: list[Solution]


class PathsFound(OwnRows, total=False):
    """Of "LogisticRegression.paths": rank 0 has the state after the last fit.

    If the penalty is known, it also has path and number of its fit, and the solution for all rows, if they were fitted.
    """

    state: PathsState
    converged: bool
    refitted: Solution
    chosen: tuple[int, int]
    history: list[tuple[int, int, float, float]]


@dataclass(frozen=True)
class Scatter:
    """How rows are scattered about their mean, and about the means of their classes; all arrays are float64.

    Attributes
    ----------
    weight : float
        Sum of the weights.
    means : numpy.ndarray of shape (n_classes, n_features)
        Weighted means of the columns in each class.
    within, total : numpy.ndarray of shape (n_features, n_features) or (k, n_features)
        Weighted sums of the products of the columns minus the means of the row's class, or of all rows; or, with
        `roots`, matrices whose products with their own transpose these sums are.
    roots : bool
    """

    weight: float
    means: _Floats
    within: _Floats
    total: _Floats
    roots: bool


class ScatterOfClasses(OwnRows, total=False):
    """Of "discriminant.scatter", on rank 0."""

    scatter: Scatter


@dataclass(frozen=True)
class ScatterOfEach:
    """How the rows of each class are scattered about their own mean; all arrays are float64.

    The rows of all classes may be one more class, the last.

    Attributes
    ----------
    counts : numpy.ndarray of shape (n_classes,)
        Numbers of rows.
    means : numpy.ndarray of shape (n_classes, n_features)
    within : numpy.ndarray of shape (n_classes, n_features, n_features)
        Sums of the products of the columns minus the means of the class.
    scales : numpy.ndarray of shape (n_classes, n_features), optional
        Standard deviations of the columns in each class; 1 for a column that is constant there.
    lengths : numpy.ndarray of shape (n_classes,), optional
        Sums of the squares of the squared lengths of the rows, minus the mean and divided by the scales of their class.
    """

    counts: _Floats
    means: _Floats
    within: _Floats
    scales: _Floats | None = None
    lengths: _Floats | None = None


class ScattersOfClasses(OwnRows, total=False):
    """Of "discriminant.each", on rank 0."""

    scatters: ScatterOfEach


class State(TypedDict):
    """A fit after an iteration: the coefficients, and the evaluations so far, with what was asked at which points."""

    run: int
    iteration: int
    coef: _Floats
    record: list[tuple[str, tuple[_Floats, ...], _Floats]]


class Solution(TypedDict, total=False):
    """What a solver has found.

    `ending` has status, message and nit of SciPy's result, for "lbfgs"; `warnings` categories and messages; `said` is
    what the solver has printed. `history` has run, iteration, loss, largest component of the gradient, and seconds.
    """

    coef: _Floats
    n_iter: int
    converged: bool
    ending: dict[str, Any]
    warnings: Sequence[tuple[type[Warning], str]]
    said: str
    history: list[tuple[int, int, float, float, float]]


class Minimised(Solution, OwnRows):
    """Of fits of linear models by a solver; other ranks than rank 0 have only their number of rows."""


class Deviances(OwnRows):
    """Of "GeneralizedLinear.score": half the deviances of the predictions, and of the mean of all targets in place of
    each; their sums by weight, and the sum of the weights.
    """

    own: float
    null: float
    weight: float
