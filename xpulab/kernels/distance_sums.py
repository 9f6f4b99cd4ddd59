"""Sums of the distances from each query to the rows of each of several groups, without a table of the distances.

The queries lie in tiles, feature by feature, and the rows one after the other, group after group, as in
`xpulab.kernels.neighbors`. A work-group has one tile and a run of rows of one group. A work-item has a few queries,
computes their distances to a few rows in registers, from the differences of the values, and adds them up; it keeps the
rounding errors of these sums [1]_, so that a float32 sum of thousands of distances is as exact as the distances are.

References
----------
.. [1] D. E. Knuth, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B: the error of a sum of two
   numbers is a number, which six operations compute.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xpulab.kernels.language import DeviceFunction, Kernel, PrivateArray, device_function, fma, index, kernel
from xpulab.kernels.runtime.device import Array, Device
from xpulab.kernels.runtime.launch import launch

__all__ = ["Kind", "Queries", "every_kernel"]

#: What is added up: the root of the sum of squared differences, this sum itself, the sum, or the largest, of the
#: absolute differences, or the p-th root of the sum of their p-th powers.
Kind = Literal["euclidean", "squares", "absolute", "largest", "powers"]

_KINDS: tuple[Kind, ...] = ("euclidean", "squares", "absolute", "largest", "powers")
_RUN = 1024  # rows of a work-group at most: few groups of rows then still occupy all compute units


@dataclass(frozen=True)
class _LaunchShape:
    """How the work is cut: queries and rows whose distances stay in registers, and work-items of a work-group."""

    queries: int
    rows: int
    items: int

    @property
    def step(self) -> int:
        """Return the number of queries of a work-group."""
        return self.queries * self.items


def _launch_shape(dtype: np.dtype[Any], is_cpu: bool) -> _LaunchShape:
    if not is_cpu:
        return _LaunchShape(1, 8, 64)
    return _LaunchShape(3, 4, 16) if dtype == np.float32 else _LaunchShape(1, 4, 16)


def _largest_differences(shape: _LaunchShape) -> DeviceFunction:
    """Make the function that finds the largest difference of each of a work-item's queries to each of its rows."""
    n_queries, n_rows, n_items, step = shape.queries, shape.rows, shape.items, shape.step

    @device_function
    def find_largest(queries, base, d, rows, row, x, most):  # type: ignore[no-untyped-def]
        for f in range(d):
            for q in range(n_queries):
                x[q] = queries[index(base + f * step + q * n_items)]
            for j in range(n_rows):
                y = rows[index((row + j) * d + f)]
                for q in range(n_queries):
                    t = abs(x[q] - y)
                    s = most[j * n_queries + q]
                    most[j * n_queries + q] = t if t > s else s

    return find_largest


@cache
def _sum_kernel(kind: Kind, dtype: np.dtype[Any], shape: _LaunchShape) -> Kernel:
    number = dtype.type
    zero, one = number(0), number(1)
    n_queries, n_rows, n_items, step = shape.queries, shape.rows, shape.items, shape.step
    n_pairs = n_queries * n_rows
    euclidean, squares, absolute, largest, powers = (kind == each for each in _KINDS)
    find_largest = _largest_differences(shape)

    @kernel("T[] i8 i8 T* T* i8* T T*", dtype)
    def add_distances(item, queries, n_tiles, d, rows, there, firsts, power, sums):  # type: ignore[no-untyped-def]
        # queries: (n_tiles, d, step). there: 1 for each row, 0 for those that fill up a group. Run r has the rows from
        # firsts[r] up to firsts[r + 1], a multiple of n_rows. sums: (n_runs, n_tiles, 2, step), with their errors.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        base = group % n_tiles * d * step + lane
        run = group // n_tiles
        apart = PrivateArray(n_pairs, number)
        most = PrivateArray(n_pairs, number)
        x = PrivateArray(n_queries, number)
        total = PrivateArray(n_queries, number)
        error = PrivateArray(n_queries, number)
        for q in range(n_queries):
            total[q] = zero
            error[q] = zero
        for row in range(firsts[index(run)], firsts[index(run + 1)], n_rows):
            for i in range(n_pairs):
                apart[i] = zero
                most[i] = zero
            if powers:  # of the differences divided by the largest, whose powers a number holds
                find_largest(queries, base, d, rows, row, x, most)
            for f in range(d):
                for q in range(n_queries):
                    x[q] = queries[index(base + f * step + q * n_items)]
                for j in range(n_rows):
                    y = rows[index((row + j) * d + f)]
                    for q in range(n_queries):
                        s = apart[j * n_queries + q]
                        t = x[q] - y
                        if euclidean or squares:
                            apart[j * n_queries + q] = fma(t, t, s)
                        elif absolute:
                            apart[j * n_queries + q] = s + abs(t)
                        elif largest:
                            t = abs(t)
                            apart[j * n_queries + q] = t if t > s else s
                        else:
                            m = most[j * n_queries + q]
                            apart[j * n_queries + q] = s + math.pow(abs(t) / (m if m > zero else one), power)
            for q in range(n_queries):
                few = zero
                for j in range(n_rows):
                    s = apart[j * n_queries + q]
                    if euclidean:
                        s = math.sqrt(s)
                    elif powers:
                        s = most[j * n_queries + q] * math.pow(s, one / power)
                    few = fma(there[index(row + j)], s, few)
                before = total[q]
                after = before + few
                new = after - before
                error[q] += (before - (after - new)) + (few - new)
                total[q] = after
        for q in range(n_queries):
            to = group * 2 * step + q * n_items + lane
            sums[index(to)] = total[q]
            sums[index(to + step)] = error[q]

    return add_distances


