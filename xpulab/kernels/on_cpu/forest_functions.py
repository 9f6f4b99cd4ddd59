"""Decision trees on the host: the source of the machine code that `xpulab.kernels.on_cpu.forests` calls.

Trees are grown from numbers of one byte, the places of the values among the edges of their column. A node's histogram
has, for each place, the number of rows, and sums of their weights and targets; the best split is read off it [1]_. The
rules for nodes, splits and missing values are those of scikit-learn's trees.

References
----------
.. [1] G. Ke et al., "LightGBM: A Highly Efficient Gradient Boosting Decision Tree", NeurIPS 2017, algorithm 1.
"""

from __future__ import annotations

import numpy as np

from xpulab.kernels.on_cpu.host_functions import host_function, inlined

__all__ = ["add_unsampled", "add_values", "grow_tree", "place_values"]

_NODE = 8  # numbers in a node of scikit-learn: left, right, feature, threshold, impurity, rows, weight, missing
_OPEN = 9  # numbers that are kept for a node that will be split
_ABREAST = 8  # rows that are followed through a tree at the same time
_TOGETHER = 4  # columns whose histograms are filled in one pass over the rows
_SMALL = 48  # rows up to which the places that occur are listed
_EPSILON = np.float64(np.finfo(np.float64).eps)


@host_function("f4* i8 i8 f8* i8* i8* u1*")
def place_values(values, n, d, edges, ends, steps, places):  # type: ignore[no-untyped-def]
    # values, places: (n, d). edges: of all columns; those of column f end at ends[f], and begin at ends[f - 1].
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
            places[i * d + f] = at - first if x == x else 255


@inlined
def purity(sums, at, outputs, offsets, criterion, head, weight):  # type: ignore[no-untyped-def]
    # Of a node, from its sums: the larger, the better. Those of the two sides of a split are added.
    total = np.float64(0)
    first = at + head
    last = first + offsets[outputs]
    if weight <= 0:
        return total
    if criterion == 0 or criterion == 2:
        for s in range(first, last):
            total += sums[s] * sums[s]
        total /= weight
    elif criterion == 1:
        logarithm = np.log2(weight)
        for s in range(first, last):
            if sums[s] > 0:
                total += sums[s] * (np.log2(sums[s]) - logarithm)
    else:
        for s in range(first, last):
            if sums[s] > _EPSILON:
                total += sums[s] * np.log(sums[s] / weight)
            else:
                total = -np.inf
    return total


@inlined
def weight_of(sums, at, offsets, head):  # type: ignore[no-untyped-def]
    weight = np.float64(0)
    if head == 2:
        weight = sums[at + 1]
    else:
        for s in range(at + 1, at + 1 + offsets[1]):
            weight += sums[s]
    return weight


@inlined
def worth_of(  # type: ignore[no-untyped-def]
    sums, left, right, outputs, offsets, criterion, head, min_rows, min_weight
):
    # Of a split, by the sums of its two sides; minus infinity if it is not allowed.
    worth = -np.inf
    a = weight_of(sums, left, offsets, head)
    b = weight_of(sums, right, offsets, head)
    if sums[left] >= min_rows and sums[right] >= min_rows and a >= min_weight and b >= min_weight:
        worth = purity(sums, left, outputs, offsets, criterion, head, a)
        worth += purity(sums, right, outputs, offsets, criterion, head, b)
    return worth


@inlined
def add_row(sums, at, weight, i, t, outputs, offsets, head):  # type: ignore[no-untyped-def]
    # Add row i of weight and targets t to the sums that begin at `at`.
    sums[at] += 1
    if outputs == 1 and head == 1:
        sums[at + 1 + np.int64(t[i])] += weight
    elif outputs == 1:
        sums[at + 1] += weight
        sums[at + 2] += weight * t[i]
    elif head == 1:
        for o in range(outputs):
            sums[at + 1 + offsets[o] + np.int64(t[i * outputs + o])] += weight
    else:
        sums[at + 1] += weight
        for o in range(outputs):
            sums[at + 2 + o] += weight * t[i * outputs + o]


