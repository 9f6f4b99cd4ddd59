"""The computations on trees of rows: the source of the machine code that `xpulab.kernels.on_cpu.trees` calls.

A tree halves rows at a median, again and again; its leaves lie one after the other. The arguments that describe one:

- `tiles`: of each leaf its rows, feature by feature, `width` numbers each; infinity fills up a leaf.
- `boxes`: of each node the least and then the greatest values of its rows. Node 1 is the root, and nodes 2 i and
  2 i + 1 are the halves of node i.
- `shape`: the numbers of rows, levels below the root, rows that a leaf has room for, and features; and whether there
  are singles and spheres.
- `singles`: of each leaf half the squared norms of its rows, and then their features, as float32, `TOGETHER` numbers
  each; minus a middle that two trees share, so that the numbers are small. Infinite norms fill up a leaf.
- `spheres`: of each leaf half the squared norm of a centre, the centre's features, and how far its singles are from
  it at most, as float32.

`measure` says what is compared: the kind, the power, the limit, how far boxes may be apart, how far the corners of a
box may be for which all rows count as near, and a bound of the errors of a distance that singles give. All sums of
float64 run over the features in their order, as in scikit-learn's trees; rounding is monotone, so what is computed for
a box is never beyond what is computed for its rows.
"""

from __future__ import annotations

import math

import numpy as np

from xpulab.kernels.on_cpu.host_functions import TOGETHER, count_bits, host_function, inlined, products_below

__all__ = ["count_near", "flatten", "join", "least_near", "link_near", "plant"]

_SQUARES, _ABSOLUTE, _LARGEST, _POWERS, _COSINE = range(5)
_CHUNK = (
    16  # after 4, 8 and 16 features, and each so many, distances that all are beyond the limit are left as they are
)
_NONE, _MIXED = -2, -1  # of a node without core rows, and of one whose core rows are not known to be of one set


@inlined
def _added(total, gap, kind, power):  # type: ignore[no-untyped-def]
    """The sum, or the maximum, with one more difference, which is at least 0."""
    if kind == _ABSOLUTE:
        return total + gap
    if kind == _LARGEST:
        return gap if gap > total else total
    if kind == _POWERS:
        return total + math.pow(gap, power)
    return total + gap * gap


@inlined
def _boxes_apart(boxes, node, others, other, d, kind, power, reach):  # type: ignore[no-untyped-def]
    """Whether two boxes are farther apart than `reach`."""
    a, b = node * 2 * d, other * 2 * d
    total = np.float64(0)
    for f in range(d):
        gap = max(others[b + f] - boxes[a + d + f], boxes[a + f] - others[b + d + f])
        if gap > 0:
            total = _added(total, gap, kind, power)
            if total > reach:
                return True
    return False


@inlined
def _box_apart(tiles, x, stride, boxes, node, d, kind, power, reach):  # type: ignore[no-untyped-def]
    """Whether a row is farther from a box than `reach`."""
    b = node * 2 * d
    total = np.float64(0)
    for f in range(d):
        value = tiles[x + f * stride]
        gap = max(boxes[b + f] - value, value - boxes[b + d + f])
        if gap > 0:
            total = _added(total, gap, kind, power)
            if total > reach:
                return True
    return False


@inlined
def _box_inside(tiles, x, stride, boxes, node, d, kind, power, inside):  # type: ignore[no-untyped-def]
    """Whether a row is at most `inside` from the farthest corner of a box."""
    b = node * 2 * d
    total = np.float64(0)
    for f in range(d):
        value = tiles[x + f * stride]
        gap = max(value - boxes[b + f], boxes[b + d + f] - value)
        total = _added(total, gap, kind, power)
        if total > inside:
            return False
    return True


