"""Rows in CSR form on a device, and what k-means needs of them; the dense counterparts are in `xpulab.kernels.dense`.

Distances come from products: ``||x - c||^2 = ||x||^2 - 2 x.c + ||c||^2``. The items of a work-group stand for
neighbouring centres, whose numbers for one feature lie side by side, so that a stored value is read once and meets them
all. Rows are not shifted: their zeros would be lost; scikit-learn does not either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.device import Array, Device
from xpulab.kernels.host import add_columns
from xpulab.kernels.language import Kernel, PrivateArray, fma, group_barrier, index, kernel
from xpulab.kernels.launch import launch
from xpulab.kernels.plusplus import place_of
from xpulab.kernels.rows import SPAN

__all__ = [
    "SparseRows",
    "accept",
    "assign",
    "candidate_potentials",
    "column_sums",
    "distance_rounding",
    "first_kernels",
    "inertia",
    "labels_to_host",
    "lloyd_step",
    "new_labels",
    "own_distances",
    "search",
    "shift_for",
    "start",
    "take",
    "transform",
    "weighted",
]

_ITEMS = 16  # of a work-group, and centres side by side
_TILES = 8  # of _ITEMS centres each, whose products with a row are computed together
_ROWS = 256  # of a work-group
_MAX_PARTIAL_BYTES = 64 << 20
_STAGE_BYTES = 32 << 20


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows on a device, never changed.

    Attributes
    ----------
    device : Device
    data : Array of float32 or float64 of shape (nnz,)
        Stored values, row by row.
    indices : Array of int32 of shape (nnz,)
        Their columns; none twice in a row.
    indptr : Array of int64 of shape (n_samples + 1,)
        Row i has the stored values from indptr[i] to indptr[i + 1].
    squares : Array of shape (n_samples,)
        Squared norms of the rows.
    n_samples, n_features : int
    sample_weight : Array of shape (n_samples,) or None
        None: all ones. In the dtype of the rows.
    """

    device: Device
    data: Array
    indices: Array
    indptr: Array
    squares: Array
    n_samples: int
    n_features: int
    sample_weight: Array | None

    @classmethod
    def upload(
        cls,
        device: Device,
        data: npt.NDArray[Any],
        indices: npt.NDArray[Any],
        indptr: npt.NDArray[Any],
        n_features: int,
        sample_weight: npt.NDArray[Any] | None = None,
    ) -> SparseRows:
        """Copy rows to the device.

        Parameters
        ----------
        device : Device
        data : numpy.ndarray of shape (nnz,), float32 or float64
        indices : numpy.ndarray of int of shape (nnz,)
        indptr : numpy.ndarray of int of shape (n_samples + 1,)
            May begin at another number than zero: that of the first stored value in `data`.
        n_features : int
        sample_weight : numpy.ndarray of shape (n_samples,) or None

        Raises
        ------
        DeviceError
            If the dtype is not one that the device computes with, or its memory is full.
        """
        device.check_dtype(data.dtype)
        starts = indptr.astype(np.int64) - int(indptr[0])
        n = len(starts) - 1
        rows = cls(
            device,
            device.array(data),
            device.array(indices.astype(np.int32, copy=False)),
            device.array(starts),
            device.empty(n, data.dtype),
            n,
            n_features,
            None,
        )
        if n:
            squares = _squares_kernel(rows.dtype)
            launch(device, squares, -(-n // _ITEMS), _ITEMS, rows.data, rows.indptr, np.int64(n), rows.squares)
        device.wait()
        return rows if sample_weight is None else weighted(rows, sample_weight)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64."""
        return self.data.dtype

    @property
    def n_spans(self) -> int:
        """Number of partial sums."""
        return -(-self.n_samples // SPAN)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        arrays = [self.data, self.indices, self.indptr, self.squares, self.sample_weight]
        return sum(array.nbytes for array in arrays if array is not None)


def weighted(rows: SparseRows, sample_weight: npt.NDArray[Any]) -> SparseRows:
    """The same rows, not copied, with other weights (n_samples,)."""
    return replace(rows, sample_weight=rows.device.array(sample_weight.astype(rows.dtype)))


def shift_for(rows: SparseRows, mean: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What is subtracted from each row: nothing."""
    return np.zeros(rows.n_features, rows.dtype)


@cache
def _squares_kernel(dtype: np.dtype[Any]) -> Kernel:
    zero = dtype.type(0)  # not data[0] - data[0]: rows without stored values have no data[0]

    @kernel("T[] i8* i8 T*", dtype)
    def squares(item, data, indptr, n, out):  # type: ignore[no-untyped-def]
        row = item.get_global_id(0)
        if row < n:
            total = zero
            for i in range(indptr[index(row)], indptr[index(row + 1)]):
                total = fma(data[index(i)], data[index(i)], total)
            out[index(row)] = total

    return squares


def take(rows: SparseRows, chosen: npt.ArrayLike, shift: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """Some rows, on the host, dense: shape (len(chosen), n_features)."""
    positions = np.asarray(chosen, np.int64)
    out = np.zeros((len(positions), rows.n_features), rows.dtype)
    for i, row in enumerate(positions):
        if not 0 <= row < rows.n_samples:
            raise IndexError(f"row {row} was asked for, of {rows.n_samples}")
        first, last = (int(p) for p in rows.device.fetch(rows.indptr, int(row), int(row) + 2))
        if last > first:
            out[i, rows.device.fetch(rows.indices, first, last)] = rows.device.fetch(rows.data, first, last)
    return out


def column_sums(
    rows: SparseRows, shift: npt.NDArray[Any] | None = None, squared: bool = False
) -> npt.NDArray[np.float64]:
    """Sum over the rows of ``x - shift``, or of its square, in float64 on the host; weights are not used."""
    d, n = rows.n_features, rows.n_samples
    middle = np.zeros(d) if shift is None else shift.astype(np.float64)
    stored = int(rows.device.fetch(rows.indptr, n, n + 1)[0])
    totals = n * middle**2 if squared else -n * middle
    for first in range(0, stored, _STAGE_BYTES // 8):
        part = first, min(first + _STAGE_BYTES // 8, stored)
        add_columns(
            rows.device.fetch(rows.indices, *part), rows.device.fetch(rows.data, *part), middle, squared, totals
        )
    return totals


# --- the nearest centre


@dataclass(eq=False)
class SparseLabels:
    """The centre of each row, on the device, and the sums of the rows of each centre that belong to them."""

    device: Device
    current: Array
    previous: Array
    n_clusters: int = 0
    sums: npt.NDArray[np.float64] | None = None  # (k, n_features + 1), the last column is the weights
    sums_of: Any = None  # (rows, k)
    scratch: dict[str, Array] = field(default_factory=dict)

    def room(self, name: str, size: int, dtype: npt.DTypeLike) -> Array:
        """A flat device array of at least `size` elements, kept for the next call."""
        array = self.scratch.get(name)
        if array is None or array.size < size:
            array = self.scratch[name] = self.device.empty(size, dtype)
        return array

    def trim(self) -> None:
        """Keep the labels alone: a run that has ended needs no memory to go on."""
        self.scratch.clear()


def new_labels(device: Device, n: int) -> SparseLabels:
    """Labels of n rows, all -1."""
    return SparseLabels(device, device.full(n, -1, np.int32), device.full(n, -1, np.int32))


def labels_to_host(labels: SparseLabels, stop: int, start: int = 0) -> npt.NDArray[np.int32]:
    """The labels of the rows from `start` to `stop`."""
    return labels.device.fetch(labels.current, start, stop) if stop else np.empty(0, np.int32)


def _by_feature(centers: npt.NDArray[Any], dtype: np.dtype[Any], multiple: int) -> npt.NDArray[Any]:
    """Squared norms (padded with infinity), then -2 * centres, feature by feature: (1 + d, padded), flat."""
    k, d = centers.shape
    padded = -(-k // multiple) * multiple
    host = np.zeros((1 + d, padded), dtype)
    host[0] = np.inf
    host[0, :k] = np.einsum("ij,ij->i", centers, centers, dtype=np.float64)
    host[1:, :k] = -2 * centers.T
    return host.ravel()


@cache
def _nearest_kernel(dtype: np.dtype[Any], distances: bool) -> Kernel:
    infinity, zero = dtype.type(np.inf), dtype.type(0)
    width = _TILES * _ITEMS

    @kernel("T[] i4* i8* T* i8 i8 T* i8 i8 i4* T* i4* T*", dtype)
    def nearest(  # type: ignore[no-untyped-def]
        item, data, indices, indptr, squares, first_row, n, centers, padded, k, labels, found, where, out
    ):
        # centers: as by `_by_feature`. found and where, of each group: the least score of each item, and its centre.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        score = PrivateArray(_TILES, dtype.type)
        least = PrivateArray(1, dtype.type)
        label = PrivateArray(1, np.int32)
        for row in range(first_row + group * _ROWS, min(first_row + group * _ROWS + _ROWS, n)):
            least[0] = infinity
            label[0] = np.int32(0)
            for start in range(0, padded, width):
                for tile in range(_TILES):
                    score[tile] = centers[index(start + tile * _ITEMS + lane)]
                for i in range(indptr[index(row)], indptr[index(row + 1)]):
                    at = (indices[index(i)] + 1) * padded + start + lane
                    for tile in range(_TILES):
                        score[tile] = fma(data[index(i)], centers[index(at + tile * _ITEMS)], score[tile])
                for tile in range(_TILES):
                    center = start + tile * _ITEMS + lane
                    if distances:
                        if center < k:
                            out[index((row - first_row) * k + center)] = math.sqrt(
                                max(score[tile] + squares[index(row)], zero)
                            )
                    elif score[tile] < least[0]:
                        least[0] = score[tile]
                        label[0] = np.int32(center)
            if not distances:
                found[index(group * _ITEMS + lane)] = least[0]
                where[index(group * _ITEMS + lane)] = label[0]
                group_barrier(item.get_group())
                best = found[index(group * _ITEMS)]
                chosen = where[index(group * _ITEMS)]
                for other in range(1, _ITEMS):
                    s = found[index(group * _ITEMS + other)]
                    c = where[index(group * _ITEMS + other)]
                    if s < best or (s == best and c < chosen):
                        best = s
                        chosen = c
                labels[index(row)] = chosen
                group_barrier(item.get_group())

    return nearest


def _launch_nearest(
    rows: SparseRows, centers: npt.NDArray[Any], labels: Any, first: int, last: int, out: Array | None
) -> None:
    device, k = rows.device, len(centers)
    host = _by_feature(centers, rows.dtype, _TILES * _ITEMS)
    padded = host.size // (rows.n_features + 1)
    groups = -(-(last - first) // _ROWS)
    parameters = device.array(host)
    found, where = device.empty(groups * _ITEMS, rows.dtype), device.empty(groups * _ITEMS, np.int32)
    launch(
        device, _nearest_kernel(rows.dtype, out is not None), groups, _ITEMS,
        rows.data, rows.indices, rows.indptr, rows.squares, np.int64(first), np.int64(last), parameters,
        np.int64(padded), np.int64(k), where if labels is None else labels.current, found, where,
        found if out is None else out,
    )  # fmt: skip


def assign(rows: SparseRows, shift: Any, centers: npt.NDArray[Any], labels: SparseLabels, again: bool = True) -> None:
    """Label each row with its nearest centre; among equally near ones the first."""
    if rows.n_samples:
        labels.current, labels.previous = labels.previous, labels.current
        labels.n_clusters = len(centers)
        _launch_nearest(rows, centers, labels, 0, rows.n_samples, None)
        labels.sums = None


def lloyd_step(
    rows: SparseRows, shift: Any, centers: npt.NDArray[Any], labels: SparseLabels
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], int]:
    """Label each row with its nearest centre, and sum the rows of each; returns as that of the dense rows."""
    k, d = centers.shape
    if rows.n_samples == 0:
        return np.zeros((k, d)), np.zeros(k), 0
    kept = labels.sums if labels.sums is not None and labels.sums_of == (rows, k) else None
    assign(rows, shift, centers, labels)
    moved, changed = _moves(rows, k, labels, kept is None)
    labels.sums = moved if kept is None else kept + moved
    labels.sums_of = (rows, k)
    return labels.sums[:, :d], labels.sums[:, d], changed


def first_kernels(
    device: Device, dtype: np.dtype[Any], n_features: int, k: int, seeding: bool, weighted: bool
) -> list[Kernel]:
    """Kernels that any fit starts, on any device and for any sizes."""
    kernels = [
        _nearest_kernel(dtype, False),
        _moves_kernel(dtype, weighted),
        _squares_kernel(dtype),
        _own_kernel(dtype),
    ]
    return [*kernels, _potential_kernel(dtype, weighted), _closer_kernel(dtype)] if seeding else kernels


@cache
def _moves_kernel(dtype: np.dtype[Any], weighted_: bool) -> Kernel:
    zero, one = dtype.type(0), dtype.type(1)

    @kernel("T[] i4* i8* T* i8 i8 i8 i4* i4* i8 T* i4*", dtype)
    def moves(  # type: ignore[no-untyped-def]
        item, data, indices, indptr, weights, n, d, k, previous, labels, fresh, sums, changes
    ):
        # sums: per worker (k, d + 1), and once more what they had to round off; the last column is the weights.
        worker = item.get_group().get_group_id(0)
        workers = item.get_group().get_group_range(0)
        lane = item.get_local_id(0)
        size = k * (d + 1)
        base = worker * 2 * size
        for j in range(lane, 2 * size, _ITEMS):
            sums[index(base + j)] = zero
        group_barrier(item.get_group())
        changed = np.int32(0)
        for row in range(worker * n // workers, (worker + 1) * n // workers):
            new = labels[index(row)]
            old = previous[index(row)]
            if new != old:
                changed += np.int32(1)
            if fresh != 0:
                old = np.int32(-1)
            if new != old:
                first = indptr[index(row)]
                for i in range(first + lane, indptr[index(row + 1)] + 1, _ITEMS):
                    # One beyond the last stands for the weight.
                    inside = i < indptr[index(row + 1)]
                    column = indices[index(i)] if inside else np.int32(d)
                    x = data[index(i)] if inside else one
                    if weighted_:
                        x *= weights[index(row)]
                    for side in range(2):
                        center = new if side == 0 else old
                        if center >= 0:
                            y = x if side == 0 else -x
                            at = base + center * (d + 1) + column
                            # Knuth's exact addition: `error` is what `after` had to round off.
                            before = sums[index(at)]
                            after = before + y
                            part = after - before
                            error = (before - (after - part)) + (y - part)
                            sums[index(at)] = after
                            sums[index(at + size)] += error
                group_barrier(item.get_group())
        changes[index(worker)] = changed

    return moves


def _moves(rows: SparseRows, k: int, labels: SparseLabels, fresh: bool) -> tuple[npt.NDArray[np.float64], int]:
    device, d = rows.device, rows.n_features
    size = 2 * k * (d + 1)
    most = max(1, _MAX_PARTIAL_BYTES // (size * rows.dtype.itemsize))
    workers = max(1, min(4 * device.compute_units, most, rows.n_spans))
    sums = labels.room("sums", workers * size, rows.dtype)
    changes = labels.room("changes", workers, np.int32)
    is_weighted = rows.sample_weight is not None
    launch(
        device, _moves_kernel(rows.dtype, is_weighted), workers, _ITEMS,
        rows.data, rows.indices, rows.indptr, rows.sample_weight if is_weighted else rows.squares,
        np.int64(rows.n_samples), np.int64(d), np.int64(k), labels.previous, labels.current, np.int64(fresh), sums,
        changes,
    )  # fmt: skip
    host = device.fetch(sums, stop=workers * size).reshape(workers * 2, k, d + 1)
    return host.sum(axis=0, dtype=np.float64), int(device.fetch(changes, stop=workers).sum())


@cache
def _own_kernel(dtype: np.dtype[Any]) -> Kernel:
    zero = dtype.type(0)

    @kernel("T[] i4* i8* i8 i8 T* T* i4* T*", dtype)
    def own(item, data, indices, indptr, n, d, centers, norms, labels, out):  # type: ignore[no-untyped-def]
        row = item.get_global_id(0)
        if row < n:
            label = labels[index(row)]
            total = norms[index(label)]
            for i in range(indptr[index(row)], indptr[index(row + 1)]):
                c = centers[index(label * d + indices[index(i)])]
                x = data[index(i)] - c
                total = fma(x, x, fma(-c, c, total))
            out[index(row)] = max(total, zero)

    return own


def own_distances(rows: SparseRows, shift: Any, centers: npt.NDArray[Any], labels: SparseLabels) -> npt.NDArray[Any]:
    """``||x - centers[label]||**2`` of each row, not weighted, in the dtype of the rows."""
    n, device = rows.n_samples, rows.device
    if n == 0:
        return np.empty(0, rows.dtype)
    out = device.empty(n, rows.dtype)
    norms = np.einsum("ij,ij->i", centers, centers, dtype=np.float64).astype(rows.dtype)
    launch(
        device, _own_kernel(rows.dtype), -(-n // _ITEMS), _ITEMS,
        rows.data, rows.indices, rows.indptr, np.int64(n), np.int64(rows.n_features),
        device.array(np.ascontiguousarray(centers, rows.dtype)), device.array(norms), labels.current, out,
    )  # fmt: skip
    return device.fetch(out, stop=n)


def distance_rounding(dtype: np.dtype[Any]) -> float:
    """As that of the dense rows; these squared distances are differences of squared norms."""
    return float(16 * np.finfo(dtype).eps)


def inertia(rows: SparseRows, shift: Any, centers: npt.NDArray[Any], labels: SparseLabels) -> float:
    """Sum of ``w * ||x - centers[label]||**2``."""
    distances = own_distances(rows, shift, centers, labels).astype(np.float64)
    if rows.sample_weight is None:
        return float(distances.sum())
    return float(distances @ rows.device.fetch(rows.sample_weight, stop=rows.n_samples).astype(np.float64))


def transform(rows: SparseRows, centers: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Euclidean distance from each row to each centre, some rows at a time: (m, n_clusters), in the rows' dtype."""
    n, k = rows.n_samples, len(centers)
    step = max(1, min(n, _STAGE_BYTES // (k * rows.dtype.itemsize)))
    stage = rows.device.empty(step * k, rows.dtype)
    for first in range(0, n, step):
        last = min(first + step, n)
        _launch_nearest(rows, centers, None, first, last, stage)
        yield rows.device.fetch(stage, stop=(last - first) * k).reshape(-1, k)


# --- k-means++


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
        # An item stands for a candidate; sums: (spans, padded).
        tiles = padded // _ITEMS
        span = item.get_group().get_group_id(0) // tiles
        column = item.get_group().get_group_id(0) % tiles * _ITEMS + item.get_local_id(0)
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
        # center: its squared norm, then -2 * its numbers
        row = item.get_global_id(0)
        if row < n:
            distance = center[index(0)] + squares[index(row)]
            for i in range(indptr[index(row)], indptr[index(row + 1)]):
                distance = fma(data[index(i)], center[index(indices[index(i)] + 1)], distance)
            closest[index(row)] = min(closest[index(row)], max(distance, zero))

    return closer


def start(rows: SparseRows, shift: Any, center: npt.NDArray[Any]) -> tuple[SparseSeeding, float]:
    """Begin with one centre; the state, and the local potential."""
    infinite = rows.device.full(rows.n_samples, np.inf, rows.dtype)
    none = np.zeros((1, rows.n_spans))
    state = SparseSeeding(rows, infinite, none[0], center[None], none)
    potential = float(candidate_potentials(state, center[None])[0])
    accept(state, 0)
    return state, potential


def candidate_potentials(state: SparseSeeding, candidates: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Local potential with each of the candidates (t, n_features) added, of shape (t,)."""
    rows, t = state.rows, len(candidates)
    state.tried = candidates
    if rows.n_samples == 0:
        state.tried_sums = np.zeros((t, 0))
        return np.zeros(t)
    host = _by_feature(candidates, rows.dtype, _ITEMS)
    padded = host.size // (rows.n_features + 1)
    sums = rows.device.empty(rows.n_spans * padded, rows.dtype)
    is_weighted = rows.sample_weight is not None
    launch(
        rows.device, _potential_kernel(rows.dtype, is_weighted), rows.n_spans * (padded // _ITEMS), _ITEMS,
        rows.data, rows.indices, rows.indptr, rows.squares, rows.sample_weight if is_weighted else rows.squares,
        np.int64(rows.n_samples), rows.device.array(host), np.int64(padded), state.closest, sums,
    )  # fmt: skip
    found = rows.device.fetch(sums, stop=rows.n_spans * padded).reshape(rows.n_spans, padded)
    state.tried_sums = found.T[:t].astype(np.float64)
    return state.tried_sums.sum(axis=1)


def accept(state: SparseSeeding, j: int) -> None:
    """Make candidate j of the last `candidate_potentials` a centre."""
    rows, n = state.rows, state.rows.n_samples
    state.span_sums = state.tried_sums[j]
    if n:
        center = rows.device.array(_by_feature(state.tried[j : j + 1], rows.dtype, 1))
        launch(
            rows.device, _closer_kernel(rows.dtype), -(-n // _ITEMS), _ITEMS,
            rows.data, rows.indices, rows.indptr, rows.squares, np.int64(n), center, state.closest,
        )  # fmt: skip


def search(state: SparseSeeding, value: float) -> int:
    """Smallest local index at which the running sum of ``w * squared distance`` is at least `value`, by `place_of`."""
    rows = state.rows
    running = np.cumsum(state.span_sums)
    span = int(place_of(running, value))
    first, last = span * SPAN, min((span + 1) * SPAN, rows.n_samples)
    contributions = rows.device.fetch(state.closest, first, last).astype(np.float64)
    if rows.sample_weight is not None:
        contributions *= rows.device.fetch(rows.sample_weight, first, last)
    within = np.cumsum(contributions)
    before = running[span - 1] if span else 0.0
    # The device has summed the span in another order: what it found is spread as the host finds it.
    scale = within[-1] / state.span_sums[span] if state.span_sums[span] > 0 else 1.0
    return int(first + place_of(within, (value - before) * scale))


def every_kernel() -> Iterator[Kernel]:
    """All kernels of this module, for the catalogue."""
    for dtype in map(np.dtype, (np.float32, np.float64)):
        yield from (_squares_kernel(dtype), _own_kernel(dtype), _closer_kernel(dtype))
        for flag in (False, True):
            yield from (_nearest_kernel(dtype, flag), _moves_kernel(dtype, flag), _potential_kernel(dtype, flag))
