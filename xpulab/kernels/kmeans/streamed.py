"""The functions of k-means for rows that come in parts: those of `kmeans.dense`, for one part after the other.

The rows that the device keeps have bounds from one iteration to the next. The labels of all others are on the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels import scaling
from xpulab.kernels.kmeans import gather, lloyd
from xpulab.kernels.kmeans.lloyd import distance_rounding, first_kernels
from xpulab.kernels.kmeans.nearest import Labels
from xpulab.kernels.rows import Rows, shift_for
from xpulab.kernels.runtime.device import Device
from xpulab.kernels.streamed import StreamedRows

__all__ = [
    "StreamedLabels",
    "assign",
    "column_sums",
    "distance_rounding",
    "divided",
    "find_nonfinite",
    "first_kernels",
    "inertia",
    "labels_on_cpu",
    "lloyd_step",
    "new_labels",
    "own_distances",
    "reach",
    "shift_for",
    "subset",
    "take",
    "weighted",
]


@dataclass(eq=False)
class StreamedLabels:
    """The index of the centre of each row.

    Attributes
    ----------
    host : numpy.ndarray of int of shape (n_samples,)
        The labels of the rows that the device does not keep, in the smallest dtype for them; -1 at first.
    kept : Labels
        Those of the others, which are the first.
    n_kept : int
        Their number; 0 before the first pass.
    """

    host: npt.NDArray[np.signedinteger]
    kept: Labels
    n_kept: int = 0
    _working: dict[Rows, Labels] = field(default_factory=dict)  # of the parts in the device's buffers
    _inertia: tuple[bytes, float] | None = None  # that `assign` has found, and for which shift and centres

    def of(self, rows: StreamedRows, first: int, part: Rows, n_clusters: int = 0) -> Labels:
        """Return the labels of a part on the device; those of so many centres, if they are to be used as they are."""
        if part is rows.kept:
            if self.n_kept < part.n_samples:
                self.kept, self.n_kept = lloyd.new_labels(part.device, part.n_samples), part.n_samples
            return self.kept
        held = None if rows.are_some else self._working.get(part)
        if held is None:
            self._working = {} if rows.are_some else self._working
            held = self._working[part] = lloyd.new_labels(part.device, part.n_samples)
        part.device.store(self.host[first : first + part.n_samples].astype(np.int32), held.current)
        held.n_clusters = n_clusters or held.n_clusters
        return held

    def take_back(self, first: int, part: Rows, found: Labels) -> None:
        """Copy the labels of a part to the host, if the device does not keep them."""
        if found is not self.kept:
            if found.n_clusters - 1 > np.iinfo(self.host.dtype).max:
                self.host = self.host.astype(np.min_scalar_type(-found.n_clusters))
            self.host[first : first + part.n_samples] = lloyd.labels_on_cpu(found, part.n_samples)

    def trim(self) -> None:
        """Free all memory but the labels, after a run has ended."""
        self.kept.trim()
        self._working.clear()


def new_labels(device: Device, n: int) -> StreamedLabels:
    """Return labels of n rows, all -1."""
    return StreamedLabels(np.full(n, -1, np.int8), lloyd.new_labels(device, 0))


def labels_on_cpu(labels: StreamedLabels, stop: int, start: int = 0) -> npt.NDArray[np.int32]:
    """Return the labels of the rows from `start` to `stop`."""
    found, n_kept = labels.host[start:stop].astype(np.int32), labels.n_kept
    if start < n_kept:
        found[: n_kept - start] = lloyd.labels_on_cpu(labels.kept, min(stop, n_kept), start)
    return found


def lloyd_step(
    rows: StreamedRows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: StreamedLabels
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], int]:
    """Label each row with its nearest centre, and sum the rows of each centre: `lloyd.lloyd_step`, in one pass."""
    sums, weights, changed = np.zeros(centers.shape), np.zeros(len(centers)), 0
    for first, part in rows.parts():
        held = labels.of(rows, first, part)
        step = lloyd.lloyd_step if part is rows.kept else lloyd.sums_of_new
        some, some_weights, some_changed = step(part, shift, centers, held)
        labels.take_back(first, part, held)
        sums += some
        weights += some_weights
        changed += some_changed
    return sums, weights, changed


def assign(
    rows: StreamedRows,
    shift: npt.NDArray[Any] | None,
    centers: npt.NDArray[Any],
    labels: StreamedLabels,
    again: bool = True,
) -> None:
    """Label each row with its nearest centre: `lloyd.assign`. The same pass finds the inertia."""
    total = 0.0
    for first, part in rows.parts():
        held = labels.of(rows, first, part)
        lloyd.assign(part, shift, centers, held, again and part is rows.kept)
        total += lloyd.inertia(part, shift, centers, held)
        labels.take_back(first, part, held)
    labels._inertia = _key(rows, shift, centers), total


def inertia(
    rows: StreamedRows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: StreamedLabels
) -> float:
    """Sum of ``w * ||x - shift - centers[label]||**2``: `lloyd.inertia`."""
    if labels._inertia is not None and labels._inertia[0] == _key(rows, shift, centers):
        return labels._inertia[1]
    return sum(
        lloyd.inertia(part, shift, centers, labels.of(rows, first, part, len(centers))) for first, part in rows.parts()
    )


def own_distances(
    rows: StreamedRows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: StreamedLabels
) -> npt.NDArray[Any]:
    """Compute ``||x - shift - centers[label]||**2`` of each row: `lloyd.own_distances`."""
    found = np.empty(rows.n_samples, rows.dtype)
    for first, part in rows.parts():
        held = labels.of(rows, first, part, len(centers))
        found[first : first + part.n_samples] = lloyd.own_distances(part, shift, centers, held)
    return found


def _key(rows: StreamedRows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any]) -> bytes:
    return rows.kept.shift_or_zero(shift).tobytes() + centers.tobytes()


def column_sums(
    rows: StreamedRows, shift: npt.NDArray[Any] | None = None, squared: bool = False
) -> npt.NDArray[np.float64]:
    """Sum ``x - shift``, or its square, over the rows for each column."""
    return rows.column_sums(shift, squared)


def take(rows: StreamedRows, index: npt.ArrayLike, shift: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """Copy some rows to the CPU's memory."""
    return rows.take(index, shift)


def find_nonfinite(rows: StreamedRows) -> int:
    """Return the index on this rank of the first row with NaN or infinity, or -1 if there is none."""
    return rows.find_nonfinite()


def divided(rows: StreamedRows, unit: float) -> StreamedRows:
    """Divide all numbers by a power of two."""
    return rows.divided(unit)


def subset(rows: StreamedRows, indices: npt.NDArray[np.int64]) -> StreamedRows:
    """Return some of the rows, whose indices are in ascending order."""
    return rows.subset(indices, gather.subset)


def weighted(rows: StreamedRows, sample_weight: npt.NDArray[Any]) -> StreamedRows:
    """Return the same rows, not copied, with other weights (n_samples,)."""
    return rows.weighted(sample_weight)


def reach(rows: StreamedRows) -> float:
    """Return the largest magnitude of all numbers; 0 if there are none."""
    return max((scaling.reach(part) for _, part in rows.parts() if part.n_samples), default=0.0)
