"""Finds the nearest centre of each row in CSR form, and the sums of the rows of each centre.

Distances are computed from products: ``||x - c||^2 = ||x||^2 - 2 x.c + ||c||^2``. Each work-item of a work-group
computes the product with another centre. The values of neighbouring centres for one feature are side by side in memory,
so a stored value of a row is read once for all these centres.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.kmeans.sparse_plusplus import seeding_kernels
from xpulab.kernels.kmeans.sparse_rows import ITEMS, SparseRows, by_feature, squares_kernel
from xpulab.kernels.language import Kernel, PrivateArray, fma, group_barrier, index, kernel
from xpulab.kernels.runtime.device import Array, Device
from xpulab.kernels.runtime.launch import launch

__all__ = [
    "SparseLabels",
    "assign",
    "distance_rounding",
    "every_kernel",
    "first_kernels",
    "fresh_step",
    "inertia",
    "labels_on_cpu",
    "lloyd_step",
    "new_labels",
    "own_distances",
    "transform",
]

_TILES = 8  # number of tiles of ITEMS centres whose products with a row are computed together
_ROWS = 256  # rows of a work-group
_MAX_PARTIAL_BYTES = 64 << 20
_STAGE_BYTES = 32 << 20


@dataclass(eq=False)
class SparseLabels:
    """The index of the centre of each row, on the device, and the sums of the rows of each centre."""

    device: Device
    current: Array
    previous: Array
    n_clusters: int = 0
    sums: npt.NDArray[np.float64] | None = None  # (k, n_features + 1), the last column is the weights
    sums_of: Any = None  # (rows, k)
    scratch: dict[str, Array] = field(default_factory=dict)

    def room(self, name: str, size: int, dtype: npt.DTypeLike) -> Array:
        """Return a device array of at least `size` elements, which later calls with the same name use again."""
        array = self.scratch.get(name)
        if array is None or array.size < size:
            array = self.scratch[name] = self.device.empty(size, dtype)
        return array

    def trim(self) -> None:
        """Free all memory but the labels, after a run has ended."""
        self.scratch.clear()


def new_labels(device: Device, n: int) -> SparseLabels:
    """Return labels of n rows, all -1."""
    return SparseLabels(device, device.full(n, -1, np.int32), device.full(n, -1, np.int32))


def labels_on_cpu(labels: SparseLabels, stop: int, start: int = 0) -> npt.NDArray[np.int32]:
    """Return the labels of the rows from `start` to `stop`."""
    return labels.device.fetch(labels.current, start, stop) if stop else np.empty(0, np.int32)


@cache
def _nearest_kernel(dtype: np.dtype[Any], distances: bool) -> Kernel:
    infinity, zero = dtype.type(np.inf), dtype.type(0)
    width = _TILES * ITEMS

    @kernel("T[] i4* i8* T* i8 i8 T* i8 i8 i4* T* i4* T*", dtype)
    def nearest(  # type: ignore[no-untyped-def]
        item, data, indices, indptr, squares, first_row, n, centers, padded, k, labels, found, where, out
    ):
        # centers: as `by_feature` returns them. found, where: for each group, each item's least score and its centre.
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
                    score[tile] = centers[index(start + tile * ITEMS + lane)]
                for i in range(indptr[index(row)], indptr[index(row + 1)]):
                    at = (indices[index(i)] + 1) * padded + start + lane
                    for tile in range(_TILES):
                        score[tile] = fma(data[index(i)], centers[index(at + tile * ITEMS)], score[tile])
                for tile in range(_TILES):
                    center = start + tile * ITEMS + lane
                    if distances:
                        if center < k:
                            out[index((row - first_row) * k + center)] = math.sqrt(
                                max(score[tile] + squares[index(row)], zero)
                            )
                    elif score[tile] < least[0]:
                        least[0] = score[tile]
                        label[0] = np.int32(center)
            if not distances:
                found[index(group * ITEMS + lane)] = least[0]
                where[index(group * ITEMS + lane)] = label[0]
                group_barrier(item.get_group())
                best = found[index(group * ITEMS)]
                chosen = where[index(group * ITEMS)]
                for other in range(1, ITEMS):
                    s = found[index(group * ITEMS + other)]
                    c = where[index(group * ITEMS + other)]
                    if s < best or (s == best and c < chosen):
                        best = s
                        chosen = c
                labels[index(row)] = chosen
                group_barrier(item.get_group())

    return nearest


def _launch_nearest(
    rows: SparseRows, centers: npt.NDArray[Any], labels: SparseLabels | None, first: int, last: int, out: Array | None
) -> None:
    device, k = rows.device, len(centers)
    packed = by_feature(centers, rows.dtype, _TILES * ITEMS)
    padded = packed.size // (rows.n_features + 1)
    groups = -(-(last - first) // _ROWS)
    parameters = device.array(packed)
    found, where = device.empty(groups * ITEMS, rows.dtype), device.empty(groups * ITEMS, np.int32)
    launch(
        device, _nearest_kernel(rows.dtype, out is not None), groups, ITEMS,
        rows.data, rows.indices, rows.indptr, rows.squares, np.int64(first), np.int64(last), parameters,
        np.int64(padded), np.int64(k), where if labels is None else labels.current, found, where,
        found if out is None else out,
    )  # fmt: skip


def assign(
    rows: SparseRows,
    shift: npt.NDArray[Any] | None,
    centers: npt.NDArray[Any],
    labels: SparseLabels,
    again: bool = True,
) -> None:
    """Label each row with its nearest centre; if several are equally near, with the first of them."""
    if rows.n_samples:
        labels.current, labels.previous = labels.previous, labels.current
        labels.n_clusters = len(centers)
        _launch_nearest(rows, centers, labels, 0, rows.n_samples, None)
        labels.sums = None


def lloyd_step(
    rows: SparseRows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: SparseLabels
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], int]:
    """Label each row with its nearest centre, and sum the rows of each centre, as `kmeans.lloyd.lloyd_step`."""
    k, d = centers.shape
    if rows.n_samples == 0:
        return np.zeros((k, d)), np.zeros(k), 0
    kept = labels.sums if labels.sums is not None and labels.sums_of == (rows, k) else None
    assign(rows, shift, centers, labels)
    moved, changed = _moves(rows, k, labels, kept is None)
    labels.sums = moved if kept is None else kept + moved
    labels.sums_of = (rows, k)
    return labels.sums[:, :d], labels.sums[:, d], changed


def fresh_step(
    rows: SparseRows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: SparseLabels
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], float]:
    """Label rows that have come anew, as `xpulab.kernels.kmeans.lloyd.fresh_step`."""
    labels.sums = None
    sums, weights, _ = lloyd_step(rows, shift, centers, labels)
    return sums, weights, inertia(rows, shift, centers, labels)


def first_kernels(
    device: Device, dtype: np.dtype[Any], n_features: int, k: int, seeding: bool, weighted: bool
) -> list[Kernel]:
    """Return the kernels that every fit needs, on any device and for any sizes."""
    kernels = [
        _nearest_kernel(dtype, False),
        _moves_kernel(dtype, weighted),
        squares_kernel(dtype),
        _own_kernel(dtype),
    ]
    return [*kernels, *seeding_kernels(dtype, weighted)] if seeding else kernels


@cache
def _moves_kernel(dtype: np.dtype[Any], weighted_: bool) -> Kernel:
    zero, one = dtype.type(0), dtype.type(1)

    @kernel("T[] i4* i8* T* i8 i8 i8 i4* i4* i8 T* i4*", dtype)
    def moves(  # type: ignore[no-untyped-def]
        item, data, indices, indptr, weights, n, d, k, previous, labels, fresh, sums, changes
    ):
        # sums: for each worker (k, d + 1), followed by their rounding errors; the last column has the weights.
        worker = item.get_group().get_group_id(0)
        workers = item.get_group().get_group_range(0)
        lane = item.get_local_id(0)
        size = k * (d + 1)
        base = worker * 2 * size
        for j in range(lane, 2 * size, ITEMS):
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
                for i in range(first + lane, indptr[index(row + 1)] + 1, ITEMS):
                    # The index after the last stored value stands for the weight.
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
                            # Knuth's exact addition (TwoSum): `error` is the rounding error of `after`.
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
        device, _moves_kernel(rows.dtype, is_weighted), workers, ITEMS,
        rows.data, rows.indices, rows.indptr, rows.sample_weight if is_weighted else rows.squares,
        np.int64(rows.n_samples), np.int64(d), np.int64(k), labels.previous, labels.current, np.int64(fresh), sums,
        changes,
    )  # fmt: skip
    partial = device.fetch(sums, stop=workers * size).reshape(workers * 2, k, d + 1)
    return partial.sum(axis=0, dtype=np.float64), int(device.fetch(changes, stop=workers).sum())


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


def own_distances(
    rows: SparseRows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: SparseLabels
) -> npt.NDArray[Any]:
    """Compute ``||x - centers[label]||**2`` of each row, without weights, in the dtype of the rows."""
    n, device = rows.n_samples, rows.device
    if n == 0:
        return np.empty(0, rows.dtype)
    out = device.empty(n, rows.dtype)
    norms = np.einsum("ij,ij->i", centers, centers, dtype=np.float64).astype(rows.dtype)
    launch(
        device, _own_kernel(rows.dtype), -(-n // ITEMS), ITEMS,
        rows.data, rows.indices, rows.indptr, np.int64(n), np.int64(rows.n_features),
        device.array(np.ascontiguousarray(centers, rows.dtype)), device.array(norms), labels.current, out,
    )  # fmt: skip
    return device.fetch(out, stop=n)


def distance_rounding(dtype: np.dtype[Any]) -> float:
    """Return the same as `kmeans.lloyd.distance_rounding`, for distances from differences of squared norms."""
    return float(16 * np.finfo(dtype).eps)


def inertia(rows: SparseRows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: SparseLabels) -> float:
    """Sum of ``w * ||x - centers[label]||**2``."""
    distances = own_distances(rows, shift, centers, labels).astype(np.float64)
    if rows.sample_weight is None:
        return float(distances.sum())
    return float(distances @ rows.device.fetch(rows.sample_weight, stop=rows.n_samples).astype(np.float64))


def transform(rows: SparseRows, centers: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield Euclidean distances from each row to each centre, m rows at a time: (m, n_clusters), in the rows' dtype."""
    n, k = rows.n_samples, len(centers)
    step = max(1, min(n, _STAGE_BYTES // (k * rows.dtype.itemsize)))
    stage = rows.device.empty(step * k, rows.dtype)
    for first in range(0, n, step):
        last = min(first + step, n)
        _launch_nearest(rows, centers, None, first, last, stage)
        yield rows.device.fetch(stage, stop=(last - first) * k).reshape(-1, k)


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    for dtype in map(np.dtype, (np.float32, np.float64)):
        yield _own_kernel(dtype)
        for flag in (False, True):
            yield from (_nearest_kernel(dtype, flag), _moves_kernel(dtype, flag))
