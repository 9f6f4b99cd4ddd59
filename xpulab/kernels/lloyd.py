"""One iteration of Lloyd: the nearest centre of each row, and the sums of the rows of each centre.

The sums are kept from one iteration to the next, and only rows that changed their label are moved between them: after
a few iterations few do. That loses no precision, since the device carries the rounding errors along, and the
host adds in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import dpctl.tensor as dpt
import numpy as np
import numpy.typing as npt
from numba_dpex.kernel_api import PrivateArray

from xpulab.kernels.device import Device
from xpulab.kernels.launch import fma, index, launch
from xpulab.kernels.rows import BLOCK, SPAN, Rows

__all__ = ["Labels", "assign", "inertia", "labels_to_host", "lloyd_step", "new_labels", "own_distances"]

_ROWS = 4  # of a work-item: a centre's number, once loaded, serves them all
_CENTERS = 4  # whose distances are computed together: 4 x 4 scores stay in registers
_ITEMS = BLOCK // _ROWS
_SCORES = _CENTERS * _ROWS
_BLOCKS = 4  # of a work-group, so that starting it costs little
_TILED_FEATURES = 512  # more would not leave room in a core's cache for the centred copy in private memory
_LANES = 16  # features of a work-group that moves rows between the sums
_MAX_COUNT = 2**22  # rows of a partial sum; float32 counts exactly to 2**24
_MAX_PARTIAL_BYTES = 64 << 20


@dataclass(eq=False)
class Labels:
    """The centre of each row, on the device, with the sums of the rows of each centre that belong to them.

    Attributes
    ----------
    device : Device
    current : dpctl.tensor.usm_ndarray of int32
        One label per row, -1 at first; padded to whole blocks.
    n_clusters : int
        Number of the centres that the labels were chosen from, 0 at first.
    """

    device: Device
    current: dpt.usm_ndarray
    _previous: dpt.usm_ndarray
    n_clusters: int = 0
    _sums: npt.NDArray[np.float64] | None = None  # (k, n_features + 1), the last column is the weights
    _sums_of: Any = None  # (rows, shift, k) of _sums
    _scratch: dict[str, dpt.usm_ndarray] = field(default_factory=dict)

    def scratch(self, name: str, size: int, dtype: npt.DTypeLike) -> dpt.usm_ndarray:
        """A flat device array of at least `size` elements, kept for the next call."""
        array = self._scratch.get(name)
        if array is None or array.size < size or array.dtype != dtype:
            array = self._scratch[name] = self.device.empty(size, dtype)
        return array


def new_labels(device: Device, n: int) -> Labels:
    """Labels of n rows, all -1."""
    unset = np.full(-(-n // BLOCK) * BLOCK, -1, np.int32)
    return Labels(device, device.array(unset), device.array(unset))


def labels_to_host(labels: Labels, n: int) -> npt.NDArray[np.int32]:
    """The labels of the first n rows."""
    return labels.device.fetch(labels.current, stop=n) if n else np.empty(0, np.int32)


def lloyd_step(
    rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], int]:
    """Label each row with its nearest centre, and sum the rows of each.

    Parameters
    ----------
    rows : Rows
    shift : numpy.ndarray of shape (n_features,) or None
        Subtracted from each row.
    centers : numpy.ndarray of shape (n_clusters, n_features)
        In the shifted frame. Among equally near centres the first is taken.
    labels : Labels
        Changed in place.

    Returns
    -------
    sums : numpy.ndarray of float64 of shape (n_clusters, n_features)
        Sum of ``w * (x - shift)`` over the rows of each centre.
    weights : numpy.ndarray of float64 of shape (n_clusters,)
    changed : int
        Number of labels that are not what they were.
    """
    k, d = centers.shape
    if rows.n_samples == 0:
        return np.zeros((k, d)), np.zeros(k), 0
    parameters = _nearest(rows, shift, centers, labels)
    moved, changed = _moves(rows, parameters, k, labels, _sums_to_start_from(rows, shift, k, labels))
    assert labels._sums is not None
    labels._sums += moved
    return labels._sums[:, :d].copy(), labels._sums[:, d].copy(), changed


def assign(rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels) -> int:
    """Label each row with its nearest centre, as `lloyd_step`, without the sums.

    Returns
    -------
    int
        Number of labels that are not what they were.
    """
    if rows.n_samples == 0:
        return 0
    _nearest(rows, shift, centers, labels)
    labels._sums = None
    n = rows.n_samples
    return int(
        np.count_nonzero(labels.device.fetch(labels.current, stop=n) != labels.device.fetch(labels._previous, stop=n))
    )


def inertia(rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels) -> float:
    """Sum of ``w * ||x - shift - centers[label]||**2``, from the differences themselves."""
    if rows.n_samples == 0:
        return 0.0
    partial = labels.scratch("inertia", rows.n_spans * BLOCK, rows.dtype)
    _launch_own(rows, shift, centers, labels, partial, total=True)
    return float(labels.device.fetch(partial, stop=rows.n_spans * BLOCK).sum(dtype=np.float64))


def own_distances(
    rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels
) -> npt.NDArray[Any]:
    """``||x - shift - centers[label]||**2`` of each row, not weighted, in the dtype of the rows."""
    if rows.n_samples == 0:
        return np.empty(0, rows.dtype)
    distances = rows.device.empty(rows.n_spans * SPAN, rows.dtype)
    _launch_own(rows, shift, centers, labels, distances, total=False)
    return rows.device.fetch(distances, stop=rows.n_samples)


# --- the nearest centre


@cache
def _nearest_kernel(d: int, dtype: np.dtype[Any]) -> Any:
    number = dtype.type
    infinity = number(np.inf)
    tiled = d <= _TILED_FEATURES
    tile_size = d * _ROWS if tiled else 1

    def nearest(item, data, n_blocks, parameters, n_groups, labels):  # type: ignore[no-untyped-def]
        # parameters: shift (d), squared norms (n_groups * _CENTERS), then -2 * centres (n_groups, d, _CENTERS)
        start = item.get_group().get_group_id(0) * _BLOCKS
        lane = item.get_local_id(0)
        centers = d + n_groups * _CENTERS
        tile = PrivateArray(tile_size, number)
        least = PrivateArray(_ROWS, number)
        label = PrivateArray(_ROWS, np.int32)
        score = PrivateArray(_SCORES, number)
        for block in range(start, min(start + _BLOCKS, n_blocks)):
            first = block * (d * BLOCK) + lane
            for r in range(_ROWS):
                least[r] = infinity
                label[r] = 0
            if tiled:
                for f in range(d):
                    for r in range(_ROWS):
                        tile[f * _ROWS + r] = data[index(first + f * BLOCK + r * _ITEMS)] - parameters[index(f)]
            for group in range(n_groups):
                for j in range(_CENTERS):
                    for r in range(_ROWS):
                        score[j * _ROWS + r] = parameters[index(d + group * _CENTERS + j)]
                for f in range(d):
                    for j in range(_CENTERS):
                        c = parameters[index(centers + (group * d + f) * _CENTERS + j)]
                        for r in range(_ROWS):
                            x = (
                                tile[f * _ROWS + r]
                                if tiled
                                else data[index(first + f * BLOCK + r * _ITEMS)] - parameters[index(f)]
                            )
                            score[j * _ROWS + r] = fma(x, c, score[j * _ROWS + r])
                for j in range(_CENTERS):
                    for r in range(_ROWS):
                        if score[j * _ROWS + r] < least[r]:
                            least[r] = score[j * _ROWS + r]
                            label[r] = np.int32(group * _CENTERS + j)
            for r in range(_ROWS):
                labels[index(block * BLOCK + lane + r * _ITEMS)] = label[r]

    return nearest


def _nearest(rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels) -> dpt.usm_ndarray:
    """Write the new labels, keep the old ones, and return the device array whose first d numbers are the shift."""
    k, d = centers.shape
    n_groups = -(-k // _CENTERS)
    # The centres that fill the last group are infinitely far.
    norms = np.full(n_groups * _CENTERS, np.inf)
    norms[:k] = np.einsum("ij,ij->i", centers, centers, dtype=np.float64)
    scaled = np.zeros((n_groups * _CENTERS, d), rows.dtype)
    scaled[:k] = -2 * centers
    host = np.concatenate(
        [
            rows.shift_or_zero(shift),
            norms.astype(rows.dtype),
            scaled.reshape(n_groups, _CENTERS, d).transpose(0, 2, 1).ravel(),
        ]
    )
    parameters = labels.scratch("parameters", host.size, rows.dtype)
    rows.device.store(host, parameters)
    labels._previous, labels.current = labels.current, labels._previous
    labels.n_clusters = k
    launch(
        rows.device, _nearest_kernel(d, rows.dtype), -(-rows.n_blocks // _BLOCKS), _ITEMS,
        rows.data, np.int64(rows.n_blocks), parameters, np.int64(n_groups), labels.current,
    )  # fmt: skip
    return parameters


# --- the sums of the rows of each centre


@cache
def _moves_kernel(d: int, dtype: np.dtype[Any], weighted: bool) -> Any:
    number = dtype.type
    n_tiles = -(-(d + 1) // _LANES)
    width = n_tiles * _LANES
    last_feature = d - 1
    zero = number(0)
    one = number(1)

    def moves(item, data, weights, n, per_worker, shift, previous, labels, fresh, k, sums):  # type: ignore[no-untyped-def]
        # sums: per worker (k, 2, width), the sums and what they had to round off; then the changes of each worker.
        # All but the lane is the same for the work-group, and no lane is left out: else the CPU would mask each step.
        worker = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        base = worker * (2 * width) * k + lane
        for j in range(2 * n_tiles * k):
            sums[index(base + j * _LANES)] = zero
        changed = np.int32(0)
        for row in range(worker * per_worker, min((worker + 1) * per_worker, n)):
            new = labels[index(row)]
            old = previous[index(row)]
            if new != old:
                changed += np.int32(1)
            if fresh != 0:
                old = np.int32(-1)
            if new != old:
                for tile in range(n_tiles):
                    f = tile * _LANES + lane
                    column = min(f, last_feature)
                    keep = one if f < d else zero
                    x = data[index((row // BLOCK * d + column) * BLOCK + row % BLOCK)] - shift[index(column)]
                    x = fma(x, keep, one - keep)
                    if weighted:
                        x *= weights[index(row)]
                    for side in range(2):
                        center = new if side == 0 else old
                        if center >= 0:
                            y = x if side == 0 else -x
                            at = base + center * (2 * width) + tile * _LANES
                            # Knuth's exact addition: `error` is what `after` had to round off.
                            before = sums[index(at)]
                            after = before + y
                            part = after - before
                            error = (before - (after - part)) + (y - part)
                            sums[index(at)] = after
                            sums[index(at + width)] += error
        if lane == 0:
            sums[index(item.get_group().get_group_range(0) * (2 * width) * k + worker)] = number(changed)

    return moves


def _moves(
    rows: Rows, parameters: dpt.usm_ndarray, k: int, labels: Labels, fresh: bool
) -> tuple[npt.NDArray[np.float64], int]:
    """What the changed labels add to the sums and weights (k, d + 1), and how many they are."""
    d = rows.n_features
    width = -(-(d + 1) // _LANES) * _LANES
    workers = _count_workers(rows, 2 * k * width * rows.dtype.itemsize)
    per_worker = -(-rows.n_samples // (workers * BLOCK)) * BLOCK
    size = workers * k * 2 * width
    sums = labels.scratch("sums", size + workers, rows.dtype)
    weights = parameters if rows.sample_weight is None else rows.sample_weight
    launch(
        rows.device, _moves_kernel(d, rows.dtype, rows.sample_weight is not None), workers, _LANES,
        rows.data, weights, np.int64(rows.n_samples), np.int64(per_worker), parameters,
        labels._previous, labels.current, np.int64(fresh), np.int64(k), sums,
    )  # fmt: skip
    host = rows.device.fetch(sums, stop=size + workers)
    added = host[:size].reshape(workers, k, 2, width).sum(axis=(0, 2), dtype=np.float64)
    return added[:, : d + 1], int(host[size:].sum(dtype=np.float64))


def _count_workers(rows: Rows, bytes_each: int) -> int:
    """How many partial sums of all centres are made: enough for the device, few enough to add and to store."""
    most = max(1, min(rows.n_spans, _MAX_PARTIAL_BYTES // bytes_each))
    return max(min(4 * rows.device.compute_units, most), -(-rows.n_samples // _MAX_COUNT))


def _sums_to_start_from(rows: Rows, shift: npt.NDArray[Any] | None, k: int, labels: Labels) -> bool:
    """Whether the sums start from nothing, because there are none yet for these rows, this shift and this k."""
    key = (rows, rows.shift_or_zero(shift).tobytes(), k)
    fresh = labels._sums is None or labels._sums_of != key
    if fresh:
        labels._sums, labels._sums_of = np.zeros((k, rows.n_features + 1)), key
    return fresh


# --- the distance to the own centre


@cache
def _own_kernel(d: int, weighted: bool, total: bool) -> Any:
    blocks_of_span = SPAN // BLOCK

    def own(item, data, weights, n, parameters, labels, out):  # type: ignore[no-untyped-def]
        span = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        zero = parameters[index(0)] - parameters[index(0)]
        added = zero
        for block in range(span * blocks_of_span, min((span + 1) * blocks_of_span, (n + (BLOCK - 1)) // BLOCK)):
            row = block * BLOCK + lane
            center = d + labels[index(row)] * d
            distance = zero
            for f in range(d):
                x = data[index((block * d + f) * BLOCK + lane)] - parameters[index(f)]
                x -= parameters[index(center + f)]
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


def _launch_own(
    rows: Rows,
    shift: npt.NDArray[Any] | None,
    centers: npt.NDArray[Any],
    labels: Labels,
    out: dpt.usm_ndarray,
    total: bool,
) -> None:
    if not 0 < labels.n_clusters <= len(centers):
        raise ValueError(
            f"{len(centers)} centres were given for labels of {labels.n_clusters}; "
            "call assign or lloyd_step with them first"
        )
    host = np.concatenate([rows.shift_or_zero(shift), np.ascontiguousarray(centers, rows.dtype).ravel()])
    parameters = labels.scratch("parameters", host.size, rows.dtype)
    rows.device.store(host, parameters)
    weighted = total and rows.sample_weight is not None
    launch(
        rows.device, _own_kernel(rows.n_features, weighted, total), rows.n_spans, BLOCK,
        rows.data, rows.sample_weight if weighted else parameters, np.int64(rows.n_samples), parameters,
        labels.current, out,
    )  # fmt: skip
