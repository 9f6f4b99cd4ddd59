"""Decision trees on the CPU: the source of the machine code that `xpulab.kernels.on_cpu.forests` calls.

Trees are grown from bins, numbers of one byte that say between which edges of its column a value is. A node's histogram
has, for each bin, the number of rows, and sums of their weights and targets; the best split is read off it [1]_. The
rules for nodes, splits and missing values are those of scikit-learn's trees.

References
----------
.. [1] G. Ke et al., "LightGBM: A Highly Efficient Gradient Boosting Decision Tree", NeurIPS 2017, algorithm 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from xpulab.kernels.on_cpu.absolute_functions import (
    ABSOLUTE,
    find_median_split,
    median_between,
    rank_node,
    ranking_of,
)
from xpulab.kernels.on_cpu.drawn_split_functions import draw_split
from xpulab.kernels.on_cpu.host_functions import host_function, inlined
from xpulab.kernels.on_cpu.monotone_functions import Bounds, below, clip_values, mean_between
from xpulab.kernels.on_cpu.split_functions import (
    EPSILON,
    GINI,
    MISSING,
    SPLIT_BIN,
    SPLIT_FEATURE,
    SPLIT_MISSING,
    SPLIT_NEXT,
    SPLIT_THRESHOLD,
    WHOLE,
    WORTH,
    Columns,
    Criterion,
    Samples,
    find_split,
    purity,
    sum_node,
    weight_of,
)

__all__ = ["add_unsampled", "add_values", "bin_values", "grow_tree"]

#: The fields of a node, as `forests.NODE` has them. `_BIN_AND_MISSING`: 1 if missing values go to the left, and 256
#: times the last bin on the left, in bytes that scikit-learn does not use.
_LEFT, _RIGHT, _FEATURE, _THRESHOLD, _IMPURITY, _N_ROWS, _WEIGHT, _BIN_AND_MISSING = range(8)
_NODE = 8
#: The fields of an open node, which will be split: its number, the first and the last of its rows, its depth, its best
#: split (the column, the last bin on the left, where missing values go), by how much this decreases the impurity,
#: whether the bins of its rows have been copied side by side, the threshold of the split, and the least and the largest
#: value that constraints allow.
_OPEN_NODE, _OPEN_FIRST, _OPEN_LAST, _OPEN_DEPTH, _OPEN_FEATURE, _OPEN_BIN, _OPEN_MISSING = range(7)
_OPEN_DECREASE, _OPEN_NEAR, _OPEN_THRESHOLD, _OPEN_LOW, _OPEN_HIGH = range(7, 12)
_OPEN = 12
#: The settings of a tree, see `forests.Rules.numbers`.
_CRITERION, _MAX_FEATURES, _MIN_SPLIT, _MIN_ROWS, _MIN_SHARE, _MAX_DEPTH, _MIN_DECREASE, _MAX_LEAVES = range(8)
_SEED, _DRAWN, _CONSTRAINED = 8, 9, 10
_ABREAST = 8  # rows that are followed through a tree at the same time


class Tree(NamedTuple):
    """The nodes as integers and as floats, which share their memory, and the values of each (nodes, width)."""

    nodes: Any
    numbers: Any
    values: Any
    width: Any


@host_function("f4* i8 i8 f8* i8* i8* u1*")
def bin_values(values, n, d, edges, ends, steps, bins):  # type: ignore[no-untyped-def]
    # values, bins: (n, d). edges: of all columns; those of column f end at ends[f], and begin at ends[f - 1].
    # steps: of each column a power of two that is not less than the number of its edges.
    for i in range(n):
        for f in range(d):
            x = np.float64(values[i * d + f])
            first = ends[f - 1] if f > 0 else 0
            last = ends[f]
            at = first
            step = steps[f]
            while step > 0:
                ahead = at + step
                if ahead <= last and edges[ahead - 1] < x:
                    at = ahead
                step >>= 1
            bins[i * d + f] = at - first if x == x else MISSING


# --- nodes


@inlined
def take_rows(weights, y, outputs, samples):  # type: ignore[no-untyped-def]
    # Copy the rows of positive weight; returns how many there are, and their weight.
    n_rows = 0
    total = np.float64(0)
    for i in range(samples.n):
        if weights[i] > 0:
            samples.rows[n_rows] = i
            samples.weights[n_rows] = weights[i]
            for o in range(outputs):
                samples.targets[n_rows * outputs + o] = y[i * outputs + o]
            total += weights[i]
            n_rows += 1
    return n_rows, total


@inlined
def measure_node(samples, first, last, criterion, sums, whole, ranking):  # type: ignore[no-untyped-def]
    # Sum the rows of a node, from `whole` on; returns its weight, its purity and its impurity.
    outputs = criterion.outputs
    if criterion.kind == ABSOLUTE:
        pure = -rank_node(samples, first, last, outputs, sums, whole, ranking)
        weight = weight_of(sums, whole, criterion)
        impurity = -pure / (outputs * weight)
    else:
        squares, differ = sum_node(samples, first, last, criterion, sums, whole)
        weight = weight_of(sums, whole, criterion)
        pure = purity(sums, whole, criterion, weight)
        impurity = (squares - pure) / (outputs * weight)
        if criterion.kind == GINI:
            impurity += 1
        impurity = max(impurity, np.float64(0)) if differ != 0 else np.float64(0)
    return weight, pure, impurity


@inlined
def split_node(  # type: ignore[no-untyped-def]
    columns, first, last, samples, criterion, bounds, settings, state, sums, ranking
):
    # Write the best split of a node that was measured; returns the state of the generator of random numbers.
    max_features = np.int64(settings[_MAX_FEATURES])
    if settings[_DRAWN] != 0:
        state = draw_split(columns, first, last, samples, criterion, bounds, max_features, state, sums, ranking)
    elif criterion.kind == ABSOLUTE:
        state = find_median_split(columns, first, last, samples, criterion, bounds, max_features, state, sums, ranking)
    else:
        state = find_split(columns, first, last, samples, criterion, bounds, max_features, state, sums)
    return state


@inlined
def write_leaf(tree, node, n_rows, weight, impurity, criterion, sums, whole):  # type: ignore[no-untyped-def]
    at = node * _NODE
    tree.nodes[at + _LEFT] = -1
    tree.nodes[at + _RIGHT] = -1
    tree.nodes[at + _FEATURE] = -2
    tree.numbers[at + _THRESHOLD] = -2
    tree.numbers[at + _IMPURITY] = impurity
    tree.nodes[at + _N_ROWS] = n_rows
    tree.numbers[at + _WEIGHT] = weight
    tree.nodes[at + _BIN_AND_MISSING] = 0
    offsets, stride = criterion.offsets, tree.width // criterion.outputs
    divisor = 1 if criterion.kind == ABSOLUTE else weight  # medians are no sums
    for o in range(criterion.outputs):
        for k in range(stride):
            s = offsets[o] + k
            share = sums[whole + criterion.head + s] / divisor if s < offsets[o + 1] else 0
            tree.values[node * tree.width + o * stride + k] = share


@inlined
def write_split(tree, node, count, feature, last_bin, missing, threshold, edges, ends):  # type: ignore[no-untyped-def]
    at = node * _NODE
    edge = (ends[feature - 1] if feature > 0 else 0) + last_bin
    if threshold != threshold:
        threshold = edges[edge] if edge < ends[feature] else np.inf
    tree.nodes[at + _LEFT] = count
    tree.nodes[at + _RIGHT] = count + 1
    tree.nodes[at + _FEATURE] = feature
    tree.numbers[at + _THRESHOLD] = threshold
    tree.nodes[at + _BIN_AND_MISSING] = missing + (last_bin << 8)


@inlined
def open_node(  # type: ignore[no-untyped-def]
    opened, at, node, first, last, depth, sums, best, decrease, is_near, low, high
):
    opened[at + _OPEN_NODE] = node
    opened[at + _OPEN_FIRST] = first
    opened[at + _OPEN_LAST] = last
    opened[at + _OPEN_DEPTH] = depth
    opened[at + _OPEN_FEATURE] = sums[best + SPLIT_FEATURE]
    # Between the two bins, in the middle.
    following = sums[best + SPLIT_NEXT]
    opened[at + _OPEN_BIN] = (sums[best + SPLIT_BIN] + following - 1) // 2 if following < MISSING else 254
    opened[at + _OPEN_MISSING] = sums[best + SPLIT_MISSING]
    opened[at + _OPEN_DECREASE] = decrease
    opened[at + _OPEN_NEAR] = is_near
    opened[at + _OPEN_THRESHOLD] = sums[best + SPLIT_THRESHOLD]
    opened[at + _OPEN_LOW] = low
    opened[at + _OPEN_HIGH] = high


@inlined
def next_open(opened, n_opened, max_leaves):  # type: ignore[no-untyped-def]
    # The last open node; with a limit of leaves, the one whose split decreases the impurity the most.
    chosen = n_opened - 1
    if max_leaves > 0:
        for k in range(n_opened):
            if opened[k * _OPEN + _OPEN_DECREASE] > opened[chosen * _OPEN + _OPEN_DECREASE]:
                chosen = k
    return chosen


@inlined
def copy_near(bins, d, rows, begin, end, near):  # type: ignore[no-untyped-def]
    # All nodes below this one come before any other, and the bins of its rows stay in the cache for them.
    for i in range(begin, end):
        for f in range(d):
            near[(i - begin) * d + f] = bins[rows[i] * d + f]
        rows[i] = i - begin


@inlined
def part_rows(columns, feature, last_bin, missing, begin, end, samples, outputs):  # type: ignore[no-untyped-def]
    # Bring a node's rows on the left before those on the right; returns where the latter begin.
    rows, weights, targets = samples.rows, samples.weights, samples.targets
    middle = begin
    aside = samples.n
    for i in range(begin, end):
        # Each row is written to both sides, because a branch would be guessed wrong half of the time.
        row = rows[i]
        weight = weights[i]
        b = np.int64(columns.bins[row * columns.d + feature])
        left = 1 if (missing == 1 if b == MISSING else b <= last_bin) else 0
        rows[middle] = row
        weights[middle] = weight
        rows[aside] = row
        weights[aside] = weight
        for o in range(outputs):
            target = targets[i * outputs + o]
            targets[middle * outputs + o] = target
            targets[aside * outputs + o] = target
        middle += left
        aside += 1 - left
    for i in range(samples.n, aside):
        to = middle + i - samples.n
        rows[to] = rows[i]
        weights[to] = weights[i]
        for o in range(outputs):
            targets[to * outputs + o] = targets[i * outputs + o]
    return middle


@host_function("u1* f8* f8* i8* f8* i8* f8* f8* i8* i8* i8* f8* f8* f8* i8* i8* f8* u1* i8* f8* f8* i8* f8* -> i8")
def grow_tree(  # type: ignore[no-untyped-def]
    bins, weights, y, sizes, settings, signs, edges, limits, ends, offsets, rows, row_weights, targets, sums, listed,
    order, opened, near, nodes, numbers, values, ranked, ranked_numbers,
):  # fmt: skip
    # bins: (n, d). weights: (n,); rows of weight 0 are not in the tree. y: (n, outputs), classes as numbers. sizes: n,
    # d, outputs, classes, width of values, and rows for which `near` has room. offsets: of the sums of each output. For
    # the others see `Samples`, `Columns`, `Bounds`, `Tree` and `Ranking`. Returns the number of nodes; the largest
    # depth is in opened[0].
    n, d, outputs, classes, width, most_near = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]
    max_leaves, state = np.int64(settings[_MAX_LEAVES]), np.int64(settings[_SEED])
    ranking = ranking_of(ranked, ranked_numbers, n, outputs)
    samples, tree = Samples(rows, row_weights, targets, n), Tree(nodes, numbers, values, width)
    head = 1 if classes > 0 else 2
    size = head + offsets[outputs]
    whole = WHOLE * size
    best = whole + size
    n_rows, total = take_rows(weights, y, outputs, samples)
    criterion = Criterion(
        np.int64(settings[_CRITERION]), outputs, classes, offsets, head, size, settings[_MIN_ROWS],
        settings[_MIN_SHARE] * total,
    )  # fmt: skip
    count = 1
    n_opened = 0
    leaves = 1
    deepest = 0
    # The nodes to look at: the first has the rows from begin to middle, the second those from middle to end.
    sides = 1
    is_near = np.int64(0)
    begin = 0
    middle = n_rows
    end = n_rows
    depth = 0
    constrained = np.int64(settings[_CONSTRAINED])
    left_low, left_high, right_low, right_high = -np.inf, np.inf, -np.inf, np.inf
    while True:
        for side in range(sides):
            node = count - sides + side
            first = begin if side == 0 else middle
            last = middle if side == 0 else end
            deepest = max(deepest, depth)
            weight, pure, impurity = measure_node(samples, first, last, criterion, sums, whole, ranking)
            write_leaf(tree, node, last - first, weight, impurity, criterion, sums, whole)
            low = left_low if side == 0 else right_low
            high = left_high if side == 0 else right_high
            if constrained != 0:
                clip_values(values, node * width, classes, low, high)
            if (
                depth >= settings[_MAX_DEPTH] or last - first < settings[_MIN_SPLIT]
                or last - first < 2 * criterion.min_rows or weight < 2 * criterion.min_weight or impurity <= EPSILON
            ):  # fmt: skip
                continue
            columns = Columns(near if is_near != 0 else bins, d, order, listed, limits, ends)
            bounds = Bounds(signs, constrained, low, high)
            state = split_node(columns, first, last, samples, criterion, bounds, settings, state, sums, ranking)
            decrease = (sums[best + WORTH] - pure) / (outputs * total)
            if sums[best + WORTH] == -np.inf or decrease + EPSILON < settings[_MIN_DECREASE]:
                continue
            open_node(opened, n_opened * _OPEN, node, first, last, depth, sums, best, decrease, is_near, low, high)
            n_opened += 1
        if n_opened == 0 or (max_leaves > 0 and leaves >= max_leaves):
            break
        at = next_open(opened, n_opened, max_leaves) * _OPEN
        node, depth = np.int64(opened[at + _OPEN_NODE]), np.int64(opened[at + _OPEN_DEPTH]) + 1
        begin, end = np.int64(opened[at + _OPEN_FIRST]), np.int64(opened[at + _OPEN_LAST])
        feature, last_bin = np.int64(opened[at + _OPEN_FEATURE]), np.int64(opened[at + _OPEN_BIN])
        missing, is_near = np.int64(opened[at + _OPEN_MISSING]), np.int64(opened[at + _OPEN_NEAR])
        threshold, low, high = opened[at + _OPEN_THRESHOLD], opened[at + _OPEN_LOW], opened[at + _OPEN_HIGH]
        n_opened -= 1
        for k in range(_OPEN):
            opened[at + k] = opened[n_opened * _OPEN + k]
        if is_near == 0 and end - begin <= most_near and max_leaves <= 0:
            copy_near(bins, d, rows, begin, end, near)
            is_near = np.int64(1)
        columns = Columns(near if is_near != 0 else bins, d, order, listed, limits, ends)
        middle = part_rows(columns, feature, last_bin, missing, begin, end, samples, outputs)
        sign = signs[feature] if constrained != 0 else np.int64(0)
        between = np.float64(0)
        if sign != 0 and criterion.kind == ABSOLUTE:
            between = median_between(samples, begin, middle, end, ranking)
        elif sign != 0:
            between = mean_between(samples, begin, middle, end)
        left_low, left_high, right_low, right_high = below(between, sign, low, high)
        if missing < 0:
            missing = 1 if middle - begin > end - middle else 0
        write_split(tree, node, count, feature, last_bin, missing, threshold, edges, ends)
        count += 2
        leaves += 1
        sides = 2
    opened[0] = deepest
    return count


# --- what trees say of rows


@host_function("u1* i8 i8 f8* i8* f8* i8 f8* f8*")
def add_unsampled(bins, n, d, weights, nodes, values, width, sums, counts):  # type: ignore[no-untyped-def]
    # The values of a tree for the rows of weight 0, by their bins.
    for i in range(n):
        if weights[i] == 0:
            node = np.int64(0)
            while nodes[node * _NODE + _LEFT] >= 0:
                b = bins[i * d + nodes[node * _NODE + _FEATURE]]
                last = nodes[node * _NODE + _BIN_AND_MISSING]
                left = (last & 1) == 1 if b == MISSING else b <= (last >> 8)
                node = nodes[node * _NODE + _LEFT] if left else nodes[node * _NODE + _RIGHT]
            for k in range(width):
                sums[i * width + k] += values[node * width + k]
            counts[i] += 1


@inlined
def child_of(node, row, rows, nodes, numbers):  # type: ignore[no-untyped-def]
    # Without a branch, which would be guessed wrong half of the time.
    rule = nodes[node * 4 + 2]
    x = rows[row + (rule >> 1)]
    left = (x <= numbers[node * 4 + 3]) | ((x != x) & ((rule & 1) == 1))
    return np.int64(nodes[node * 4 + (0 if left else 1)])


@host_function("f4* i8 i8 i4* f4* i8* i8 f8* i8 i8* f8*")
def add_values(rows, n, d, nodes, numbers, roots, trees, values, width, at, sums):  # type: ignore[no-untyped-def]
    # nodes: (4 a node) left, right, twice the feature plus whether missing values go to the left, and the threshold,
    # whose memory is that of numbers. A leaf has itself on both sides, and its number instead of the threshold.
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
                    node = child_of(at[k], (first + min(k, n_abreast - 1)) * d, rows, nodes, numbers)
                    moved |= node ^ at[k]
                    at[k] = node
            for k in range(n_abreast):
                leaf = np.int64(nodes[at[k] * 4 + 3])
                for o in range(width):
                    sums[(first + k) * width + o] += values[leaf * width + o]
