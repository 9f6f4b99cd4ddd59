"""The rows nearest to each query: distances, and the list of the nearest, in one kernel.

`neighbors_search` has the kernel. A score is a number that grows with the distance, such as ``|x - y|^2``, or, a third
to a half faster, but less exact, ``|y|^2 / 2 - x.y``. `rounding_of` bounds the error of the latter [1]_.

References
----------
.. [1] N. J. Higham, "Accuracy and stability of numerical algorithms", SIAM 2002, section 3.1: what rounding does to an
   inner product of n numbers is at most n u / (1 - n u) times that of their absolute values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.layout import BLOCK
from xpulab.kernels.neighbors_search import (
    CHUNK_BYTES,
    RUN,
    STAGED,
    Kind,
    gather_kernel,
    launch_shape_for,
    search_kernel,
)
from xpulab.kernels.on_cpu.host import compare_with
from xpulab.kernels.on_cpu.trees import Tree
from xpulab.kernels.row_passes import in_order
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.device import Array, Device
from xpulab.kernels.runtime.launch import launch
from xpulab.kernels.scaling import divided

__all__ = ["Index", "Kind", "nearest", "normalised", "rounding_of", "within"]

#: Tiles of queries for which the rows are read once, and the bytes of these tiles, which a core's second cache holds.
#: Short rows come from the caches in any case, and more lists would take their place.
_TOGETHER, _TOGETHER_BYTES = 6, 512 << 10
_GROUPS = 8  # a compute unit gets at least so many, so that all end at about the same time
_FIRST_ROOM = 64  # rows that are listed of a query; where there are more, they are listed again with enough room
_LIST_BYTES = 256 << 20  # of the lists of several queries; where more is needed, some queries come after the others
_PIECE = 4096  # rows that the CPU reads at a time
_FEW = 4096  # rows of a span at least: each span has lists of its own, which fill anew


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
    whole : list of Tree
        A tree of the rows of all ranks, once there is one.
    """

    device: Device
    data: Array
    start: Array
    level: Array
    n_samples: int
    n_features: int
    largest: float
    unit: float = 1.0
    whole: list[Tree] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Rows, directions: bool = False, unit: float = 1.0) -> Index:
        """Build an index of rows. For the cosine they are divided by their norms, and a score is minus the cosine."""
        rows = divided(rows, unit)
        device, n, d, dtype = rows.device, rows.n_samples, rows.n_features, rows.dtype
        n_padded = -(-n // RUN) * RUN
        data = in_order(rows, n_padded)
        squares = np.full(n_padded, np.inf)
        for first in range(0, n, _PIECE):
            last = min(first + _PIECE, n)
            piece = device.fetch(data, first * d, last * d, copied=False).reshape(-1, d)
            squares[first:last] = np.einsum("ij,ij->i", piece, piece, dtype=np.float64)
            if directions:
                device.store(normalised(piece), data, first * d)
        level = np.where(np.isinf(squares), squares, 0).astype(dtype)
        with np.errstate(over="ignore"):  # then the rows are divided by a unit
            start = level if directions else (squares / 2).astype(dtype)
        largest = 1.0 if directions else float(np.sqrt(squares[:n].max(initial=0.0)))
        return cls(device, data, device.array(start), device.array(level), n, d, largest, unit)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the rows: float32 or float64."""
        return self.data.dtype

    @property
    def nbytes(self) -> int:
        """Number of bytes on the device, and of the tree."""
        return self.data.nbytes + self.start.nbytes + self.level.nbytes + sum(tree.nbytes for tree in self.whole)

    @cached_property
    def of_integers(self) -> bool:
        """Whether all numbers of the rows are integers."""
        step, end = _PIECE * self.n_features, self.n_samples * self.n_features
        pieces = (self.device.fetch(self.data, at, min(at + step, end), copied=False) for at in range(0, end, step))
        return all(bool((piece == np.rint(piece)).all()) for piece in pieces)

    def compare(
        self, queries: npt.NDArray[np.float64], indices: npt.NDArray[np.int64], kind: Kind, power: float
    ) -> npt.NDArray[np.float64]:
        """Compute the scores of some rows for each query in float64, from the differences of their values.

        Parameters
        ----------
        queries : numpy.ndarray of float64 of shape (m, n_features)
        indices : numpy.ndarray of int64 of shape (m, room)
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
            return np.full(indices.shape, np.inf)
        if rows is None:
            there = np.maximum(indices, 0).ravel()
            rows = self._gathered(there)
            indices = np.where(indices < 0, indices, np.arange(there.size).reshape(indices.shape))
        rows = rows.reshape(-1, d)
        if kind == "powers":
            found = np.empty(indices.shape)
            for i, (query, some) in enumerate(zip(queries, indices, strict=True)):
                found[i] = (np.abs(rows[some] - query) ** power).sum(axis=1)
            found[indices < 0] = np.inf
            return found
        found = compare_with(rows, queries, indices, kind)
        return np.where(indices < 0, found, -found) if kind == "product" else found

    def _gathered(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        device, d = self.device, self.n_features
        out = device.empty(indices.size * d, self.dtype)
        if indices.size:
            launch(
                device, gather_kernel(self.dtype), -(-indices.size * d // BLOCK), BLOCK,
                self.data, np.int64(d), device.array(indices), np.int64(indices.size * d), out,
            )  # fmt: skip
        return device.fetch(out, stop=indices.size * d)


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


class _Queries:
    """Queries on the device, as the kernel reads them, and how the rows are shared out for them."""

    def __init__(self, index: Index, queries: npt.NDArray[Any], kind: Kind) -> None:
        device, d, dtype = index.device, index.n_features, index.dtype
        self.shape = launch_shape_for(dtype, device.is_cpu)
        step = self.shape.step
        n_tiles = -(-len(queries) // step)
        together = 1 if self.shape.spread or d * dtype.itemsize < CHUNK_BYTES else _TOGETHER
        most = max(1, min(together, n_tiles, _TOGETHER_BYTES // (d * step * dtype.itemsize)))
        # Tiles without queries fill up the last group: as few as possible, with as many tiles together as possible.
        self.together = min(range(most, most // 2, -1), key=lambda tiles: -n_tiles % tiles)
        self.n_tiles = -(-n_tiles // self.together) * self.together
        padded = np.zeros((self.n_tiles * step, d), dtype)
        padded[: len(queries)] = -queries if kind == "product" else queries
        self.data = device.array(np.ascontiguousarray(padded.reshape(self.n_tiles, step, d).swapaxes(1, 2)))
        sets = self.n_tiles // self.together
        parts = min(-(-_GROUPS * device.compute_units // sets), -(-index.n_samples // _FEW))
        self.span = -(-index.n_samples // (parts * RUN)) * RUN
        self.parts = -(-index.n_samples // self.span)
        self.groups = self.n_tiles * self.parts

    def search(
        self, index: Index, kind: Kind, power: float, room: int, best: Array, indices: Array, listing: bool
    ) -> None:
        """Run the kernel."""
        device, shape = index.device, self.shape
        groups = self.groups // self.together
        stage = device.empty(groups * STAGED * shape.step, index.dtype)
        launch(
            device, search_kernel(kind, index.dtype, shape, listing), groups, shape.items, self.data,
            np.int64(self.n_tiles), np.int64(self.together), np.int64(index.n_features), index.data,
            index.start if kind == "product" else index.level, np.int64(index.n_samples), np.int64(self.span),
            index.dtype.type(power), np.int64(room), stage, best, indices,
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
    indices : numpy.ndarray of int64 of shape (m, room)
        -1 where there are no more rows.
    """
    device, m = index.device, len(queries)
    if not index.n_samples:
        return np.full((m, room), np.inf, index.dtype), np.full((m, room), -1)
    packed = _Queries(index, queries, kind)
    size, parts, step = packed.groups * packed.shape.step * room, packed.parts, packed.shape.step
    best, indices = device.empty(size, index.dtype), device.empty(size, np.int32)
    packed.search(index, kind, power, room, best, indices, listing=False)

    def by_query(array: Array) -> npt.NDArray[Any]:
        found = device.fetch(array, copied=False).reshape(parts, packed.n_tiles * step, room)[:, :m]
        return np.array(found.swapaxes(0, 1), order="C").reshape(m, parts * room)

    scores, found = by_query(best), by_query(indices).astype(np.int64)
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
    step, parts = packed.shape.step, packed.parts
    limits = np.full(packed.n_tiles * step, -np.inf, index.dtype)
    limits[:m] = limit
    every = np.arange(index.n_samples)  # within infinity, where scores may be infinite too
    best = device.array(np.tile(np.where(limits == np.inf, -np.inf, limits).astype(index.dtype), parts))
    room = _FIRST_ROOM
    while True:
        indices = device.empty(packed.groups * step * (room + 1), np.int32)
        packed.search(index, kind, power, room, best, indices, listing=True)
        found = device.fetch(indices, copied=False).reshape(parts, packed.n_tiles * step, room + 1)[:, :m]
        most = int(found[:, :, 0].max())
        if most <= room:
            return [
                every
                if np.isinf(limits[i])
                else np.concatenate([part[1 : 1 + part[0]] for part in found[:, i]]).astype(np.int64)
                for i in range(m)
            ]
        if m > 1 and indices.nbytes // (room + 1) * (most + 1) > _LIST_BYTES:
            halves = (slice(None, m // 2), slice(m // 2, None))
            return [some for half in halves for some in within(index, queries[half], limit[half], kind, power)]
        room = most  # counted, although there was no room for all
