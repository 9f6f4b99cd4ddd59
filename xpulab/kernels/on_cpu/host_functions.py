"""The computations of the CPU between two launches: the source of the machine code that `on_cpu.host` calls.

Each function gets pointers, and indexes them as flat memory. The words of its signature are those of a kernel's: `T*`
is a pointer to numbers of the rows' dtype. No function allocates memory or raises an exception, so the machine code
needs neither Python nor numba.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["FUNCTIONS", "TOGETHER", "HostFunction", "count_bits", "host_function", "inlined", "products_below"]

TOGETHER = 64  # scores that `products_below` has in registers


@dataclass(frozen=True)
class HostFunction:
    """A function to be compiled.

    Attributes
    ----------
    function : callable
        The Python function.
    signature : tuple of str
        One word for each argument, as in `xpulab.kernels.language.Kernel.signature`.
    returns : str
        The word for the type of the returned number; empty if the function returns nothing.
    """

    function: Callable[..., Any]
    signature: tuple[str, ...]
    returns: str

    @property
    def has_rows(self) -> bool:
        """Whether any argument is of the rows' dtype."""
        return any("T" in word for word in self.signature)

    def __call__(self, *arguments: Any) -> Any:
        """Run the Python function itself."""
        return self.function(*arguments)


#: Name -> function.
FUNCTIONS: dict[str, HostFunction] = {}


def host_function(signature: str) -> Callable[[Callable[..., Any]], HostFunction]:
    """Register a function under its name; `signature` has the words of its arguments, and ``-> f8`` for a result."""
    words, _, returns = signature.partition("->")

    def make(function: Callable[..., Any]) -> HostFunction:
        if function.__name__ in FUNCTIONS:
            raise ValueError(f"there are two host functions {function.__name__}; expected a name of its own for each")
        made = FUNCTIONS[function.__name__] = HostFunction(function, tuple(words.split()), returns.strip())
        return made

    return make


def inlined(function: Callable[..., Any]) -> HostFunction:
    """Return a function that other host functions call, and that is compiled only as a part of these."""
    return HostFunction(function, (), "")


def products_below(
    row: Any, x: int, step: int, others: Any, y: int, d: int, low: Any, high: Any
) -> tuple[int, int]:  # fmt: skip
    """Compare one row with `TOGETHER` others: bit j of the results says whether score j is at most `low`, and `high`.

    A score is ``others[y + j] - sum(row[x + f * step] * others[y + (1 + f) * TOGETHER + j] for f in range(d))``, in
    float32. The compiler puts vector instructions instead of this function.
    """
    raise RuntimeError("products_below has no meaning outside of a host function")


def count_bits(mask: int) -> int:
    """Count the bits of an integer of 64 bits. The compiler puts instructions instead of this function."""
    raise RuntimeError("count_bits has no meaning outside of a host function")


