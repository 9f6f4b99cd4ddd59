"""Which boxes, rows and leaves of trees are near to each other, a part of the machine code of `tree_functions`.

All sums of float64 run over the features in their order, as in scikit-learn's trees; rounding is monotone, so what is
computed for a box is never beyond what is computed for its rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from xpulab.kernels.on_cpu.host_functions import TOGETHER, count_bits, inlined, products_below

__all__ = [
    "Metric",
    "Side",
    "box_apart",
    "box_inside",
    "boxes_apart",
    "compare",
    "compare_row",
    "near_bits",
    "rows_reached",
]

_SQUARES, _ABSOLUTE, _LARGEST, _POWERS, _COSINE = range(5)
#: After 4, 8 and 16 features, and then after each so many, distances are left as they are if all are beyond the limit.
_CHUNK = 16


class Metric(NamedTuple):
    """What is compared: see `trees.Near` and `trees.Near.measure`."""

    kind: Any
    power: Any
    limit: Any
    reach: Any
    inside: Any
    error: Any


class Side(NamedTuple):
    """A tree: its rows by leaf, the boxes of its nodes, and its singles, see `tree_functions`; and its shape."""

    leaves: Any
    boxes: Any
    singles: Any
    n: Any
    depth: Any
    width: Any
    n_leaves: Any


@inlined
def _added(total, gap, kind, power):  # type: ignore[no-untyped-def]
    """Return the sum, or the maximum, with one more difference, which is at least 0."""
    if kind == _ABSOLUTE:
        return total + gap
    if kind == _LARGEST:
        return gap if gap > total else total
    if kind == _POWERS:
        return total + math.pow(gap, power)
    return total + gap * gap


@inlined
def boxes_apart(own, node, other, other_node, d, metric):  # type: ignore[no-untyped-def]
    """Whether the boxes of two nodes are farther apart than the reach of the metric."""
    boxes, others = own.boxes, other.boxes
    a, b = node * 2 * d, other_node * 2 * d
    total = np.float64(0)
    for f in range(d):
        gap = max(others[b + f] - boxes[a + d + f], boxes[a + f] - others[b + d + f])
        if gap > 0:
            total = _added(total, gap, metric.kind, metric.power)
            if total > metric.reach:
                return True
    return False


@inlined
def box_apart(own, x, other, node, d, metric):  # type: ignore[no-untyped-def]
    """Whether the row at x is farther from the box of a node than the reach of the metric."""
    leaves, stride, boxes = own.leaves, own.width, other.boxes
    b = node * 2 * d
    total = np.float64(0)
    for f in range(d):
        value = leaves[x + f * stride]
        gap = max(boxes[b + f] - value, value - boxes[b + d + f])
        if gap > 0:
            total = _added(total, gap, metric.kind, metric.power)
            if total > metric.reach:
                return True
    return False


@inlined
def box_inside(own, x, other, node, d, metric):  # type: ignore[no-untyped-def]
    """Whether the farthest corner of the box of a node is so near to the row at x that all rows of the node are."""
    leaves, stride, boxes = own.leaves, own.width, other.boxes
    b = node * 2 * d
    total = np.float64(0)
    for f in range(d):
        value = leaves[x + f * stride]
        gap = max(value - boxes[b + f], boxes[b + d + f] - value)
        total = _added(total, gap, metric.kind, metric.power)
        if total > metric.inside:
            return False
    return True


@inlined
def compare(own, x, other, leaf, d, metric, found):  # type: ignore[no-untyped-def]
    """Compare the row at x with all rows of a leaf; returns 0 if none of them is near, whatever `found` has."""
    kind, power, limit = metric.kind, metric.power, metric.limit
    leaves, stride, others, width = own.leaves, own.width, other.leaves, other.width
    y = leaf * d * width
    for j in range(width):
        found[j] = 0
    f = 0
    while f < d:
        last = min(max(4, f + min(f, _CHUNK)), d)
        if kind == _SQUARES:
            while f + 4 <= last:
                p = y + f * width
                x0, x1 = leaves[x + f * stride], leaves[x + (f + 1) * stride]
                x2, x3 = leaves[x + (f + 2) * stride], leaves[x + (f + 3) * stride]
                for j in range(width):
                    t0 = x0 - others[p + j]
                    t1 = x1 - others[p + width + j]
                    t2 = x2 - others[p + 2 * width + j]
                    t3 = x3 - others[p + 3 * width + j]
                    found[j] = (((found[j] + t0 * t0) + t1 * t1) + t2 * t2) + t3 * t3
                f += 4
            while f < last:
                p, x0 = y + f * width, leaves[x + f * stride]
                for j in range(width):
                    t0 = x0 - others[p + j]
                    found[j] += t0 * t0
                f += 1
        elif kind == _COSINE:
            while f < last:
                p, x0 = y + f * width, leaves[x + f * stride]
                for j in range(width):
                    found[j] += x0 * others[p + j]
                f += 1
        else:
            while f < last:
                p, x0 = y + f * width, leaves[x + f * stride]
                for j in range(width):
                    found[j] = _added(found[j], abs(x0 - others[p + j]), kind, power)
                f += 1
        if kind != _COSINE and f < d:
            near = 0
            for j in range(width):
                near += found[j] <= limit
            if near == 0:
                return 0
    if kind == _COSINE:
        for j in range(width):
            found[j] = min(max(1 - found[j], np.float64(0)), np.float64(2))
    return 1


@inlined
def rows_reached(own, leaf, spheres, sphere, d, metric):  # type: ignore[no-untyped-def]
    """Which rows of a leaf may be near to a row of another, as bits: those near enough to its sphere."""
    first = sphere * (d + 2)
    reach = spheres[first + d + 1] + math.sqrt(metric.limit + metric.error)
    high = np.float32((reach * reach + metric.error) / 2 - spheres[first])
    _, reached = products_below(spheres, first + 1, 1, own.singles, leaf * (d + 1) * TOGETHER, d, high, high)
    return reached


@inlined
def near_bits(own, leaf, i, other, other_leaf, d, metric):  # type: ignore[no-untyped-def]
    """Which rows of another leaf are near to row i of a leaf, as bits. `leaves` decides what singles leave open."""
    x, single = leaf * d * own.width + i, leaf * (d + 1) * TOGETHER + i
    half = own.singles[single]
    low = np.float32((metric.limit - metric.error) / 2 - half)
    high = np.float32((metric.limit + metric.error) / 2 - half)
    near, maybe = products_below(
        own.singles, single + TOGETHER, TOGETHER, other.singles, other_leaf * (d + 1) * TOGETHER, d, low, high
    )
    maybe &= ~near
    while maybe != 0:
        y = other_leaf * d * other.width + count_bits((maybe & -maybe) - 1)
        total = np.float64(0)
        for f in range(d):
            gap = own.leaves[x + f * own.width] - other.leaves[y + f * other.width]
            total += gap * gap
        if total <= metric.limit:
            near |= maybe & -maybe
        maybe &= maybe - 1
    return near


@inlined
def compare_row(own, leaf, i, other, other_leaf, in_singles, reached, d, metric, found):  # type: ignore[no-untyped-def]
    """Compare row i of a leaf with another leaf; returns 0 if none of its rows is near. `found` gets their distances.

    With singles, it gets 0 for rows that are near, and infinity for others.
    """
    if in_singles:
        if (reached >> i) & 1 == 0:
            return 0
        near = near_bits(own, leaf, i, other, other_leaf, d, metric)
        if near == 0:
            return 0
        for j in range(other.width):
            found[j] = 0 if (near >> j) & 1 else np.inf
        return 1
    x = leaf * d * own.width + i
    if box_apart(own, x, other, other.n_leaves + other_leaf, d, metric):
        return 0
    return compare(own, x, other, other_leaf, d, metric, found)
