"""The targets of a forest: checked as scikit-learn does in this process, or, if they are a handle, on the engines."""

from __future__ import annotations

import inspect
import numbers
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import DataConversionWarning
from sklearn.metrics import r2_score

from xpulab._sklearn import _forest, balances_by_weight, class_weights
from xpulab.checks import ONE_AT_A_TIME
from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.columns import ScannedColumn
from xpulab.estimator.proxy import Proxy
from xpulab.sharing.answers import Categories, ForestScore, Range, Total
from xpulab.sharing.sources import HandleTargets, SharedArray

__all__ = ["WEIGHTS_DRAW", "Targets"]

#: Whether this release of scikit-learn draws the rows of a tree in proportion to their weights.
WEIGHTS_DRAW = "sample_weight" in inspect.signature(_forest._generate_sample_indices).parameters


@dataclass(frozen=True)
class Targets:
    """The targets of all rows, and their weights.

    Attributes
    ----------
    values : numpy.ndarray of float64 of shape (n_samples, n_outputs), or ShardedArray
        Numbers, or indices of classes; of a handle, the labels themselves.
    some : numpy.ndarray of shape (n_rows, n_outputs)
        Targets of all rows, or of a few that have each class.
    counts : list of int
        Number of classes of each output; 0 for numbers.
    least, largest, mean : numpy.ndarray of shape (n_outputs,)
    weights : numpy.ndarray of float64 of shape (n_samples,) or None
        Weights of the rows, times those of their classes unless `of_classes` has these.
    classes : list of numpy.ndarray or None
        The classes of each output, if the values are labels.
    of_classes : list of numpy.ndarray or None
        Weight of each of these classes.
    """

    values: np.ndarray | ShardedArray
    some: np.ndarray
    counts: list[int]
    least: np.ndarray
    largest: np.ndarray
    mean: np.ndarray
    weights: np.ndarray | None
    classes: list[np.ndarray] | None = None
    of_classes: list[np.ndarray] | None = None

    @classmethod
    def read(cls, forest: Any, cluster: Ranks, y: np.ndarray | ShardedArray, weights: np.ndarray | None) -> Targets:
        """Read the targets of a forest, and set its attributes that depend on them."""
        if y.ndim == 2 and y.shape[1] == 1:
            warnings.warn(
                "A column-vector y was passed when a 1d array was expected. Please change the shape of y to "
                "(n_samples,), for example using ravel().",
                DataConversionWarning,
                stacklevel=4,
            )
        forest.n_outputs_ = 1 if y.ndim == 1 else y.shape[1]
        if isinstance(y, ShardedArray):
            return (_of_labels if is_classifier(forest) else _of_numbers)(forest, cluster, y, weights)
        y = y.reshape(len(y), -1)
        _require_positive(forest, y)
        y, of_classes = _validated(forest, y, weights)
        if of_classes is not None:
            weights = of_classes if weights is None else weights * of_classes
        y = np.ascontiguousarray(y, np.float64)
        counts = [int(n) for n in getattr(forest, "n_classes_", [0] * forest.n_outputs_)]
        return cls(y, y, counts, y.min(axis=0), y.max(axis=0), y.mean(axis=0), weights)

    def sent(self, cluster: Ranks, outgoing: Outgoing, middle: np.ndarray | None = None) -> SharedArray | HandleTargets:
        """Send the targets minus `middle`, unless they are on the engines; return where they are."""
        if isinstance(self.values, ShardedArray):
            return HandleTargets(self.values.source(cluster), self.classes, middle, self.of_classes)
        return outgoing.send(self.values if middle is None else self.values - middle)

    def sent_weights(self, outgoing: Outgoing) -> SharedArray | None:
        """Send the weights of the rows; return where they are."""
        return None if self.weights is None else outgoing.send(self.weights)

    def here(self) -> np.ndarray:
        """Return the values in this process, with indices of classes for labels."""
        if not isinstance(self.values, ShardedArray):
            return self.values
        found = self.values.gather().reshape(len(self.values), -1)
        if self.classes is not None:
            found = np.stack([np.searchsorted(*pair) for pair in zip(self.classes, found.T, strict=True)], axis=1)
        return found.astype(np.float64)

    def to_draw(self, forest: Proxy, cluster: Ranks) -> np.ndarray | None:
        """Return the weights of the rows, or their sum alone, on which a share of the rows to draw depends."""
        share = getattr(forest, "max_samples", None)
        if self.of_classes is None or share is None or isinstance(share, numbers.Integral) or not WEIGHTS_DRAW:
            return self.weights

        def send(outgoing: Outgoing) -> dict[str, SharedArray | HandleTargets | None]:
            return {"y": self.sent(cluster, outgoing), "shares": self.sent_weights(outgoing)}

        found: Total = forest._ask(cluster, "weight", "forest.weight", self.values, send_more=send).results[0]
        return np.array([found["total"]])

    def score(self, forest: Proxy, cluster: Ranks, predicted: np.ndarray) -> float:
        """Return the accuracy, or the coefficient of determination, of predictions of a handle's targets."""
        n = len(predicted)
        if self.classes is None and n < 2:
            return float(r2_score(predicted, predicted))  # NaN, with a warning
        predicted = np.ascontiguousarray(predicted.reshape(n, -1), np.float64)

        def send(outgoing: Outgoing) -> dict[str, SharedArray | HandleTargets]:
            return {"y": self.sent(cluster, outgoing), "predicted": outgoing.send(predicted)}

        found: ForestScore = forest._ask(cluster, "score", "forest.score", self.values, send_more=send).results[0]
        if self.classes is not None:
            return found["right"] / n
        errors, spread = found["errors"], found["spread"]
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.where(spread != 0, 1 - errors / spread, np.where(errors == 0, 1.0, 0.0))
        return float(np.average(scores))


