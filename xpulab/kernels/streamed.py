"""Rows of which a device keeps what fits, and reads the others again in each pass."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.layout import BLOCK, arrange
from xpulab.kernels.row_passes import column_sums, find_nonfinite, take
from xpulab.kernels.rows import Fill, Rows, weighted
from xpulab.kernels.runtime.device import Array, Device
from xpulab.kernels.scaling import divided, pieces_on_cpu

__all__ = ["PIECE_BYTES", "Reading", "RowsInParts", "StreamedRows", "changed", "near_rows", "on_cpu", "parts_of"]

#: Bytes of the rows that come at a time. Shorter parts cost launches, and longer ones begin later.
PIECE_BYTES = 16 << 20

_READ_BYTES = 1 << 20  # that a thread reads at a time
_SINGLE = 256  # rows of which each is read by itself
_READERS = 8  # threads that read at the same time


@dataclass
class Reading:
    """What a rank has read of the rows that it does not keep.

    Attributes
    ----------
    kept, rows : int
        Number of rows that the device keeps, and of all rows of the rank.
    passes : int
        Number of passes in which the others were read.
    nbytes : int
        Bytes of these rows in memory, in all passes.
    seconds : float
        Seconds of these passes.
    waited : float
        Seconds in which the device had nothing to do, because the next rows were not there.
    most : int
        Number of passes that the task makes at most; 0 if that is not known.
    """

    kept: int
    rows: int
    passes: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    most: int = 0


class RowsInParts(ABC):
    """Dense rows that come in parts, in the same order in each pass.

    Attributes
    ----------
    device : Device
    n_samples, n_features : int
        Numbers of rows and of columns.
    dtype : numpy.dtype
    """

    device: Device
    n_samples: int

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Number of columns."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the rows: float32 or float64."""

    @abstractmethod
    def parts(self) -> Iterator[tuple[int, Rows]]:
        """Yield the rows for one pass, in parts: the index of the first row, and the rows."""