@inlined
def add_columns(  # type: ignore[no-untyped-def]
    table, d, columns, first, n_columns, begin, end, rows, w, t, outputs, offsets, head, sums
):
    # The histograms of columns[first], columns[first + 1] and so on of the rows from begin to end, one after the other.
    # Four at a time, because their places of a row are in one or two lines of the cache.
    size = head + offsets[outputs]
    if n_columns == _TOGETHER:
        f0 = columns[first]
        f1 = columns[first + 1]
        f2 = columns[first + 2]
        f3 = columns[first + 3]
        for i in range(begin, end):
            row = rows[i] * d
            weight = w[i]
            b0 = np.int64(table[row + f0])
            b1 = np.int64(table[row + f1]) + 256
            b2 = np.int64(table[row + f2]) + 512
            b3 = np.int64(table[row + f3]) + 768
            add_row(sums, b0 * size, weight, i, t, outputs, offsets, head)
            add_row(sums, b1 * size, weight, i, t, outputs, offsets, head)
            add_row(sums, b2 * size, weight, i, t, outputs, offsets, head)
            add_row(sums, b3 * size, weight, i, t, outputs, offsets, head)
    else:
        for j in range(n_columns):
            feature = columns[first + j]
            for i in range(begin, end):
                b = np.int64(table[rows[i] * d + feature]) + 256 * j
                add_row(sums, b * size, w[i], i, t, outputs, offsets, head)


@inlined
def split_column(  # type: ignore[no-untyped-def]
    feature, first, n_listed, outputs, offsets, criterion, head, min_rows, min_weight, sums, listed,
):  # fmt: skip
    # sums: histograms (4, 256, size), of which that of the column begins at first; sums of the two sides; those of the
    # node; and of the best split so far the worth, the feature, its last place on the left, whether missing values go
    # to the left (-1: there are none), and the next place. listed: the places that occur. Sets the histogram to zeros.
    size = head + offsets[outputs]
    left = 256 * _TOGETHER * size
    right = left + size
    whole = right + size
    best = whole + size
    missing = 1 if listed[n_listed - 1] == 255 else 0
    present = n_listed - missing
    if n_listed > 1:
        for to_left in range(1 + missing):
            for s in range(size):
                sums[left + s] = sums[first + 255 * size + s] if to_left != 0 else np.float64(0)
            # All values on the left and the missing ones on the right is the last split.
            last = present if missing != 0 and to_left == 0 else present - 1
            worth = sums[best]
            split = -1
            if size == 3 and (criterion == 0 or criterion == 2):
                # Two classes, or one target: the same as below, in registers.
                rows_left = sums[left]
                first_left = sums[left + 1]
                second_left = sums[left + 2]
                rows_whole = sums[whole]
                first_whole = sums[whole + 1]
                second_whole = sums[whole + 2]
                for k in range(last):
                    at = first + listed[k] * size
                    rows_left += sums[at]
                    first_left += sums[at + 1]
                    second_left += sums[at + 2]
                    first_right = first_whole - first_left
                    second_right = second_whole - second_left
                    if criterion == 0:
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
                    allowed = rows_left >= min_rows and rows_whole - rows_left >= min_rows
                    if found > worth and allowed and a >= min_weight and b >= min_weight:
                        worth = found
                        split = k
            else:
                for k in range(last):
                    at = first + listed[k] * size
                    for s in range(size):
                        sums[left + s] += sums[at + s]
                        sums[right + s] = sums[whole + s] - sums[left + s]
                    found = worth_of(sums, left, right, outputs, offsets, criterion, head, min_rows, min_weight)
                    if found > worth:
                        worth = found
                        split = k
            if split >= 0:
                sums[best] = worth
                sums[best + 1] = feature
                sums[best + 2] = listed[split]
                sums[best + 3] = to_left if missing != 0 else -1
                sums[best + 4] = listed[split + 1] if split + 1 < present else 255
    for k in range(n_listed):
        at = first + listed[k] * size
        for s in range(size):
            sums[at + s] = 0


