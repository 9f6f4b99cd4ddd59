"""What the tasks of metrics return."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy.typing as npt

from xpulab.sharing.answers import Agreement, OwnRows

__all__ = [
    "Agreeing",
    "Areas",
    "Contingency",
    "DistinctLabels",
    "Losses",
    "LossesOfColumns",
    "NumberTable",
    "NumberTables",
    "ProbabilityLoss",
    "ProbabilityLosses",
]

_Array = npt.NDArray[Any]


class Agreeing(Agreement):
    """Of "metrics.agreeing": `largest` are the largest magnitudes of the true labels and of the predicted ones."""

    largest: _Array


class DistinctLabels(OwnRows):
    """Of "metrics.distinct"."""

    labels: _Array


class Contingency(OwnRows):
    """Of "metrics.contingency": the distinct true and predicted labels, and the pairs of them that occur.

    `pairs` are the places of the true and of the predicted label, the number of rows, and the sum of their weights.
    """

    labels: list[_Array]
    pairs: list[_Array]


class NumberTable(TypedDict):
    """Distinct numbers with the sums of their weights, in ascending order; with codes, those of each code in turn."""

    values: _Array
    codes: _Array | None
    weights: _Array


class NumberTables(OwnRows):
    """Of "metrics.scores" and "metrics.errors": a table for each column.

    `labels` are the labels that the codes stand for, and `add_up` says whether the scores of each row add up to 1.
    """

    labels: _Array | None
    tables: list[NumberTable]
    add_up: bool


class Areas(OwnRows):
    """Of "metrics.areas": for each label the area below its ROC curve, its average precision, and its weight.

    `areas` is empty if there is neither one column of scores, nor one for each label.
    """

    labels: _Array
    areas: _Array
    add_up: bool


class Losses(TypedDict):
    """By column the sums of weights and of losses, the lowest true value and prediction, and the largest loss."""

    weight: _Array
    total: _Array
    lowest: _Array
    lowest_guess: _Array
    largest: _Array


class LossesOfColumns(OwnRows, Losses):
    """Of "metrics.losses"."""


class ProbabilityLosses(TypedDict):
    """Sums of weighted logarithmic and squared losses, the sum of weights, and facts about the probabilities.

    `worst` is the largest distance of a row's sum of probabilities from 1.
    """

    total: float
    squares: float
    weight: float
    worst: float
    lowest: float
    highest: float


class ProbabilityLoss(OwnRows, ProbabilityLosses):
    """Of "metrics.probabilities"."""