def _require_positive(forest: Any, y: np.ndarray) -> None:
    """Raise ValueError for numbers that cannot be those of a Poisson distribution."""
    if forest.criterion != "poisson":
        return
    if (y < 0).any():
        raise ValueError("Some value(s) of y are negative which is not allowed for Poisson regression.")
    if y.sum() <= 0:
        raise ValueError("Sum of y is not strictly positive which is necessary for Poisson regression.")


def _validated(forest: Any, y: np.ndarray, weights: np.ndarray | None) -> Any:
    """Return indices of classes, or the numbers, and the weights that the classes give to the rows, or None."""
    read = forest._validate_y_class_weight
    more = (weights,) if len(inspect.signature(read).parameters) == 2 else ()
    with ONE_AT_A_TIME:
        return read(y, *more)


def _of_numbers(forest: Any, cluster: Ranks, y: ShardedArray, weights: np.ndarray | None) -> Targets:
    y.require_numbers("y")
    found: Range = forest._ask(cluster, "targets", "forest.range", y).results[0]
    least, largest = found["least"], found["largest"]
    ends = np.stack([least, largest])
    _require_positive(forest, ends)
    return Targets(y, ends, [0] * len(least), least, largest, found["mean"], weights)


def _of_labels(forest: Any, cluster: Ranks, y: ShardedArray, weights: np.ndarray | None) -> Targets:
    how = forest.class_weight
    balanced = how == "balanced" or (how == "balanced_subsample" and not forest.bootstrap)
    weighed = weights if balanced and balances_by_weight() else None

    def send(outgoing: Outgoing) -> dict[str, SharedArray | None]:
        return {"shares": None if weighed is None else outgoing.send(weighed)}

    found: Categories = forest._ask(cluster, "classes", "forest.classes", y, send_more=send).results[0]
    classes, counts = found["values"], [len(values) for values in found["values"]]
    if not isinstance(y, ScannedColumn):  # which can be read again, with all digits
        for number, values in enumerate(classes):
            y.require_exact(values, number)
    only = y.labels(classes[0])
    if only is None:
        return Targets.read(forest, cluster, y.gather(), weights)
    named = [only, *classes[1:]]
    # Three of each class, so that scikit-learn does not warn of too many. It checks the weights of classes, too.
    places = np.repeat(np.arange(max(counts)), 3)
    labels = np.stack([values[np.minimum(places, len(values) - 1)] for values in named], axis=1)
    codes = _validated(forest, labels, None)[0].astype(np.float64)
    each = ["balanced"] * len(classes) if balanced else how if isinstance(how, list) else [how] * len(classes)
    of_classes = None
    if balanced or isinstance(how, (dict, list)):
        totals = [sums.astype(np.float64) for sums in found["counts"]]
        of_classes = [class_weights(*given) for given in zip(each, classes, totals, strict=True)]
    least, largest, mean = codes.min(axis=0), codes.max(axis=0), codes.mean(axis=0)
    return Targets(y, codes, counts, least, largest, mean, weights, classes, of_classes)
