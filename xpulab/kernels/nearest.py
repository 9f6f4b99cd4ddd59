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

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import dpctl.tensor as dpt
import numpy as np
import numpy.typing as npt
from numba_dpex.kernel_api import PrivateArray, group_barrier

from xpulab.kernels.device import Device
from xpulab.kernels.host import pack_centers, widen_moved
from xpulab.kernels.launch import Local, Prepared, fma, index, prefetch, prepare
from xpulab.kernels.rows import BLOCK, Rows
from xpulab.kernels.tiles import ROOMS, Tile, default_tile, size_class

__all__ = ["Labels", "Tile", "find_nearest", "new_labels", "tile_for"]

_RING = 2 * BLOCK  # rows side by side: those of a block, and what the blocks before left over
_BURST = 512  # numbers of wide rows that are asked for at a time, at least
_LEAST_CENTERS = 48  # with fewer, copying a row costs about as much as comparing it with all of them
_LEAST_WORK = 512  # centres times features
_MOST_LISTED = 0.75  # of all rows: with more, looking at every row where it lies is faster than listing and copying
_LONGEST_PAUSE = 16  # passes over all rows, before the slacks are tried again


@dataclass(eq=False)
class Labels:
    """The centre of each row, on the device, with what is known of it from one iteration to the next.

    Attributes
    ----------
    device : Device
    current : dpctl.tensor.usm_ndarray of int32
        One label per row, -1 at first; padded to whole blocks.
    n_clusters : int
        Number of the centres that the labels were chosen from, 0 at first.
    listed : dpctl.tensor.usm_ndarray of int32
        What the last `find_nearest` looked at. With `span` 0: the label that each row had before. Else for each span
        of so many rows its `counts` first entries, ``row in the span | (label before + 1) << bits of span``.
    counts : dpctl.tensor.usm_ndarray of int32 or None
    span : int
    """

    device: Device
    current: dpt.usm_ndarray
    listed: dpt.usm_ndarray
    n_clusters: int = 0
    span: int = 0
    counts: dpt.usm_ndarray | None = None
    sums: npt.NDArray[np.float64] | None = None  # of lloyd.py
    sums_of: Any = None
    _slack: dpt.usm_ndarray | None = None
    _slack_of: Any = None  # (rows, shift)
    _centers: npt.NDArray[np.float64] | None = None  # for which _slack holds
    _moved: npt.NDArray[np.float64] | None = None  # by how much, since, each row's slack has shrunk
    _pause: int = 2  # passes over all rows, until the slacks are tried again: at first the centres move far
    _next_pause: int = 2
    _scratch: dict[Any, tuple[int, dpt.usm_ndarray]] = field(default_factory=dict)
    _prepared: dict[Any, Prepared] = field(default_factory=dict)

    def scratch(self, name: str, size: int, dtype: npt.DTypeLike) -> dpt.usm_ndarray:
        """A flat device array of at least `size` elements, kept for the next call."""
        held = self._scratch.get((name, dtype))
        if held is None or held[0] < size:
            held = self._scratch[name, dtype] = size, self.device.empty(size, dtype)
        return held[1]

    def launch(self, function: Callable[..., None], groups: int, size: int, *arguments: Any) -> None:
        """As `xpulab.kernels.launch.launch`, prepared once for the same arrays and numbers."""
        key = function, groups, *[id(a) if isinstance(a, dpt.usm_ndarray) else a for a in arguments]
        prepared = self._prepared.get(key)
        if prepared is None:  # it keeps the arrays, and so their ids
            prepared = self._prepared[key] = prepare(self.device, function, groups, size, *arguments)
        prepared()

    def forget(self) -> None:
        """Look at every row the next time."""
        self._slack_of = None

    def trim(self) -> None:
        """Keep the labels alone: a run that has ended needs no memory to go on."""
        self.forget()
        self.listed = self.device.empty(0, np.int32)
        self._slack = self.counts = None
        self._scratch.clear()
        self._prepared.clear()


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
) -> dpt.usm_ndarray:
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

    Returns
    -------
    dpctl.tensor.usm_ndarray
        Its first n_features numbers are the shift.
    """
    k, d = centers.shape
    tile = tile or tile_for(rows, k)
    bounded = again and k >= _LEAST_CENTERS and k * d >= _LEAST_WORK and _bounds_pay(rows, labels)
    moved = _bounds(rows, shift, centers, labels) if bounded else np.zeros(k)
    n_groups = -(-k // tile.centers)
    host = np.empty(d + n_groups * tile.centers * (1 + d) + k + 2, rows.dtype)
    largest = pack_centers(rows.shift_or_zero(shift), centers, moved, tile.centers, host)
    parameters = labels.scratch("parameters", host.size, rows.dtype)
    span = _span(rows, tile, k)
    n_spans = -(-rows.n_samples // span)
    if labels.listed.size < labels.current.size:  # new, or trimmed
        labels.listed = labels.device.empty(labels.current.size, np.int32)
    labels.n_clusters, labels.span = k, span if bounded else 0
    integers, numbers = labels.current, parameters
    if bounded:
        assert labels._slack is not None
        labels.counts = labels.scratch("counts", n_spans, np.int32)
        stage = labels.scratch("stage", n_spans * (d * _RING + BLOCK), rows.dtype)
        outputs = labels._slack, labels.listed, labels.counts, stage, labels.scratch("found", n_spans * BLOCK, np.int32)
    else:
        labels.current, labels.listed = labels.listed, labels.current
        stage = labels.scratch("stage", n_spans, rows.dtype)
        outputs = numbers, integers, integers, stage, integers
    # Scores are off by less than this times (|x|^2 + 2 |c|^2), and so is their difference by twice that.
    eps = np.finfo(rows.dtype).eps
    rounding = 2 * (d + 8) * eps
    host[-2:] = 2 * largest, 4 * eps * moved.max()
    rows.device.store(host, parameters)
    room_for = next((room for room in ROOMS if d <= room), 0)
    chunk = _chunk(room_for, tile)
    shared = Local(chunk * room_for * tile.centers, rows.dtype) if chunk else numbers
    labels.launch(
        _nearest_kernel(room_for, rows.dtype, replace(tile, span=0), bounded), n_spans, tile.items,
        rows.data, np.int64(rows.n_samples), np.int64(d), parameters, np.int64(n_groups), np.int64(k), np.int64(span),
        np.int32(span.bit_length() - 1), rows.dtype.type(rounding), labels.current, *outputs, shared,
    )  # fmt: skip
    return parameters


def tile_for(rows: Rows, k: int) -> Tile:
    """What was measured to be fastest for the device and such sizes, or else the default."""
    tuned = rows.device.tiles.get(size_class(rows.dtype, rows.n_features, k))
    return tuned or default_tile(rows.dtype, rows.device.is_cpu)


def _chunk(room_for: int, tile: Tile) -> int:
    """Groups of centres that are in local memory together; 0 for none, or where there is no bound on its size."""
    return max(1, tile.local // (room_for * tile.centers)) if tile.local and room_for else 0


def _span(rows: Rows, tile: Tile, k: int) -> int:
    """Rows of a work-group: fewer than the tile says where that leaves the device idle, or an entry has no room."""
    enough = rows.n_samples // (4 * rows.device.compute_units)
    return max(BLOCK, min(tile.span, 1 << max(0, enough.bit_length() - 1), 1 << (30 - (k + 1).bit_length())))


def _bounds_pay(rows: Rows, labels: Labels) -> bool:
    """Whether few rows will be listed; they are many as long as the centres move far, or where no centre is near."""
    if labels._pause:
        labels._pause -= 1
        labels.forget()
        return False
    # The first pass of all lists every row; those after it tell.
    if labels.span and labels.counts is not None and labels._slack_of is not None and labels._moved is not None:
        listed = int(labels.device.fetch(labels.counts, stop=-(-rows.n_samples // labels.span)).sum())
        if labels._moved.any() and listed > _MOST_LISTED * rows.n_samples:
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


@cache
def _nearest_kernel(room_for: int, dtype: np.dtype[Any], tile: Tile, bounded: bool) -> Any:
    """The kernel for at most `room_for` features, or for any number where that is 0; the tile's span is not used."""
    number = dtype.type
    infinity, zero = number(np.inf), number(0)
    most = number(1 - 1e-4)
    none = number(-1)
    one = np.int32(1)
    block_mask = np.int32(BLOCK - 1)
    ring_mask = _RING - 1
    n_rows, n_centers, n_items = tile.rows, tile.centers, tile.items
    step = n_rows * n_items
    n_scores = n_rows * n_centers
    tiled = room_for > 0
    tile_size = max(1, room_for * n_rows)
    stride, mine = (n_items, 1) if tile.spread else (1, 0)
    # A row's numbers are far apart, and those of many features would push each other out of the cache: they are copied
    # feature by feature, and the next ones asked for little by little.
    narrow = 0 < room_for <= 16
    local = _chunk(room_for, tile) > 0
    chunk = max(1, _chunk(room_for, tile))
    copying = bounded and not tiled  # even whole blocks, because the distances read the copy

    def nearest(  # type: ignore[no-untyped-def]
        item,
        data,
        n,
        d,
        parameters,
        n_groups,
        k,
        span,
        bits,
        rounding,
        labels,
        slack,
        listed,
        counts,
        stage,
        found,
        shared,
    ):
        # parameters: shift (d), squared norms (n_groups * n_centers), then -2 * centres (n_groups, d, n_centers), then
        # for each centre by how much the slack of its rows has shrunk; then twice the largest of the norms, and by how
        # much the slacks are rounded.
        # stage, of each group: the rows side by side (d, _RING), then the new slacks; found: their labels.
        # shared: some of the centres, in the same order.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        centers = d + n_groups * n_centers
        moved = centers + n_groups * n_centers * d
        largest = parameters[index(moved + k)]
        margin = parameters[index(moved + k + 1)]
        x = PrivateArray(tile_size, number)
        least = PrivateArray(n_rows, number)
        second = PrivateArray(n_rows, number)
        label = PrivateArray(n_rows, np.int32)
        score = PrivateArray(n_scores, number)
        first_row = group * span
        last_row = min(first_row + span, n)
        ring = group * (d * _RING + BLOCK)
        slacks = ring + d * _RING
        labelled = group * BLOCK
        seen = first_row // BLOCK - 1
        loaded = -1  # which of the chunks of centres is in local memory
        taken = 0  # rows of the span that are listed
        done = 0  # of them, those that have been compared
        for block in range(first_row // BLOCK, (last_row + (BLOCK - 1)) // BLOCK):
            data_of_block = block * (d * BLOCK)
            before = taken
            # The rows that come next are loaded while these are compared: the device would wait and compute in turns.
            if narrow and lane == 0:
                prefetch(data, index(data_of_block + d * BLOCK), index(d * BLOCK))
            if bounded:
                for row in range(block * BLOCK, min(block * BLOCK + BLOCK, n)):
                    old = labels[index(row)]
                    listed[index(first_row + taken)] = np.int32(row - first_row) | ((old + one) << bits)
                    if slack[index(row)] <= parameters[index(moved + max(old, np.int32(0)))]:
                        taken += 1
            else:
                taken += BLOCK
            whole = done == before and taken == before + BLOCK and not copying
            if bounded and not whole:
                if narrow:
                    for i in range(before + lane * mine, taken, stride):
                        row_of_block = listed[index(first_row + i)] & block_mask
                        to = ring + (i & ring_mask)
                        for f in range(d):
                            stage[index(to + f * _RING)] = (
                                data[index(data_of_block + f * BLOCK + row_of_block)] - parameters[index(f)]
                            )
                else:
                    for f in range(d):
                        for i in range(before + lane * mine, taken, stride):
                            row_of_block = listed[index(first_row + i)] & block_mask
                            stage[index(ring + f * _RING + (i & ring_mask))] = (
                                data[index(data_of_block + f * BLOCK + row_of_block)] - parameters[index(f)]
                            )
                group_barrier(item.get_group())
            enough = step if (block + 1) * BLOCK < last_row else 1
            while taken - done >= enough:
                place = done - before if whole else done & ring_mask
                for r in range(n_rows):
                    least[r] = infinity
                    second[r] = infinity
                    label[r] = 0
                if tiled:
                    if whole:
                        for f in range(d):
                            for r in range(n_rows):
                                at = data_of_block + f * BLOCK + place + r * n_items + lane
                                x[f * n_rows + r] = data[index(at)] - parameters[index(f)]
                    else:
                        for f in range(d):
                            for r in range(n_rows):
                                x[f * n_rows + r] = stage[index(ring + f * _RING + place + r * n_items + lane)]
                ahead = (block + 1) * (d * BLOCK)
                end = ahead + (block - seen) * (d * BLOCK)
                burst = max(_BURST, (end - ahead + n_groups - 1) // n_groups)
                seen = block
                for c in range(n_groups):
                    if local and c // chunk != loaded:
                        loaded = c // chunk
                        first = loaded * chunk * d * n_centers
                        last = min((loaded + 1) * chunk, n_groups) * d * n_centers
                        group_barrier(item.get_group())  # the others may still be reading
                        for i in range(lane, last - first, n_items):
                            shared[index(i)] = parameters[index(centers + first + i)]
                        group_barrier(item.get_group())
                    if not narrow and ahead < end:
                        if lane == 0:
                            prefetch(data, index(ahead), index(burst))
                        ahead += burst
                    for j in range(n_centers):
                        for r in range(n_rows):
                            score[j * n_rows + r] = parameters[index(d + c * n_centers + j)]
                    for f in range(d):
                        for j in range(n_centers):
                            if local:
                                y = shared[index(((c - loaded * chunk) * d + f) * n_centers + j)]
                            else:
                                y = parameters[index(centers + (c * d + f) * n_centers + j)]
                            for r in range(n_rows):
                                if tiled:
                                    z = x[f * n_rows + r]
                                elif bounded:
                                    z = stage[index(ring + f * _RING + place + r * n_items + lane)]
                                else:
                                    at = data_of_block + f * BLOCK + place + r * n_items + lane
                                    z = data[index(at)] - parameters[index(f)]
                                score[j * n_rows + r] = fma(z, y, score[j * n_rows + r])
                    for j in range(n_centers):
                        for r in range(n_rows):
                            s = score[j * n_rows + r]
                            t = least[r]
                            if s < t:
                                second[r] = t
                                least[r] = s
                                label[r] = np.int32(c * n_centers + j)
                            elif s < second[r]:
                                second[r] = s
                if bounded:
                    for r in range(n_rows):
                        xx = zero
                        for f in range(d):
                            z = (
                                x[f * n_rows + r]
                                if tiled
                                else stage[index(ring + f * _RING + place + r * n_items + lane)]
                            )
                            xx = fma(z, z, xx)
                        error = rounding * (xx + largest)
                        near = math.sqrt(max(least[r] + xx, zero) + error)
                        far = math.sqrt(max(second[r] + xx, zero) + error)
                        room = (second[r] - least[r] - error) / (near + far) * most - margin
                        room = infinity if second[r] == infinity else room  # there is no other centre
                        # Also where it is NaN, after an overflow.
                        stage[index(slacks + lane + r * n_items)] = room if room > zero else none
                    for r in range(n_rows):
                        found[index(labelled + lane + r * n_items)] = label[r]
                    group_barrier(item.get_group())
                    for i in range(done + lane * mine, min(done + step, taken), stride):
                        row = first_row + (listed[index(first_row + i)] & np.int32(span - 1))
                        new = found[index(labelled + i - done)]
                        labels[index(row)] = new
                        slack[index(row)] = stage[index(slacks + i - done)] + parameters[index(moved + new)]
                    group_barrier(item.get_group())
                else:
                    for r in range(n_rows):
                        labels[index(block * BLOCK + place + r * n_items + lane)] = label[r]
                done = min(done + step, taken)
        if bounded:
            counts[index(group)] = np.int32(taken)

    return nearest