class Queries:
    """Queries on a device, to whose sums of distances rows are added.

    Parameters
    ----------
    device : Device
    queries : numpy.ndarray of shape (m, n_features), m at least 1
        float32 or float64.
    kind : Kind
    power : float
        p of the kind "powers".
    """

    def __init__(self, device: Device, queries: npt.NDArray[Any], kind: Kind, power: float = 2.0) -> None:
        self._device, self._kind, self._power = device, kind, power
        self._m, self._d = queries.shape
        self._dtype = device.check_dtype(queries.dtype)
        self._shape = _launch_shape(self._dtype, device.is_cpu)
        step = self._shape.step
        self._n_tiles = -(-self._m // step)
        padded = np.zeros((self._n_tiles * step, self._d), self._dtype)
        padded[: self._m] = queries
        in_tiles = padded.reshape(self._n_tiles, step, self._d).swapaxes(1, 2)
        self._data = device.array(np.ascontiguousarray(in_tiles))

    def sums(self, rows: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Add up the distances from each query to the rows of each group.

        Parameters
        ----------
        rows : numpy.ndarray of shape (n, n_features)
            In the dtype of the queries; the rows of the first group come first, and so on.
        counts : numpy.ndarray of int64 of shape (n_groups,)
            Number of rows of each group, at least 1.

        Returns
        -------
        numpy.ndarray of float64 of shape (n_groups, m)
        """
        device, shape = self._device, self._shape
        data, there, firsts, groups = self._filled_up(rows, counts)
        n_runs = len(firsts) - 1
        found = device.empty(n_runs * self._n_tiles * 2 * shape.step, self._dtype)
        launch(
            device, _sum_kernel(self._kind, self._dtype, shape), n_runs * self._n_tiles, shape.items,
            self._data, np.int64(self._n_tiles), np.int64(self._d), data, there, device.array(firsts),
            self._dtype.type(self._power), found,
        )  # fmt: skip
        by_run = device.fetch(found, copied=False).reshape(n_runs, self._n_tiles, 2, shape.step)
        exact = by_run.sum(axis=2, dtype=np.float64).reshape(n_runs, -1)[:, : self._m]
        return np.asarray(np.add.reduceat(exact, groups, axis=0))

    def _filled_up(
        self, rows: npt.NDArray[Any], counts: npt.NDArray[np.int64]
    ) -> tuple[Array, Array, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the rows on the device, where each group is filled up with rows of zeros, and which rows are there.

        The last two results are the first row of each run, with the end of the last one, and the first run of each
        group.
        """
        each = self._shape.rows
        rooms = -(-counts // each) * each
        ends = np.cumsum(rooms)
        filled = np.arange(len(rows)) + np.repeat(ends - rooms - (np.cumsum(counts) - counts), counts)
        data, there = np.zeros((ends[-1], self._d), self._dtype), np.zeros(ends[-1], self._dtype)
        data[filled], there[filled] = rows, 1
        runs = -(-rooms // _RUN)
        groups = np.cumsum(runs) - runs
        firsts = np.repeat(ends - rooms, runs) + _RUN * (np.arange(runs.sum()) - np.repeat(groups, runs))
        device = self._device
        return device.array(data), device.array(there), np.append(firsts, ends[-1]), groups


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    for kind, dtype, is_cpu in itertools.product(_KINDS, map(np.dtype, (np.float32, np.float64)), (True, False)):
        yield _sum_kernel(kind, dtype, _launch_shape(dtype, is_cpu))
