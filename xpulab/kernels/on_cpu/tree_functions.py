"""The computations on trees of rows: the source of the machine code that `xpulab.kernels.on_cpu.trees` calls.

A tree halves rows at a median, again and again; its leaves lie one after the other. The arguments that describe one:

- `leaves`: of each leaf its rows, feature by feature, `width` numbers each; infinity fills up a leaf.
- `boxes`: of each node the least and then the greatest values of its rows. Node 1 is the root, and nodes 2 i and
  2 i + 1 are the halves of node i.
- `shape`: the numbers of rows, levels below the root, rows that a leaf has room for, and features; and whether there
  are singles and spheres.
- `singles`: of each leaf half the squared norms of its rows, and then their features, as float32, `TOGETHER` numbers
  each; minus a middle that two trees share, so that the numbers are small. Infinite norms fill up a leaf.
- `spheres`: of each leaf half the squared norm of a centre, the centre's features, and how far its singles are from
  it at most, as float32.

`measure` is the metric: the kind, the power, the limit, how far boxes may be apart, how far the corners of a box may be
for which all rows count as near, and a bound of the errors of a distance that singles give.
"""

from __future__ import annotations

import numpy as np

from xpulab.kernels.on_cpu.distance_functions import (
    Metric,
    Side,
    box_apart,
    box_inside,
    boxes_apart,
    compare,
    compare_row,
    near_bits,
    rows_reached,
)
from xpulab.kernels.on_cpu.host_functions import count_bits, host_function, inlined

__all__ = ["count_near", "flatten", "join", "least_near", "link_near", "plant", "root_in", "unite"]

_NONE, _MIXED = -2, -1  # of a node without core rows, and of one whose core rows are not known to be of one set


# --- a tree


@inlined
def _bound(rows, first, last, d, boxes, low):  # type: ignore[no-untyped-def]
    """Write the box of some rows at `low`; returns the feature in which it is widest."""
    high = low + d
    for f in range(d):
        boxes[low + f] = boxes[high + f] = rows[first * d + f]
    for r in range(first + 1, last):
        for f in range(d):
            value = rows[r * d + f]
            boxes[low + f] = min(boxes[low + f], value)
            boxes[high + f] = max(boxes[high + f], value)
    widest = 0
    for f in range(1, d):
        if boxes[high + f] - boxes[low + f] > boxes[high + widest] - boxes[low + widest]:
            widest = f
    return widest


@inlined
def _select(rows, order, d, feature, first, last, middle):  # type: ignore[no-untyped-def]
    """Reorder rows: those before the middle are at most, and those from there at least, the median of a feature.

    This is Hoare's selection.
    """
    a, b = first, last - 1
    while a < b:
        pivot = rows[((a + b) >> 1) * d + feature]
        p, q = a, b
        while p <= q:
            while rows[p * d + feature] < pivot:
                p += 1
            while rows[q * d + feature] > pivot:
                q -= 1
            if p <= q:
                if p < q:
                    for f in range(d):
                        value = rows[p * d + f]
                        rows[p * d + f] = rows[q * d + f]
                        rows[q * d + f] = value
                    row = order[p]
                    order[p] = order[q]
                    order[q] = row
                p += 1
                q -= 1
        if middle <= q:
            b = q
        elif middle >= p:
            a = p
        else:
            break


@host_function("f8* i8* i8* f8* f8*")
def plant(rows, order, shape, leaves, boxes):  # type: ignore[no-untyped-def]
    n, depth, width, d = shape[0], shape[1], shape[2], shape[3]
    for level in range(depth + 1):
        for i in range(1 << level):
            first, last = n * i >> level, n * (i + 1) >> level
            widest = _bound(rows, first, last, d, boxes, ((1 << level) + i) * 2 * d)
            if level < depth:
                _select(rows, order, d, widest, first, last, n * (2 * i + 1) >> (level + 1))
    for leaf in range(1 << depth):
        first, last = n * leaf >> depth, n * (leaf + 1) >> depth
        for f in range(d):
            at = (leaf * d + f) * width
            for j in range(width):
                leaves[at + j] = rows[(first + j) * d + f] if first + j < last else np.inf