@host_function("T* T* f8* i8 i8 i8 i8 f8 T*")
def pack_centers(shift, centers, moved, k, d, group, anew, rounding, packed):  # type: ignore[no-untyped-def]
    n_groups = (k + group - 1) // group
    grouped = d + n_groups * group
    largest = np.float64(0)
    for f in range(d):
        packed[f] = shift[f]
    for j in range(n_groups * group):
        first = grouped + (j // group) * d * group + j % group
        if j < k:
            norm = np.float64(0)
            for f in range(d):
                c = np.float64(centers[j * d + f])
                norm += c * c
                packed[first + f * group] = -2 * centers[j * d + f]
            packed[d + j] = norm
            largest = norm if norm > largest or norm != norm else largest
        else:
            packed[d + j] = np.inf
            for f in range(d):
                packed[first + f * group] = 0
    last = grouped + n_groups * group * d
    farthest = np.float64(0)
    for j in range(k):
        packed[last + j] = moved[j]
        farthest = moved[j] if moved[j] > farthest or moved[j] != moved[j] else farthest
    packed[last + k] = 2 * largest
    packed[last + k + 1] = rounding * farthest
    packed[last + k + 2] = anew


@host_function("f8* T* i8 i8 f8* f8*")
def widen_moved(before, centers, k, d, steps, moved):  # type: ignore[no-untyped-def]
    longest = np.float64(0)
    next_longest = np.float64(0)
    for j in range(k):
        square = np.float64(0)
        for f in range(d):
            step = np.float64(centers[j * d + f]) - before[j * d + f]
            square += step * step
            before[j * d + f] = centers[j * d + f]
        steps[j] = np.sqrt(square)
        if not steps[j] <= longest:
            next_longest = longest
            longest = steps[j]
        elif not steps[j] <= next_longest:
            next_longest = steps[j]
    seen = False
    for j in range(k):
        alone = steps[j] == longest and not seen
        seen = seen or alone
        moved[j] += (steps[j] + (next_longest if alone else longest)) * (1 + 1e-9)


@host_function("T* i8 i8 i8 i8 f8* -> f8")
def add_partial_sums(partial, workers, width, k, columns, sums):  # type: ignore[no-untyped-def]
    for worker in range(workers):
        for j in range(k):
            first = (worker * k + j) * 2 * width
            for f in range(columns):
                sums[j * columns + f] += np.float64(partial[first + f]) + np.float64(partial[first + width + f])
    changes = np.float64(0)
    for worker in range(workers):
        changes += partial[workers * k * 2 * width + worker]
    return changes


@host_function("i4* T* i8 f8* i8 f8*")
def add_columns(columns, values, n, middle, squared, totals):  # type: ignore[no-untyped-def]
    for i in range(n):
        column = columns[i]
        value = np.float64(values[i])
        totals[column] += (value - 2 * middle[column]) * value if squared != 0 else value


@host_function("i4* T* i8 i8*")
def count_positive(labels, weights, n, counts):  # type: ignore[no-untyped-def]
    for i in range(n):
        if weights[i] > 0:
            counts[labels[i]] += 1


@host_function("f8 f8* T* i8 i8 -> f8")
def inertia_of_sums(squares, totals, centers, k, d):  # type: ignore[no-untyped-def]
    inertia = squares
    for j in range(k):
        cross = np.float64(0)
        norm = np.float64(0)
        for f in range(d):
            c = np.float64(centers[j * d + f])
            cross += totals[j * (d + 1) + f] * c
            norm += c * c
        inertia += totals[j * (d + 1) + d] * norm - 2 * cross
    return max(np.float64(0), inertia)


@host_function("f8* T* i8 i8 T* -> f8")
def move_centers(totals, centers, k, d, moved):  # type: ignore[no-untyped-def]
    heaviest = 0
    for j in range(1, k):
        if totals[j * (d + 1) + d] > totals[heaviest * (d + 1) + d]:
            heaviest = j
    shift = np.float64(0)
    for j in range(k):
        source = j if totals[j * (d + 1) + d] > 0 else heaviest
        weight = totals[source * (d + 1) + d]
        divisor = weight if source <= j and weight > 0 else np.float64(1)
        for f in range(d):
            moved[j * d + f] = totals[source * (d + 1) + f] / divisor
            step = np.float64(moved[j * d + f]) - np.float64(centers[j * d + f])
            shift += step * step
    return shift


@host_function("f8 f8* T* i8 i8 T* f8*")
def finish(squares, totals, centers, k, d, moved, ended):  # type: ignore[no-untyped-def]
    ended[0] = inertia_of_sums(squares, totals, centers, k, d)
    ended[1] = -1
    for j in range(k):
        if totals[j * (d + 1) + d] == 0:
            return
    ended[1] = move_centers(totals, centers, k, d, moved)


@host_function("T* f8* i8* i8 i8 i8 i8 f8*")
def compare_with(rows, queries, indices, n, room, d, kind, found):  # type: ignore[no-untyped-def]
    for i in range(n * room):
        if indices[i] < 0:
            found[i] = np.inf
            continue
        y, x = indices[i] * d, i // room * d
        # Four sums, because each waits for what was added to it before.
        a = b = c = e = np.float64(0)
        last = d - d % 4
        if kind == 0:
            for f in range(0, last, 4):
                a += np.float64(rows[y + f]) * queries[x + f]
                b += np.float64(rows[y + f + 1]) * queries[x + f + 1]
                c += np.float64(rows[y + f + 2]) * queries[x + f + 2]
                e += np.float64(rows[y + f + 3]) * queries[x + f + 3]
            for f in range(last, d):
                a += np.float64(rows[y + f]) * queries[x + f]
        elif kind == 1:
            for f in range(0, last, 4):
                a += (rows[y + f] - queries[x + f]) ** 2
                b += (rows[y + f + 1] - queries[x + f + 1]) ** 2
                c += (rows[y + f + 2] - queries[x + f + 2]) ** 2
                e += (rows[y + f + 3] - queries[x + f + 3]) ** 2
            for f in range(last, d):
                a += (rows[y + f] - queries[x + f]) ** 2
        elif kind == 2:
            for f in range(d):
                a += abs(rows[y + f] - queries[x + f])
        else:
            for f in range(d):
                t = abs(rows[y + f] - queries[x + f])
                a = t if t > a else a
        found[i] = (a + b) + (c + e)