@inlined
def _compare(tiles, x, stride, others, leaf, width, d, kind, power, limit, found):  # type: ignore[no-untyped-def]
    """Compare a row with all rows of a leaf; returns 0 if none of them is near, whatever `found` has."""
    y = leaf * d * width
    for j in range(width):
        found[j] = 0
    f = 0
    while f < d:
        last = min(max(4, f + min(f, _CHUNK)), d)
        if kind == _SQUARES:
            while f + 4 <= last:
                p = y + f * width
                x0, x1 = tiles[x + f * stride], tiles[x + (f + 1) * stride]
                x2, x3 = tiles[x + (f + 2) * stride], tiles[x + (f + 3) * stride]
                for j in range(width):
                    t0 = x0 - others[p + j]
                    t1 = x1 - others[p + width + j]
                    t2 = x2 - others[p + 2 * width + j]
                    t3 = x3 - others[p + 3 * width + j]
                    found[j] = (((found[j] + t0 * t0) + t1 * t1) + t2 * t2) + t3 * t3
                f += 4
            while f < last:
                p, x0 = y + f * width, tiles[x + f * stride]
                for j in range(width):
                    t0 = x0 - others[p + j]
                    found[j] += t0 * t0
                f += 1
        elif kind == _COSINE:
            while f < last:
                p, x0 = y + f * width, tiles[x + f * stride]
                for j in range(width):
                    found[j] += x0 * others[p + j]
                f += 1
        else:
            while f < last:
                p, x0 = y + f * width, tiles[x + f * stride]
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
def _rows_reached(singles, leaf, spheres, other, d, limit, error):  # type: ignore[no-untyped-def]
    """Which rows of a leaf may be near to a row of another, as bits: those near enough to its sphere."""
    sphere = other * (d + 2)
    reach = spheres[sphere + d + 1] + math.sqrt(limit + error)
    high = np.float32((reach * reach + error) / 2 - spheres[sphere])
    _, reached = products_below(spheres, sphere + 1, 1, singles, leaf * (d + 1) * TOGETHER, d, high, high)
    return reached


@inlined
def _near_bits(  # type: ignore[no-untyped-def]
    tiles, x, stride, singles, single, others, other_singles, leaf, width, d, limit, error
):  # fmt: skip
    """Which rows of a leaf are near to a row, as bits. Where singles do not say it for sure, tiles do."""
    half = singles[single]
    low = np.float32((limit - error) / 2 - half)
    high = np.float32((limit + error) / 2 - half)
    near, maybe = products_below(
        singles, single + TOGETHER, TOGETHER, other_singles, leaf * (d + 1) * TOGETHER, d, low, high
    )
    maybe &= ~near
    while maybe != 0:
        y = leaf * d * width + count_bits((maybe & -maybe) - 1)
        total = np.float64(0)
        for f in range(d):
            gap = tiles[x + f * stride] - others[y + f * width]
            total += gap * gap
        if total <= limit:
            near |= maybe & -maybe
        maybe &= maybe - 1
    return near


@inlined
def _compare_singles(  # type: ignore[no-untyped-def]
    tiles, x, stride, singles, single, others, other_singles, leaf, width, d, limit, error, found
):  # fmt: skip
    """As `_compare`, but `found` gets 0 for rows that are near, and infinity for others."""
    near = _near_bits(tiles, x, stride, singles, single, others, other_singles, leaf, width, d, limit, error)
    if near == 0:
        return 0
    for j in range(width):
        found[j] = 0 if (near >> j) & 1 else np.inf
    return 1


@inlined
def _root(parents, i):  # type: ignore[no-untyped-def]
    """The root of the set of i; each node passed on the way is linked to its grandparent."""
    while parents[i] != i:
        parents[i] = parents[parents[i]]
        i = parents[i]
    return i


@inlined
def _unite(parents, i, j):  # type: ignore[no-untyped-def]
    """Make one set of two; its root is the lower one."""
    i, j = _root(parents, i), _root(parents, j)
    if i < j:
        parents[j] = i
    else:
        parents[i] = j