@host_function(
    "u1* i8 i8 f8* f8* i8* f8* i8* i8 i8 f8* i8* f8* f8* i8* f8* f8* f8* i8* i8* f8* u1* i8 i8* f8* f8* i8 -> i8"
)
def grow_tree(  # type: ignore[no-untyped-def]
    places, n, d, weights, edges, ends, y, offsets, outputs, classes, settings, rows, w, t, other_rows,
    other_w, other_t, sums, listed, order, opened, near, most_near, nodes, numbers, values, width,
):  # fmt: skip
    # places: (n, d). weights: (n,); rows of weight 0 are not in the tree. y: (n, outputs), classes as numbers. offsets:
    # of the sums of each output. rows, w, t, opened: room for all rows, their weights, targets, and nodes that will be
    # split. order: all columns. nodes, numbers: the result as integers and as floats, which share their memory.
    # values: (nodes, width); output o has its numbers from o * width / outputs on. Returns the number of nodes; the
    # largest depth is in opened[0].
    # settings: the criterion, columns of a node, least rows of a node that is split and of a side, least share of the
    # weight of a side, largest depth, least decrease of the impurity, most leaves, and the seed.
    criterion = np.int64(settings[0])
    max_features = np.int64(settings[1])
    min_split = settings[2]
    min_rows = settings[3]
    max_depth = settings[5]
    min_decrease = settings[6]
    max_leaves = np.int64(settings[7])
    state = np.int64(settings[8])
    head = 1 if classes > 0 else 2
    size = head + offsets[outputs]
    whole = (256 * _TOGETHER + 2) * size
    best = whole + size
    stride = width // outputs
    n_rows = 0
    total = np.float64(0)
    for i in range(n):
        if weights[i] > 0:
            rows[n_rows] = i
            w[n_rows] = weights[i]
            for o in range(outputs):
                t[n_rows * outputs + o] = y[i * outputs + o]
            total += weights[i]
            n_rows += 1
    min_weight = settings[4] * total
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
    while True:
        for side in range(sides):
            node = count - sides + side
            first = begin if side == 0 else middle
            last = middle if side == 0 else end
            deepest = max(deepest, depth)
            for s in range(whole, whole + size):
                sums[s] = 0
            squares = np.float64(0)
            if outputs == 1 and head == 1 and classes == 2:
                # In registers.
                zeros = np.float64(0)
                ones = np.float64(0)
                for i in range(first, last):
                    one = w[i] * t[i]
                    ones += one
                    zeros += w[i] - one
                sums[whole] = last - first
                sums[whole + 1] = zeros
                sums[whole + 2] = ones
            else:
                for i in range(first, last):
                    add_row(sums, whole, w[i], i, t, outputs, offsets, head)
            if head == 2:
                for i in range(first, last):
                    for o in range(outputs):
                        target = t[i * outputs + o]
                        if criterion != 3:
                            squares += w[i] * target * target
                        elif target > 0:
                            squares += w[i] * target * np.log(target)
            weight = weight_of(sums, whole, offsets, head)
            pure = purity(sums, whole, outputs, offsets, criterion, head, weight)
            impurity = (squares - pure) / (outputs * weight)
            if criterion == 0:
                impurity += 1
            impurity = max(impurity, np.float64(0))
            nodes[node * _NODE] = -1
            nodes[node * _NODE + 1] = -1
            nodes[node * _NODE + 2] = -2
            numbers[node * _NODE + 3] = -2
            numbers[node * _NODE + 4] = impurity
            nodes[node * _NODE + 5] = last - first
            numbers[node * _NODE + 6] = weight
            nodes[node * _NODE + 7] = 0
            for o in range(outputs):
                for k in range(stride):
                    s = offsets[o] + k
                    values[node * width + o * stride + k] = sums[whole + head + s] / weight if s < offsets[o + 1] else 0
            if (
                depth >= max_depth or last - first < min_split or last - first < 2 * min_rows
                or weight < 2 * min_weight or impurity <= _EPSILON
            ):  # fmt: skip
                continue
            sums[best] = -np.inf
            visited = 0
            constant = 0
            rest = d
            while rest > 0 and (visited < max_features or visited <= constant):
                small = last - first <= _SMALL
                n_columns = 1 if small else min(_TOGETHER, rest, max(max_features - visited, 1))
                for _ in range(n_columns):
                    state ^= (state << 13) & 0xFFFFFFFF
                    state ^= state >> 17
                    state ^= (state << 5) & 0xFFFFFFFF
                    chosen = state % rest
                    rest -= 1
                    feature = order[chosen]
                    order[chosen] = order[rest]
                    order[rest] = feature
                visited += n_columns
                table = near if is_near != 0 else places
                if not small:
                    add_columns(table, d, order, rest, n_columns, first, last, rows, w, t, outputs, offsets, head, sums)
                for drawn in range(n_columns):
                    j = n_columns - 1 - drawn
                    feature = order[rest + j]
                    n_listed = 0
                    if small:
                        for i in range(first, last):
                            b = np.int64(table[rows[i] * d + feature])
                            if sums[b * size] == 0:
                                k = n_listed
                                while k > 0 and listed[k - 1] > b:
                                    listed[k] = listed[k - 1]
                                    k -= 1
                                listed[k] = b
                                n_listed += 1
                            add_row(sums, b * size, w[i], i, t, outputs, offsets, head)
                    else:
                        for b in range(256):
                            listed[n_listed] = b
                            n_listed += 1 if sums[(256 * j + b) * size] > 0 else 0
                    split_column(
                        feature, 256 * j * size, n_listed, outputs, offsets, criterion, head, min_rows, min_weight,
                        sums, listed,
                    )  # fmt: skip
                    constant += n_listed <= 1
            if sums[best] == -np.inf:
                continue
            decrease = (sums[best] - pure) / (outputs * total)
            if decrease + _EPSILON < min_decrease:
                continue
            at = n_opened * _OPEN
            opened[at] = node
            opened[at + 1] = first
            opened[at + 2] = last
            opened[at + 3] = depth
            opened[at + 4] = sums[best + 1]
            # Between the two places, in the middle.
            opened[at + 5] = (sums[best + 2] + sums[best + 4] - 1) // 2 if sums[best + 4] < 255 else 254
            opened[at + 6] = sums[best + 3]
            opened[at + 7] = decrease
            opened[at + 8] = is_near
            n_opened += 1
        if n_opened == 0 or (max_leaves > 0 and leaves >= max_leaves):
            break
        chosen = n_opened - 1
        if max_leaves > 0:
            for k in range(n_opened):
                if opened[k * _OPEN + 7] > opened[chosen * _OPEN + 7]:
                    chosen = k
        at = chosen * _OPEN
        node = np.int64(opened[at])
        begin = np.int64(opened[at + 1])
        end = np.int64(opened[at + 2])
        depth = np.int64(opened[at + 3]) + 1
        feature = np.int64(opened[at + 4])
        place = np.int64(opened[at + 5])
        missing = np.int64(opened[at + 6])
        is_near = np.int64(opened[at + 8])
        n_opened -= 1
        for k in range(_OPEN):
            opened[at + k] = opened[n_opened * _OPEN + k]
        if is_near == 0 and end - begin <= most_near and max_leaves <= 0:
            # All nodes below this one come before any other, and the places of its rows stay in the cache for them.
            for i in range(begin, end):
                for f in range(d):
                    near[(i - begin) * d + f] = places[rows[i] * d + f]
                rows[i] = i - begin
            is_near = np.int64(1)
        middle = begin
        aside = 0
        table = near if is_near != 0 else places
        for i in range(begin, end):
            # Each row is written to both sides, because a branch would be guessed wrong half of the time.
            row = rows[i]
            weight = w[i]
            b = np.int64(table[row * d + feature])
            left = 1 if (missing == 1 if b == 255 else b <= place) else 0
            rows[middle] = row
            w[middle] = weight
            other_rows[aside] = row
            other_w[aside] = weight
            for o in range(outputs):
                target = t[i * outputs + o]
                t[middle * outputs + o] = target
                other_t[aside * outputs + o] = target
            middle += left
            aside += 1 - left
        for i in range(aside):
            rows[middle + i] = other_rows[i]
            w[middle + i] = other_w[i]
            for o in range(outputs):
                t[(middle + i) * outputs + o] = other_t[i * outputs + o]
        if missing < 0:
            missing = 1 if middle - begin > end - middle else 0
        first = ends[feature - 1] if feature > 0 else 0
        nodes[node * _NODE] = count
        nodes[node * _NODE + 1] = count + 1
        nodes[node * _NODE + 2] = feature
        numbers[node * _NODE + 3] = edges[first + place] if first + place < ends[feature] else np.inf
        # The place is in bytes of a node that scikit-learn does not use.
        nodes[node * _NODE + 7] = missing + (place << 8)
        count += 2
        leaves += 1
        sides = 2
    opened[0] = deepest
    return count


