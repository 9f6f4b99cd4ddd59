"""Greedy k-means++: computes the squared distance of each row to the nearest of the centres chosen so far.

The pass that tries new candidates also updates the distances with the last accepted centre, so that one pass over the
rows is enough for both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.kmeans import few
from xpulab.kernels.language import Kernel, PrivateArray, fma, group_barrier, index, kernel
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.rows import SPAN, Rows
from xpulab.kernels.runtime.device import Array
from xpulab.kernels.runtime.launch import Prepared, launch, prepare

__all__ = [
    "Seeding",
    "accept",
    "candidate_potentials",
    "every_kernel",
    "go_on",
    "index_reaching",
    "pass_kernel",
    "search",
    "search_spans",
    "start",
]

#: Fewer candidates are filled up with repetitions, so that one compiled kernel is enough for all of them. Up to about
#: this number, memory limits the speed of the pass. scikit-learn tries 6 candidates for 55 to 148 clusters.
_TRIALS = 6
_MOST_TRIALS = 24  # scikit-learn tries 2 + log(k) candidates, which is this many for 3 billion clusters
_AT_ONCE = 16  # centres that `go_on` compares with each row in one pass
_ITEMS = 16  # work-items of a work-group; with 64, as many as a block has rows, it would read a span four times


@dataclass(eq=False)
class Seeding:
    """The state of one seeding.

    Attributes
    ----------
    rows : Rows
    shift : numpy.ndarray of shape (n_features,)
    closest : Array of shape (n_blocks * BLOCK,)
        Squared distance of each row to the nearest centre, without the last accepted one.
    last : numpy.ndarray of shape (n_features,)
        The last accepted centre.
    span_sums : numpy.ndarray of float64 of shape (n_spans,)
        Sums of ``w * squared distance`` over spans of SPAN rows, with all accepted centres.
    """

    rows: Rows
    shift: npt.NDArray[Any]
    closest: Array
    last: npt.NDArray[Any]
    span_sums: npt.NDArray[np.float64]
    _tried: npt.NDArray[Any]
    _tried_sums: npt.NDArray[np.float64]
    _passes: dict[int, _Pass] = field(default_factory=dict)


@dataclass(frozen=True)
class _Pass:
    """A pass over all rows with a fixed number of candidates, which can be repeated."""

    launch: Prepared
    parameters: Array
    sums: Array


def start(rows: Rows, shift: npt.NDArray[Any] | None, center: npt.NDArray[Any]) -> tuple[Seeding, float]:
    """Begin with one centre.

    Parameters
    ----------
    rows : Rows
    shift : numpy.ndarray of shape (n_features,) or None
        Subtracted from each row.
    center : numpy.ndarray of shape (n_features,)
        The first centre, less the shift.

    Returns
    -------
    state : Seeding
    potential : float
        Sum of ``w * ||x - shift - center||**2`` over the rows of this rank.
    """
    center = np.ascontiguousarray(center, rows.dtype)
    closest = rows.device.full(rows.n_blocks * BLOCK, np.inf, rows.dtype)
    # The padding of the last block has the distance zero, which does not change the sums.
    rows.device.store(np.zeros(rows.n_blocks * BLOCK - rows.n_samples, rows.dtype), closest, rows.n_samples)
    none = np.zeros((1, rows.n_spans))
    state = Seeding(rows, rows.shift_or_zero(shift), closest, center, none[0], center[None], none)
    potential = float(candidate_potentials(state, center[None])[0])
    accept(state, 0)
    return state, potential


def go_on(rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], trials: int) -> tuple[Seeding, float]:
    """Begin with several centres. All numbers are those of a seeding that has accepted one after the other.

    Parameters
    ----------
    rows, shift
        As for `start`.
    centers : numpy.ndarray of shape (n_centers, n_features)
        The centres so far, less the shift.
    trials : int
        Number of candidates for each centre.

    Returns
    -------
    state : Seeding
    potential : float
        Sum of ``w * squared distance`` over the rows of this rank.
    """
    centers = np.ascontiguousarray(centers, rows.dtype)
    state, potential = start(rows, shift, centers[0])
    if len(centers) == 1:
        return state, potential
    if len(centers) > 2:
        _add(state, centers[1:-2])
        state.last = centers[-2]
    potential = float(candidate_potentials(state, np.repeat(centers[-1:], trials, axis=0))[0])
    accept(state, 0)
    return state, potential


def _add(state: Seeding, centers: npt.NDArray[Any]) -> None:
    """Compare each row with more centres."""
    rows, device = state.rows, state.rows.device
    if not rows.n_samples:
        return
    for first in range(0, len(centers), _AT_ONCE):
        filled = centers[np.minimum(np.arange(first, first + _AT_ONCE), len(centers) - 1)]
        launch(
            device, _closer_kernel(rows.dtype), rows.n_spans, _ITEMS,
            rows.data, np.int64(rows.n_features), np.int64(rows.n_blocks),
            device.array(np.concatenate([state.shift, filled.ravel()])), state.closest,
        )  # fmt: skip


def candidate_potentials(state: Seeding, candidates: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return this rank's potential with each of the candidates (t, n_features) as a further centre: shape (t,)."""
    rows = state.rows
    state._tried = np.ascontiguousarray(candidates, rows.dtype)
    t = len(candidates)
    if rows.n_samples == 0:
        state._tried_sums = np.zeros((t, 0))
        return np.zeros(t)
    if rows.are_few(t + 1):
        tried = few.potentials(rows, state.shift, state.last, state._tried, state.closest.pointer)
        state._tried_sums = tried
        return tried.sum(axis=1)
    compiled = max(t, _TRIALS)
    filled = state._tried[np.minimum(np.arange(compiled), t - 1)]
    one = state._passes.get(compiled)
    if one is None:
        one = state._passes[compiled] = _prepare_pass(state, compiled)
    rows.device.store(np.concatenate([state.shift, state.last, filled.ravel()]), one.parameters)
    one.launch()
    found = rows.device.fetch(one.sums, stop=rows.n_spans * compiled, copied=False)
    state._tried_sums = found.reshape(rows.n_spans, compiled).T[:t].astype(np.float64)
    return state._tried_sums.sum(axis=1)