@dataclass(frozen=True, eq=False)
class ChangedRows(RowsInParts):
    """Rows that are computed from others in each pass, a part at a time."""

    device: Device
    n_samples: int
    _rows: RowsInParts
    _change: Callable[[int, Rows], Rows]
    _n_features: int

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self._n_features

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the rows: float32 or float64."""
        return self._rows.dtype

    def parts(self) -> Iterator[tuple[int, Rows]]:
        """Yield the rows for one pass, in parts: the index of the first row, and the rows."""
        for first, part in self._rows.parts():
            yield first, self._change(first, part)


def changed(
    rows: Rows | RowsInParts, change: Callable[[int, Rows], Rows], n_features: int | None = None
) -> Rows | RowsInParts:
    """Return what a function makes of rows, or of each part of them.

    Parameters
    ----------
    rows : Rows or RowsInParts
    change : callable
        Called with the index of the first row of a part, and with the part. It returns as many rows.
    n_features : int, optional
        Number of columns that it returns; that of the rows by default.
    """
    if isinstance(rows, Rows):
        return change(0, rows)
    return ChangedRows(rows.device, rows.n_samples, rows, change, n_features or rows.n_features)


@dataclass(frozen=True, eq=False)
class StreamedRows(RowsInParts):
    """Dense rows that come in parts: those that the device keeps, and then the others, which are read in each pass.

    While kernels compute with one part, threads read the next one. The order of the parts is always the same.

    Attributes
    ----------
    device : Device
    kept : Rows
        The first rows, whose number is a multiple of BLOCK, or that of all rows.
    n_samples, n_features : int
        Numbers of rows and of columns.
    dtype : numpy.dtype
    sample_weight : numpy.ndarray of shape (n_samples,) or None
        On the host.
    reading : Reading
        What has been read again.
    unit : float
        A power of two, by which the numbers are divided when they come; those that the device keeps are.
    """

    device: Device
    kept: Rows
    n_samples: int
    sample_weight: npt.NDArray[Any] | None
    reading: Reading
    unit: float
    _opened: Callable[[], contextlib.AbstractContextManager[Fill]]
    _buffers: _Buffers
    _sums: list[npt.NDArray[np.float64]] = field(default_factory=list)  # of the columns, after a pass
    _places: npt.NDArray[np.int64] | None = None  # of these rows among those that are read, if they are some of them
    _copied: Callable[[Rows, npt.NDArray[np.int64]], Rows] | None = None  # copies rows at some places

    @classmethod
    def read(
        cls,
        device: Device,
        shape: tuple[int, int],
        n_kept: int,
        dtype: npt.DTypeLike,
        opened: Callable[[], contextlib.AbstractContextManager[Fill]],
        sample_weight: npt.NDArray[Any] | None = None,
        by_columns: bool = False,
        piece_bytes: int | None = None,
    ) -> StreamedRows:
        """Read the rows that the device keeps.

        Parameters
        ----------
        device : Device
        shape : tuple of two ints
            (n_samples, n_features).
        n_kept : int
            Number of rows that the device keeps, at most.
        dtype : numpy.dtype
            float32 or float64.
        opened : callable
            Opens a context with a function that fills arrays with rows, for one pass.
        sample_weight, by_columns
            As for `Rows.read`.
        piece_bytes : int, optional
            Bytes of a part of the other rows.

        Raises
        ------
        ValueError, DeviceError
            As `Rows.read`.
        """
        n, d = shape
        n_kept = n if n_kept >= n else n_kept // BLOCK * BLOCK
        weights = None if sample_weight is None else sample_weight[:n_kept]
        with opened() if n_kept else contextlib.nullcontext(lambda first, part: None) as fill:
            kept, _ = Rows.read(device, (n_kept, d), dtype, fill, weights, by_columns=by_columns)
        most = (piece_bytes or PIECE_BYTES) // (d * kept.dtype.itemsize * BLOCK) * BLOCK
        buffers = _Buffers(device, min(n - n_kept, max(BLOCK, most)), d, kept.dtype, by_columns)
        return cls(device, kept, n, sample_weight, Reading(n_kept, n), 1.0, opened, buffers)

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.kept.n_features

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the rows: float32 or float64."""
        return self.kept.dtype

    @property
    def nbytes(self) -> int:
        """Number of bytes on the device."""
        return self.kept.nbytes + self._buffers.nbytes

    def parts(self) -> Iterator[tuple[int, Rows]]:
        """Yield the rows for one pass, in parts: the index of the first row, and the rows.

        Each part but the kept one is replaced after the next one has come. A part that comes again in a later pass
        may be the same object with other rows.
        """
        n_kept, total, step = self.reading.kept, self.reading.rows, self._buffers.most
        known, sums = bool(self._sums), np.zeros(self.n_features)
        bounds = [(first, min(step, total - first)) for first in range(n_kept, total, step)]
        if self._places is not None:
            bounds = [(first, n) for first, n in bounds if len(self._chosen(first, n))]
        if not bounds:
            yield 0, self.kept
            return
        threads, began = min(self.device.compute_units, _READERS), time.perf_counter()
        with self._opened() as fill, ThreadPoolExecutor(threads, "xpulab-read") as pool:
            try:
                coming = self._buffers.begin(pool, fill, 0, *bounds[0])
                if self.kept.n_samples:
                    sums += 0 if known else _sums_of(self.kept)
                    yield 0, self.kept
                for number, (first, n) in enumerate(bounds):
                    self.device.wait()  # for the kernels that read the buffer which is filled next
                    started = time.perf_counter()
                    for future in coming:
                        future.result()
                    self.reading.waited += time.perf_counter() - started
                    part = self._buffers.brought(number, n)
                    if number + 1 < len(bounds):
                        coming = self._buffers.begin(pool, fill, number + 1, *bounds[number + 1])
                    if self._places is not None and self._copied is not None:
                        chosen = self._chosen(first, n)
                        part = self._copied(part, chosen - first)
                        first, n = int(np.searchsorted(self._places, first)), len(chosen)
                    if self.sample_weight is not None:
                        part = weighted(part, self.sample_weight[first : first + n])
                    part = divided(part, self.unit)
                    sums += 0 if known else _sums_of(part)
                    yield first, part
            finally:
                pool.shutdown(cancel_futures=True)
        if not known:
            self._sums[:] = [sums]
        self.reading.passes += 1
        self.reading.seconds += time.perf_counter() - began
        self.reading.nbytes += sum(n for _, n in bounds) * self.n_features * self.dtype.itemsize

    def _chosen(self, first: int, n: int) -> npt.NDArray[np.int64]:
        """Return the places of these rows among `n` rows that are read, from row `first` on."""
        assert self._places is not None
        return self._places[slice(*np.searchsorted(self._places, [first, first + n]))]

    @property
    def are_some(self) -> bool:
        """Whether these are some of the rows that are read, so that each part is a copy."""
        return self._places is not None

    def subset(
        self, places: npt.NDArray[np.int64], copied: Callable[[Rows, npt.NDArray[np.int64]], Rows]
    ) -> StreamedRows:
        """Return the rows at these places, which are in ascending order; `copied` copies rows on the device."""
        kept = copied(self.kept, places[: np.searchsorted(places, self.kept.n_samples)])
        weights = None if self.sample_weight is None else np.ascontiguousarray(self.sample_weight[places])
        among = places if self._places is None else self._places[places]
        return replace(
            self, kept=kept, n_samples=len(places), sample_weight=weights, _sums=[], _places=among, _copied=copied
        )

    def gathered(self) -> Rows:
        """Return all of these rows on the device, after one pass."""
        found = np.empty((self.n_samples, self.n_features), self.dtype)
        for first, some in on_cpu(self):
            found[first : first + len(some)] = some
        return Rows.upload(self.device, found, self.sample_weight)

    def look(self) -> bool:
        """Return False if there may be NaN or infinity, as the sums of the columns show, which the first pass finds."""
        self.column_sums()
        return bool(np.isfinite(self._sums[0]).all())

    def column_sums(self, shift: npt.NDArray[Any] | None = None, squared: bool = False) -> npt.NDArray[np.float64]:
        """Sum the columns as `row_passes.column_sums`; those without shift and square are known after a pass."""
        if shift is None and not squared:
            if not self._sums:
                for _ in self.parts():
                    pass
            if not self._sums:  # the device keeps all rows
                self._sums[:] = [_sums_of(self.kept)]
            return self._sums[0]
        sums = np.zeros(self.n_features)
        with np.errstate(over="ignore", invalid="ignore"):
            for _, part in self.parts():
                sums += column_sums(part, shift, squared)
        return sums

    def find_nonfinite(self) -> int:
        """Return the index on this rank of the first row with NaN or infinity, or -1 if there is none."""
        for first, part in self.parts():
            if (found := find_nonfinite(part)) >= 0:
                return first + found
        return -1

    def take(self, index: npt.ArrayLike, shift: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Copy some rows to the CPU's memory, as `row_passes.take`.

        Of those that are not kept, a few are read one by one, and many in a pass.
        """
        positions = np.asarray(index, np.int64)
        found = np.empty((len(positions), self.n_features), self.dtype)
        near = positions < self.kept.n_samples
        found[near] = take(self.kept, positions[near])
        far = np.flatnonzero(~near)
        if len(far) > _SINGLE:
            order = far[np.argsort(positions[far], kind="stable")]
            ascending = positions[order]
            for first, part in self.parts():
                here = slice(*np.searchsorted(ascending, [first, first + part.n_samples]))
                if part is not self.kept:
                    found[order[here]] = take(part, ascending[here] - first)
        elif len(far):
            with self._opened() as fill:
                for at in far[np.argsort(positions[far], kind="stable")]:  # each block is decoded once
                    place = positions[at] if self._places is None else self._places[positions[at]]
                    fill(int(place), found[at : at + 1])
            found[far] /= self.dtype.type(self.unit)
        return found - self.kept.shift_or_zero(shift)

    def weights_on_cpu(self) -> npt.NDArray[np.float64]:
        """Return the weights (n_samples,) in float64, which are ones if the rows have no weights."""
        return np.ones(self.n_samples) if self.sample_weight is None else self.sample_weight.astype(np.float64)

    def weighted(self, sample_weight: npt.NDArray[Any]) -> StreamedRows:
        """Return the same rows with other weights (n_samples,)."""
        kept = weighted(self.kept, sample_weight[: self.kept.n_samples])
        return replace(self, kept=kept, sample_weight=sample_weight)

    def divided(self, unit: float) -> StreamedRows:
        """Return the same rows, divided by a power of two."""
        if unit == 1:
            return self
        return replace(self, kept=divided(self.kept, unit), unit=self.unit * unit, _sums=[])


def _sums_of(rows: Rows) -> npt.NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):
        return column_sums(rows)


class _Buffers:
    """Memory for two parts: kernels compute with one, while threads fill the other.

    Where the host shares the device's memory, and the source has each column in memory of its own, the threads write
    into blocks. Otherwise they write rows in C order, which a kernel brings into blocks.

    Attributes
    ----------
    most : int
        Number of rows of a part.
    """

    def __init__(self, device: Device, most: int, n_features: int, dtype: np.dtype[Any], by_columns: bool) -> None:
        self.most = max(1, most)
        self._device, self._d, self._dtype = device, n_features, dtype
        self._in_blocks = by_columns and device.shares_memory
        self._size = -(-most // BLOCK) * BLOCK * n_features
        self._parts: dict[tuple[int, int], Rows] = {}  # (buffer, number of rows) -> the rows, which kernels know again
        self._data: list[Array] = []
        self._stages: list[npt.NDArray[Any]] = []
        self._staged: list[Array] = []

    @property
    def nbytes(self) -> int:
        """Number of bytes on the device."""
        return sum(array.nbytes for array in (*self._data, *self._staged))

    def _allocate(self) -> None:
        device, size, dtype = self._device, self._size, self._dtype
        self._data = [device.recycled(size, dtype) for _ in range(1 + self._in_blocks)]
        if self._in_blocks:
            return
        self._staged = [device.empty(size + device.lanes, dtype) for _ in range(1 + device.shares_memory)]
        shared = [array.host for array in self._staged if array.host is not None]
        self._stages = shared or [np.empty(size, dtype) for _ in range(2)]

    def begin(self, pool: ThreadPoolExecutor, fill: Fill, number: int, first: int, n: int) -> list[Future[None]]:
        """Have threads fill a buffer with the part of this number: `n` rows from row `first` on."""
        if not self._data:
            self._allocate()
        row_bytes = self._d * self._dtype.itemsize
        if not self._in_blocks:
            rows = self._stages[number % 2][: n * self._d].reshape(n, self._d)
            step = max(1, _READ_BYTES // row_bytes)
            return [pool.submit(fill, first + at, rows[at : at + step]) for at in range(0, n, step)]
        memory = self._data[number % 2].host
        assert memory is not None
        whole, rest = divmod(n, BLOCK)
        blocks = memory[: (whole + bool(rest)) * self._d * BLOCK].reshape(-1, self._d, BLOCK)
        step = max(1, _READ_BYTES // (BLOCK * row_bytes))

        def fill_last() -> None:
            last = np.empty((rest, self._d), self._dtype)
            fill(first + whole * BLOCK, last)
            blocks[whole, :, :rest], blocks[whole, :, rest:] = last.T, 0

        reads = [
            pool.submit(fill, first + at * BLOCK, blocks[at : min(at + step, whole)].transpose(0, 2, 1))
            for at in range(0, whole, step)
        ]
        return [*reads, pool.submit(fill_last)] if rest else reads

    def brought(self, number: int, n: int) -> Rows:
        """Return the part of this number, which threads have read."""
        buffer = number % 2
        if not self._in_blocks:
            stage = self._staged[buffer % len(self._staged)]
            if stage.host is None:
                self._device.store(self._stages[buffer][: n * self._d], stage)
            arrange(self._device, stage, self._data[0], 0, n, self._d)
            buffer = 0
        if (buffer, n) not in self._parts:
            self._parts[buffer, n] = Rows(self._device, self._data[buffer], n, self._d, None)
        return self._parts[buffer, n]


def parts_of(rows: Rows | RowsInParts) -> Iterator[tuple[int, Rows]]:
    """Yield rows for one pass: the index of the first row of each part, and the rows of the part."""
    if isinstance(rows, Rows):
        yield 0, rows
    else:
        yield from rows.parts()


def on_cpu(rows: Rows | RowsInParts) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield rows in the CPU's memory for one pass, some at a time: the index of the first, and the rows."""
    for first, part in parts_of(rows):
        for some in pieces_on_cpu(part):
            yield first, some
            first += len(some)


def near_rows(rows: Rows | StreamedRows) -> int:
    """Return how many of the first rows can be looked at one by one, without much reading."""
    if isinstance(rows, StreamedRows):
        return rows.kept.n_samples or min(BLOCK, rows.n_samples)
    return rows.n_samples
