"""Sparse rows: the source of the machine code that `kernels.sparse_products` and `kernels.linear.sparse_steps` call.

A row of a product with a dense matrix is a sum of rows of the matrix. The sums of up to 64 columns stay in registers,
in vectors of 16 numbers, until all stored values of the row have been added.

Steps of a descent go from points with d coefficients and an intercept. The losses are those of
`xpulab.kernels.linear.residuals`, of one column, in float64; `facts` has the scale of the products and, from
`_SETTINGS` on, the settings of the loss.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from xpulab.kernels.on_cpu.host_functions import host_function, inlined

__all__ = ["KINDS", "VECTOR", "add_gradients", "add_multiples", "sparse_times", "take_steps"]

Numbers: TypeAlias = Any  # a pointer to them

VECTOR = 16  # numbers of a vector
_TOGETHER = 4 * VECTOR  # columns whose sums are in registers
#: Numbers of the losses.
KINDS = {"binary": 0, "margin": 1, "distance": 2}
_BINARY, _MARGIN = range(2)
_SCALE, _SETTINGS = range(2)


def add_multiples(
    vectors: int,
    values: Numbers,
    columns: Numbers,
    first: int,
    last: int,
    matrix: Numbers,
    k: int,
    at: int,
    end: int,
    out: Numbers,
    row: int,
) -> int:
    """Write ``out[row, j] = sum(values[p] * matrix[columns[p], j] for p in range(first, last))`` for some columns j.

    `matrix` and `out` have k columns. The constant `vectors` is a number of vectors: the j-th begins at column
    ``at + j * VECTOR``, and the last ends before column `end`. The compiler puts vector instructions instead of this
    function.
    """
    raise RuntimeError("add_multiples has no meaning outside of a host function")


@host_function("T* i4* i8* i8 i8 T* i8 T*")
def sparse_times(values, columns, starts, begin, n, matrix, k, out):  # type: ignore[no-untyped-def]
    for row in range(begin, n):
        first, last = starts[row], starts[row + 1]
        for at in range(0, k, _TOGETHER):
            end = min(at + _TOGETHER, k)
            if end - at > 3 * VECTOR:
                add_multiples(4, values, columns, first, last, matrix, k, at, end, out, row)
            elif end - at > 2 * VECTOR:
                add_multiples(3, values, columns, first, last, matrix, k, at, end, out, row)
            elif end - at > VECTOR:
                add_multiples(2, values, columns, first, last, matrix, k, at, end, out, row)
            else:
                add_multiples(1, values, columns, first, last, matrix, k, at, end, out, row)


@inlined
def _times(values, columns, first, last, point):  # type: ignore[no-untyped-def]
    """Multiply a row with coefficients; in four sums, because each waits for what was added to it before."""
    a = b = c = e = np.float64(0)
    end = last - (last - first) % 4
    for p in range(first, end, 4):
        a += np.float64(values[p]) * point[columns[p]]
        b += np.float64(values[p + 1]) * point[columns[p + 1]]
        c += np.float64(values[p + 2]) * point[columns[p + 2]]
        e += np.float64(values[p + 3]) * point[columns[p + 3]]
    for p in range(end, last):
        a += np.float64(values[p]) * point[columns[p]]
    return (a + b) + (c + e)


@host_function("T* i4* i8* i8 i8 f8* f8* i8 f8* i8 f8* f8* -> f8")
def add_gradients(  # type: ignore[no-untyped-def]
    values, columns, starts, begin, end, targets, weights, kind, facts, d, point, gradient
):  # fmt: skip
    # Adds the gradients of the rows from begin to end to `gradient`, (d + 1,); returns the sum of their losses.
    scale, total = facts[_SCALE], np.float64(0)
    limit, bend, first_fact = facts[_SETTINGS], facts[_SETTINGS + 1], facts[_SETTINGS + 2]
    for i in range(begin, end):
        first, last, target = starts[i], starts[i + 1], targets[i]
        z = scale * (_times(values, columns, first, last, point) + point[d])
        if kind == _BINARY:
            power = np.exp(-abs(z))
            loss = np.log(1 + power) + max(z, np.float64(0)) - target * z
            slope = (1 if z >= 0 else power) / (1 + power) - target
        else:
            if kind == _MARGIN:
                slope = np.float64(-1 if target == 1 else 1)
                missed = 1 + slope * z
                by = first_fact if target == 1 else np.float64(1)
            else:
                away = target - z
                slope = np.float64(-1 if away > 0 else 1)
                missed = abs(away) - first_fact
                by = facts[_SETTINGS + 3] if away > 0 else facts[_SETTINGS + 4]
            cut = min(missed, limit) if missed > 0 else np.float64(0)
            loss = by * bend * cut * (missed - cut / 2)
            slope *= by * bend * cut
        total += weights[i] * loss
        slope *= weights[i]
        if slope != 0:
            for p in range(first, last):
                gradient[columns[p]] += slope * np.float64(values[p])
            gradient[d] += slope
    return total / scale


@host_function("T* i4* i8* i8* f8* f8* i8 f8* i8 i8* f8* f8* i8 f8 f8 i8 f8* f8* f8* f8*")
def take_steps(  # type: ignore[no-untyped-def]
    values, columns, starts, bounds, targets, weights, kind, facts, d, order, lengths, shares, n_steps, squares, norm,
    has_intercept, point, mean, gradient, sums,
):  # fmt: skip
    # Takes a step for each batch of `order`, whose rows are between two of `bounds`. Writes to sums the losses, and the
    # penalties times the numbers of rows, both before each step.
    sums[0] = sums[1] = 0
    for step in range(n_steps):
        first, last = bounds[order[step]], bounds[order[step] + 1]
        for f in range(d + 1):
            gradient[f] = 0
        sums[0] += add_gradients(
            values, columns, starts, first, last, targets, weights, kind, facts, d, point, gradient
        )  # fmt: skip
        length, share, both, absolute = lengths[step], shares[step], np.float64(0), np.float64(0)
        scale = length / (last - first)
        if squares != 0:
            for f in range(d):
                both += point[f] * point[f]
        if norm != 0:
            for f in range(d):
                absolute += abs(point[f])
        sums[1] += (last - first) * (squares / 2 * both + norm * absolute)
        shrunk = 1 + length * squares
        for f in range(d):
            point[f] = (point[f] - scale * gradient[f]) / shrunk
        if norm != 0:
            for f in range(d):
                rest = abs(point[f]) - length * norm
                point[f] = 0 if rest <= 0 else (rest if point[f] > 0 else -rest)
        if has_intercept != 0:
            point[d] -= scale * gradient[d]
        if share > 0:
            for f in range(d + 1):
                mean[f] += (point[f] - mean[f]) * share
