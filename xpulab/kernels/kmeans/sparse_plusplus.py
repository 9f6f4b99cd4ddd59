"""Greedy k-means++ for rows in CSR form; `xpulab.kernels.kmeans.plusplus` has the same functions for dense rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.kmeans.plusplus import search_spans
from xpulab.kernels.kmeans.sparse_rows import ITEMS, SparseRows, by_feature
from xpulab.kernels.language import Kernel, fma, index, kernel
from xpulab.kernels.rows import SPAN
from xpulab.kernels.runtime.device import Array
from xpulab.kernels.runtime.launch import launch

__all__ = [
    "SparseSeeding",
    "accept",
    "candidate_potentials",
    "every_kernel",
    "go_on",
    "search",
    "seeding_kernels",
    "start",
]


@dataclass(eq=False)
class SparseSeeding:
    """The state of one seeding: the squared distance of each row to the nearest of the centres so far."""

    rows: SparseRows
    closest: Array
    span_sums: npt.NDArray[np.float64]
    tried: npt.NDArray[Any]
    tried_sums: npt.NDArray[np.float64]


@cache
def _potential_kernel(dtype: np.dtype[Any], weighted_: bool) -> Kernel:
    zero = dtype.type(0)

    @kernel("T[] i4* i8* T* T* i8 T* i8 T* T*", dtype)
    def potential(  # type: ignore[no-untyped-def]
        item, data, indices, indptr, squares, weights, n, centers, padded, closest, sums
    ):
        # Each work-item computes the sums of one candidate. sums: (spans, padded).
        tiles = padded // ITEMS
        span = item.get_group().get_group_id(0) // tiles
        column = item.get_group().get_group_id(0) % tiles * ITEMS + item.get_local_id(0)
        total = zero
        for row in range(span * SPAN, min(span * SPAN + SPAN, n)):
            distance = centers[index(column)] + squares[index(row)]
            for i in range(indptr[index(row)], indptr[index(row + 1)]):
                distance = fma(data[index(i)], centers[index((indices[index(i)] + 1) * padded + column)], distance)
            reached = min(max(distance, zero), closest[index(row)])
            if weighted_:
                reached *= weights[index(row)]
            total += reached
        sums[index(span * padded + column)] = total

    return potential


@cache
def _closer_kernel(dtype: np.dtype[Any]) -> Kernel:
    zero = dtype.type(0)

    @kernel("T[] i4* i8* T* i8 T* T*", dtype)
    def closer(item, data, indices, indptr, squares, n, center, closest):  # type: ignore[no-untyped-def]
        # center: the squared norm, then -2 * the values
        row = item.get_global_id(0)
        if row < n:
            distance = center[index(0)] + squares[index(row)]
            for i in range(indptr[index(row)], indptr[index(row + 1)]):
                distance = fma(data[index(i)], center[index(indices[index(i)] + 1)], distance)
            closest[index(row)] = min(closest[index(row)], max(distance, zero))

    return closer


def start(rows: SparseRows, shift: npt.NDArray[Any] | None, center: npt.NDArray[Any]) -> tuple[SparseSeeding, float]:
    """Begin with one centre; return the state, and the potential of this rank's rows."""
    infinite = rows.device.full(rows.n_samples, np.inf, rows.dtype)
    none = np.zeros((1, rows.n_spans))
    state = SparseSeeding(rows, infinite, none[0], center[None], none)
    potential = float(candidate_potentials(state, center[None])[0])
    accept(state, 0)
    return state, potential


def go_on(
    rows: SparseRows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], trials: int
) -> tuple[SparseSeeding, float]:
    """Begin with several centres. All numbers are those of a seeding that has accepted one after the other."""
    state, potential = start(rows, shift, centers[0])
    for center in centers[1:-1]:
        _compare(state, center)
    if len(centers) > 1:
        potential = float(candidate_potentials(state, np.repeat(centers[-1:], trials, axis=0))[0])
        accept(state, 0)
    return state, potential


def candidate_potentials(state: SparseSeeding, candidates: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return this rank's potential with each of the candidates (t, n_features) as a further centre: shape (t,)."""
    rows, t = state.rows, len(candidates)
    state.tried = candidates
    if rows.n_samples == 0:
        state.tried_sums = np.zeros((t, 0))
        return np.zeros(t)
    packed = by_feature(candidates, rows.dtype, ITEMS)
    padded = packed.size // (rows.n_features + 1)
    sums = rows.device.empty(rows.n_spans * padded, rows.dtype)
    is_weighted = rows.sample_weight is not None
    launch(
        rows.device, _potential_kernel(rows.dtype, is_weighted), rows.n_spans * (padded // ITEMS), ITEMS,
        rows.data, rows.indices, rows.indptr, rows.squares, rows.sample_weight if is_weighted else rows.squares,
        np.int64(rows.n_samples), rows.device.array(packed), np.int64(padded), state.closest, sums,
    )  # fmt: skip
    found = rows.device.fetch(sums, stop=rows.n_spans * padded).reshape(rows.n_spans, padded)
    state.tried_sums = found.T[:t].astype(np.float64)
    return state.tried_sums.sum(axis=1)


def accept(state: SparseSeeding, j: int) -> None:
    """Accept candidate `j` of the last `candidate_potentials` as a centre."""
    state.span_sums = state.tried_sums[j]
    _compare(state, state.tried[j])


def _compare(state: SparseSeeding, center: npt.NDArray[Any]) -> None:
    """Compare each row with one more centre."""
    rows, n = state.rows, state.rows.n_samples
    if n:
        packed = rows.device.array(by_feature(center[None], rows.dtype, 1))
        launch(
            rows.device, _closer_kernel(rows.dtype), -(-n // ITEMS), ITEMS,
            rows.data, rows.indices, rows.indptr, rows.squares, np.int64(n), packed, state.closest,
        )  # fmt: skip


def search(state: SparseSeeding, value: float) -> int:
    """Return the row at which the cumulative sum of ``w * squared distance`` reaches `value`; see `index_reaching`."""
    return search_spans(state.span_sums, value, lambda span: _span_contributions(state, span))


def _span_contributions(state: SparseSeeding, span: int) -> npt.NDArray[np.float64]:
    """Compute ``w * squared distance`` of the rows of one span."""
    rows = state.rows
    part = span * SPAN, min((span + 1) * SPAN, rows.n_samples)
    contributions = rows.device.fetch(state.closest, *part).astype(np.float64)
    if rows.sample_weight is not None:
        contributions *= rows.device.fetch(rows.sample_weight, *part)
    return contributions


def seeding_kernels(dtype: np.dtype[Any], weighted: bool) -> list[Kernel]:
    """Return the kernels that every initialisation with k-means++ needs."""
    return [_potential_kernel(dtype, weighted), _closer_kernel(dtype)]


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    for dtype in map(np.dtype, (np.float32, np.float64)):
        yield _closer_kernel(dtype)
        yield from (_potential_kernel(dtype, flag) for flag in (False, True))
