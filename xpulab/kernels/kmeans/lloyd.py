"""Lloyd's algorithm: the nearest centre of each row, the sums of the rows of each centre, and distances to centres.

The sums are kept from one iteration to the next, and only rows whose label changes are moved between them; after a few
iterations these are few. This loses no precision, because the device keeps the rounding errors, and the CPU adds in
float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.kmeans import few
from xpulab.kernels.kmeans.compare import nearest_kernel
from xpulab.kernels.kmeans.moves import BATCH, MAX_BYTES, MAX_COUNT, QUEUE, PartialSums, clear_sums, move
from xpulab.kernels.kmeans.nearest import Labels, find_nearest, launch_shape_for, new_labels, private_features
from xpulab.kernels.kmeans.plusplus import pass_kernel
from xpulab.kernels.language import Kernel, fma, index, kernel
from xpulab.kernels.layout import BLOCK, lay_out_kernels
from xpulab.kernels.row_passes import column_kernels
from xpulab.kernels.rows import SPAN, Rows
from xpulab.kernels.runtime.device import Array, Device
from xpulab.kernels.runtime.launch import launch

__all__ = [
    "Labels",
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
    "sums_of_new",
    "transform",
]

_ITEMS = 16  # work-items of a work-group that moves rows between the sums
_STAGE_BYTES = 32 << 20  # of distances to all centres, a part of which is computed at a time
_NEAR_BYTES = 128 << 10  # bytes of rows that stay in a core's L2 cache


def labels_on_cpu(labels: Labels, stop: int, start: int = 0) -> npt.NDArray[np.int32]:
    """Return the labels of the rows from `start` to `stop`."""
    return labels.device.fetch(labels.current, start, stop) if stop else np.empty(0, np.int32)


def lloyd_step(
    rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], int]:
    """Label each row with its nearest centre, and sum the rows of each centre.

    Parameters
    ----------
    rows : Rows
    shift : numpy.ndarray of shape (n_features,) or None
        Subtracted from each row.
    centers : numpy.ndarray of shape (n_clusters, n_features)
        The centres, less the shift. If several are equally near, the first one is chosen.
    labels : Labels
        Changed in place.

    Returns
    -------
    sums : numpy.ndarray of float64 of shape (n_clusters, n_features)
        Sum of ``w * (x - shift)`` over the rows of each centre. `labels` owns this array, which is valid until the next
        step.
    weights : numpy.ndarray of float64 of shape (n_clusters,)
        Sum of the weights of the rows of each centre; valid until the next step, too.
    changed : int
        Number of labels that have changed.
    """
    k, d = centers.shape
    if rows.n_samples == 0:
        return np.zeros((k, d)), np.zeros(k), 0
    if rows.are_few(k):
        sums, changed = few.nearest(rows, shift, centers, labels)
        return sums[:, :d], sums[:, d], changed
    fresh = labels.begin_sums(rows, shift, k)
    partial = find_nearest(rows, shift, centers, labels, sums="all" if fresh else "moved")
    partial = partial or _moves(rows, k, labels, fresh)
    sums, changed = labels.add_to_sums(partial)
    return sums[:, :d], sums[:, d], changed


def fresh_step(
    rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], float]:
    """Label rows that have come anew, as `lloyd_step` does, and return the sums, the weights and the inertia.

    `labels` may have been used for other rows: this function forgets their labels and sums, and uses the memory again.
    """
    sums, weights, _ = sums_of_new(rows, shift, centers, labels)
    return sums, weights, inertia(rows, shift, centers, labels)


def sums_of_new(
    rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], int]:
    """Compute `lloyd_step` for rows that have come anew.

    `labels` may have been used for other rows, whose sums this function forgets; their labels are those before.
    """
    k, d = centers.shape
    if rows.n_samples == 0:
        return np.zeros((k, d)), np.zeros(k), 0
    if rows.are_few(k):
        sums, changed = few.nearest(rows, shift, centers, labels)
        return sums[:, :d], sums[:, d], changed
    labels.drop_sums()
    labels.begin_sums(rows, shift, k)
    partial = find_nearest(rows, shift, centers, labels, again=False, sums="all") or _moves(rows, k, labels, True)
    sums, changed = labels.add_to_sums(partial)
    return sums[:, :d], sums[:, d], changed


def assign(
    rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels, again: bool = True
) -> None:
    """Label each row with its nearest centre, as `lloyd_step`, but without the sums; `again` as in `find_nearest`."""
    if rows.are_few(len(centers)):
        few.nearest(rows, shift, centers, labels)
    elif rows.n_samples:
        find_nearest(rows, shift, centers, labels, again)
        labels.drop_sums()


def inertia(rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels) -> float:
    """Sum of ``w * ||x - shift - centers[label]||**2``, computed from the differences."""
    if rows.n_samples == 0:
        return 0.0
    if rows.are_few():
        _require_labels(labels, centers)
        return few.inertia(rows, shift, centers, labels)
    # A core reads the rows of a group once for each of its vectors of work-items, so they should stay in its cache.
    per_group = max(1, min(SPAN // BLOCK, _NEAR_BYTES // (BLOCK * rows.n_features * rows.dtype.itemsize)))
    size = -(-rows.n_blocks // per_group) * BLOCK
    partial = labels.scratch("inertia", size, rows.dtype)
    _launch_own(rows, shift, centers, labels, partial, per_group)
    return float(labels.device.fetch(partial, stop=size).sum(dtype=np.float64))


def own_distances(
    rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels
) -> npt.NDArray[Any]:
    """Compute ``||x - shift - centers[label]||**2`` of each row, without weights, in the dtype of the rows."""
    if rows.n_samples == 0:
        return np.empty(0, rows.dtype)
    distances = rows.device.empty(rows.n_blocks * BLOCK, rows.dtype)
    _launch_own(rows, shift, centers, labels, distances)
    return rows.device.fetch(distances, stop=rows.n_samples)


def first_kernels(
    device: Device, dtype: np.dtype[Any], n_features: int, k: int, seeding: bool, weighted: bool
) -> list[Kernel]:
    """Return the kernels that nearly every fit with k clusters needs. Kernels that take longer to build come first."""
    shape, features = replace(launch_shape_for(device, dtype, n_features, k), span=0), private_features(n_features)
    searches = [nearest_kernel(features, dtype, shape, bounded=False, summing=summing) for summing in (True, False)]
    passes = [pass_kernel(dtype, k, weighted)] if seeding else []
    return [
        *searches,
        *passes,
        *lay_out_kernels(device, dtype),
        _own_kernel(dtype, weighted, True),
        *column_kernels(dtype),
    ]


def distance_rounding(dtype: np.dtype[Any]) -> float:
    """Return the largest rounding error of `own_distances` for a row at its centre, for a centre of norm 1."""
    return float(16 * np.finfo(dtype).eps) ** 2  # the squared rounding error of the mean of equal rows


# --- the sums of the rows of each centre


@cache
def _moves_kernel(dtype: np.dtype[Any], listed_only: bool) -> Kernel:
    number = dtype.type
    zero = number(0)
    one = number(1)

    @kernel("T[] i8 T* i4 i8 i8 i8 i4 T* i4* i4* i4* i8 i8 i8* T* T*", dtype)
    def moves(  # type: ignore[no-untyped-def]
        item, data, d, weights, weighted, n, n_spans, span, bits, shift, labels, listed, counts, fresh, k, queue, stage,
        sums,
    ):  # fmt: skip
        # sums: for each worker (k, 2, width), see `move`; then the number of changed labels of each worker.
        worker = item.get_group().get_group_id(0)
        workers = item.get_group().get_group_range(0)
        lane = item.get_local_id(0)
        width = (d // _ITEMS + 1) * _ITEMS
        base = worker * (2 * width) * k
        staged = worker * (BATCH * width)
        queued = worker * (3 * QUEUE)
        clear_sums(lane, _ITEMS, 2 * width * k, sums, base, BATCH * width, stage, staged, zero)
        changed = np.int32(0)
        waiting = 0
        last_span = (worker + 1) * n_spans // workers - 1
        for s in range(worker * n_spans // workers, last_span + 1):
            first = s * span
            count = counts[index(s)] if listed_only else min(span, n - first)
            for i in range(count + 1):
                if i < count:
                    if listed_only:
                        entry = listed[index(first + i)]
                        row = first + (entry & np.int32(span - 1))
                        old = (entry >> bits) - np.int32(1)
                    else:
                        row = first + i
                        old = listed[index(row)]
                    new = labels[index(row)]
                    if new != old:
                        changed += np.int32(1)
                    if fresh != 0:
                        old = np.int32(-1)
                    if new != old:
                        queue[index(queued + waiting)] = row // BLOCK * d * BLOCK + row % BLOCK
                        queue[index(queued + QUEUE + waiting)] = new
                        queue[index(queued + 2 * QUEUE + waiting)] = old
                        waiting += 1
                if waiting == BATCH or (i == count and s == last_span):
                    move(
                        item, lane, _ITEMS, 1, 0, data, d, shift, weights, weighted, one, queue, queued, waiting,
                        stage, staged, sums, base,
                    )  # fmt: skip
                    waiting = 0
        if lane == 0:
            sums[index(workers * (2 * width) * k + worker)] = number(changed)

    return moves


def _moves(rows: Rows, k: int, labels: Labels, fresh: bool) -> PartialSums:
    """Return the changes of the sums that follow from the changed labels."""
    span = labels.span or SPAN
    n_spans = -(-rows.n_samples // span)
    workers = min(n_spans, _count_workers(rows, PartialSums.bytes_each(rows, k, _ITEMS)))
    partial = PartialSums.of(rows, k, workers, _ITEMS, labels.scratch)
    weights, weighted = rows.weights_or(rows.data)
    counts = labels.current if labels.counts is None else labels.counts
    launch(
        rows.device, _moves_kernel(rows.dtype, labels.span > 0), workers, _ITEMS,
        rows.data, np.int64(rows.n_features), weights, weighted, np.int64(rows.n_samples), np.int64(n_spans),
        np.int64(span), np.int32(span.bit_length() - 1), labels.parameters, labels.current, labels.listed, counts,
        np.int64(fresh), np.int64(k), partial.queue, partial.stage, partial.sums,
    )  # fmt: skip
    return partial


def _count_workers(rows: Rows, bytes_each: int) -> int:
    """Return the number of workers, each with its own partial sums: enough for the device, and few enough to add."""
    most = max(1, min(rows.n_spans, MAX_BYTES // bytes_each))
    return max(min(4 * rows.device.compute_units, most), -(-rows.n_samples // MAX_COUNT))


# --- the distance to the own centre


@cache
def _own_kernel(dtype: np.dtype[Any], weighted: bool, total: bool) -> Kernel:
    zero = dtype.type(0)

    @kernel("T[] i8 T* i8 i8 T* i4* T*", dtype)
    def own(item, data, d, weights, n, per_group, parameters, labels, out):  # type: ignore[no-untyped-def]
        first = item.get_group().get_group_id(0) * per_group
        lane = item.get_local_id(0)
        added = zero
        for block in range(first, min(first + per_group, (n + (BLOCK - 1)) // BLOCK)):
            row = block * BLOCK + lane
            center = np.int32(d + labels[index(row)] * d)  # 32 bits, because a CPU's gather instructions need them
            distance = zero
            for f in range(d):
                x = data[index((block * d + f) * BLOCK + lane)] - parameters[index(f)]
                x -= parameters[index(np.int32(center + f))]
                distance = fma(x, x, distance)
            if total:
                if weighted:
                    distance *= weights[index(row)]
                added += distance if row < n else zero
            else:
                out[index(row)] = distance
        if total:
            out[index(item.get_global_id(0))] = added

    return own


def _require_labels(labels: Labels, centers: npt.NDArray[Any]) -> None:
    if not 0 < labels.n_clusters <= len(centers):
        raise ValueError(
            f"{len(centers)} centres were given for labels of {labels.n_clusters}; "
            "call assign or lloyd_step with them first"
        )


def _launch_own(
    rows: Rows,
    shift: npt.NDArray[Any] | None,
    centers: npt.NDArray[Any],
    labels: Labels,
    out: Array,
    per_group: int = 0,
) -> None:
    """Compute the distance of each row, or, with `per_group`, weighted sums over this many blocks for each lane."""
    _require_labels(labels, centers)
    packed = np.concatenate([rows.shift_or_zero(shift), np.ascontiguousarray(centers, rows.dtype).ravel()])
    parameters = labels.scratch("parameters", packed.size, rows.dtype)
    rows.device.store(packed, parameters)
    total = per_group > 0
    weighted = total and rows.sample_weight is not None
    blocks = np.int64(per_group or 1)
    launch(
        rows.device, _own_kernel(rows.dtype, weighted, total), -(-rows.n_blocks // int(blocks)), BLOCK,
        rows.data, np.int64(rows.n_features), rows.sample_weight if weighted else parameters, np.int64(rows.n_samples),
        blocks, parameters, labels.current, out,
    )  # fmt: skip


# --- the distances to all centres


@cache
def _distance_kernel(dtype: np.dtype[Any]) -> Kernel:
    zero = dtype.type(0)

    @kernel("T[] i8 i8 T* i8 T*", dtype)
    def distance(item, data, d, first_block, centers, k, out):  # type: ignore[no-untyped-def]
        block = first_block + item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        for j in range(k):
            total = zero
            for f in range(d):
                t = data[index((block * d + f) * BLOCK + lane)] - centers[index(j * d + f)]
                total = fma(t, t, total)
            out[index(item.get_global_id(0) * k + j)] = math.sqrt(total)

    return distance


def transform(rows: Rows, centers: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Compute Euclidean distances from each row to each centre from the differences, a part of the rows at a time.

    Parameters
    ----------
    rows : Rows
    centers : numpy.ndarray of shape (n_clusters, n_features)
        The centres, without a shift subtracted.

    Yields
    ------
    numpy.ndarray of shape (m, n_clusters), in the dtype of the rows
        Distances of the next m rows.
    """
    device, k = rows.device, len(centers)
    if rows.n_samples == 0:
        return
    parameters = device.array(np.ascontiguousarray(centers, rows.dtype))
    blocks = min(rows.n_blocks, max(1, _STAGE_BYTES // (BLOCK * k * rows.dtype.itemsize)))
    stage = device.empty(blocks * BLOCK * k, rows.dtype)
    for first in range(0, rows.n_blocks, blocks):
        start, stop = first * BLOCK, min((first + blocks) * BLOCK, rows.n_samples)
        launch(
            device, _distance_kernel(rows.dtype), -(-(stop - start) // BLOCK), BLOCK,
            rows.data, np.int64(rows.n_features), np.int64(first), parameters, np.int64(k), stage,
        )  # fmt: skip
        yield device.fetch(stage, stop=(stop - start) * k).reshape(-1, k)


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    for dtype in map(np.dtype, (np.float32, np.float64)):
        yield _distance_kernel(dtype)
        yield from (_moves_kernel(dtype, listed_only) for listed_only in (False, True))
        yield from (_own_kernel(dtype, *flags) for flags in ((False, False), (False, True), (True, True)))