@host_function("f8* i8* i8* f8* f8*")
def plant(rows, order, shape, tiles, boxes):  # type: ignore[no-untyped-def]
    n, depth, width, d = shape[0], shape[1], shape[2], shape[3]
    for level in range(depth + 1):
        for i in range(1 << level):
            first, last = n * i >> level, n * (i + 1) >> level
            low = ((1 << level) + i) * 2 * d
            high = low + d
            for f in range(d):
                boxes[low + f] = boxes[high + f] = rows[first * d + f]
            for r in range(first + 1, last):
                for f in range(d):
                    value = rows[r * d + f]
                    boxes[low + f] = min(boxes[low + f], value)
                    boxes[high + f] = max(boxes[high + f], value)
            if level == depth:
                continue
            widest = 0
            for f in range(1, d):
                if boxes[high + f] - boxes[low + f] > boxes[high + widest] - boxes[low + widest]:
                    widest = f
            # Hoare's selection: the rows before the middle are at most, and those from there at least, the median.
            middle = n * (2 * i + 1) >> (level + 1)
            a, b = first, last - 1
            while a < b:
                pivot = rows[((a + b) >> 1) * d + widest]
                p, q = a, b
                while p <= q:
                    while rows[p * d + widest] < pivot:
                        p += 1
                    while rows[q * d + widest] > pivot:
                        q -= 1
                    if p <= q:
                        if p < q:
                            for f in range(d):
                                value = rows[p * d + f]
                                rows[p * d + f] = rows[q * d + f]
                                rows[q * d + f] = value
                            place = order[p]
                            order[p] = order[q]
                            order[q] = place
                        p += 1
                        q -= 1
                if middle <= q:
                    b = q
                elif middle >= p:
                    a = p
                else:
                    break
    for leaf in range(1 << depth):
        first, last = n * leaf >> depth, n * (leaf + 1) >> depth
        for f in range(d):
            at = (leaf * d + f) * width
            for j in range(width):
                tiles[at + j] = rows[(first + j) * d + f] if first + j < last else np.inf


@host_function("f8* f8* f4* i8* f8* f8* f4* f4* i8* f8* f8* i8 f8 i8 i8 f8* i4* i8 i8 f8* i8*")
def count_near(  # type: ignore[no-untyped-def]
    tiles, boxes, singles, shape, others, other_boxes, other_singles, spheres, other_shape, measure,
    weights, weighted, enough, begin, end, totals, lists, room, offset, found, stack,
):  # fmt: skip
    # lists: of each row its first near rows, up to `room`, where singles are used; the offset is added to their places.
    n, depth, width, d = shape[0], shape[1], shape[2], shape[3]
    m, other_depth, other_width = other_shape[0], other_shape[1], other_shape[2]
    kind, power, limit, reach, inside = int(measure[0]), measure[1], measure[2], measure[3], measure[4]
    error, in_singles = measure[5], shape[4] != 0
    n_leaves, n_others = 1 << depth, 1 << other_depth
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
            if _boxes_apart(boxes, n_leaves + leaf, other_boxes, node, d, kind, power, reach):
                continue
            if node < n_others:
                # The half with rows like those of this leaf comes first: few others may then be needed.
                own = n_leaves + leaf
                while own > 2 * node + 1:
                    own >>= 1
                second = own == 2 * node + 1
                stack[top] = 2 * node + (0 if second else 1)
                stack[top + 1] = 2 * node + (1 if second else 0)
                top += 2
                continue
            other = node - n_others
            first, last = m * other >> other_depth, m * (other + 1) >> other_depth
            reached = np.int64(-1)
            if in_singles:
                reached = _rows_reached(singles, leaf, spheres, other, d, limit, error)
            for i in range(start, stop):
                if totals[i] >= enough or (reached >> (i - start)) & 1 == 0:
                    continue
                x = leaf * d * width + i - start
                if in_singles:
                    single = leaf * (d + 1) * TOGETHER + i - start
                    bits = _near_bits(
                        tiles, x, width, singles, single, others, other_singles, other, other_width, d, limit, error
                    )
                    if weighted == 0:
                        place = int(totals[i])
                        totals[i] += count_bits(bits)
                        while bits != 0 and place < room:
                            lists[i * room + place] = offset + first + count_bits((bits & -bits) - 1)
                            bits &= bits - 1
                            place += 1
                    else:
                        total = totals[i]
                        for j in range(last - first):
                            if (bits >> j) & 1:
                                total += weights[first + j]
                        totals[i] = total
                else:
                    if _box_apart(tiles, x, width, other_boxes, node, d, kind, power, reach):
                        continue
                    every = _box_inside(tiles, x, width, other_boxes, node, d, kind, power, inside)
                    if not every and not _compare(
                        tiles, x, width, others, other, other_width, d, kind, power, limit, found
                    ):
                        continue
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
                pending -= totals[i] >= enough
            if pending == 0:
                break