@host_function("u1* i8 i8 f8* i8* f8* i8 f8* f8*")
def add_unsampled(places, n, d, weights, nodes, values, width, sums, counts):  # type: ignore[no-untyped-def]
    # The values of a tree for the rows of weight 0, by their places.
    for i in range(n):
        if weights[i] == 0:
            node = np.int64(0)
            while nodes[node * _NODE] >= 0:
                b = places[i * d + nodes[node * _NODE + 2]]
                last = nodes[node * _NODE + 7]
                left = (last & 1) == 1 if b == 255 else b <= (last >> 8)
                node = nodes[node * _NODE] if left else nodes[node * _NODE + 1]
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
    # whose memory is that of numbers. A leaf has itself on both sides, and its number in place of the threshold.
    # at: room for the nodes of eight rows, which go down together: the processor waits for all eight at once.
    for tree in range(trees):
        for first in range(0, n, _ABREAST):
            for k in range(_ABREAST):
                at[k] = roots[tree]
            some = min(_ABREAST, n - first)
            moved = np.int64(1)
            while moved != 0:
                moved = np.int64(0)
                for k in range(_ABREAST):
                    # The last rows are followed again where there are fewer than eight.
                    node = child_of(at[k], (first + min(k, some - 1)) * d, rows, nodes, numbers)
                    moved |= node ^ at[k]
                    at[k] = node
            for k in range(some):
                leaf = np.int64(nodes[at[k] * 4 + 3])
                for o in range(width):
                    sums[(first + k) * width + o] += values[leaf * width + o]