# --- the number of near rows


@inlined
def _list(bits, i, first, totals, lists, room):  # type: ignore[no-untyped-def]
    """Add the number of bits to a row's total, and the rows that they stand for to its list, as far as it has room."""
    listed = int(totals[i])
    totals[i] += count_bits(bits)
    while bits != 0 and listed < room:
        lists[i * room + listed] = first + count_bits((bits & -bits) - 1)
        bits &= bits - 1
        listed += 1


@inlined
def _add_found(found, every, i, first, last, limit, weights, weighted, totals):  # type: ignore[no-untyped-def]
    """Add to a row's total the weights of the rows from first to last that `found` says are near; of all if `every`."""
    if weighted == 0:
        count = last - first
        if not every:
            count = 0
            for j in range(last - first):
                count += found[j] <= limit
        totals[i] += count
    else:
        total = totals[i]
        for j in range(last - first):
            if every or found[j] <= limit:
                total += weights[first + j]
        totals[i] = total


@inlined
def _push_nearer_last(stack, top, node, own):  # type: ignore[no-untyped-def]
    """Push the halves of a node. The one with rows like those of the leaf `own` comes first: it may be enough."""
    while own > 2 * node + 1:
        own >>= 1
    second = own == 2 * node + 1
    stack[top] = 2 * node + (0 if second else 1)
    stack[top + 1] = 2 * node + (1 if second else 0)


@host_function("f8* f8* f4* i8* f8* f8* f4* f4* i8* f8* f8* i8 f8 i8 i8 f8* i4* i8 i8 f8* i8*")
def count_near(  # type: ignore[no-untyped-def]
    leaves, boxes, singles, shape, others, other_boxes, other_singles, spheres, other_shape, measure,
    weights, weighted, enough, begin, end, totals, lists, room, offset, found, stack,
):  # fmt: skip
    # lists: of each row its first near rows, up to `room`, where singles are used; `offset` is added to their indices.
    n, depth, d = shape[0], shape[1], shape[3]
    m, other_depth, in_singles = other_shape[0], other_shape[1], shape[4] != 0
    own = Side(leaves, boxes, singles, n, depth, shape[2], 1 << depth)
    other = Side(others, other_boxes, other_singles, m, other_depth, other_shape[2], 1 << other_depth)
    metric = Metric(int(measure[0]), measure[1], measure[2], measure[3], measure[4], measure[5])
    for leaf in range(begin, end):
        start, stop = n * leaf >> depth, n * (leaf + 1) >> depth
        pending = 0
        for i in range(start, stop):
            pending += totals[i] < enough
        stack[0] = 1
        top = 1 if pending > 0 else 0
        while top > 0:
            top -= 1
            node = stack[top]
            if boxes_apart(own, own.n_leaves + leaf, other, node, d, metric):
                continue
            if node < other.n_leaves:
                _push_nearer_last(stack, top, node, own.n_leaves + leaf)
                top += 2
                continue
            other_leaf = node - other.n_leaves
            first, last = m * other_leaf >> other_depth, m * (other_leaf + 1) >> other_depth
            reached = np.int64(-1)
            if in_singles:
                reached = rows_reached(own, leaf, spheres, other_leaf, d, metric)
            for i in range(start, stop):
                if totals[i] >= enough or (reached >> (i - start)) & 1 == 0:
                    continue
                if in_singles:
                    bits = near_bits(own, leaf, i - start, other, other_leaf, d, metric)
                    if weighted == 0:
                        _list(bits, i, offset + first, totals, lists, room)
                    else:
                        total = totals[i]
                        for j in range(last - first):
                            if (bits >> j) & 1:
                                total += weights[first + j]
                        totals[i] = total
                else:
                    x = leaf * d * own.width + i - start
                    if box_apart(own, x, other, node, d, metric):
                        continue
                    every = box_inside(own, x, other, node, d, metric)
                    if every or compare(own, x, other, other_leaf, d, metric, found):
                        _add_found(found, every, i, first, last, metric.limit, weights, weighted, totals)
                pending -= totals[i] >= enough
            if pending == 0:
                break