@inlined
def _set_of(sets, node, parents, start, stop, offset, n_leaves):  # type: ignore[no-untyped-def]
    """A row of the set that has all core rows of a node; or `_NONE`; or `_MIXED` if no one set is known to have all."""
    known = sets[node]
    if known != _MIXED:
        return known
    if node < n_leaves:
        left, right = sets[2 * node], sets[2 * node + 1]
        if left == _NONE:
            known = right
        elif right == _NONE or (left >= 0 and right >= 0 and _root(parents, left) == _root(parents, right)):
            known = left
    else:
        for i in range(offset + start, offset + stop):
            if parents[i] >= 0:
                root = _root(parents, i)
                if known == _MIXED:
                    known = root
                elif known != root:
                    known = _MIXED
                    break
    sets[node] = known
    return known


@host_function("f8* f8* f4* i8* f8* f8* f4* f4* i8* f8* i8 i8* i8* i8* i8 i8 f8* i8* -> i8")
def link_near(  # type: ignore[no-untyped-def]
    tiles, boxes, singles, shape, others, other_boxes, other_singles, spheres, other_shape, measure,
    offset, parents, sets, other_sets, top, budget, found, stack,
):  # fmt: skip
    # offset: where the other tree's rows are in `parents`; 0 if both are one tree.
    n, depth, width, d = shape[0], shape[1], shape[2], shape[3]
    m, other_depth, other_width = other_shape[0], other_shape[1], other_shape[2]
    kind, power, limit, reach, error = int(measure[0]), measure[1], measure[2], measure[3], measure[5]
    in_singles = shape[4] != 0
    n_leaves, n_others = 1 << depth, 1 << other_depth
    while top > 0 and budget > 0:
        top -= 2
        node, other = stack[top], stack[top + 1]
        if sets[node] == _NONE or other_sets[other] == _NONE:
            continue
        same = offset == 0 and node == other
        if same and node < n_leaves:
            # The halves by themselves come first.
            stack[top] = stack[top + 2] = stack[top + 3] = 2 * node
            stack[top + 1] = stack[top + 4] = stack[top + 5] = 2 * node + 1
            top += 6
            continue
        if _boxes_apart(boxes, node, other_boxes, other, d, kind, power, reach):
            continue
        leaf, other_leaf = node - n_leaves, other - n_others
        start, stop = n * leaf >> depth, n * (leaf + 1) >> depth
        first, last = m * other_leaf >> other_depth, m * (other_leaf + 1) >> other_depth
        mine = _set_of(sets, node, parents, start, stop, np.int64(0), n_leaves)
        theirs = _set_of(other_sets, other, parents, first, last, offset, n_others)
        if mine >= 0 and theirs >= 0 and _root(parents, mine) == _root(parents, theirs):
            continue
        if leaf < 0 and other_leaf < 0:
            for k in range(4):
                stack[top + 2 * k] = 2 * node + (k >> 1)
                stack[top + 2 * k + 1] = 2 * other + (k & 1)
            top += 8
            continue
        if leaf < 0 or other_leaf < 0:
            for k in range(2):
                stack[top + 2 * k] = 2 * node + k if leaf < 0 else node
                stack[top + 2 * k + 1] = 2 * other + k if other_leaf < 0 else other
            top += 4
            continue
        budget -= 1
        reached = np.int64(-1)
        if in_singles:
            reached = _rows_reached(singles, leaf, spheres, other_leaf, d, limit, error)
        for i in range(start, stop):
            if parents[i] < 0 or (theirs >= 0 and _root(parents, i) == _root(parents, theirs)):
                continue
            x = leaf * d * width + i - start
            if in_singles:
                if (reached >> (i - start)) & 1 == 0:
                    continue
                single = leaf * (d + 1) * TOGETHER + i - start
                any_near = _compare_singles(
                    tiles, x, width, singles, single, others, other_singles, other_leaf, other_width, d, limit, error,
                    found,
                )  # fmt: skip
            else:
                if _box_apart(tiles, x, width, other_boxes, other, d, kind, power, reach):
                    continue
                any_near = _compare(tiles, x, width, others, other_leaf, other_width, d, kind, power, limit, found)
            if any_near == 0:
                continue
            for j in range(last - first):
                if found[j] <= limit and parents[offset + first + j] >= 0:
                    _unite(parents, i, offset + first + j)
                    if theirs >= 0:
                        break
            if mine >= 0 and theirs >= 0 and _root(parents, mine) == _root(parents, theirs):
                break
    return top


