"""Compares rows with the few centres that moved far, so that the slacks of all rows shrink by the steps of the others.

Where data has clusters, most centres soon stay where they are, and few travel. The longest step of any centre would use
up the slacks of rows that are far from those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.language import Kernel, PrivateArray, fma, group_barrier, index, kernel
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.device import Array
from xpulab.kernels.runtime.launch import Prepared, prepare

__all__ = ["MoverPass", "choose", "every_kernel", "most_movers", "mover_kernel"]

_GROUP = 8  # centres whose scores are computed together
_ITEMS = 16
_SPAN = 4096  # rows of a work-group
_MOST, _SHARE = 32, 4  # centres that are compared, at most, and the least number of all centres for each of them
#: Other steps are at most this part of the longest; a row's comparison with the centres takes as long as that with so
#: many of all, for which it has to be copied, and a copy as long as the second number.
_SHORTER, _COMPARED, _COPIED = 0.5, 40, 75


def most_movers(k: int) -> int:
    """Return the largest number of centres to compare all rows with."""
    return min(_MOST, k // _SHARE) // _GROUP * _GROUP


def choose(steps: npt.NDArray[np.float64], share: float) -> int:
    """Return the number of the centres with the longest steps to compare all rows with; 0 if this does not pay.

    Parameters
    ----------
    steps : numpy.ndarray of float64 of shape (n_clusters,)
    share : float
        Of the rows, those that would otherwise be compared with all centres, as far as one knows.
    """
    k = len(steps)
    sizes = range(_GROUP, most_movers(k) + 1, _GROUP)
    if not sizes or share * (_COPIED + k) < _COMPARED:
        return 0
    ordered = np.sort(steps)[::-1]
    enough = [size for size in sizes if ordered[size] <= ordered[0] * _SHORTER / 2]
    if enough:
        return enough[0]
    return sizes[-1] if ordered[sizes[-1]] <= ordered[0] * _SHORTER else 0


class MoverPass:
    """A pass over all rows that lowers their slacks to what the centres that moved far leave of them.

    Parameters
    ----------
    of : tuple of (Rows, int, int)
        The rows, the number of centres, and how many of the packed centres are a group.
    room : callable
        ``room(name, size, dtype)`` returns arrays.
    parameters, labels, slack : Array
        See `mover_kernel`.
    """

    def __init__(
        self,
        of: tuple[Rows, int, int],
        room: Callable[[str, int, npt.DTypeLike], Array],
        parameters: Array,
        labels: Array,
        slack: Array,
    ) -> None:
        rows, k, group = of
        self._rows = rows
        d, dtype = rows.n_features, rows.dtype
        self._n_spans = -(-rows.n_samples // _SPAN)
        self._movers = room("movers", 1 + _MOST * (2 + d) + k * d, dtype)
        self._counts = room("exhausted", self._n_spans * _ITEMS, np.int32)
        self._known: dict[int, Prepared] = {}
        self._arguments = (
            rows.data, np.int64(rows.n_samples), np.int64(d), np.int64(k), np.int64(group), parameters,
            dtype.type(2 * (d + 8) * np.finfo(dtype).eps), self._movers, labels, slack, self._counts,
            room("least", self._n_spans * _ITEMS, dtype),
        )  # fmt: skip

    def start(self, centers: npt.NDArray[Any], movers: npt.NDArray[np.int64], extra: float) -> None:
        """Start the pass. The packed centres have the slacks shrunk without the steps of the movers.

        Parameters
        ----------
        centers : numpy.ndarray of shape (n_clusters, n_features)
        movers : numpy.ndarray of int64
            The numbers of the centres to compare, a multiple of 8.
        extra : float
            By how much more the slacks may have shrunk with the movers.
        """
        rows, n = self._rows, len(movers)
        moved = centers[movers]
        norms = np.square(moved, dtype=np.float64).sum(axis=1)
        by_group = (-2 * moved).reshape(n // _GROUP, _GROUP, -1).swapaxes(1, 2)
        parts = [each.reshape(n // _GROUP, -1) for each in (norms, by_group, movers)]
        numbers = [extra], np.concatenate(parts, axis=1).ravel(), (-2 * centers).ravel()
        packed = np.concatenate(numbers).astype(rows.dtype)
        rows.device.store(packed, self._movers)
        if n not in self._known:
            kernel = mover_kernel(rows.dtype)
            self._known[n] = prepare(
                rows.device, kernel, self._n_spans, _ITEMS, *self._arguments, np.int64(n // _GROUP)
            )
        self._known[n]()

    def exhausted(self) -> int:
        """Return the number of rows whose slack the movers would have used up."""
        return int(self._rows.device.fetch(self._counts, stop=self._n_spans * _ITEMS, copied=False).sum())


@cache
def mover_kernel(dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel.

    `parameters` are those of `compare.nearest_kernel`, with `size` centres in a group. `movers` has by how much more
    slacks may shrink; for each group of movers the squared norms, -2 times the centres, feature by feature, and their
    numbers; and -2 times each of all centres. `exhausted` gets for each work-item the number of rows whose slack all
    steps would have used up.
    """
    number = dtype.type
    zero, none, infinity, share = number(0), number(-1), number(np.inf), number(1 - 1e-4)
    lower = number(1 - 4 * np.finfo(dtype).eps)

    @kernel("T[] i8 i8 i8 i8 T* T T* i4* T* i4* T* i8", dtype)
    def compare_movers(  # type: ignore[no-untyped-def]
        item, data, n, d, k, size, parameters, rounding, movers, labels, slack, exhausted, stage, n_groups
    ):  # fmt: skip
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        score = PrivateArray(_GROUP, number)
        shrunk = d + (k + size - 1) // size * size * (1 + d)
        own_first = 1 + n_groups * (d + 2) * _GROUP
        largest = parameters[index(shrunk + k)]
        margin = parameters[index(shrunk + k + 1)]
        extra = movers[index(0)]
        found = np.int32(0)
        mine = group * _ITEMS
        for block in range(group * (_SPAN // BLOCK), min((group + 1) * (_SPAN // BLOCK), (n + (BLOCK - 1)) // BLOCK)):
            least_left = infinity
            for first in range(block * BLOCK, block * BLOCK + BLOCK, _ITEMS):
                row = first + lane
                old = max(labels[index(row)], np.int32(0))
                left = slack[index(row)] - parameters[index(np.int32(shrunk + old))]
                found += np.int32(1) if left <= extra else np.int32(0)
                least_left = left if left < least_left else least_left
            group_barrier(item.get_group())
            stage[index(mine + lane)] = least_left
            group_barrier(item.get_group())
            lowest = stage[index(mine)]
            for i in range(1, _ITEMS):
                other = stage[index(mine + i)]
                lowest = other if other < lowest else lowest
            for first in range(block * BLOCK, block * BLOCK + BLOCK, _ITEMS):
                row = first + lane
                if lowest > extra:
                    slack[index(row)] = slack[index(row)] * lower - extra
                else:
                    at = block * (d * BLOCK) + (first - block * BLOCK) + lane
                    old = max(labels[index(row)], np.int32(0))
                    own = np.int32(own_first + old * d)
                    xx = zero
                    to_own = parameters[index(np.int32(d + old))]
                    for f in range(d):
                        z = data[index(at + f * BLOCK)] - parameters[index(f)]
                        xx = fma(z, z, xx)
                        to_own = fma(z, movers[index(np.int32(own + f))], to_own)
                    least = infinity
                    for g in range(n_groups):
                        begin = 1 + g * (d + 2) * _GROUP
                        for j in range(_GROUP):
                            score[j] = movers[index(begin + j)]
                        for f in range(d):
                            z = data[index(at + f * BLOCK)] - parameters[index(f)]
                            for j in range(_GROUP):
                                score[j] = fma(z, movers[index(begin + (f + 1) * _GROUP + j)], score[j])
                        for j in range(_GROUP):
                            other = np.int32(movers[index(begin + (d + 1) * _GROUP + j)])
                            s = infinity if other == old else score[j]
                            least = least if least <= s else s  # also if it is NaN
                    error = rounding * (xx + largest)
                    near = math.sqrt(max(to_own + xx, zero) + error)
                    far = math.sqrt(max(least + xx, zero) + error)
                    left = (least - to_own - error) / (near + far) * share - margin
                    before = slack[index(row)]
                    shrinks = parameters[index(np.int32(shrunk + old))]
                    after = (left if left > zero else none) + shrinks
                    slack[index(row)] = before if before < after else after
        exhausted[index(mine + lane)] = found

    return compare_movers


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    yield from (mover_kernel(np.dtype(dtype)) for dtype in (np.float32, np.float64))
