"""The best split of a node of a decision tree, a part of the machine code of `forest_functions`.

The histograms of a few columns are filled at a time, of all bins, or of those that occur if a node has few rows. The
best split of a column is read off its histogram, bin by bin: what is up to a bin is on the left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from xpulab.kernels.on_cpu.host_functions import inlined
from xpulab.kernels.on_cpu.monotone_functions import is_monotone

__all__ = [
    "EPSILON",
    "GINI",
    "MISSING",
    "SPLIT_BIN",
    "SPLIT_FEATURE",
    "SPLIT_MISSING",
    "SPLIT_NEXT",
    "SPLIT_THRESHOLD",
    "WHOLE",
    "WORTH",
    "Columns",
    "Criterion",
    "Samples",
    "add_row",
    "draw_columns",
    "find_split",
    "next_random",
    "purity",
    "sum_node",
    "weight_of",
    "worth_of",
]

#: The fields of the best split so far: its worth, the column, the last bin on the left, where missing values go (1: to
#: the left, 0: to the right, -1: there are none), the next bin that occurs, and the threshold; NaN if this is the edge
#: in the middle between both bins.
WORTH, SPLIT_FEATURE, SPLIT_BIN, SPLIT_MISSING, SPLIT_NEXT, SPLIT_THRESHOLD = range(6)
#: Criteria, see `forests.CRITERIA`.
GINI, _ENTROPY, _SQUARES, _POISSON = range(4)
MISSING = 255  # the bin of NaN
_TOGETHER = 4  # columns whose histograms are filled in one pass over the rows
#: The sums are (WHOLE + 2, size) numbers: the histograms of these columns (256 each), the two sides of a split, those
#: of the node, and the best split.
WHOLE = 256 * _TOGETHER + 2
_SMALL = 48  # rows up to which the bins that occur are listed
EPSILON = np.float64(np.finfo(np.float64).eps)


class Criterion(NamedTuple):
    """How sums are laid out and what a split has to fulfil.

    Sums begin with the number of rows, for targets that are numbers followed by the weight (`head` is 2, and 1 for
    classes); those of output o begin at ``head + offsets[o]``. There are `size` numbers.
    """

    kind: Any
    outputs: Any
    classes: Any
    offsets: Any
    head: Any
    size: Any
    min_rows: Any
    min_weight: Any


class Samples(NamedTuple):
    """The rows of a tree, node by node, with their weights and targets; after `n` of each is room for as many again."""

    rows: Any
    weights: Any
    targets: Any
    n: Any


class Columns(NamedTuple):
    """The bins (n, d) of all rows, the order in which columns are looked at, and room for a list of bins.

    `limits` has the least and the largest value of each bin; those of column f begin at 2 * (ends[f - 1] + f).
    """

    bins: Any
    d: Any
    order: Any
    listed: Any
    limits: Any
    ends: Any


@inlined
def purity(sums, at, criterion, weight):  # type: ignore[no-untyped-def]
    # Of a node, from its sums: the larger, the better. Those of the two sides of a split are added.
    total = np.float64(0)
    first = at + criterion.head
    last = first + criterion.offsets[criterion.outputs]
    if weight <= 0:
        return total
    if criterion.kind == GINI or criterion.kind == _SQUARES:
        for s in range(first, last):
            total += sums[s] * sums[s]
        total /= weight
    elif criterion.kind == _ENTROPY:
        logarithm = np.log2(weight)
        for s in range(first, last):
            if sums[s] > 0:
                total += sums[s] * (np.log2(sums[s]) - logarithm)
    else:
        for s in range(first, last):
            if sums[s] > EPSILON:
                total += sums[s] * np.log(sums[s] / weight)
            else:
                total = -np.inf
    return total


@inlined
def weight_of(sums, at, criterion):  # type: ignore[no-untyped-def]
    weight = np.float64(0)
    if criterion.head == 2:
        weight = sums[at + 1]
    else:
        for s in range(at + 1, at + 1 + criterion.offsets[1]):
            weight += sums[s]
    return weight


@inlined
def worth_of(sums, left, right, criterion, sign, bounds):  # type: ignore[no-untyped-def]
    # Of a split, by the sums of its two sides; minus infinity if it is not allowed. The last two: see `is_monotone`.
    worth = -np.inf
    a = weight_of(sums, left, criterion)
    b = weight_of(sums, right, criterion)
    least, lightest = criterion.min_rows, criterion.min_weight
    if sums[left] >= least and sums[right] >= least and a >= lightest and b >= lightest:
        worth = purity(sums, left, criterion, a)
        worth += purity(sums, right, criterion, b)
        if sign != 0 and not is_monotone(sign, sums[left + 2] / a, sums[right + 2] / b, bounds):
            worth = -np.inf
    return worth


@inlined
def add_row(sums, at, weight, i, targets, criterion):  # type: ignore[no-untyped-def]
    # Add row i of this weight and its targets to the sums that begin at `at`.
    sums[at] += 1
    if criterion.outputs == 1 and criterion.head == 1:
        sums[at + 1 + np.int64(targets[i])] += weight
    elif criterion.outputs == 1:
        sums[at + 1] += weight
        sums[at + 2] += weight * targets[i]
    elif criterion.head == 1:
        for o in range(criterion.outputs):
            sums[at + 1 + criterion.offsets[o] + np.int64(targets[i * criterion.outputs + o])] += weight
    else:
        sums[at + 1] += weight
        for o in range(criterion.outputs):
            sums[at + 2 + o] += weight * targets[i * criterion.outputs + o]


@inlined
def add_columns(columns, first, n_columns, begin, end, samples, criterion, sums):  # type: ignore[no-untyped-def]
    # The histograms of the columns order[first], order[first + 1] and so on of the rows from begin to end, one after
    # the other. Four at a time, because their bins of a row are in one or two lines of the cache.
    bins, d, order = columns.bins, columns.d, columns.order
    rows, targets, size = samples.rows, samples.targets, criterion.size
    if n_columns == _TOGETHER:
        f0 = order[first]
        f1 = order[first + 1]
        f2 = order[first + 2]
        f3 = order[first + 3]
        for i in range(begin, end):
            row = rows[i] * d
            weight = samples.weights[i]
            b0 = np.int64(bins[row + f0])
            b1 = np.int64(bins[row + f1]) + 256
            b2 = np.int64(bins[row + f2]) + 512
            b3 = np.int64(bins[row + f3]) + 768
            add_row(sums, b0 * size, weight, i, targets, criterion)
            add_row(sums, b1 * size, weight, i, targets, criterion)
            add_row(sums, b2 * size, weight, i, targets, criterion)
            add_row(sums, b3 * size, weight, i, targets, criterion)
    else:
        for j in range(n_columns):
            feature = order[first + j]
            for i in range(begin, end):
                b = np.int64(bins[rows[i] * d + feature]) + 256 * j
                add_row(sums, b * size, samples.weights[i], i, targets, criterion)


@inlined
def list_and_add(columns, feature, begin, end, samples, criterion, sums):  # type: ignore[no-untyped-def]
    # The histogram of one column of few rows, and the list of the bins that occur, in their order; returns how many.
    listed = columns.listed
    n_listed = 0
    for i in range(begin, end):
        b = np.int64(columns.bins[samples.rows[i] * columns.d + feature])
        if sums[b * criterion.size] == 0:
            k = n_listed
            while k > 0 and listed[k - 1] > b:
                listed[k] = listed[k - 1]
                k -= 1
            listed[k] = b
            n_listed += 1
        add_row(sums, b * criterion.size, samples.weights[i], i, samples.targets, criterion)
    return n_listed


@inlined
def sum_node(samples, first, last, criterion, sums, whole):  # type: ignore[no-untyped-def]
    # The sums of a node's rows, from `whole` on; returns what a perfect split would add to the purity of numbers, and 0
    # if all numbers are equal, whose impurity would not be exactly 0.
    for s in range(whole, whole + criterion.size):
        sums[s] = 0
    weights, targets, outputs = samples.weights, samples.targets, criterion.outputs
    squares = np.float64(0)
    differ = 1 if criterion.head == 1 else 0
    if outputs == 1 and criterion.head == 1 and criterion.classes == 2:
        # In registers.
        zeros = np.float64(0)
        ones = np.float64(0)
        for i in range(first, last):
            one = weights[i] * targets[i]
            ones += one
            zeros += weights[i] - one
        sums[whole] = last - first
        sums[whole + 1] = zeros
        sums[whole + 2] = ones
    else:
        for i in range(first, last):
            add_row(sums, whole, weights[i], i, targets, criterion)
    if criterion.head == 2:
        for i in range(first, last):
            for o in range(outputs):
                target = targets[i * outputs + o]
                differ |= 1 if target != targets[first * outputs + o] else 0
                if criterion.kind != _POISSON:
                    squares += weights[i] * target * target
                elif target > 0:
                    squares += weights[i] * target * np.log(target)
    return squares, differ


@inlined
def split_in_registers(  # type: ignore[no-untyped-def]
    sums, whole, left, first, listed, last, worth, criterion, sign, bounds
):
    # The same as `split_in_memory` for two classes, or one target.
    rows_left = sums[left]
    first_left = sums[left + 1]
    second_left = sums[left + 2]
    rows_whole = sums[whole]
    first_whole = sums[whole + 1]
    second_whole = sums[whole + 2]
    split = -1
    for k in range(last):
        at = first + listed[k] * 3
        rows_left += sums[at]
        first_left += sums[at + 1]
        second_left += sums[at + 2]
        first_right = first_whole - first_left
        second_right = second_whole - second_left
        if criterion.kind == GINI:
            a = first_left + second_left
            b = first_right + second_right
            above = first_left * first_left + second_left * second_left
            below = first_right * first_right + second_right * second_right
        else:
            a = first_left
            b = first_right
            above = second_left * second_left
            below = second_right * second_right
        found = (above * b + below * a) / (a * b)
        allowed = rows_left >= criterion.min_rows and rows_whole - rows_left >= criterion.min_rows
        if sign != 0:
            allowed = allowed and is_monotone(sign, second_left / a, second_right / b, bounds)
        if found > worth and allowed and a >= criterion.min_weight and b >= criterion.min_weight:
            worth = found
            split = k
    return split, worth


@inlined
def split_in_memory(  # type: ignore[no-untyped-def]
    sums, whole, left, first, listed, last, worth, criterion, sign, bounds
):
    # The last listed bin on the left side of the best split of a column, -1 if none has more worth; and its worth.
    size = criterion.size
    right = left + size
    split = -1
    for k in range(last):
        at = first + listed[k] * size
        for s in range(size):
            sums[left + s] += sums[at + s]
            sums[right + s] = sums[whole + s] - sums[left + s]
        found = worth_of(sums, left, right, criterion, sign, bounds)
        if found > worth:
            worth = found
            split = k
    return split, worth


@inlined
def split_column(feature, first, listed, n_listed, criterion, bounds, sums):  # type: ignore[no-untyped-def]
    # sums: histograms (4, 256, size), of which that of the column begins at first; sums of the two sides; those of the
    # node; and the best split so far. listed: the bins that occur. Sets the histogram to zeros.
    size = criterion.size
    sign = bounds.signs[feature] if bounds.any != 0 else np.int64(0)
    left = 256 * _TOGETHER * size
    whole = left + 2 * size
    best = whole + size
    missing = 1 if listed[n_listed - 1] == MISSING else 0
    present = n_listed - missing
    if n_listed > 1:
        for to_left in range(1 + missing):
            for s in range(size):
                sums[left + s] = sums[first + MISSING * size + s] if to_left != 0 else np.float64(0)
            # All values on the left and the missing ones on the right is the last split.
            last = present if missing != 0 and to_left == 0 else present - 1
            if size == 3 and (criterion.kind == GINI or criterion.kind == _SQUARES):
                split, worth = split_in_registers(
                    sums, whole, left, first, listed, last, sums[best], criterion, sign, bounds
                )
            else:
                split, worth = split_in_memory(
                    sums, whole, left, first, listed, last, sums[best], criterion, sign, bounds
                )
            if split >= 0:
                sums[best + WORTH] = worth
                sums[best + SPLIT_FEATURE] = feature
                sums[best + SPLIT_BIN] = listed[split]
                sums[best + SPLIT_MISSING] = to_left if missing != 0 else -1
                sums[best + SPLIT_NEXT] = listed[split + 1] if split + 1 < present else MISSING
    for k in range(n_listed):
        at = first + listed[k] * size
        for s in range(size):
            sums[at + s] = 0


@inlined
def next_random(state):  # type: ignore[no-untyped-def]
    # The next state of the generator, xorshift32: a number from 1 to 2**32 - 1.
    state ^= (state << 13) & 0xFFFFFFFF
    state ^= state >> 17
    state ^= (state << 5) & 0xFFFFFFFF
    return state


@inlined
def draw_columns(order, rest, n_columns, state):  # type: ignore[no-untyped-def]
    # Put columns that are drawn from the first `rest` after the others; returns the state of the generator.
    for _ in range(n_columns):
        state = next_random(state)
        chosen = state % rest
        rest -= 1
        feature = order[chosen]
        order[chosen] = order[rest]
        order[rest] = feature
    return state


@inlined
def find_split(  # type: ignore[no-untyped-def]
    columns, first, last, samples, criterion, bounds, max_features, state, sums
):
    # Look at columns that are drawn, as many as the settings say, and on, while all of them are constant.
    order, listed, size = columns.order, columns.listed, criterion.size
    sums[(WHOLE + 1) * size + WORTH] = -np.inf
    sums[(WHOLE + 1) * size + SPLIT_THRESHOLD] = np.nan
    visited = 0
    constant = 0
    rest = columns.d
    while rest > 0 and (visited < max_features or visited <= constant):
        small = last - first <= _SMALL
        n_columns = 1 if small else min(_TOGETHER, rest, max(max_features - visited, 1))
        state = draw_columns(order, rest, n_columns, state)
        rest -= n_columns
        visited += n_columns
        if not small:
            add_columns(columns, rest, n_columns, first, last, samples, criterion, sums)
        for drawn in range(n_columns):
            j = n_columns - 1 - drawn
            feature = order[rest + j]
            n_listed = 0
            if small:
                n_listed = list_and_add(columns, feature, first, last, samples, criterion, sums)
            else:
                for b in range(256):
                    listed[n_listed] = b
                    n_listed += 1 if sums[(256 * j + b) * size] > 0 else 0
            split_column(feature, 256 * j * size, listed, n_listed, criterion, bounds, sums)
            constant += n_listed <= 1
    return state