# --- sets of rows that are near to each other


@inlined
def root_in(parents, i):  # type: ignore[no-untyped-def]
    """Return the root of the set of i; each node passed on the way is linked to its grandparent."""
    while parents[i] != i:
        parents[i] = parents[parents[i]]
        i = parents[i]
    return i


@inlined
def unite(parents, i, j):  # type: ignore[no-untyped-def]
    """Make one set of two; its root is the lower one."""
    i, j = root_in(parents, i), root_in(parents, j)
    if i < j:
        parents[j] = i
    else:
        parents[i] = j


@inlined
def _set_of(sets, node, parents, start, stop, offset, n_leaves):  # type: ignore[no-untyped-def]
    """Return a row of the set that has all core rows of a node, `_NONE`, or `_MIXED` if no set is known to have all."""
    known = sets[node]
    if known != _MIXED:
        return known
    if node < n_leaves:
        left, right = sets[2 * node], sets[2 * node + 1]
        if left == _NONE:
            known = right
        elif right == _NONE or (left >= 0 and right >= 0 and root_in(parents, left) == root_in(parents, right)):
            known = left
    else:
        for i in range(offset + start, offset + stop):
            if parents[i] >= 0:
                root = root_in(parents, i)
                if known == _MIXED:
                    known = root
                elif known != root:
                    known = _MIXED
                    break
    sets[node] = known
    return known


@inlined
def _push_halves(stack, top, node, other, halve, halve_other):  # type: ignore[no-untyped-def]
    """Push the pairs of the halves of two nodes, or of one node and the halves of the other; returns the new top."""
    if halve and halve_other:
        for k in range(4):
            stack[top + 2 * k] = 2 * node + (k >> 1)
            stack[top + 2 * k + 1] = 2 * other + (k & 1)
        return top + 8
    for k in range(2):
        stack[top + 2 * k] = 2 * node + k if halve else node
        stack[top + 2 * k + 1] = 2 * other + k if halve_other else other
    return top + 4


@host_function("f8* f8* f4* i8* f8* f8* f4* f4* i8* f8* i8 i8* i8* i8* i8 i8 f8* i8* -> i8")
def link_near(  # type: ignore[no-untyped-def]
    leaves, boxes, singles, shape, others, other_boxes, other_singles, spheres, other_shape, measure,
    offset, parents, sets, other_sets, top, budget, found, stack,
):  # fmt: skip
    # offset: where the other tree's rows are in `parents`; 0 if both are one tree.
    n, depth, d = shape[0], shape[1], shape[3]
    m, other_depth, in_singles = other_shape[0], other_shape[1], shape[4] != 0
    own = Side(leaves, boxes, singles, n, depth, shape[2], 1 << depth)
    other = Side(others, other_boxes, other_singles, m, other_depth, other_shape[2], 1 << other_depth)
    metric = Metric(int(measure[0]), measure[1], measure[2], measure[3], measure[4], measure[5])
    while top > 0 and budget > 0:
        top -= 2
        node, other_node = stack[top], stack[top + 1]
        if sets[node] == _NONE or other_sets[other_node] == _NONE:
            continue
        if offset == 0 and node == other_node and node < own.n_leaves:
            # First the pairs within each half, which are at the top, and then those of the two halves.
            stack[top] = stack[top + 2] = stack[top + 3] = 2 * node
            stack[top + 1] = stack[top + 4] = stack[top + 5] = 2 * node + 1
            top += 6
            continue
        if boxes_apart(own, node, other, other_node, d, metric):
            continue
        leaf, other_leaf = node - own.n_leaves, other_node - other.n_leaves
        start, stop = n * leaf >> depth, n * (leaf + 1) >> depth
        first, last = m * other_leaf >> other_depth, m * (other_leaf + 1) >> other_depth
        mine = _set_of(sets, node, parents, start, stop, np.int64(0), own.n_leaves)
        theirs = _set_of(other_sets, other_node, parents, first, last, offset, other.n_leaves)
        if mine >= 0 and theirs >= 0 and root_in(parents, mine) == root_in(parents, theirs):
            continue
        if leaf < 0 or other_leaf < 0:
            top = _push_halves(stack, top, node, other_node, leaf < 0, other_leaf < 0)
            continue
        budget -= 1
        reached = np.int64(-1)
        if in_singles:
            reached = rows_reached(own, leaf, spheres, other_leaf, d, metric)
        for i in range(start, stop):
            if parents[i] < 0 or (theirs >= 0 and root_in(parents, i) == root_in(parents, theirs)):
                continue
            if compare_row(own, leaf, i - start, other, other_leaf, in_singles, reached, d, metric, found) == 0:
                continue
            for j in range(last - first):
                if found[j] <= metric.limit and parents[offset + first + j] >= 0:
                    unite(parents, i, offset + first + j)
                    if theirs >= 0:
                        break
            if mine >= 0 and theirs >= 0 and root_in(parents, mine) == root_in(parents, theirs):
                break
    return top


