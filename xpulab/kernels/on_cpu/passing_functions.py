"""Sums over rows in C order, which are read for one pass: the source of the machine code that `on_cpu.passing` calls.

Products of columns are computed as in `kernels.products_kernels`: a chunk of the rows is staged in panels of columns,
and then each tile of products is added up in registers [1]_. A panel is twice as wide as a vector of 64 bytes.

References
----------
.. [1] K. Goto, R. A. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM Transactions on
   Mathematical Software 34 (2008).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from xpulab.kernels.on_cpu.host_functions import host_function

__all__ = [
    "CHUNK",
    "add_column_facts",
    "facts_of_rows",
    "multiply_tile",
    "products_of_rows",
    "stage_vector",
    "vector_size",
]

Numbers: TypeAlias = Any  # a pointer to them, or one

CHUNK = 128  # rows that are staged at a time: a panel of them stays in a core's first cache
_BLOCK = 64  # `xpulab.kernels.layout.BLOCK`, whose module this one cannot import
_MOST_ROWS = 256  # whose sums of columns are added up in the dtype of the rows
_MOST_ADDED, _FEW_ADDED = 8, 4  # chunks whose products are added up in the dtype of the rows; of few columns fewer


def vector_size(numbers: Numbers) -> int:
    """Return how many of the numbers are a vector. The compiler puts a constant instead of this function."""
    raise RuntimeError("vector_size has no meaning outside of a host function")


def stage_vector(rows: Numbers, at: int, shift: Numbers, f: int, root: Numbers, stage: Numbers, to: int) -> int:
    """Write ``(rows[at + j] - shift[f + j]) * root`` to ``stage[to + j]`` for all j of a vector.

    The compiler puts vector instructions instead of this function.
    """
    raise RuntimeError("stage_vector has no meaning outside of a host function")


def multiply_tile(left: int, vectors: int, stage: Numbers, x: int, y: int, rows: int, sums: Numbers, to: int) -> int:
    """Add products of staged columns: `left` columns from `x` on, with those of one or two vectors from `y` on.

    `left` and `vectors` are constants. The sums of a column are as wide as a panel. The compiler puts vector
    instructions instead of this function.
    """
    raise RuntimeError("multiply_tile has no meaning outside of a host function")


@host_function("T* i8 i8 T* T* i8 T* T* i8 i8 i8 T* T* f8*")
def products_of_rows(  # type: ignore[no-untyped-def]
    rows, n, d, shift, targets, t, target_shift, roots, weighted, first, wide, stage, sums, out
):  # fmt: skip
    # Columns: those of the rows minus the shift, those of the targets, which are in blocks, and one of ones, all times
    # the roots of the weights. sums: zeros; out: the sums of all tiles, see `passing.unpacked`.
    size = vector_size(rows)
    panel, width = 2 * size, d + t + 1
    left = 8 if wide != 0 else 4
    panels, to, added = (width + panel - 1) // panel, 0, 0
    most = _FEW_ADDED if width <= CHUNK else _MOST_ADDED
    for begin in range(0, n, CHUNK):
        there = min(CHUNK, n - begin)
        for i in range(there):
            row, at = first + begin + i, (begin + i) * d
            root = roots[row] if weighted != 0 else roots[0]
            # The last vector ends with other numbers, in columns that others replace, or that nobody uses.
            for f in range(0, d, size):
                stage_vector(rows, at + f, shift, f, root, stage, (f // panel * CHUNK + i) * panel + f % panel)
            for j in range(t):
                f = d + j
                y = targets[(row // _BLOCK * t + j) * _BLOCK + row % _BLOCK] - target_shift[j]
                stage[(f // panel * CHUNK + i) * panel + f % panel] = y * root
            f = d + t
            stage[(f // panel * CHUNK + i) * panel + f % panel] = root
        to = 0
        for p in range(panels):
            y_at, two = p * CHUNK * panel, width - p * panel > size
            for f in range(0, min((p + 1) * panel, width), left):
                x_at = f // panel * CHUNK * panel + f % panel
                if wide == 0:
                    multiply_tile(4, 1, stage, x_at, y_at, there, sums, to)
                    if two:
                        multiply_tile(4, 1, stage, x_at, y_at + size, there, sums, to + size)
                elif two:
                    multiply_tile(8, 2, stage, x_at, y_at, there, sums, to)
                else:
                    multiply_tile(8, 1, stage, x_at, y_at, there, sums, to)
                to += left * panel
        added += 1
        if added == most or begin + CHUNK >= n:
            for k in range(to):
                out[k] += np.float64(sums[k])
                sums[k] = 0
            added = 0


def add_column_facts(
    vectors: int, rows: Numbers, at: int, d: int, n: int, shift: Numbers, f: int, room: Numbers
) -> int:
    """Find sums, sums of squares, minima and maxima of neighbouring columns of n rows, and write them to `room`.

    The columns are as many as the constant `vectors` has numbers; `rows` has the first of them from `at` on, in steps
    of d. The shift is subtracted before numbers are added. The compiler puts vector instructions instead of this
    function.
    """
    raise RuntimeError("add_column_facts has no meaning outside of a host function")


@host_function("T* i8 i8 T* i8 T* f8*")
def facts_of_rows(rows, n, d, shift, wide, room, out):  # type: ignore[no-untyped-def]
    # out: totals, sums of squares, minima and maxima of d columns, at least as many as a vector has numbers
    size = vector_size(rows)
    for begin in range(0, n, _MOST_ROWS):
        there, f = min(_MOST_ROWS, n - begin), 0
        while f < d:
            # The last vector begins with columns that the vector before it has, too.
            start, columns = min(f, d - size), size
            if wide != 0 and f + 4 * size <= d:
                start, columns = f, 4 * size
                add_column_facts(4, rows, begin * d + f, d, there, shift, f, room)
            else:
                add_column_facts(1, rows, begin * d + start, d, there, shift, start, room)
            for j in range(f - start, columns):
                to = start + j
                out[to] += np.float64(room[j])
                out[d + to] += np.float64(room[columns + j])
                out[2 * d + to] = min(out[2 * d + to], np.float64(room[2 * columns + j]))
                out[3 * d + to] = max(out[3 * d + to], np.float64(room[3 * columns + j]))
            f = start + columns
