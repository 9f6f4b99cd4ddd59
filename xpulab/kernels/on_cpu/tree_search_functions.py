"""The nearest rows in a tree: the source of the machine code that `xpulab.kernels.on_cpu.tree_search` calls.

`leaves`, `boxes` and `shape` are those of `tree_functions`. Distances are added up in the order of
`host_functions.compare_with`, so that they are bitwise the same.

The last functions are for spanning trees of mutual reachability: of two rows, the largest of their distance and of the
core distance of each.
"""

from __future__ import annotations

import numpy as np

from xpulab.kernels.on_cpu.host_functions import host_function, inlined
from xpulab.kernels.on_cpu.tree_functions import root_in, unite

__all__ = ["hang_up", "nearest_in_tree", "nearest_outside", "unite_in_turn"]

_ABSOLUTE, _LARGEST = 1, 2  # the kinds of distances; 0 is the sum of squares


@inlined
def _box_distance(queries, x, boxes, node, d, kind):  # type: ignore[no-untyped-def]
    """Compute the least distance of the query at x to the box of a node; rounding is monotone, as for its rows."""
    low = node * 2 * d
    whole = d - d % 4 if kind == 0 else 0
    a = b = c = e = np.float64(0)
    for f in range(d):
        value = queries[x + f]
        gap = max(boxes[low + f] - value, value - boxes[low + d + f])
        gap = max(gap, np.float64(0))
        if kind == _LARGEST:
            a = max(a, gap)
        elif kind == _ABSOLUTE:
            a += gap
        elif f >= whole or f % 4 == 0:
            a += gap * gap
        elif f % 4 == 1:
            b += gap * gap
        elif f % 4 == 2:
            c += gap * gap
        else:
            e += gap * gap
    return (a + b) + (c + e)


@inlined
def _leaf_distances(queries, x, leaves, first, width, d, kind, found):  # type: ignore[no-untyped-def]
    """Write the distances of the query at x to the rows of a leaf."""
    for j in range(width):
        found[j] = 0
    if kind == 0 and d >= 4:
        for j in range(width, 4 * width):
            found[j] = 0
        whole = d - d % 4
        for f in range(d):
            value = queries[x + f]
            to = (f % 4 if f < whole else 0) * width
            for j in range(width):
                gap = leaves[first + f * width + j] - value
                found[to + j] += gap * gap
        for j in range(width):
            found[j] = (found[j] + found[width + j]) + (found[2 * width + j] + found[3 * width + j])
        return
    for f in range(d):
        value = queries[x + f]
        if kind == 0:
            for j in range(width):
                gap = leaves[first + f * width + j] - value
                found[j] += gap * gap
        elif kind == _ABSOLUTE:
            for j in range(width):
                found[j] += abs(leaves[first + f * width + j] - value)
        else:
            for j in range(width):
                gap = abs(leaves[first + f * width + j] - value)
                found[j] = gap if gap > found[j] else found[j]


@host_function("f8* f8* i8* i8* f8* i8 i8* i8 i8 i8 f8* i8* i8* f8* f8*")
def nearest_in_tree(  # type: ignore[no-untyped-def]
    leaves, boxes, shape, order, queries, kind, visits, begin, end, k, best, places, stack, bounds, found
):
    # order: the index of each row of the tree. visits: the queries, some of which are looked for, from begin to end.
    # best, places: (queries, k), infinity and an index that no row has at first. stack, bounds: open nodes, and their
    # distances. found: room for the distances of four leaves.
    n, depth, width, d = shape[0], shape[1], shape[2], shape[3]
    n_leaves = 1 << depth
    for visit in range(begin, end):
        query = visits[visit]
        x, at, last = query * d, query * k, query * k + k - 1
        stack[0] = 1
        bounds[0] = 0
        top = 1
        while top > 0:
            top -= 1
            node = stack[top]
            if bounds[top] > best[last]:
                continue
            while node < n_leaves:
                left = _box_distance(queries, x, boxes, 2 * node, d, kind)
                right = _box_distance(queries, x, boxes, 2 * node + 1, d, kind)
                stack[top] = 2 * node + (1 if left <= right else 0)
                bounds[top] = max(left, right)
                top += 1
                node = 2 * node + (0 if left <= right else 1)
            leaf = node - n_leaves
            row, after = n * leaf >> depth, n * (leaf + 1) >> depth
            _leaf_distances(queries, x, leaves, leaf * d * width, width, d, kind, found)
            for j in range(after - row):
                distance = found[j]
                if distance > best[last]:
                    continue
                index = order[row + j]
                if distance == best[last] and index > places[last]:
                    continue
                to = last
                while to > at and (best[to - 1] > distance or (best[to - 1] == distance and places[to - 1] > index)):
                    best[to] = best[to - 1]
                    places[to] = places[to - 1]
                    to -= 1
                best[to] = distance
                places[to] = index