def _prepare_pass(state: Seeding, t: int) -> _Pass:
    rows, device = state.rows, state.rows.device
    parameters = device.empty((t + 2) * rows.n_features, rows.dtype)
    partial = device.empty(rows.n_spans * _ITEMS * t, rows.dtype)
    sums = device.empty(rows.n_spans * (t + 1), rows.dtype)
    weighted = rows.sample_weight is not None
    launch = prepare(
        device, _potential_kernel(t, weighted, rows.dtype), rows.n_spans, _ITEMS,
        rows.data, np.int64(rows.n_features), rows.sample_weight if weighted else parameters, np.int64(rows.n_blocks),
        parameters, state.closest, partial, sums,
    )  # fmt: skip
    return _Pass(launch, parameters, sums)


def pass_kernel(dtype: np.dtype[Any], k: int, weighted: bool) -> Kernel:
    """Return the kernel of a pass with as many candidates as scikit-learn tries for k clusters."""
    return _potential_kernel(max(2 + int(math.log(k)), _TRIALS), weighted, dtype)


def accept(state: Seeding, j: int) -> None:
    """Accept candidate `j` of the last `candidate_potentials` as a centre."""
    state.last = state._tried[j]
    state.span_sums = state._tried_sums[j]


def search(state: Seeding, value: float) -> int:
    """Return the row at which the cumulative sum of ``w * squared distance`` reaches a value.

    Parameters
    ----------
    state : Seeding
    value : float
        Between 0 and this rank's potential.

    Returns
    -------
    int
        Smallest index of a row of this rank whose cumulative sum is at least `value`, see `index_reaching`.
    """
    return search_spans(state.span_sums, value, lambda span: _span_contributions(state, span))


def search_spans(
    span_sums: npt.NDArray[np.float64], value: float, numbers_of: Callable[[int], npt.NDArray[np.float64]]
) -> int:
    """Return the index at which the cumulative sum of numbers reaches a value, see `index_reaching`.

    Parameters
    ----------
    span_sums : numpy.ndarray of shape (n_spans,)
        The sums over spans of SPAN numbers, from the device.
    value : float
    numbers_of : callable
        Takes the index of a span, and returns its numbers.

    Returns
    -------
    int
    """
    running = np.cumsum(span_sums)
    span = int(index_reaching(running, value))
    before = running[span - 1] if span else 0.0
    within = np.cumsum(numbers_of(span))
    # The device adds in another order, so the CPU's sums are scaled to the device's.
    scale = within[-1] / span_sums[span] if span_sums[span] > 0 else 1.0
    return int(span * SPAN + index_reaching(within, (value - before) * scale))


def index_reaching(running: npt.NDArray[np.float64], value: npt.ArrayLike) -> Any:
    """Return the index at which the cumulative sums of non-negative numbers reach a value; never the index of a 0.

    Parameters
    ----------
    running : numpy.ndarray of shape (n,)
        Cumulative sums, at least one.
    value : float or numpy.ndarray of shape (m,)

    Returns
    -------
    int or numpy.ndarray of int of shape (m,)
        Smallest index whose cumulative sum is at least `value`, as in `numpy.searchsorted`. A value that is beyond the
        last sum because of rounding gives the last number above 0, and the value 0 gives the first number above 0. If
        all numbers are 0, the index is 0.
    """
    first, last = running.searchsorted(0.0, side="right"), running.searchsorted(running[-1])
    return np.minimum(np.maximum(running.searchsorted(value), first), last)


