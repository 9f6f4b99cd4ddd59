"""The rows nearest to each query: distances, and the list of the nearest, in one kernel.

The queries lie in tiles, feature by feature, and the rows that are searched one after the other: a work-item has a few
queries of a tile, and reads the numbers of a row together with all other items of its group. A group takes a span of
the rows, some at a time, and several tiles for which it reads them from memory once. It computes the scores of a tile,
and then goes through those of the queries for which one is below the worst in the list. No other scores than these few
are ever written, and soon nearly none of them is.

A score is a distance, or what distances grow with: of a product of numbers ``|y|^2 / 2 - x.y``, which is a third to a
half faster than ``|x - y|^2``, and which rounding makes less exact; `rounding_of` bounds by how much [1]_.

References
----------
.. [1] N. J. Higham, "Accuracy and stability of numerical algorithms", SIAM 2002, section 3.1: what rounding does to an
   inner product of n numbers is at most n u / (1 - n u) times that of their absolute values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xpulab.kernels.language import Kernel, PrivateArray, fma, group_barrier, index, kernel
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.on_cpu.host import compare_with
from xpulab.kernels.row_passes import in_order
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.device import Array, Device
from xpulab.kernels.runtime.launch import launch
from xpulab.kernels.scaling import divided

__all__ = ["Index", "Kind", "every_kernel", "nearest", "normalised", "rounding_of", "within"]

#: What a score is: ``start - x.y``, or the sum, or the largest, of ``|x - y|`` to some power.
Kind = Literal["product", "squares", "absolute", "largest", "powers"]

_KINDS: tuple[Kind, ...] = ("product", "squares", "absolute", "largest", "powers")
_RUN = 96  # rows whose scores a group has at a time
_CHUNK_BYTES = 256  # of a query's features that are used at a time: those of a tile stay in a core's first cache
#: Tiles of queries for which the rows are read once, and the bytes of these tiles, which a core's second cache holds.
#: Short rows come from the caches in any case, and more lists would take their place.
_TOGETHER, _TOGETHER_BYTES = 6, 512 << 10
_GROUPS = 8  # a compute unit gets at least so many, so that all end at about the same time
_FIRST_ROOM = 64  # rows that are listed of a query; where there are more, they are listed again with enough room
_LIST_BYTES = 256 << 20  # of the lists of several queries; where more is needed, some queries come after the others
_PIECE = 4096  # rows that the host looks at at a time
_FEW = 4096  # rows of a span at least: each span has lists of its own, which fill anew


@dataclass(frozen=True)
class _Tile:
    """How the work is cut: queries and rows whose scores stay in registers, work-items of a group.

    `spread`: whether the items share the going through the scores (a GPU), or each does all of it: where a group is one
    thread with vector registers (a CPU), these are plain scalar moves.
    """

    queries: int
    rows: int
    items: int
    spread: bool

    @property
    def step(self) -> int:
        """Return the number of queries of a work-group."""
        return self.queries * self.items


def _tile(dtype: np.dtype[Any], is_cpu: bool) -> _Tile:
    if not is_cpu:
        return _Tile(1, 8, 64, True)
    return _Tile(3, 4, 16, False) if dtype == np.float32 else _Tile(1, 4, 16, False)


@cache
def _search_kernel(kind: Kind, dtype: np.dtype[Any], tile: _Tile, listing: bool) -> Kernel:
    """Return the kernel that lists the rows with the least scores, or with `listing` all up to a limit."""
    number = dtype.type
    infinity = number(np.inf)
    n_queries, n_rows, n_items, step = tile.queries, tile.rows, tile.items, tile.step
    n_scores = n_queries * n_rows
    chunk = _CHUNK_BYTES // dtype.itemsize
    product, squares, absolute, largest = (kind == each for each in _KINDS[:4])
    stride, mine = (n_items, 1) if tile.spread else (1, 0)

    @kernel("T[] i8 i8 i8 T* T* i8 i8 T i8 T* T* i4*", dtype)
    def search(  # type: ignore[no-untyped-def]
        item, queries, n_tiles, together, d, rows, start, n, span, power, room, stage, best, places
    ):  # fmt: skip
        # queries: (n_tiles, d, step). start: of each row what its score begins with, infinity after the last of them.
        # A group has `together` tiles of the same part of the rows; n_tiles is a multiple of that.
        # stage: of each group (_RUN + 1, step), the scores and the least of each query.
        # best, places: of each tile of a group (step, room), the least scores in their order, and their rows. With
        # `listing` best (step,) is the limit, and places (step, 1 + room) how many rows there are, and the first.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        first = group * together // n_tiles * span
        scores = group * (_RUN + 1) * step
        score = PrivateArray(n_scores, number)
        x = PrivateArray(n_queries, number)
        low = PrivateArray(n_queries, number)
        if listing:
            for i in range(lane, together * step, n_items):
                places[index((group * together * step + i) * (room + 1))] = np.int32(0)
        else:
            for i in range(lane, together * step * room, n_items):
                best[index(group * together * step * room + i)] = infinity
                places[index(group * together * step * room + i)] = np.int32(-1)
        for turn in range(together * ((min(first + span, n) - first + (_RUN - 1)) // _RUN)):
            begin = first + turn // together * _RUN
            tile_of = group * together + turn % together
            base = tile_of % n_tiles * d * step + lane
            lists = tile_of * step * room
            counts = tile_of * step * (room + 1)
            for f_begin in range(0, d, chunk):
                f_end = min(f_begin + chunk, d)
                for q in range(n_queries):
                    low[q] = infinity
                for row in range(begin, begin + _RUN, n_rows):
                    to = scores + (row - begin) * step + lane
                    for j in range(n_rows):
                        s = start[index(row + j)]
                        for q in range(n_queries):
                            if f_begin == 0:
                                score[j * n_queries + q] = s
                            else:
                                score[j * n_queries + q] = stage[index(to + j * step + q * n_items)]
                    for f in range(f_begin, f_end):
                        for q in range(n_queries):
                            x[q] = queries[index(base + f * step + q * n_items)]
                        for j in range(n_rows):
                            y = rows[index((row + j) * d + f)]
                            for q in range(n_queries):
                                if product:
                                    score[j * n_queries + q] = fma(x[q], y, score[j * n_queries + q])
                                else:
                                    t = abs(x[q] - y)
                                    if squares:
                                        score[j * n_queries + q] = fma(t, t, score[j * n_queries + q])
                                    elif absolute:
                                        score[j * n_queries + q] += t
                                    elif largest:
                                        s = score[j * n_queries + q]
                                        score[j * n_queries + q] = t if t > s else s
                                    else:
                                        score[j * n_queries + q] += math.pow(t, power)
                    for j in range(n_rows):
                        for q in range(n_queries):
                            s = score[j * n_queries + q]
                            low[q] = s if s < low[q] else low[q]
                            stage[index(to + j * step + q * n_items)] = s
            for q in range(n_queries):
                stage[index(scores + _RUN * step + q * n_items + lane)] = low[q]
            group_barrier(item.get_group())
            for i in range(lane * mine, step, stride):
                to = lists + i * room
                list_of = counts + i * (room + 1)
                worst = best[index(tile_of * step + i)] if listing else best[index(to + room - 1)]
                least = stage[index(scores + _RUN * step + i)]
                if least < worst or (listing and least == worst):
                    # What is done is marked as done: where no items share this, it may be done more than once.
                    stage[index(scores + _RUN * step + i)] = infinity
                    for j in range(_RUN):
                        s = stage[index(scores + j * step + i)]
                        if listing:
                            if s <= worst:
                                stage[index(scores + j * step + i)] = infinity
                                count = places[index(list_of)]
                                if count < room:
                                    places[index(list_of + 1 + count)] = np.int32(begin + j)
                                places[index(list_of)] = np.int32(count + 1)
                        elif s < worst:
                            stage[index(scores + j * step + i)] = infinity
                            place = to + room - 1
                            for k in range(room - 1):
                                # All the way: a loop that ends at the place would not be scalar on a CPU.
                                before = best[index(to + room - 2 - k)]
                                if s < before:
                                    best[index(place)] = before
                                    places[index(place)] = places[index(place - 1)]
                                    place -= 1
                            best[index(place)] = s
                            places[index(place)] = np.int32(begin + j)
                            worst = best[index(to + room - 1)]
            group_barrier(item.get_group())

    return search


@dataclass(frozen=True, eq=False)
class Index:
    """Rows on a device in which the nearest to queries are found.

    Attributes
    ----------
    device : Device
    data : Array of shape (n_padded, n_features)
        The rows one after the other; zeros fill up the last run.
    start : Array of shape (n_padded,)
        Of each row half its squared norm, what its score as a product begins with.
    level : Array of shape (n_padded,)
        Of each row 0, what all other scores begin with.
    n_samples, n_features : int
    largest : float
        The largest norm of a row.
    unit : float
        A power of two, by which the rows were divided.
    """

    device: Device
    data: Array
    start: Array
    level: Array
    n_samples: int
    n_features: int
    largest: float
    unit: float = 1.0

    @classmethod
    def of(cls, rows: Rows, directions: bool = False, unit: float = 1.0) -> Index:
        """Build an index of rows. For the cosine they are divided by their norms, and a score is minus the cosine."""
        rows = divided(rows, unit)
        device, n, d, dtype = rows.device, rows.n_samples, rows.n_features, rows.dtype
        n_padded = -(-n // _RUN) * _RUN
        data = in_order(rows, n_padded)
        squares = np.full(n_padded, np.inf)
        for first in range(0, n, _PIECE):
            last = min(first + _PIECE, n)
            piece = device.fetch(data, first * d, last * d, copied=False).reshape(-1, d)
            squares[first:last] = np.einsum("ij,ij->i", piece, piece, dtype=np.float64)
            if directions:
                device.store(normalised(piece), data, first * d)
        level = np.where(np.isinf(squares), squares, 0).astype(dtype)
        start = level if directions else (squares / 2).astype(dtype)
        largest = 1.0 if directions else float(np.sqrt(squares[:n].max(initial=0.0)))
        return cls(device, data, device.array(start), device.array(level), n, d, largest, unit)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the rows: float32 or float64."""
        return self.data.dtype

    @property
    def nbytes(self) -> int:
        """Number of bytes on the device."""
        return self.data.nbytes + self.start.nbytes + self.level.nbytes

    def compare(
        self, queries: npt.NDArray[np.float64], places: npt.NDArray[np.int64], kind: Kind, power: float
    ) -> npt.NDArray[np.float64]:
        """Compute the scores of some rows for each query in float64, from the differences of their values.

        Parameters
        ----------
        queries : numpy.ndarray of float64 of shape (m, n_features)
        places : numpy.ndarray of int64 of shape (m, room)
            -1 for no row.
        kind : Kind
        power : float

        Returns
        -------
        numpy.ndarray of float64 of shape (m, room)
            Of the kind "product" minus the product. Infinity where there is no row.
        """
        rows, d = self.data.host, self.n_features
        if not self.n_samples:
            return np.full(places.shape, np.inf)
        if rows is None:
            there = np.maximum(places, 0).ravel()
            rows, at = self._gathered(there), np.arange(there.size).reshape(places.shape)
            places = np.where(places < 0, places, at)
        rows = rows.reshape(-1, d)
        if kind == "powers":
            found = np.empty(places.shape)
            for i, (query, some) in enumerate(zip(queries, places, strict=True)):
                found[i] = (np.abs(rows[some] - query) ** power).sum(axis=1)
            found[places < 0] = np.inf
            return found
        found = compare_with(rows, queries, places, kind)
        return np.where(places < 0, found, -found) if kind == "product" else found

    def _gathered(self, places: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        device, d = self.device, self.n_features
        out = device.empty(places.size * d, self.dtype)
        if places.size:
            launch(
                device, _gather_kernel(self.dtype), -(-places.size * d // BLOCK), BLOCK,
                self.data, np.int64(d), device.array(places), np.int64(places.size * d), out,
            )  # fmt: skip
        return device.fetch(out, stop=places.size * d)


def normalised(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Divide rows by their norms, in their dtype; rows of zeros stay as they are."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    limits = np.finfo(np.float64)
    if (odd := ~((norms > np.sqrt(limits.tiny / limits.eps)) & (norms < np.inf))).any():  # squares may be inexact
        largest = np.abs(rows[odd]).max(axis=1, initial=0)
        if largest.any():
            rows = rows.copy()
            rows[odd] = np.ldexp(rows[odd], -np.frexp(largest)[1][:, None])
            norms[odd] = np.sqrt(np.einsum("ij,ij->i", rows[odd], rows[odd], dtype=np.float64))
    return (rows / np.where(norms == 0, 1, norms)[:, None]).astype(rows.dtype)


@cache
def _gather_kernel(dtype: np.dtype[Any]) -> Kernel:
    @kernel("T[] i8 i8* i8 T*", dtype)
    def gather(item, data, d, chosen, size, out):  # type: ignore[no-untyped-def]
        i = item.get_global_id(0)
        if i < size:
            out[index(i)] = data[index(chosen[index(i // d)] * d + i % d)]

    return gather


class _Queries:
    """Queries on the device, as the kernel reads them, and how the rows are shared out for them."""

    def __init__(self, index: Index, queries: npt.NDArray[Any], kind: Kind) -> None:
        device, d, dtype = index.device, index.n_features, index.dtype
        self.tile = _tile(dtype, device.is_cpu)
        step = self.tile.step
        n_tiles = -(-len(queries) // step)
        together = 1 if self.tile.spread or d * dtype.itemsize < _CHUNK_BYTES else _TOGETHER
        self.together = max(1, min(together, n_tiles, _TOGETHER_BYTES // (d * step * dtype.itemsize)))
        self.n_tiles = -(-n_tiles // self.together) * self.together
        padded = np.zeros((self.n_tiles * step, d), dtype)
        padded[: len(queries)] = -queries if kind == "product" else queries
        self.data = device.array(np.ascontiguousarray(padded.reshape(self.n_tiles, step, d).swapaxes(1, 2)))
        sets = self.n_tiles // self.together
        parts = min(-(-_GROUPS * device.compute_units // sets), -(-index.n_samples // _FEW))
        self.span = -(-index.n_samples // (parts * _RUN)) * _RUN
        self.parts = -(-index.n_samples // self.span)
        self.groups = self.n_tiles * self.parts

    def search(
        self, index: Index, kind: Kind, power: float, room: int, best: Array, places: Array, listing: bool
    ) -> None:
        """Run the kernel."""
        device, tile = index.device, self.tile
        groups = self.groups // self.together
        stage = device.empty(groups * (_RUN + 1) * tile.step, index.dtype)
        launch(
            device, _search_kernel(kind, index.dtype, tile, listing), groups, tile.items, self.data,
            np.int64(self.n_tiles), np.int64(self.together), np.int64(index.n_features), index.data,
            index.start if kind == "product" else index.level, np.int64(index.n_samples), np.int64(self.span),
            index.dtype.type(power), np.int64(room), stage, best, places,
        )  # fmt: skip


def nearest(
    index: Index, queries: npt.NDArray[Any], room: int, kind: Kind, power: float = 2.0
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Find the rows with the least scores for each query; of equal scores those that come first.

    Parameters
    ----------
    index : Index
    queries : numpy.ndarray of shape (m, n_features), m at least 1
        In the dtype of the index.
    room : int
        How many, at least 1.
    kind : Kind
    power : float
        Of the kind "powers".

    Returns
    -------
    scores : numpy.ndarray of shape (m, room), of the dtype of the index
        In their order. Infinity where there are no more rows.
    places : numpy.ndarray of int64 of shape (m, room)
        -1 where there are no more rows.
    """
    device, m = index.device, len(queries)
    if not index.n_samples:
        return np.full((m, room), np.inf, index.dtype), np.full((m, room), -1)
    packed = _Queries(index, queries, kind)
    size, parts, step = packed.groups * packed.tile.step * room, packed.parts, packed.tile.step
    best, places = device.empty(size, index.dtype), device.empty(size, np.int32)
    packed.search(index, kind, power, room, best, places, listing=False)

    def by_query(array: Array) -> npt.NDArray[Any]:
        found = device.fetch(array, copied=False).reshape(parts, packed.n_tiles * step, room)[:, :m]
        return np.array(found.swapaxes(0, 1), order="C").reshape(m, parts * room)

    scores, found = by_query(best), by_query(places).astype(np.int64)
    if parts > 1:
        order = np.argsort(scores, axis=1, kind="stable")[:, :room]
        scores, found = np.take_along_axis(scores, order, 1), np.take_along_axis(found, order, 1)
    return scores, found


def rounding_of(
    index: Index, norms: npt.NDArray[np.float64], others: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Bound how far rounding can move a score that is computed as a product.

    Parameters
    ----------
    index : Index
    norms : numpy.ndarray of float64 of shape (m,)
        Of the queries, which may be in float64, and are rounded too.
    others : numpy.ndarray of float64 of shape (m,)
        Of the rows, at most.
    """
    roundings = (index.n_features + 2) * float(np.finfo(index.dtype).eps) / 2
    with np.errstate(over="ignore"):
        lost = (index.n_features + 2) * float(np.finfo(index.dtype).tiny)  # of products that are below the range
        return roundings / (1 - roundings) * (others * others / 2 + norms * others) + lost


def within(
    index: Index, queries: npt.NDArray[Any], limit: npt.NDArray[Any], kind: Kind, power: float = 2.0
) -> list[npt.NDArray[np.int64]]:
    """Find, for each query, all rows whose scores are at most a limit, in the order of the rows.

    Parameters
    ----------
    index : Index
    queries : numpy.ndarray of shape (m, n_features), m at least 1
        In the dtype of the index.
    limit : numpy.ndarray of shape (m,)
    kind : Kind
    power : float
        Of the kind "powers".
    """
    device, m = index.device, len(queries)
    if not index.n_samples:
        return [np.empty(0, np.int64)] * m
    packed = _Queries(index, queries, kind)
    step, parts = packed.tile.step, packed.parts
    limits = np.full(packed.n_tiles * step, -np.inf, index.dtype)
    limits[:m] = limit
    every = np.arange(index.n_samples)  # within infinity, where scores may be infinite too
    best = device.array(np.tile(np.where(limits == np.inf, -np.inf, limits).astype(index.dtype), parts))
    room = _FIRST_ROOM
    while True:
        places = device.empty(packed.groups * step * (room + 1), np.int32)
        packed.search(index, kind, power, room, best, places, listing=True)
        found = device.fetch(places, copied=False).reshape(parts, packed.n_tiles * step, room + 1)[:, :m]
        most = int(found[:, :, 0].max())
        if most <= room:
            return [
                every
                if np.isinf(limits[i])
                else np.concatenate([part[1 : 1 + part[0]] for part in found[:, i]]).astype(np.int64)
                for i in range(m)
            ]
        if m > 1 and places.nbytes // (room + 1) * (most + 1) > _LIST_BYTES:
            halves = (slice(None, m // 2), slice(m // 2, None))
            return [some for half in halves for some in within(index, queries[half], limit[half], kind, power)]
        room = most  # counted, although there was no room for all


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    for dtype, is_cpu, listing in itertools.product(
        map(np.dtype, (np.float32, np.float64)), (True, False), (False, True)
    ):
        yield _gather_kernel(dtype)
        for kind in _KINDS:
            yield _search_kernel(kind, dtype, _tile(dtype, is_cpu), listing)