# --- spanning trees


@host_function("f8* f8* i8* f8* i8* i8* i8 f8 i8* i8 i8 f8* f8* i8* i8* f8* f8* i8* i8* f8* f8*")
def nearest_outside(  # type: ignore[no-untyped-def]
    leaves, boxes, shape, rows, numbers, least_numbers, kind, scale, visits, begin, end, cores, least_cores, sets,
    sets_of_nodes, limits, reaches, partners, stack, bounds, found,
):  # fmt: skip
    # rows: (n, d), in the order of the tree; numbers: of these rows, and the least of each node. visits: some of them,
    # of which those from begin to end are looked at. scale: distances are multiplied by it. cores: of each row, and the
    # least of each node. sets: of each row, and of each node whose rows are all in one, otherwise -1. limits: of each
    # set, the least reach to another one so far. reaches: a lower bound of each row's reach to another set; the reach
    # itself where partners has the other row: of rows that are as near, the one with the least number.
    n, depth, width, d = shape[0], shape[1], shape[2], shape[3]
    n_leaves = 1 << depth
    for visit in range(begin, end):
        i = visits[visit]
        own = sets[i]
        least = reaches[i]
        best = limits[own]
        to = np.int64(-1)
        number = n
        stack[0] = 1
        bounds[0] = 0
        top = 1 if least <= best else 0
        while top > 0:
            top -= 1
            node = stack[top]
            bound = bounds[top]
            while node < n_leaves and bound <= best and bound < np.inf:
                left = max(_box_distance(rows, i * d, boxes, 2 * node, d, kind) * scale, least_cores[2 * node])
                right = max(_box_distance(rows, i * d, boxes, 2 * node + 1, d, kind) * scale, least_cores[2 * node + 1])
                left = np.inf if sets_of_nodes[2 * node] == own else max(left, least)
                right = np.inf if sets_of_nodes[2 * node + 1] == own else max(right, least)
                stack[top] = 2 * node + (1 if left <= right else 0)
                bounds[top] = max(left, right)
                top += 1 if bounds[top] <= best and bounds[top] < np.inf else 0
                bound = min(left, right)
                node = 2 * node + (0 if left <= right else 1)
                if bound == best and least_numbers[node] >= number:
                    bound = np.inf
            if bound > best or bound == np.inf or sets_of_nodes[node] == own:
                continue
            if bound == best and least_numbers[node] >= number:
                continue
            leaf = node - n_leaves
            first, last = n * leaf >> depth, n * (leaf + 1) >> depth
            _leaf_distances(rows, i * d, leaves, leaf * d * width, width, d, kind, found)
            for j in range(last - first):
                reach = max(max(found[j] * scale, cores[first + j]), cores[i])
                nearer = reach < best or (reach == best and numbers[first + j] < number)
                if nearer and sets[first + j] != own and reach < np.inf:
                    best = reach
                    to = first + j
                    number = numbers[to]
        reaches[i] = max(best, least)
        partners[i] = to
        limits[own] = min(limits[own], best)


@host_function("i8* i8* i8* i8 i8* i8* -> i8")
def unite_in_turn(order, first, second, n, parents, taken):  # type: ignore[no-untyped-def]
    # Edges between sets, in this order; those that join two sets are taken. Returns how many.
    count = 0
    for k in range(n):
        edge = order[k]
        i, j = root_in(parents, first[edge]), root_in(parents, second[edge])
        taken[edge] = 1 if i != j else 0
        count += taken[edge]
        if i != j:
            unite(parents, i, j)
    return count


@host_function("i8* i8* i8 i8* i8*")
def hang_up(starts, others, n, parents, stack):  # type: ignore[no-untyped-def]
    # The rows of a tree hang from row 0: writes the row from which each hangs. others: at the ends of each row's edges.
    parents[0] = 0
    stack[0] = 0
    top = 1
    while top > 0:
        top -= 1
        i = stack[top]
        for p in range(starts[i], starts[i + 1]):
            j = others[p]
            if j != parents[i]:
                parents[j] = i
                stack[top] = j
                top += 1
