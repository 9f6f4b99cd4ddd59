"""Finds the nearest centre of each row, without reading the rows whose centre cannot have changed.

The slack of a row is the distance to its second nearest centre less the distance to its nearest. A row keeps its label
as long as its centre, and any other centre, have together moved by less than its slack [1]_. In each span of rows the
kernel lists the rows whose label may change, copies these rows side by side, and compares them with all centres; it
does not read the other rows.

References
----------
.. [1] G. Hamerly, "Making k-means even faster", SIAM International Conference on Data Mining 2010, 130-140. The paper
   keeps two bounds for each row; this module keeps their difference, the slack.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xpulab.kernels.kmeans.compare import RING, chunk_of, nearest_kernel
from xpulab.kernels.kmeans.launch_shapes import PRIVATE_FEATURES, LaunchShape, default_shape, size_class
from xpulab.kernels.kmeans.movers import MoverPass, choose, most_movers
from xpulab.kernels.kmeans.moves import MAX_BYTES, MAX_COUNT, PartialSums
from xpulab.kernels.language import Local
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.on_cpu.host import pack_centers, widen_moved
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.device import Array, Device
from xpulab.kernels.runtime.launch import prepare

__all__ = ["Labels", "LaunchShape", "find_nearest", "launch_shape_for", "new_labels", "private_features"]

_LEAST_CENTERS = 48  # with fewer centres, copying a row costs about as much as comparing it with all centres
_LEAST_WORK = 512  # smallest product of centres and features for which slacks are used
_MOST_LISTED = 0.75  # share of all rows: if more are listed, it is faster to compare all rows without copies
_CHEAP_BYTES = 1 << 20  # the addition of partial sums with up to this many bytes takes almost no time
_LONGEST_PAUSE = 16  # passes over all rows before the slacks are tried again


@dataclass(eq=False)
class Labels:
    """The index of the centre of each row, on the device, with the data that one iteration leaves for the next.

    Attributes
    ----------
    device : Device
    current : Array of int32
        One label per row, -1 at first; padded to whole blocks.
    listed : Array of int32
        The rows that the last `find_nearest` compared. If `span` is 0, the previous label of each row, unless the
        search computed sums. Otherwise each span of rows has `counts` entries here,
        ``row in the span | (previous label + 1) << bits of span``.
    n_clusters : int
        Number of centres of the last search, 0 at first.
    span : int
        Number of rows of a work-group of the last `find_nearest`; 0 if it compared all rows.
    counts : Array of int32 or None
        Number of listed rows of each span.
    parameters : Array or None
        The parameters of the last `find_nearest`, which begin with the shift.
    movers : numpy.ndarray of int64 or None
        The centres with which the last `find_nearest` compared all rows first, so that their steps shrink no slack.
    """

    device: Device
    current: Array
    listed: Array
    n_clusters: int = 0
    span: int = 0
    counts: Array | None = None
    parameters: Array | None = None
    movers: npt.NDArray[np.int64] | None = None
    _sums: npt.NDArray[np.float64] | None = None  # of shape (n_clusters, n_features + 1): the last column has weights
    _sums_of: Any = None  # the rows, the shift and the shape that the sums are for
    _slack: Array | None = None
    _slack_of: Any = None  # the rows, the shift and the shape that the slacks are for
    _centers: npt.NDArray[np.float64] | None = None  # centres that the slacks were last shrunk for
    _moved: npt.NDArray[np.float64] | None = None  # by how much the slacks of each centre's rows have shrunk
    _pause: int = 2  # passes over all rows before the slacks are tried again: at first the centres move far
    _next_pause: int = 2
    _latest: npt.NDArray[np.float64] | None = None  # centres of the last search
    _listed: float = 0.0  # share of the rows that the last search listed, or would have listed without movers
    _longest: float = 0.0  # step of a centre before the last search with slacks
    _extra: float = 0.0  # by how much the movers may have shrunk them more
    _mover_pass: MoverPass | None = None
    _far: float = 0.0  # the square of the step with which slacks saved few comparisons
    _scratch: dict[Any, tuple[int, Array]] = field(default_factory=dict)
    _searches: dict[Any, _Search] = field(default_factory=dict)

    def scratch(self, name: str, size: int, dtype: npt.DTypeLike) -> Array:
        """Return a device array of at least `size` elements, which later calls with the same name use again."""
        held = self._scratch.get((name, dtype))
        if held is None or held[0] < size:
            held = self._scratch[name, dtype] = size, self.device.empty(size, dtype)
        return held[1]

    def forget(self) -> None:
        """Drop the slacks, so that the next search compares every row."""
        self._slack_of = None

    def trim(self) -> None:
        """Free all memory but the labels and the sums, after a run has ended."""
        self.forget()
        self.listed = self.device.empty(0, np.int32)
        self._slack = self.counts = self.parameters = self._mover_pass = None
        self._scratch.clear()
        self._searches.clear()

    def begin_sums(self, rows: Rows, shift: npt.NDArray[Any] | None, k: int) -> bool:
        """Prepare the sums for k centres; return whether they begin at zero. The slacks are then dropped, too."""
        key = (rows, rows.shift_or_zero(shift).tobytes(), k)
        if self._sums is not None and self._sums_of == key:
            return False
        self._sums, self._sums_of = np.zeros((k, rows.n_features + 1)), key
        self.forget()
        return True

    def add_to_sums(self, partial: PartialSums) -> tuple[npt.NDArray[np.float64], int]:
        """Add the changes of one search to the sums; return the sums and the number of labels that changed."""
        assert self._sums is not None
        changed = partial.add_to(self._sums)
        return self._sums, changed

    def drop_sums(self) -> None:
        """Drop the sums, because labels have changed without them."""
        self._sums = None

    def slacks_pay(self, rows: Rows, centers: npt.NDArray[Any]) -> bool:
        """Return whether the slacks are likely to save comparisons.

        They save few while the centres move far, and if many rows are nearly equally far from several centres.
        """
        before, self._latest = self._latest, centers.astype(np.float64)
        step = np.inf
        if before is not None and before.shape == centers.shape:
            steps = np.sort(np.square(self._latest - before).sum(axis=1))
            step = float(steps[-1 - (most_movers(len(steps)) if rows.device.is_cpu else 0)])
        if self._pause:
            self._pause -= 1
            if step >= self._far / 4:
                self.forget()
                return False
            self._pause = 0  # the centres move half as far as when it was too far
        # The first pass with slacks lists every row; the passes after it show how many rows stay listed.
        if self.span and self.counts is not None and self._slack_of is not None and self._moved is not None:
            listed = int(self.device.fetch(self.counts, stop=-(-rows.n_samples // self.span), copied=False).sum())
            exhausted = 0 if self.movers is None or self._mover_pass is None else self._mover_pass.exhausted()
            self._listed = max(listed, exhausted) / rows.n_samples if self._moved.any() else 1.0
            if listed > _MOST_LISTED * rows.n_samples and self._moved.any():
                self._next_pause = min(2 * self._next_pause, _LONGEST_PAUSE)
                self._pause = self._next_pause - 1
                self._far = step
                self.forget()
                return False
        return True

    def shrink_slacks(
        self, rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        """Return by how much the slacks of each centre's rows have shrunk since the slacks were set."""
        known = (rows, rows.shift_or_zero(shift).tobytes(), centers.shape)
        if self._slack_of != known:
            self._slack_of = known
            self._slack = self.scratch("slack", rows.n_blocks * BLOCK, rows.dtype)
            self.device.fill(self._slack, -np.inf)
            self._centers = centers.astype(np.float64)
            self._moved = np.zeros(len(centers))
        else:
            assert self._centers is not None
            assert self._moved is not None
            steps = np.sqrt(np.square(centers - self._centers).sum(axis=1))
            longest, before = float(steps.max()), self._longest
            self._longest = longest
            share = min(1.0, self._listed * longest / before) if before > 0 else 1.0
            if n := choose(steps, share) if rows.device.is_cpu else 0:
                order = np.argsort(-steps, kind="stable")
                rest = steps[order[n]]
                self.movers, self._extra = order[:n], float(steps[order[0]] - rest) * (1 + 1e-6)
                self._moved += (steps + rest) * (1 + 1e-9)
                self._centers = centers.astype(np.float64)
            else:
                widen_moved(self._centers, centers, self._moved)
        assert self._moved is not None
        return self._moved


