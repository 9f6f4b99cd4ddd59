"""k-means of few rows: the source of the machine code that `xpulab.kernels.kmeans.few` calls.

The rows are in blocks, as `xpulab.kernels.layout` says. Distances are computed in the dtype of the rows
and in the order of the kernels, and added up in float64.
"""

from __future__ import annotations

import numpy as np

from xpulab.kernels.on_cpu.host_functions import finish, host_function, inlined

__all__ = ["inertia_of_few", "lloyd_of_few", "nearest_of_few", "potentials_of_few", "seed_of_few"]

_BLOCK = 64  # `xpulab.kernels.layout.BLOCK`, whose module this one cannot import
_SOME = 16  # rows of a block up to which the others, which are zeros, are not compared with centres


@host_function("T* i8 i8 T* T* i8 T* i8 T* i4* f8* -> f8")
def nearest_of_few(data, n, d, shift, centers, k, weights, weighted, room, labels, sums):  # type: ignore[no-untyped-def]
    # room: for each row of a block its least score, the score of one centre, and the index of the nearest one; then
    # the squared norms of the centres. The compiler unrolls loops over a block only if its size is a constant.
    changed = np.float64(0)
    for j in range(k):
        norm = np.float64(0)
        for f in range(d):
            c = np.float64(centers[j * d + f])
            norm += c * c
        room[3 * _BLOCK + j] = norm
    for block in range((n + _BLOCK - 1) // _BLOCK):
        first = block * d * _BLOCK
        there = min(_BLOCK, n - block * _BLOCK)
        for i in range(_BLOCK):
            room[i] = np.inf
            room[2 * _BLOCK + i] = 0
        for j in range(k):
            norm = room[3 * _BLOCK + j]
            for i in range(_BLOCK):
                room[_BLOCK + i] = norm
            if there <= _SOME:
                for f in range(d):
                    middle = shift[f]
                    c = -2 * centers[j * d + f]
                    for i in range(there):
                        room[_BLOCK + i] += (data[first + f * _BLOCK + i] - middle) * c
            else:
                for f in range(d):
                    middle = shift[f]
                    c = -2 * centers[j * d + f]
                    for i in range(_BLOCK):
                        room[_BLOCK + i] += (data[first + f * _BLOCK + i] - middle) * c
            for i in range(_BLOCK):
                nearer = room[_BLOCK + i] < room[i]
                room[i] = room[_BLOCK + i] if nearer else room[i]
                room[2 * _BLOCK + i] = j if nearer else room[2 * _BLOCK + i]
        for i in range(there):
            row = block * _BLOCK + i
            new = np.int32(room[2 * _BLOCK + i])
            if labels[row] != new:
                labels[row] = new
                changed += 1
            to = new * (d + 1)
            for f in range(d):
                x = data[first + f * _BLOCK + i] - shift[f]
                sums[to + f] += np.float64(x * weights[row] if weighted != 0 else x)
            sums[to + d] += np.float64(weights[row]) if weighted != 0 else 1
    return changed


@host_function("T* i8 i8 T* T* i8 T* i8 T* i4* f8 i8 f8 T* f8* f8* f8* -> i8")
def lloyd_of_few(  # type: ignore[no-untyped-def]
    data, n, d, shift, centers, k, weights, weighted, room, labels, squares, most, tolerance, moved, sums, ended,
    course,
):  # fmt: skip
    # Iterations end early as those of `lloyd` do, and if a cluster is empty: its centres are not moved then. course:
    # the inertia and the movement of the centres of each iteration, and last the changed labels of the last one.
    for iteration in range(most):
        for i in range(k * (d + 1)):
            sums[i] = 0
        changed = nearest_of_few(data, n, d, shift, centers, k, weights, weighted, room, labels, sums)
        finish(squares, sums, centers, k, d, moved, ended)
        course[2 * iteration] = ended[0]
        course[2 * iteration + 1] = ended[1]
        course[2 * most] = changed
        if ended[1] < 0:
            return iteration + 1
        for i in range(k * d):
            centers[i] = moved[i]
        if changed == 0 or ended[1] <= tolerance:
            return iteration + 1
    return most


@inlined
def _distance(data, first, d, shift, centers, center):  # type: ignore[no-untyped-def]
    """Compute the squared distance of the row that begins at `first` to the centre at `center`."""
    x = data[first] - shift[0] - centers[center]
    distance = x * x
    for f in range(1, d):
        x = data[first + f * _BLOCK] - shift[f] - centers[center + f]
        distance += x * x
    return distance


@host_function("T* i8 i8 T* T* T* i8 i4* -> f8")
def inertia_of_few(data, n, d, shift, centers, weights, weighted, labels):  # type: ignore[no-untyped-def]
    total = np.float64(0)
    for row in range(n):
        first = row // _BLOCK * d * _BLOCK + row % _BLOCK
        distance = _distance(data, first, d, shift, centers, labels[row] * d)
        total += np.float64(distance * weights[row] if weighted != 0 else distance)
    return total


@host_function("T* i8 i8 T* T* i8 T* i8 T* i8 i8 f8*")
def potentials_of_few(data, n, d, shift, centers, t, weights, weighted, closest, span, n_spans, sums):  # type: ignore[no-untyped-def]
    # centers: the last accepted one, and then the candidates; closest: the squared distances to the centres before the
    # last one, which are changed to those with it
    for row in range(n):
        first = row // _BLOCK * d * _BLOCK + row % _BLOCK
        least = closest[row]
        for j in range(t + 1):
            distance = _distance(data, first, d, shift, centers, j * d)
            reached = distance if distance < least else least
            if j == 0:
                closest[row] = least = reached
            else:
                added = reached * weights[row] if weighted != 0 else reached
                sums[(j - 1) * n_spans + row // span] += np.float64(added)


@host_function("T* i8 i8 T* T* i8 f8* i8 T* i8 T* i8* f8*")
def seed_of_few(data, n, d, shift, centers, k, uniforms, t, weights, weighted, closest, tried, targets):  # type: ignore[no-untyped-def]
    # centers: the first one is given; closest, tried, targets: room for a number of each row, and of each trial
    for row in range(n):
        closest[row] = np.inf
    for c in range(1, k):
        total = np.float64(0)
        for row in range(n):
            first = row // _BLOCK * d * _BLOCK + row % _BLOCK
            distance = _distance(data, first, d, shift, centers, (c - 1) * d)
            closest[row] = distance if distance < closest[row] else closest[row]
            total += np.float64(closest[row] * weights[row] if weighted != 0 else closest[row])
        if total == 0:  # all rows are at centres
            for f in range(d):
                centers[c * d + f] = centers[f]
            continue
        for j in range(t):
            targets[j] = uniforms[(c - 1) * t + j] * total
            tried[j] = -1
        running = np.float64(0)
        last = 0
        for row in range(n):
            added = np.float64(closest[row] * weights[row] if weighted != 0 else closest[row])
            if added > 0:
                running += added
                last = row
                for j in range(t):
                    if tried[j] < 0 and running >= targets[j]:
                        tried[j] = row
        best = 0
        least = np.inf
        for j in range(t):
            chosen = tried[j] if tried[j] >= 0 else last
            for f in range(d):
                centers[c * d + f] = data[chosen // _BLOCK * d * _BLOCK + f * _BLOCK + chosen % _BLOCK] - shift[f]
            potential = np.float64(0)
            for row in range(n):
                first = row // _BLOCK * d * _BLOCK + row % _BLOCK
                distance = _distance(data, first, d, shift, centers, c * d)
                reached = distance if distance < closest[row] else closest[row]
                potential += np.float64(reached * weights[row] if weighted != 0 else reached)
            if potential < least:
                least = potential
                best = chosen
        for f in range(d):
            centers[c * d + f] = data[best // _BLOCK * d * _BLOCK + f * _BLOCK + best % _BLOCK] - shift[f]
