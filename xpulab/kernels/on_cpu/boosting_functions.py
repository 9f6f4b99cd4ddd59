"""Gradient boosting on the CPU: the source of the machine code that `xpulab.kernels.on_cpu.boosting` calls.

A node's histogram has, for each bin of each column, the sums of the gradients and of the second derivatives of the
loss, and the number of rows. They are integers, so that the sums do not depend on the order of the rows. Rows are added
as two numbers, because the memory of the sums is what takes the time: the second has the second derivative in its upper
bits, and one row in its lower ones. The rules for
splits, missing values, categories and monotonic constraints are those of scikit-learn's histogram gradient boosting
[1]_. A set of bins has a bit for each bin: that of bin b is bit ``b % 8`` of byte ``b // 8``.

References
----------
.. [1] scikit-learn's ``sklearn/ensemble/_hist_gradient_boosting/splitting.pyx``.
.. [2] W. D. Fisher, "On Grouping for Maximum Homogeneity", Journal of the American Statistical Association 53 (1958).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xpulab.kernels.on_cpu.host_functions import host_function, inlined

__all__ = [
    "add_by_bins",
    "add_by_columns",
    "add_by_rows",
    "add_histogram",
    "add_leaves",
    "add_packed",
    "as_integers",
    "bin_doubles",
    "find_best_set",
    "find_best_split",
    "part_node",
    "part_node_by_set",
]

_BINS = 256  # in the histogram of a column
_SUMS = 3  # numbers of a bin: gradients, second derivatives, rows
_COUNT_BITS = 18  # of a packed number; so many bits less one are those of the number of rows that are added at a time
_GRADIENT, _HESSIAN, _ROWS = range(3)
#: Settings of a node's split, see `boosting.Splitting`.
_VALUE, _LOWER, _UPPER, _L2, _MIN_ROWS, _MIN_HESSIAN, _MIN_GAIN, _G_UNIT, _H_UNIT = range(9)
_SUPPORT = 10.0  # the least number of rows of a category that may go to the left, as second derivatives count them
_SET = 32  # bytes of a set of bins
_TILE = 2048  # rows that are added to some columns before the next columns
_ABREAST = 8  # rows that are followed through a tree at the same time


@host_function("f8* i8 i8 f8* i8* i8* i8 u1*")
def bin_doubles(values, n, d, thresholds, ends, steps, missing, bins):  # type: ignore[no-untyped-def]
    # values, bins: (n, d). thresholds: of all columns; those of column f end at ends[f], and begin at ends[f - 1].
    # steps: of each column a power of two that is not less than the number of its thresholds.
    for i in range(n):
        for f in range(d):
            x = values[i * d + f]
            first = ends[f - 1] if f > 0 else 0
            last = ends[f]
            at = first
            step = steps[f]
            while step > 0:
                ahead = at + step
                if ahead <= last and thresholds[ahead - 1] < x:
                    at = ahead
                step >>= 1
            bins[i * d + f] = at - first if x == x else missing


@host_function("f4* f4* i8 f8 f8 i8*")
def as_integers(gradients, hessians, n, g_scale, h_scale, numbers):  # type: ignore[no-untyped-def]
    # numbers: (n, 2) gradient, second derivative and one row.
    for i in range(n):
        g = np.float64(gradients[i]) * g_scale
        h = np.float64(hessians[i]) * h_scale
        numbers[2 * i] = np.int64(g + 0.5) if g >= 0 else np.int64(g - 0.5)
        numbers[2 * i + 1] = (np.int64(h + 0.5) if h >= 0 else np.int64(h - 0.5)) * (1 << _COUNT_BITS) + 1


def add_pair(sums: Any, at: int, first: int, second: int) -> int:
    """Add two numbers to those at `at` and after it. The compiler puts one vector instruction instead."""
    raise RuntimeError("add_pair has no meaning outside of a host function")


@host_function("u1* i8 i4* i8 i8 i8* i8*")
def add_histogram(bins, d, rows, begin, end, numbers, sums):  # type: ignore[no-untyped-def]
    # bins: (n, d). rows: their indices. numbers: see `as_integers`. sums: (d, 256, 2), packed as these.
    for i in range(begin, end):
        row = np.int64(rows[i])
        gradient = numbers[2 * row]
        packed = numbers[2 * row + 1]
        for f in range(d):
            at = 2 * (f * _BINS + np.int64(bins[row * d + f]))
            add_pair(sums, at, gradient, packed)


@host_function("u1* i8 i8 i4* i8 i8 i8* i8*")
def add_by_columns(columns, n, d, rows, begin, end, numbers, sums):  # type: ignore[no-untyped-def]
    # As `add_histogram`, from bins by columns (d, n): four columns at a time, so that a core has their sums near.
    for first in range(begin, end, _TILE):
        last = min(first + _TILE, end)
        for f in range(0, d - d % 4, 4):
            for i in range(first, last):
                row = np.int64(rows[i])
                gradient = numbers[2 * row]
                packed = numbers[2 * row + 1]
                for k in range(4):
                    at = 2 * ((f + k) * _BINS + np.int64(columns[(f + k) * n + row]))
                    add_pair(sums, at, gradient, packed)
        for f in range(d - d % 4, d):
            for i in range(first, last):
                row = np.int64(rows[i])
                at = 2 * (f * _BINS + np.int64(columns[f * n + row]))
                add_pair(sums, at, numbers[2 * row], numbers[2 * row + 1])


@host_function("i8* i8 i8*")
def add_packed(packed, n, sums):  # type: ignore[no-untyped-def]
    # Add packed sums (n, 2) of at most 2 ** 17 rows to sums (n, 3), and clear them.
    for k in range(n):
        rows = packed[2 * k + 1] & ((1 << _COUNT_BITS) - 1)
        sums[k * _SUMS + _GRADIENT] += packed[2 * k]
        sums[k * _SUMS + _HESSIAN] += (packed[2 * k + 1] - rows) >> _COUNT_BITS
        sums[k * _SUMS + _ROWS] += rows
        packed[2 * k] = 0
        packed[2 * k + 1] = 0


@host_function("u1* i8 i8 i8 i8 i8 i4* i8 i8 i4* -> i8")
def part_node(  # type: ignore[no-untyped-def]
    bins, d, feature, last_bin, missing, missing_left, rows, begin, end, aside
):  # fmt: skip
    # Bring a node's rows on the left before those on the right, in their order; returns where the latter begin.
    middle = begin
    n_aside = np.int64(0)
    for i in range(begin, end):
        # Each row is written to both sides, because a branch would be guessed wrong half of the time.
        row = rows[i]
        b = np.int64(bins[np.int64(row) * d + feature])
        left = (1 if b <= last_bin else 0) | (missing_left if b == missing else 0)
        rows[middle] = row
        aside[n_aside] = row
        middle += left
        n_aside += 1 - left
    for i in range(n_aside):
        rows[middle + i] = aside[i]
    return middle


@host_function("u1* u1* i4* i8 i8 i4* -> i8")
def part_node_by_set(column, chosen, rows, begin, end, aside):  # type: ignore[no-untyped-def]
    # As `part_node`, for the bins of a column, of which those of a set go to the left.
    middle = begin
    n_aside = np.int64(0)
    for i in range(begin, end):
        row = rows[i]
        left = in_set(chosen, 0, np.int64(column[np.int64(row)]))
        rows[middle] = row
        aside[n_aside] = row
        middle += left
        n_aside += 1 - left
    for i in range(n_aside):
        rows[middle + i] = aside[i]
    return middle


@inlined
def in_set(sets, number, b):  # type: ignore[no-untyped-def]
    # 1 if bin b is in the set of this number, and 0 otherwise.
    return (np.int64(sets[number * _SET + (b >> 3)]) >> (b & 7)) & 1


# --- splits


@inlined
def node_value(gradient, hessian, settings):  # type: ignore[no-untyped-def]
    value = -gradient / (hessian + settings[_L2] + 1e-15)
    value = settings[_LOWER] if value < settings[_LOWER] else value
    return settings[_UPPER] if value > settings[_UPPER] else value


@inlined
def gain_of(g_left, h_left, g_right, h_right, loss, constraint, settings):  # type: ignore[no-untyped-def]
    left = node_value(g_left, h_left, settings)
    right = node_value(g_right, h_right, settings)
    if (constraint > 0 and left > right) or (constraint < 0 and left < right):
        return np.float64(-1)
    return (loss - g_left * left) - g_right * right


@host_function("i8* i8 i8 i8* u1* i8* u1* i8* f8* f8* i8*")
def find_best_split(  # type: ignore[no-untyped-def]
    sums, first, d, n_bins, missing, constraints, allowed, whole, settings, gains, best
):  # fmt: skip
    # Looks at the columns from `first` on. sums: (d, 256, 3). n_bins: of each column, without that of missing values.
    # whole: the sums of the node. If a split has a greater gain than gains[0], the gain of the best goes there, and to
    # best: its column, the last bin on the left, whether missing values go to the left, and the sums on the left.
    g_unit, h_unit = settings[_G_UNIT], settings[_H_UNIT]
    min_rows, min_hessian = np.int64(settings[_MIN_ROWS]), settings[_MIN_HESSIAN]
    g_whole, h_whole = whole[_GRADIENT] * g_unit, whole[_HESSIAN] * h_unit
    loss = g_whole * settings[_VALUE]
    for f in range(first, d):
        if allowed[f] == 0:
            continue
        for direction in range(1 + np.int64(missing[f])):
            # First from the left, with missing values on the right; then from the right, with them on the left.
            steps = n_bins[f] - 1 + (np.int64(missing[f]) if direction == 0 else 0)
            g_near = np.int64(0)
            h_near = np.int64(0)
            n_near = np.int64(0)
            for step in range(steps):
                b = step if direction == 0 else n_bins[f] - 1 - step
                at = (f * _BINS + b) * _SUMS
                g_near += sums[at + _GRADIENT]
                h_near += sums[at + _HESSIAN]
                n_near += sums[at + _ROWS]
                if n_near < min_rows:
                    continue
                if whole[_ROWS] - n_near < min_rows:
                    break
                h = h_near * h_unit
                h_far = h_whole - h
                if h < min_hessian:
                    continue
                if h_far < min_hessian:
                    break
                g = g_near * g_unit
                g_far = g_whole - g
                if direction == 0:
                    gain = gain_of(g, h, g_far, h_far, loss, constraints[f], settings)
                else:
                    gain = gain_of(g_far, h_far, g, h, loss, constraints[f], settings)
                if gain > gains[0] and gain > settings[_MIN_GAIN]:
                    gains[0] = gain
                    best[0] = f
                    best[1] = b if direction == 0 else b - 1
                    best[2] = direction
                    best[3] = g_near if direction == 0 else whole[_GRADIENT] - g_near
                    best[4] = h_near if direction == 0 else whole[_HESSIAN] - h_near
                    best[5] = n_near if direction == 0 else whole[_ROWS] - n_near


@host_function("i8* i8 i8* u1* u1* i8 i8* f8* f8* i8* f8* i8* u1*")
def find_best_set(  # type: ignore[no-untyped-def]
    sums, columns, n_bins, missing, allowed, missing_bin, whole, settings, gains, best, means, order, chosen
):  # fmt: skip
    # As `find_best_split`, for the first columns, whose bins are categories; those on the left go to the set `chosen`.
    # Categories with enough rows are ordered by their mean gradients [2]_; the first of them may go to the left, or the
    # last, up to half of them. All others go to the right, with those of few rows. means, order: room for each bin.
    g_unit, h_unit = settings[_G_UNIT], settings[_H_UNIT]
    min_rows, min_hessian = np.int64(settings[_MIN_ROWS]), settings[_MIN_HESSIAN]
    g_whole, h_whole = whole[_GRADIENT] * g_unit, whole[_HESSIAN] * h_unit
    loss = g_whole * settings[_VALUE]
    rows_of_one = whole[_ROWS] / h_whole
    for f in range(columns):
        if allowed[f] == 0:
            continue
        used = order_categories(
            sums, f, n_bins[f], np.int64(missing[f]), missing_bin, rows_of_one, settings, means, order
        )
        last = np.int64(-1)
        backwards = np.int64(0)
        for direction in range(2):
            g_near = np.int64(0)
            h_near = np.int64(0)
            n_near = np.int64(0)
            for i in range((used + 1) // 2 - direction if used > 1 else 0):
                at = (f * _BINS + order[used - 1 - i if direction == 1 else i]) * _SUMS
                g_near += sums[at + _GRADIENT]
                h_near += sums[at + _HESSIAN]
                n_near += sums[at + _ROWS]
                h = h_near * h_unit
                h_far = h_whole - h
                if n_near < min_rows or h < min_hessian:
                    continue
                if whole[_ROWS] - n_near < min_rows or h_far < min_hessian:
                    break
                g = g_near * g_unit
                gain = gain_of(g, h, g_whole - g, h_far, loss, np.int64(0), settings)
                if gain > gains[0] and gain > settings[_MIN_GAIN]:
                    gains[0] = gain
                    best[0] = f
                    best[3] = g_near
                    best[4] = h_near
                    best[5] = n_near
                    last = np.int64(i)
                    backwards = np.int64(direction)
        if last >= 0:
            for k in range(_SET):
                chosen[k] = 0
            for i in range(last + 1):
                b = order[used - 1 - i if backwards == 1 else i]
                chosen[b >> 3] = np.int64(chosen[b >> 3]) | (1 << (b & 7))
            best[1] = 0
            best[2] = in_set(chosen, 0, missing_bin)


@inlined
def order_categories(  # type: ignore[no-untyped-def]
    sums, f, n_bins, missing, missing_bin, rows_of_one, settings, means, order
):  # fmt: skip
    # Write the bins of a column that have enough rows to `order`, by ascending mean gradients; returns how many.
    used = np.int64(0)
    for i in range(n_bins + missing):
        b = i if i < n_bins else missing_bin
        at = (f * _BINS + b) * _SUMS
        h = sums[at + _HESSIAN] * settings[_H_UNIT]
        if h * rows_of_one >= _SUPPORT:
            mean = sums[at + _GRADIENT] * settings[_G_UNIT] / (h + _SUPPORT)
            place = used
            while place > 0 and means[place - 1] > mean:
                means[place] = means[place - 1]
                order[place] = order[place - 1]
                place -= 1
            means[place] = mean
            order[place] = b
            used += 1
    return used


# --- what trees say of rows


@host_function("i4* i8* f8* i8 f8*")
def add_leaves(rows, bounds, values, leaves, raw):  # type: ignore[no-untyped-def]
    # bounds: (leaves, 2) where the rows of each leaf begin and end.
    for leaf in range(leaves):
        for i in range(bounds[2 * leaf], bounds[2 * leaf + 1]):
            raw[np.int64(rows[i])] += values[leaf]


@host_function("u1* i8 i8 i8 i4* u1* f8* f8*")
def add_by_bins(bins, n, d, missing, nodes, sets, values, raw):  # type: ignore[no-untyped-def]
    # nodes: (4 a node) left, right, twice the column plus whether missing values go to the left, and the last bin on
    # the left, or -1 less the number of the set of bins on the left. A leaf has itself on both sides.
    for i in range(n):
        node = np.int64(0)
        while nodes[node * 4] != node:
            rule = np.int64(nodes[node * 4 + 2])
            b = np.int64(bins[i * d + (rule >> 1)])
            last = np.int64(nodes[node * 4 + 3])
            if b == missing:
                left = (rule & 1) == 1
            elif last < 0:
                left = in_set(sets, -1 - last, b) == 1
            else:
                left = b <= last
            node = np.int64(nodes[node * 4] if left else nodes[node * 4 + 1])
        raw[i] += values[node]


@inlined
def child_of_row(node, row, rows, nodes, sets, thresholds):  # type: ignore[no-untyped-def]
    # Without a branch on numbers, which would be guessed wrong half of the time.
    rule = np.int64(nodes[node * 4 + 2])
    x = np.float64(rows[row + (rule >> 1)])
    left = x <= thresholds[node]
    if nodes[node * 4 + 3] < 0 and x == x:
        left = in_set(sets, -1 - np.int64(nodes[node * 4 + 3]), np.int64(x)) == 1
    left = left | ((x != x) & ((rule & 1) == 1))
    return np.int64(nodes[node * 4 + (0 if left else 1)])


@host_function("T* i8 i8 i4* u1* f8* f8* i8* i8 i8 i8* f8*")
def add_by_rows(  # type: ignore[no-untyped-def]
    rows, n, d, nodes, sets, thresholds, values, roots, trees, width, at, sums
):  # fmt: skip
    # nodes: as for `add_by_bins`, with all trees one after the other, and 0 for the last bin. Sets have the numbers of
    # categories, which are in the rows. Tree t adds to column t % width of the sums.
    # at: room for the nodes of eight rows, which go down together: the processor waits for all eight at once.
    for tree in range(trees):
        for first in range(0, n, _ABREAST):
            for k in range(_ABREAST):
                at[k] = roots[tree]
            n_abreast = min(_ABREAST, n - first)
            moved = np.int64(1)
            while moved != 0:
                moved = np.int64(0)
                for k in range(_ABREAST):
                    # The last rows are followed again where there are fewer than eight.
                    node = child_of_row(at[k], (first + min(k, n_abreast - 1)) * d, rows, nodes, sets, thresholds)
                    moved |= node ^ at[k]
                    at[k] = node
            for k in range(n_abreast):
                sums[(first + k) * width + tree % width] += values[at[k]]
