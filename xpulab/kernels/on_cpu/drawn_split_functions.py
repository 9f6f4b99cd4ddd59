"""The best of some splits that are drawn, a part of the machine code of `forest_functions`.

One split is drawn for each of some columns: a number between the least and the largest value that the column has in the
node, each with the same probability, and a side for missing values [1]_. A bin is on one side as a whole. If it has one
value, the split is that of the numbers themselves.

References
----------
.. [1] P. Geurts, D. Ernst, L. Wehenkel, "Extremely randomized trees", Machine Learning 63 (2006), 3-42, table 1.
"""

from __future__ import annotations

import numpy as np

from xpulab.kernels.on_cpu.absolute_functions import ABSOLUTE, worth_of_medians
from xpulab.kernels.on_cpu.host_functions import inlined
from xpulab.kernels.on_cpu.split_functions import (
    MISSING,
    SPLIT_BIN,
    SPLIT_FEATURE,
    SPLIT_MISSING,
    SPLIT_NEXT,
    SPLIT_THRESHOLD,
    WHOLE,
    WORTH,
    add_row,
    draw_columns,
    next_random,
    worth_of,
)

__all__ = ["draw_split"]


@inlined
def range_of(columns, feature, first, last, rows):  # type: ignore[no-untyped-def]
    # The first and the last bin of a node's rows in a column, 255 and -1 if there are none; and if any is missing.
    least = np.int64(MISSING)
    largest = np.int64(-1)
    missing = np.int64(0)
    for i in range(first, last):
        b = np.int64(columns.bins[rows[i] * columns.d + feature])
        is_missing = 1 if b == MISSING else 0
        missing |= is_missing
        least = min(least, b)
        largest = max(largest, b - 256 * is_missing)
    return least, largest, missing


@inlined
def cut(columns, feature, least, largest, share):  # type: ignore[no-untyped-def]
    # The last bin on the left, and the threshold, at this share of the way from the least to the largest value.
    limits = columns.limits
    at = 2 * ((columns.ends[feature - 1] if feature > 0 else 0) + feature)
    low = limits[at + 2 * least]
    threshold = low + share * (limits[at + 2 * largest + 1] - low)
    last_bin = least
    upper = max(largest - 1, least)
    while last_bin < upper:
        between = (last_bin + upper + 1) // 2
        if limits[at + 2 * between] + limits[at + 2 * between + 1] <= 2 * threshold:
            last_bin = between
        else:
            upper = between - 1
    # Between the bins, and not within one of several values.
    below = limits[at + 2 * last_bin + 1]
    threshold = max(threshold, below)
    if last_bin < largest:
        above = limits[at + 2 * last_bin + 2]
        threshold = threshold if threshold < above else (below + above) / 2
    return last_bin, threshold


@inlined
def sum_sides(columns, feature, last_bin, to_left, first, last, samples, criterion, sums):  # type: ignore[no-untyped-def]
    # The sums of the rows on the left, from 0 on, and of those on the right.
    bins, rows, weights, targets = columns.bins, samples.rows, samples.weights, samples.targets
    size = criterion.size
    whole = WHOLE * size
    for s in range(2 * size):
        sums[s] = 0
    if size == 3 and criterion.outputs == 1:
        # In registers: two classes, or one target.
        n_left = np.int64(0)
        weight_left = np.float64(0)
        target_left = np.float64(0)
        for i in range(first, last):
            b = np.int64(bins[rows[i] * columns.d + feature])
            left = 1 if (to_left == 1 if b == MISSING else b <= last_bin) else 0
            weight = weights[i] * left
            n_left += left
            weight_left += weight
            target_left += weight * targets[i]
        sums[0] = n_left
        sums[1] = weight_left if criterion.head == 2 else weight_left - target_left
        sums[2] = target_left
        for s in range(3):
            sums[3 + s] = sums[whole + s] - sums[s]
    else:
        for i in range(first, last):
            b = np.int64(bins[rows[i] * columns.d + feature])
            left = to_left == 1 if b == MISSING else b <= last_bin
            add_row(sums, 0 if left else size, weights[i], i, targets, criterion)


@inlined
def draw_split(  # type: ignore[no-untyped-def]
    columns, first, last, samples, criterion, bounds, max_features, state, sums, ranking
):
    # As `find_split`, with one split of each column. Returns the state of the generator.
    order, best = columns.order, (WHOLE + 1) * criterion.size
    sums[best + WORTH] = -np.inf
    visited = 0
    constant = 0
    rest = columns.d
    while rest > 0 and (visited < max_features or visited <= constant):
        state = draw_columns(order, rest, 1, state)
        rest -= 1
        visited += 1
        feature = order[rest]
        least, largest, missing = range_of(columns, feature, first, last, samples.rows)
        if largest < 0 or (largest <= least and missing == 0):
            constant += 1
        else:
            state = next_random(state)
            last_bin, threshold = cut(columns, feature, least, largest, np.float64(state) / 4294967296.0)
            to_left = np.int64(-1)
            if missing != 0:
                state = next_random(state)
                to_left = (state >> 16) & 1
            if criterion.kind == ABSOLUTE:
                worth = worth_of_medians(
                    columns, feature, last_bin, to_left, first, last, samples, criterion, bounds, sums, ranking
                )
            else:
                sum_sides(columns, feature, last_bin, to_left, first, last, samples, criterion, sums)
                sign = bounds.signs[feature] if bounds.any != 0 else np.int64(0)
                worth = worth_of(sums, 0, criterion.size, criterion, sign, bounds)
            if worth > sums[best + WORTH]:
                sums[best + WORTH] = worth
                sums[best + SPLIT_FEATURE] = feature
                sums[best + SPLIT_BIN] = last_bin
                sums[best + SPLIT_MISSING] = to_left
                sums[best + SPLIT_NEXT] = last_bin + 1
                sums[best + SPLIT_THRESHOLD] = threshold
    return state