@host_function("f8* f8* f4* i8* f8* f8* f4* f4* i8* f8* i8* i8* i8 i8 i8* i8* f8* i8*")
def least_near(  # type: ignore[no-untyped-def]
    tiles, boxes, singles, shape, others, other_boxes, other_singles, spheres, other_shape, measure,
    labels, least, begin, end, cores, best, found, stack,
):  # fmt: skip
    # labels: of the other tree's rows, with those of rows that are no cores beyond all others. least: of each node.
    n, depth, width, d = shape[0], shape[1], shape[2], shape[3]
    m, other_depth, other_width = other_shape[0], other_shape[1], other_shape[2]
    kind, power, limit, reach, error = int(measure[0]), measure[1], measure[2], measure[3], measure[5]
    in_singles = shape[4] != 0
    n_leaves, n_others = 1 << depth, 1 << other_depth
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
            if least[node] >= greatest:
                continue
            if _boxes_apart(boxes, n_leaves + leaf, other_boxes, node, d, kind, power, reach):
                continue
            if node < n_others:
                stack[top], stack[top + 1] = 2 * node, 2 * node + 1
                top += 2
                continue
            other = node - n_others
            first, last = m * other >> other_depth, m * (other + 1) >> other_depth
            reached = np.int64(-1)
            if in_singles:
                reached = _rows_reached(singles, leaf, spheres, other, d, limit, error)
            for i in range(start, stop):
                if cores[i] >= 0 or best[i] <= least[node]:
                    continue
                x = leaf * d * width + i - start
                if in_singles:
                    if (reached >> (i - start)) & 1 == 0:
                        continue
                    single = leaf * (d + 1) * TOGETHER + i - start
                    any_near = _compare_singles(
                        tiles, x, width, singles, single, others, other_singles, other, other_width, d, limit, error,
                        found,
                    )  # fmt: skip
                else:
                    if _box_apart(tiles, x, width, other_boxes, node, d, kind, power, reach):
                        continue
                    any_near = _compare(tiles, x, width, others, other, other_width, d, kind, power, limit, found)
                if any_near == 0:
                    continue
                for j in range(last - first):
                    if found[j] <= limit and labels[first + j] < best[i]:
                        best[i] = labels[first + j]


@host_function("i8* i8")
def flatten(parents, n):  # type: ignore[no-untyped-def]
    for i in range(n):
        if parents[i] >= 0:
            parents[i] = _root(parents, i)


@host_function("i8* i8 i8*")
def join(pairs, n, parents):  # type: ignore[no-untyped-def]
    for i in range(n):
        _unite(parents, pairs[2 * i], pairs[2 * i + 1])