def _span_contributions(state: Seeding, span: int) -> npt.NDArray[np.float64]:
    """Compute ``w * squared distance`` of the rows of one span on the CPU."""
    rows, d = state.rows, state.rows.n_features
    first, last = span * SPAN, min((span + 1) * SPAN, rows.n_samples)
    blocks = slice(first // BLOCK, -(-last // BLOCK))
    data = rows.device.fetch(rows.data, blocks.start * d * BLOCK, blocks.stop * d * BLOCK).reshape(-1, d, BLOCK)
    centred = data - state.shift[:, None]
    distances = np.square(centred - state.last[:, None]).sum(axis=1).reshape(-1)[: last - first]
    contributions = np.minimum(rows.device.fetch(state.closest, first, last), distances).astype(np.float64)
    if rows.sample_weight is not None:
        contributions *= rows.device.fetch(rows.sample_weight, first, last)
    return contributions


@cache
def _potential_kernel(t: int, weighted: bool, dtype: np.dtype[Any]) -> Kernel:
    number = dtype.type
    blocks_of_span = SPAN // BLOCK
    centers_tried = t + 1
    zero = number(0)

    @kernel("T[] i8 T* i8 T* T* T* T*", dtype)
    def potential(item, data, d, weights, n_blocks, parameters, closest, partial, sums):  # type: ignore[no-untyped-def]
        # parameters: shift, the last accepted centre, then the t candidates
        span = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        distance = PrivateArray(centers_tried, number)
        total = PrivateArray(t, number)
        touched = zero
        for j in range(t):
            total[j] = zero
        for block in range(span * blocks_of_span, min((span + 1) * blocks_of_span, n_blocks)):
            after = min(block + 1, n_blocks - 1) * (d * BLOCK)
            for quarter in range(BLOCK // _ITEMS):
                part = quarter * _ITEMS + lane
                for j in range(centers_tried):
                    distance[j] = zero
                for f in range(d):
                    touched += data[index(after + f * BLOCK + quarter * _ITEMS)]
                    x = data[index((block * d + f) * BLOCK + part)] - parameters[index(f)]
                    for j in range(centers_tried):
                        y = x - parameters[index((j + 1) * d + f)]
                        distance[j] = fma(y, y, distance[j])
                row = block * BLOCK + part
                least = min(closest[index(row)], distance[0])
                closest[index(row)] = least
                for j in range(t):
                    reached = min(least, distance[j + 1])
                    if weighted:
                        reached *= weights[index(row)]
                    total[j] += reached
        for j in range(t):
            partial[index((span * t + j) * _ITEMS + lane)] = total[j]
        sums[index(item.get_group().get_group_range(0) * t + span)] = touched
        group_barrier(item.get_group())
        # Every work-item does the same. If the items shared the work, a CPU would need gather instructions, which take
        # a third of the whole pass.
        for j in range(t):
            added = zero
            for i in range(_ITEMS):
                added += partial[index((span * t + j) * _ITEMS + i)]
            sums[index(span * t + j)] = added

    return potential


@cache
def _closer_kernel(dtype: np.dtype[Any]) -> Kernel:
    number = dtype.type
    blocks_of_span = SPAN // BLOCK
    zero = number(0)

    @kernel("T[] i8 i8 T* T*", dtype)
    def closer(item, data, d, n_blocks, parameters, closest):  # type: ignore[no-untyped-def]
        # parameters: shift, then the centres
        span = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        distance = PrivateArray(_AT_ONCE, number)
        for block in range(span * blocks_of_span, min((span + 1) * blocks_of_span, n_blocks)):
            for quarter in range(BLOCK // _ITEMS):
                part = quarter * _ITEMS + lane
                for j in range(_AT_ONCE):
                    distance[j] = zero
                for f in range(d):
                    x = data[index((block * d + f) * BLOCK + part)] - parameters[index(f)]
                    for j in range(_AT_ONCE):
                        y = x - parameters[index((j + 1) * d + f)]
                        distance[j] = fma(y, y, distance[j])
                row = block * BLOCK + part
                least = closest[index(row)]
                for j in range(_AT_ONCE):
                    least = min(least, distance[j])
                closest[index(row)] = least

    return closer


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    yield from (_closer_kernel(np.dtype(dtype)) for dtype in (np.float32, np.float64))
    every = itertools.product(range(_TRIALS, _MOST_TRIALS + 1), (False, True), (np.float32, np.float64))
    yield from (_potential_kernel(t, weighted, np.dtype(dtype)) for t, weighted, dtype in every)
