"""Monotonic constraints of the splits of a tree, a part of the machine code of `forest_functions`.

A split of a column with a constraint puts the smaller value on the side that the constraint says. The middle between
both values bounds the values of all nodes below, on either side. There is one output: numbers, or two classes, whose
value is the share of the second.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from xpulab.kernels.on_cpu.host_functions import inlined

__all__ = ["Bounds", "below", "clip_values", "is_monotone", "mean_between"]


class Bounds(NamedTuple):
    """The constraint of each column, 1, 0 or -1, if any has one, and the least and the largest value of a node."""

    signs: Any
    any: Any
    low: Any
    high: Any


@inlined
def is_monotone(sign, left, right, bounds):  # type: ignore[no-untyped-def]
    # Whether a split into nodes of these values is allowed in a column whose constraint is `sign`.
    low, high = bounds.low, bounds.high
    within = left >= low and right >= low and left <= high and right <= high
    return sign == 0 or (within and (left - right) * sign <= 0)


@inlined
def clip_values(values, at, classes, low, high):  # type: ignore[no-untyped-def]
    # Bring the value of a node, or the share of the second class, within its bounds.
    if classes > 1:
        share = min(max(values[at + 1], low), high)
        values[at] = 1 - share
        values[at + 1] = share
    elif classes == 0:
        values[at] = min(max(values[at], low), high)


@inlined
def mean_between(samples, begin, middle, end):  # type: ignore[no-untyped-def]
    # The middle of the means of two nodes, whose rows are from begin to middle, and from middle to end.
    weights, targets = samples.weights, samples.targets
    value = np.float64(0)
    for side in range(2):
        weight = np.float64(0)
        total = np.float64(0)
        for i in range(begin if side == 0 else middle, middle if side == 0 else end):
            weight += weights[i]
            total += weights[i] * targets[i]
        value += total / (2 * weight)
    return value


@inlined
def below(between, sign, low, high):  # type: ignore[no-untyped-def]
    # The bounds of the two nodes of a split in a column of this constraint, between whose values is this number.
    left_low = low
    left_high = high
    right_low = low
    right_high = high
    if sign > 0:
        left_high = between
        right_low = between
    elif sign < 0:
        left_low = between
        right_high = between
    return left_low, left_high, right_low, right_high
