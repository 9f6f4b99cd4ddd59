"""Products of sparse rows with dense matrices: the source of the machine code that `kernels.sparse_products` calls.

A row of the result is a sum of rows of the dense matrix. The sums of up to 64 columns stay in registers, in vectors of
16 numbers, until all stored values of the row have been added.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from xpulab.kernels.on_cpu.host_functions import host_function

__all__ = ["VECTOR", "add_multiples", "sparse_times"]

Numbers: TypeAlias = Any  # a pointer to them

VECTOR = 16  # numbers of a vector
_TOGETHER = 4 * VECTOR  # columns whose sums are in registers


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