# --- the least label of near rows


@host_function("f8* f8* f4* i8* f8* f8* f4* f4* i8* f8* i8* i8* i8 i8 i8* i8* f8* i8*")
def least_near(  # type: ignore[no-untyped-def]
    leaves, boxes, singles, shape, others, other_boxes, other_singles, spheres, other_shape, measure,
    labels, least, begin, end, cores, best, found, stack,
):  # fmt: skip
    # labels: of the other tree's rows, with those of rows that are no cores beyond all others. least: of each node.
    n, depth, d = shape[0], shape[1], shape[3]
    m, other_depth, in_singles = other_shape[0], other_shape[1], shape[4] != 0
    own = Side(leaves, boxes, singles, n, depth, shape[2], 1 << depth)
    other = Side(others, other_boxes, other_singles, m, other_depth, other_shape[2], 1 << other_depth)
    metric = Metric(int(measure[0]), measure[1], measure[2], measure[3], measure[4], measure[5])
    for leaf in range(begin, end):
        start, stop = n * leaf >> depth, n * (leaf + 1) >> depth
        stack[0] = 1
        top = 1
        while top > 0:
            top -= 1
            node = stack[top]
            greatest = np.int64(-1)
            for i in range(start, stop):
                if cores[i] < 0 and best[i] > greatest:
                    greatest = best[i]
            if least[node] >= greatest or boxes_apart(own, own.n_leaves + leaf, other, node, d, metric):
                continue
            if node < other.n_leaves:
                stack[top], stack[top + 1] = 2 * node, 2 * node + 1
                top += 2
                continue
            other_leaf = node - other.n_leaves
            first, last = m * other_leaf >> other_depth, m * (other_leaf + 1) >> other_depth
            reached = np.int64(-1)
            if in_singles:
                reached = rows_reached(own, leaf, spheres, other_leaf, d, metric)
            for i in range(start, stop):
                if cores[i] >= 0 or best[i] <= least[node]:
                    continue
                if compare_row(own, leaf, i - start, other, other_leaf, in_singles, reached, d, metric, found) == 0:
                    continue
                for j in range(last - first):
                    if found[j] <= metric.limit and labels[first + j] < best[i]:
                        best[i] = labels[first + j]


# --- sets by themselves


@host_function("i8* i8")
def flatten(parents, n):  # type: ignore[no-untyped-def]
    for i in range(n):
        if parents[i] >= 0:
            parents[i] = root_in(parents, i)


@host_function("i8* i8 i8*")
def join(pairs, n, parents):  # type: ignore[no-untyped-def]
    for i in range(n):
        unite(parents, pairs[2 * i], pairs[2 * i + 1])
