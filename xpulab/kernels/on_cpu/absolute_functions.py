"""Splits that decrease the absolute error the most, a part of the machine code of `forest_functions`.

The sum of the absolute differences from the median, of the rows on either side of a split, follows from four sums: of
the weights, and of the weighted targets, below the median and in all [1]_. The targets of a node are sorted once. A
Fenwick tree over their order [2]_ has these sums for the rows on the left; another has them for all rows, and the
difference between both is the right side.

References
----------
.. [1] R. Koenker, "Quantile Regression", Cambridge University Press 2005, section 1.3.
.. [2] P. M. Fenwick, "A new data structure for cumulative frequency tables", Software: Practice and Experience 24
   (1994), 327-336.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from xpulab.kernels.on_cpu.host_functions import inlined
from xpulab.kernels.on_cpu.monotone_functions import is_monotone
from xpulab.kernels.on_cpu.split_functions import (
    MISSING,
    SPLIT_BIN,
    SPLIT_FEATURE,
    SPLIT_MISSING,
    SPLIT_NEXT,
    SPLIT_THRESHOLD,
    WHOLE,
    WORTH,
    draw_columns,
)

__all__ = [
    "ABSOLUTE",
    "find_median_split",
    "median_between",
    "rank_node",
    "ranking_of",
    "ranking_sizes",
    "worth_of_medians",
]

ABSOLUTE = 4  # see `forests.CRITERIA`
_FEW = 48  # rows up to which they are sorted by their bins by insertion
_SIDES = 2  # numbers of a place of a Fenwick tree: the weight, and the weighted target


class Ranking(NamedTuple):
    """Room for the order of a node's targets, of which there are at most `n`.

    The integers begin with the rows of the node, counted from its first, in the order of their targets, n for each
    output; from `place` on is the place of each row in this order, from `aside` and `by_bin` on room for n of them, and
    from `counts` on for 257 numbers. The numbers begin with Fenwick trees, one for each output, of the weights and the
    weighted targets of all rows of the node; from `left` on are those of the rows on the left side of a split, and from
    `sums` on the weighted targets of the node and of the left side.
    """

    integers: Any
    numbers: Any
    n: Any
    place: Any
    aside: Any
    by_bin: Any
    counts: Any
    left: Any
    sums: Any


@inlined
def ranking_of(integers, numbers, n, outputs):  # type: ignore[no-untyped-def]
    # Memory of `ranking_sizes` is enough.
    trees = _SIDES * outputs * (n + 1)
    place, aside = outputs * n, 2 * outputs * n
    return Ranking(integers, numbers, n, place, aside, aside + n, aside + 2 * n, trees, 2 * trees)


def ranking_sizes(n: int, outputs: int) -> tuple[int, int]:
    """Return how many integers and numbers a `Ranking` of n rows has."""
    return 2 * outputs * n + 2 * n + 257, 2 * _SIDES * outputs * (n + 1) + 2 * outputs


# --- a node


@inlined
def sort_targets(samples, first, m, output, outputs, ranking):  # type: ignore[no-untyped-def]
    # Write the order of the node's rows by the targets of an output: sorted pieces are merged.
    targets, order, at, aside = samples.targets, ranking.integers, output * ranking.n, ranking.aside
    for i in range(m):
        order[at + i] = i
    width = 1
    while width < m:
        for begin in range(0, m - width, 2 * width):
            middle = begin + width
            end = min(middle + width, m)
            a = targets[(first + order[at + middle - 1]) * outputs + output]
            b = targets[(first + order[at + middle]) * outputs + output]
            if a > b:
                for i in range(begin, end):
                    order[aside + i] = order[at + i]
                i = begin
                j = middle
                for k in range(begin, end):
                    from_left = i < middle
                    if from_left and j < end:
                        a = targets[(first + order[aside + i]) * outputs + output]
                        b = targets[(first + order[aside + j]) * outputs + output]
                        from_left = a <= b
                    if from_left:
                        order[at + k] = order[aside + i]
                        i += 1
                    else:
                        order[at + k] = order[aside + j]
                        j += 1
        width *= 2


@inlined
def median_of_sorted(samples, first, m, output, outputs, ranking):  # type: ignore[no-untyped-def]
    # The weighted median of rows in the order of their targets: the middle of two where half of the weight is between.
    weights, targets, order, at = samples.weights, samples.targets, ranking.integers, output * ranking.n
    total = np.float64(0)
    for r in range(m):
        total += weights[first + order[at + r]]
    below = np.float64(0)
    r = -1
    while r < m - 1 and below < total / 2:
        r += 1
        below += weights[first + order[at + r]]
    median = targets[(first + order[at + r]) * outputs + output]
    if below == total / 2 and r < m - 1:
        median = (median + targets[(first + order[at + r + 1]) * outputs + output]) / 2
    return median


@inlined
def rank_node(samples, first, last, outputs, sums, whole, ranking):  # type: ignore[no-untyped-def]
    # Sort the targets of a node. Its sums are the number of rows, the weight, and the medians. Returns the sum of all
    # absolute differences from them.
    m = last - first
    n = ranking.n
    weight = np.float64(0)
    for i in range(first, last):
        weight += samples.weights[i]
    sums[whole] = m
    sums[whole + 1] = weight
    error = np.float64(0)
    for o in range(outputs):
        order, at = ranking.integers, o * n
        sort_targets(samples, first, m, o, outputs, ranking)
        median = median_of_sorted(samples, first, m, o, outputs, ranking)
        sums[whole + 2 + o] = median
        every, root = ranking.numbers, _SIDES * o * (n + 1)
        total = np.float64(0)
        for k in range(_SIDES * (m + 1)):
            every[root + k] = 0
        for r in range(m):
            i = order[at + r]
            order[ranking.place + at + i] = r
            w = samples.weights[first + i]
            y = samples.targets[(first + i) * outputs + o]
            error += w * abs(y - median)
            total += w * y
            k = r + 1
            every[root + _SIDES * k] += w
            every[root + _SIDES * k + 1] += w * y
            above = k + (k & -k)
            if above <= m:
                every[root + _SIDES * above] += every[root + _SIDES * k]
                every[root + _SIDES * above + 1] += every[root + _SIDES * k + 1]
        every[ranking.sums + 2 * o] = total
    return error


@inlined
def median_between(samples, begin, middle, end, ranking):  # type: ignore[no-untyped-def]
    # The middle of the medians of two nodes, of one output.
    value = np.float64(0)
    for side in range(2):
        first = begin if side == 0 else middle
        m = (middle if side == 0 else end) - first
        sort_targets(samples, first, m, 0, 1, ranking)
        value += median_of_sorted(samples, first, m, 0, 1, ranking) / 2
    return value


# --- the sides of a split


@inlined
def put_left(samples, first, i, m, outputs, ranking):  # type: ignore[no-untyped-def]
    # Add a row of the node to the left side.
    w = samples.weights[first + i]
    for o in range(outputs):
        y = samples.targets[(first + i) * outputs + o]
        left, root = ranking.numbers, ranking.left + _SIDES * o * (ranking.n + 1)
        k = ranking.integers[ranking.place + o * ranking.n + i] + 1
        while k <= m:
            left[root + _SIDES * k] += w
            left[root + _SIDES * k + 1] += w * y
            k += k & -k
        left[ranking.sums + 2 * o + 1] += w * y
    return w


@inlined
def descend(ranking, output, m, on_left, half, beyond):  # type: ignore[no-untyped-def]
    # How many places of a side come before half of its weight, and their weight and weighted targets. Those at which
    # the weight is exactly half come before it, too, if `beyond` is 1.
    trees, root, left = ranking.numbers, _SIDES * output * (ranking.n + 1), ranking.left
    bit = 1
    while 2 * bit <= m:
        bit *= 2
    at = np.int64(0)
    weight = np.float64(0)
    target = np.float64(0)
    while bit > 0:
        k = at + bit
        if k <= m:
            w = trees[left + root + _SIDES * k]
            t = trees[left + root + _SIDES * k + 1]
            if on_left == 0:
                w = trees[root + _SIDES * k] - w
                t = trees[root + _SIDES * k + 1] - t
            if weight + w < half or (beyond == 1 and weight + w == half):
                at = k
                weight += w
                target += t
        bit //= 2
    return at, weight, target


@inlined
def side_of(samples, first, m, output, outputs, on_left, weight, total, both, ranking):  # type: ignore[no-untyped-def]
    # The absolute error of a side, of this weight and sum of weighted targets, and, if `both`, its median.
    order, at = ranking.integers, output * ranking.n
    k, below, target = descend(ranking, output, m, on_left, weight / 2, 0)
    median = samples.targets[(first + order[at + min(k, m - 1)]) * outputs + output]
    error = total - target - median * (weight - below) + median * below - target
    if both != 0:
        k, below, target = descend(ranking, output, m, on_left, weight / 2, 1)
        median = (median + samples.targets[(first + order[at + min(k, m - 1)]) * outputs + output]) / 2
    return max(error, np.float64(0)), median


@inlined
def allows(rows, weight, m, whole, criterion):  # type: ignore[no-untyped-def]
    # Whether both sides have enough rows and weight.
    return min(rows, m - rows) >= criterion.min_rows and min(weight, whole - weight) >= criterion.min_weight


@inlined
def worth_of_sides(  # type: ignore[no-untyped-def]
    samples, first, m, rows, weight, whole, criterion, sign, bounds, ranking
):
    # The worth of a split into the rows that were put to the left, of this number and weight, and the others.
    worth = -np.inf
    if allows(rows, weight, m, whole, criterion):
        worth = np.float64(0)
        low = np.float64(0)
        high = np.float64(0)
        outputs = criterion.outputs
        for o in range(outputs):
            total = ranking.numbers[ranking.sums + 2 * o + 1]
            error, low = side_of(samples, first, m, o, outputs, 1, weight, total, sign, ranking)
            worth -= error
            total = ranking.numbers[ranking.sums + 2 * o] - total
            error, high = side_of(samples, first, m, o, outputs, 0, whole - weight, total, sign, ranking)
            worth -= error
        if sign != 0 and not is_monotone(sign, low, high, bounds):
            worth = -np.inf
    return worth


# --- the best split of a column


@inlined
def sort_by_bin(columns, feature, samples, first, m, ranking):  # type: ignore[no-untyped-def]
    # Write the rows of the node to `by_bin`, in the order of their bins.
    bins, d, rows, order, by_bin = columns.bins, columns.d, samples.rows, ranking.integers, ranking.by_bin
    if m <= _FEW:
        for i in range(m):
            b = bins[rows[first + i] * d + feature]
            k = i
            while k > 0 and bins[rows[first + order[by_bin + k - 1]] * d + feature] > b:
                order[by_bin + k] = order[by_bin + k - 1]
                k -= 1
            order[by_bin + k] = i
    else:
        counts = ranking.counts
        for b in range(257):
            order[counts + b] = 0
        for i in range(m):
            order[counts + np.int64(bins[rows[first + i] * d + feature]) + 1] += 1
        for b in range(256):
            order[counts + b + 1] += order[counts + b]
        for i in range(m):
            b = np.int64(bins[rows[first + i] * d + feature])
            order[by_bin + order[counts + b]] = i
            order[counts + b] += 1


@inlined
def bin_of(columns, feature, samples, first, ranking, k):  # type: ignore[no-untyped-def]
    return np.int64(columns.bins[samples.rows[first + ranking.integers[ranking.by_bin + k]] * columns.d + feature])


@inlined
def empty_left(ranking, m, outputs):  # type: ignore[no-untyped-def]
    for o in range(outputs):
        root = ranking.left + _SIDES * o * (ranking.n + 1)
        for k in range(_SIDES * (m + 1)):
            ranking.numbers[root + k] = 0
        ranking.numbers[ranking.sums + 2 * o + 1] = 0


@inlined
def split_by_medians(columns, feature, samples, first, m, criterion, bounds, sums, ranking):  # type: ignore[no-untyped-def]
    # Look at the splits of a column, whose bins are more than one; what is missing goes to the right, then to the left.
    outputs = criterion.outputs
    whole, best = WHOLE * criterion.size, (WHOLE + 1) * criterion.size
    sign = bounds.signs[feature] if bounds.any != 0 else np.int64(0)
    present = m
    while present > 0 and bin_of(columns, feature, samples, first, ranking, present - 1) == MISSING:
        present -= 1
    for to_left in range(1 if present == m else 2):
        empty_left(ranking, m, outputs)
        rows = np.int64(0)
        weight = np.float64(0)
        if to_left == 1:
            for k in range(present, m):
                weight += put_left(samples, first, ranking.integers[ranking.by_bin + k], m, outputs, ranking)
                rows += 1
        k = 0
        while k < present:
            b = bin_of(columns, feature, samples, first, ranking, k)
            following = b
            while following == b:
                weight += put_left(samples, first, ranking.integers[ranking.by_bin + k], m, outputs, ranking)
                rows += 1
                k += 1
                following = bin_of(columns, feature, samples, first, ranking, k) if k < present else np.int64(MISSING)
            worth = worth_of_sides(samples, first, m, rows, weight, sums[whole + 1], criterion, sign, bounds, ranking)
            if worth > sums[best + WORTH]:
                sums[best + WORTH] = worth
                sums[best + SPLIT_FEATURE] = feature
                sums[best + SPLIT_BIN] = b
                sums[best + SPLIT_MISSING] = to_left if present < m else -1
                sums[best + SPLIT_NEXT] = following


@inlined
def find_median_split(  # type: ignore[no-untyped-def]
    columns, first, last, samples, criterion, bounds, max_features, state, sums, ranking
):
    # As `find_split`, of a node that is ranked.
    order, best = columns.order, (WHOLE + 1) * criterion.size
    sums[best + WORTH] = -np.inf
    sums[best + SPLIT_THRESHOLD] = np.nan
    visited = 0
    constant = 0
    rest = columns.d
    m = last - first
    while rest > 0 and (visited < max_features or visited <= constant):
        state = draw_columns(order, rest, 1, state)
        rest -= 1
        visited += 1
        feature = order[rest]
        sort_by_bin(columns, feature, samples, first, m, ranking)
        lowest = bin_of(columns, feature, samples, first, ranking, 0)
        if lowest == bin_of(columns, feature, samples, first, ranking, m - 1):
            constant += 1
        else:
            split_by_medians(columns, feature, samples, first, m, criterion, bounds, sums, ranking)
    return state


# --- a split that was drawn


@inlined
def worth_of_medians(  # type: ignore[no-untyped-def]
    columns, feature, last_bin, to_left, first, last, samples, criterion, bounds, sums, ranking
):
    # The worth of a split of a node that is ranked.
    m, outputs = last - first, criterion.outputs
    empty_left(ranking, m, outputs)
    rows = np.int64(0)
    weight = np.float64(0)
    for i in range(m):
        b = np.int64(columns.bins[samples.rows[first + i] * columns.d + feature])
        if to_left == 1 if b == MISSING else b <= last_bin:
            weight += put_left(samples, first, i, m, outputs, ranking)
            rows += 1
    sign = bounds.signs[feature] if bounds.any != 0 else np.int64(0)
    whole = sums[WHOLE * criterion.size + 1]
    return worth_of_sides(samples, first, m, rows, weight, whole, criterion, sign, bounds, ranking)