def new_labels(device: Device, n: int) -> Labels:
    """Return labels of n rows, all -1."""
    padded = -(-n // BLOCK) * BLOCK
    return Labels(device, device.full(padded, -1, np.int32), device.empty(0, np.int32))


def find_nearest(
    rows: Rows,
    shift: npt.NDArray[Any] | None,
    centers: npt.NDArray[Any],
    labels: Labels,
    again: bool = True,
    launch_shape: LaunchShape | None = None,
    sums: Literal["all", "moved"] | None = None,
) -> PartialSums | None:
    """Label each row with its nearest centre; if several are equally near, with the first of them.

    Parameters
    ----------
    rows : Rows
        The rows, at least one.
    shift : numpy.ndarray of shape (n_features,) or None
        Subtracted from each row.
    centers : numpy.ndarray of shape (n_clusters, n_features)
        The centres, less the shift.
    labels : Labels
        Changed in place.
    again : bool
        Whether the same rows will be labelled again, for centres that have moved a little.
    launch_shape : LaunchShape, optional
        By default that of `launch_shape_for`. The labels are the same with every launch shape.
    sums : {"all", "moved"}, optional
        Whether to sum the rows of each centre too, while the rows are in the cache: all rows, or only the rows that
        change their label, which are subtracted from one sum and added to another.

    Returns
    -------
    PartialSums or None
        None if `sums` is None, or if the partial sums do not fit into the device.
    """
    k, d = centers.shape
    bounded = again and k >= _LEAST_CENTERS and k * d >= _LEAST_WORK and labels.slacks_pay(rows, centers)
    labels.movers = None
    moved = labels.shrink_slacks(rows, shift, centers) if bounded else np.zeros(k)
    key = bounded, sums is not None, id(labels.current)
    of = rows, k, launch_shape or launch_shape_for(rows.device, rows.dtype, d, k)
    search = labels._searches.get(key)
    if search is None or search.of != of:
        search = labels._searches[key] = _Search(of, labels, bounded, summing=sums is not None)
    search.start(rows.shift_or_zero(shift), centers, moved, anew=sums == "all", labels=labels)
    labels.n_clusters, labels.parameters = k, search.parameters
    labels.span, labels.counts = (search.span, search.counts) if bounded else (0, None)
    if search.labels is labels.listed:
        labels.current, labels.listed = labels.listed, labels.current
    return search.partial


class _Search:
    """A search that can be repeated with the same rows, the same number of centres, and the same memory.

    Attributes
    ----------
    of : tuple of (Rows, int, LaunchShape)
        The rows, the number of centres, and the launch shape.
    labels : Array of int32
        The array that the search writes: the array with the labels before, or the other array if these are needed.
    span : int
        Number of rows of a work-group.
    counts : Array of int32 or None
        Number of listed rows of each span; None if all rows are compared.
    parameters : Array
        The parameters of the kernel, which begin with the shift.
    partial : PartialSums or None
        The partial sums, if the search computes sums.
    """

    def __init__(self, of: tuple[Rows, int, LaunchShape], labels: Labels, bounded: bool, summing: bool) -> None:
        self.of = rows, k, shape = of
        device, d, dtype = rows.device, rows.n_features, rows.dtype
        n_groups = -(-k // shape.centers)
        size = d + n_groups * shape.centers * (1 + d) + k + 3
        self.parameters = numbers = labels.scratch("parameters", size, dtype)
        self._packed = np.empty(size, dtype) if numbers.host is None else numbers.host[:size]
        self._store = numbers.host is None
        self.span, self.partial = _cut(rows, shape, k, labels, summing)
        n_spans = -(-rows.n_samples // self.span)
        self.labels, self.counts = labels.current, None
        self._mover_pass: MoverPass | None = None
        if (bounded or not self.partial) and labels.listed.size < labels.current.size:  # new or trimmed labels
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
        # The error of a score is less than this times (|x|^2 + 2 |c|^2); that of a difference is less than twice this.
        rounding = 2 * (d + 8) * np.finfo(dtype).eps
        features = private_features(d)
        chunk = chunk_of(features, shape)
        shared = Local(chunk * features * shape.centers, dtype) if chunk else numbers
        self._launch = prepare(
            device, nearest_kernel(features, dtype, replace(shape, span=0), bounded, self.partial is not None), n_spans,
            shape.items,
            rows.data, np.int64(rows.n_samples), np.int64(d), numbers, np.int64(n_groups), np.int64(k),
            np.int64(self.span), np.int32(self.span.bit_length() - 1), dtype.type(rounding), self.labels, *outputs,
            shared, weights, weighted, *summed,
        )  # fmt: skip

    def start(
        self,
        shift: npt.NDArray[Any],
        centers: npt.NDArray[Any],
        moved: npt.NDArray[np.float64],
        anew: bool,
        labels: Labels,
    ) -> None:
        """Start the kernel. With `anew`, the sums begin at zero, and all rows are added."""
        rows, k, shape = self.of
        rows.device.wait()  # an earlier kernel may still read the parameters
        pack_centers(shift, centers, moved, shape.centers, anew, self._packed)
        if self._store:
            rows.device.store(self._packed, self.parameters)
        if self.counts is not None and labels.movers is not None:
            if self._mover_pass is None:
                assert labels._slack is not None
                of = rows, k, shape.centers
                self._mover_pass = MoverPass(of, labels.scratch, self.parameters, self.labels, labels._slack)
            labels._mover_pass = self._mover_pass
            self._mover_pass.start(centers, labels.movers, labels._extra)
        self._launch()


def private_features(n_features: int) -> int:
    """Return the number of features for which the kernel has private memory; 0 if the rows have too many features."""
    return next((features for features in PRIVATE_FEATURES if n_features <= features), 0)


def launch_shape_for(device: Device, dtype: np.dtype[Any], n_features: int, k: int) -> LaunchShape:
    """Return the launch shape that was measured to be fastest on the device for these sizes, or the default."""
    measured = device.launch_shapes.get(size_class(dtype, n_features, k))
    return measured or default_shape(dtype, device.is_cpu, device.wide)


def _cut(rows: Rows, shape: LaunchShape, k: int, labels: Labels, summing: bool) -> tuple[int, PartialSums | None]:
    """Return the rows per work-group, and the groups' sums if `summing` is true and the sums fit into the device."""
    if summing:
        bytes_each = PartialSums.bytes_each(rows, k, shape.items)
        span = _span(rows, shape, k, bytes_each)
        n_spans = -(-rows.n_samples // span)
        if n_spans * bytes_each <= MAX_BYTES:
            return span, PartialSums.of(rows, k, n_spans, shape.items, labels.scratch)
    return _span(rows, shape, k), None


def _span(rows: Rows, shape: LaunchShape, k: int, bytes_each: int = 0) -> int:
    """Return the number of rows of a work-group, a power of two.

    The number is smaller than the launch shape's span if this span would leave parts of the device idle, or if an entry
    of `listed` has too few bits for it. It is larger if each group has partial sums of `bytes_each` bytes, because
    adding them takes time.
    """
    enough = rows.n_samples // (4 * rows.device.compute_units)
    wanted = max(shape.span, 1 << (rows.n_samples * bytes_each // _CHEAP_BYTES).bit_length())
    most = min(1 << max(0, enough.bit_length() - 1), 1 << (30 - (k + 1).bit_length()), MAX_COUNT)
    return max(BLOCK, min(wanted, most))
