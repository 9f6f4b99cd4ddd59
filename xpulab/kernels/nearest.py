"""The nearest centre of each row, without looking at the rows whose centre cannot have changed.

A row whose second nearest centre is farther than its nearest by more than both have moved since keeps its label: one
number a row, the slack, is enough to know that [1]_. In each span of rows those that may change are listed, copied side
by side, and compared with all centres; the others are not read.

References
----------
.. [1] G. Hamerly, "Making k-means even faster", SIAM International Conference on Data Mining 2010, 130-140. The two
   bounds of that paper are one here, their difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xpulab.kernels.compare import RING, chunk_of, nearest_kernel
from xpulab.kernels.device import Array, Device
from xpulab.kernels.host import pack_centers, widen_moved
from xpulab.kernels.language import Local
from xpulab.kernels.launch import prepare
from xpulab.kernels.moves import MAX_BYTES, MAX_COUNT, PartialSums
from xpulab.kernels.rows import BLOCK, Rows
from xpulab.kernels.tiles import ROOMS, Tile, default_tile, size_class

__all__ = ["Labels", "Tile", "find_nearest", "new_labels", "room_for", "tile_for"]

_LEAST_CENTERS = 48  # with fewer, copying a row costs about as much as comparing it with all of them
_LEAST_WORK = 512  # centres times features
_MOST_LISTED = 0.75  # of all rows: with more, looking at every row where it lies is faster than listing and copying
_CHEAP_BYTES = 1 << 20  # of partial sums, that take no time to speak of
_LONGEST_PAUSE = 16  # passes over all rows, before the slacks are tried again


@dataclass(eq=False)
class Labels:
    """The centre of each row, on the device, with what is known of it from one iteration to the next.

    Attributes
    ----------
    device : Device
    current : Array of int32
        One label per row, -1 at first; padded to whole blocks.
    n_clusters : int
        Number of the centres that the labels were chosen from, 0 at first.
    listed : Array of int32
        What the last `find_nearest` looked at. With `span` 0: the label that each row had before, unless it made sums.
        Else for each span of so many rows its `counts` first entries,
        ``row in the span | (label before + 1) << bits of span``.
    counts : Array of int32 or None
    span : int
    parameters : Array or None
        Of the last `find_nearest`; they begin with the shift.
    """

    device: Device
    current: Array
    listed: Array
    n_clusters: int = 0
    span: int = 0
    counts: Array | None = None
    parameters: Array | None = None
    sums: npt.NDArray[np.float64] | None = None  # of lloyd.py
    sums_of: Any = None
    _slack: Array | None = None
    _slack_of: Any = None  # (rows, shift)
    _centers: npt.NDArray[np.float64] | None = None  # for which _slack holds
    _moved: npt.NDArray[np.float64] | None = None  # by how much, since, each row's slack has shrunk
    _pause: int = 2  # passes over all rows, until the slacks are tried again: at first the centres move far
    _next_pause: int = 2
    _scratch: dict[Any, tuple[int, Array]] = field(default_factory=dict)
    _searches: dict[Any, _Search] = field(default_factory=dict)

    def scratch(self, name: str, size: int, dtype: npt.DTypeLike) -> Array:
        """A flat device array of at least `size` elements, kept for the next call."""
        held = self._scratch.get((name, dtype))
        if held is None or held[0] < size:
            held = self._scratch[name, dtype] = size, self.device.empty(size, dtype)
        return held[1]

    def forget(self) -> None:
        """Look at every row the next time."""
        self._slack_of = None

    def trim(self) -> None:
        """Keep the labels alone: a run that has ended needs no memory to go on."""
        self.forget()
        self.listed = self.device.empty(0, np.int32)
        self._slack = self.counts = self.parameters = None
        self._scratch.clear()
        self._searches.clear()


def new_labels(device: Device, n: int) -> Labels:
    """Labels of n rows, all -1."""
    padded = -(-n // BLOCK) * BLOCK
    return Labels(device, device.full(padded, -1, np.int32), device.empty(0, np.int32))


def find_nearest(
    rows: Rows,
    shift: npt.NDArray[Any] | None,
    centers: npt.NDArray[Any],
    labels: Labels,
    again: bool = True,
    tile: Tile | None = None,
    sums: Literal["all", "moved"] | None = None,
) -> PartialSums | None:
    """Label each row with its nearest centre; among equally near ones the first.

    Parameters
    ----------
    rows : Rows
        At least one.
    shift : numpy.ndarray of shape (n_features,) or None
        Subtracted from each row.
    centers : numpy.ndarray of shape (n_clusters, n_features)
        In the shifted frame.
    labels : Labels
        Changed in place.
    again : bool
        Whether the same rows will be labelled again, for centres that have moved a little.
    tile : Tile, optional
        The one of `tile_for` by default; the labels are the same with any.
    sums : {"all", "moved"}, optional
        Whether to sum the rows of each centre too, while they are in the cache: all of them, or only those that change
        their label, which are taken from one sum and added to another.

    Returns
    -------
    PartialSums or None
        None if no sums were asked for, or if there would be too many for the device.
    """
    k, d = centers.shape
    bounded = again and k >= _LEAST_CENTERS and k * d >= _LEAST_WORK and _bounds_pay(rows, labels)
    moved = _bounds(rows, shift, centers, labels) if bounded else np.zeros(k)
    key = bounded, sums is not None, id(labels.current)
    of = rows, k, tile or tile_for(rows.device, rows.dtype, d, k)
    search = labels._searches.get(key)
    if search is None or search.of != of:
        search = labels._searches[key] = _Search(of, labels, bounded, summing=sums is not None)
    search.start(rows.shift_or_zero(shift), centers, moved, anew=sums == "all")
    labels.n_clusters, labels.parameters = k, search.parameters
    labels.span, labels.counts = (search.span, search.counts) if bounded else (0, None)
    if search.labels is labels.listed:
        labels.current, labels.listed = labels.listed, labels.current
    return search.partial


class _Search:
    """A search that is made again and again: of the same rows, with as many centres, in the same memory.

    Attributes
    ----------
    of : tuple of (Rows, int, Tile)
        The rows, the number of centres, and the tile.
    labels : Array of int32
        Where it writes them: over those before if it needs them no more, or else to the other array.
    span : int
        Rows of a work-group.
    counts : Array of int32 or None
    parameters : Array
        As the kernel reads them; they begin with the shift.
    partial : PartialSums or None
    """

    def __init__(self, of: tuple[Rows, int, Tile], labels: Labels, bounded: bool, summing: bool) -> None:
        self.of = rows, k, tile = of
        device, d, dtype = rows.device, rows.n_features, rows.dtype
        n_groups = -(-k // tile.centers)
        size = d + n_groups * tile.centers * (1 + d) + k + 3
        self.parameters = numbers = labels.scratch("parameters", size, dtype)
        self._host = np.empty(size, dtype) if numbers.host is None else numbers.host[:size]
        self._store = numbers.host is None
        self.span, self.partial = _cut(rows, tile, k, labels, summing)
        n_spans = -(-rows.n_samples // self.span)
        self.labels, self.counts = labels.current, None
        if (bounded or not self.partial) and labels.listed.size < labels.current.size:  # new, or trimmed
            labels.listed = device.empty(labels.current.size, np.int32)
        integers = labels.current
        found = labels.scratch("found", n_spans * BLOCK, np.int32) if bounded or self.partial else integers
        outputs: tuple[Array | None, ...] = numbers, integers, integers, numbers, found
        if bounded:
            self.counts = labels.scratch("counts", n_spans, np.int32)
            stage = labels.scratch("stage", n_spans * (d * RING + BLOCK), dtype)
            outputs = labels._slack, labels.listed, self.counts, stage, found
        elif not self.partial:
            self.labels = labels.listed
        weights, weighted = rows.weights_or(numbers)
        summed = integers, numbers, numbers
        if self.partial:
            summed = self.partial.queue, self.partial.stage, self.partial.sums
        # Scores are off by less than this times (|x|^2 + 2 |c|^2), and so is their difference by twice that.
        rounding = 2 * (d + 8) * np.finfo(dtype).eps
        room = room_for(d)
        chunk = chunk_of(room, tile)
        shared = Local(chunk * room * tile.centers, dtype) if chunk else numbers
        self._launch = prepare(
            device, nearest_kernel(room, dtype, replace(tile, span=0), bounded, self.partial is not None), n_spans,
            tile.items,
            rows.data, np.int64(rows.n_samples), np.int64(d), numbers, np.int64(n_groups), np.int64(k),
            np.int64(self.span), np.int32(self.span.bit_length() - 1), dtype.type(rounding), self.labels, *outputs,
            shared, weights, weighted, *summed,
        )  # fmt: skip

    def start(
        self, shift: npt.NDArray[Any], centers: npt.NDArray[Any], moved: npt.NDArray[np.float64], anew: bool
    ) -> None:
        """Label the rows; `anew` if the sums begin with all of them."""
        rows, _, tile = self.of
        rows.device.wait()  # the kernel before may still read them
        pack_centers(shift, centers, moved, tile.centers, anew, self._host)
        if self._store:
            rows.device.store(self._host, self.parameters)
        self._launch()


def room_for(n_features: int) -> int:
    """Features that the kernel has private memory for; 0 where there are too many."""
    return next((room for room in ROOMS if n_features <= room), 0)


def tile_for(device: Device, dtype: np.dtype[Any], n_features: int, k: int) -> Tile:
    """What was measured to be fastest for the device and such sizes, or else the default."""
    return device.tiles.get(size_class(dtype, n_features, k)) or default_tile(dtype, device.is_cpu)


def _cut(rows: Rows, tile: Tile, k: int, labels: Labels, summing: bool) -> tuple[int, PartialSums | None]:
    """Rows of a work-group, and the groups' sums if they are asked for and there is room."""
    if summing:
        bytes_each = PartialSums.bytes_each(rows, k, tile.items)
        span = _span(rows, tile, k, bytes_each)
        n_spans = -(-rows.n_samples // span)
        if n_spans * bytes_each <= MAX_BYTES:
            return span, PartialSums.of(rows, k, n_spans, tile.items, labels.scratch)
    return _span(rows, tile, k), None


def _span(rows: Rows, tile: Tile, k: int, bytes_each: int = 0) -> int:
    """Rows of a work-group, a power of two.

    Fewer than the tile says where that leaves the device idle, or an entry has no room; more where each group has
    partial sums of `bytes_each`, which take time to add.
    """
    enough = rows.n_samples // (4 * rows.device.compute_units)
    wanted = max(tile.span, 1 << (rows.n_samples * bytes_each // _CHEAP_BYTES).bit_length())
    most = min(1 << max(0, enough.bit_length() - 1), 1 << (30 - (k + 1).bit_length()), MAX_COUNT)
    return max(BLOCK, min(wanted, most))


def _bounds_pay(rows: Rows, labels: Labels) -> bool:
    """Whether few rows will be listed; they are many as long as the centres move far, or where no centre is near."""
    if labels._pause:
        labels._pause -= 1
        labels.forget()
        return False
    # The first pass of all lists every row; those after it tell.
    if labels.span and labels.counts is not None and labels._slack_of is not None and labels._moved is not None:
        listed = int(labels.device.fetch(labels.counts, stop=-(-rows.n_samples // labels.span), copied=False).sum())
        if listed > _MOST_LISTED * rows.n_samples and labels._moved.any():
            labels._next_pause = min(2 * labels._next_pause, _LONGEST_PAUSE)
            labels._pause = labels._next_pause - 1
            labels.forget()
            return False
    return True


def _bounds(
    rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels
) -> npt.NDArray[np.float64]:
    """By how much the slack of the rows of each centre has shrunk, in all, since the slacks were set anew."""
    known = (rows, rows.shift_or_zero(shift).tobytes(), centers.shape)
    if labels._slack_of != known:
        labels._slack_of = known
        labels._slack = labels.scratch("slack", rows.n_blocks * BLOCK, rows.dtype)
        labels.device.fill(labels._slack, -np.inf)
        labels._centers = centers.astype(np.float64)
        labels._moved = np.zeros(len(centers))
    else:
        assert labels._centers is not None
        assert labels._moved is not None
        widen_moved(labels._centers, centers, labels._moved)
    assert labels._moved is not None
    return labels._moved
