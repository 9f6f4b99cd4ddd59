"""Rows on the device, and the simple passes over them: selections, column sums, and the search for NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.language import (
    DeviceFunction,
    Kernel,
    device_function,
    group_barrier,
    index,
    kernel,
    transpose,
)
from xpulab.kernels.runtime.device import Array, Device
from xpulab.kernels.runtime.launch import launch
from xpulab.sharing.memory import SharedBlock

__all__ = [
    "BLOCK",
    "SPAN",
    "Fill",
    "Rows",
    "column_kernels",
    "column_sums",
    "consecutive",
    "copying",
    "every_kernel",
    "find_nonfinite",
    "in_order",
    "lay_out_kernels",
    "read_pieces",
    "shift_for",
    "take",
    "weighted",
]

#: Number of rows of a block. Row i, feature f is at [i // BLOCK, f, i % BLOCK], so that neighbouring work-items read
#: neighbouring numbers, and a work-group reads contiguous memory.
BLOCK = 64
#: Number of rows of a partial sum. A work-item adds at most this many numbers; then one work-item or the host adds the
#: partial sums. So chains of additions are short, and their rounding error does not grow with the number of rows.
SPAN = 1024
_LANES = 16  # work-items of a work-group that adds up columns of a span
_STAGE_BYTES = 8 << 20
_READ_BYTES = 1 << 20  # that a thread reads at a time, and that its core's cache holds until they are laid out
_READERS = 8  # threads that read at the same time
_PASSING_BYTES = 8 << 20
_LEAST_SQUARE = 4  # rows and columns that are transposed at a time
_FEW = 64  # up to this many rows, a copy by the host takes less time than the launch of a kernel


#: Fills an array with rows: called with the index of the first of them and with the array.
Fill = Callable[[int, npt.NDArray[Any]], None]


@dataclass(frozen=True, eq=False)
class Rows:
    """Dense rows on a device. They never change.

    Attributes
    ----------
    device : Device
    data : Array of shape (n_blocks * n_features * BLOCK,)
        The rows in blocks. The last block is padded with zeros.
    n_samples, n_features : int
        Numbers of rows and of columns.
    sample_weight : Array of shape (n_blocks * BLOCK,) or None
        Weights in the dtype of the rows, padded with zeros; None if all are 1.
    """

    device: Device
    data: Array
    n_samples: int
    n_features: int
    sample_weight: Array | None

    @classmethod
    def upload(cls, device: Device, block: npt.NDArray[Any], sample_weight: npt.NDArray[Any] | None = None) -> Rows:
        """Copy rows to the device, a few MiB at a time.

        Parameters
        ----------
        device : Device
        block : numpy.ndarray of shape (n_samples, n_features), float32 or float64
            An array with any strides. It may be read-only, mapped from a file, or have no rows.
        sample_weight : numpy.ndarray of shape (n_samples,) or None
            Converted to the dtype of the rows.

        Returns
        -------
        Rows

        Raises
        ------
        ValueError
            If the shapes do not fit.
        DeviceError
            If the dtype is not one that the device computes with, or its memory is full.
        """
        if block.ndim != 2 or block.shape[1] == 0:
            raise ValueError(f"an array of shape {block.shape} was given, (n_samples, n_features) expected")

        return cls.read(device, block.shape, block.dtype, copying(block), sample_weight)[0]

    @classmethod
    def copied(
        cls,
        device: Device,
        address: int,
        shape: tuple[int, int],
        dtype: npt.DTypeLike,
    ) -> Rows:
        """Copy rows in C order from memory that the device can read. They do not pass through the host.

        Parameters
        ----------
        device : Device
        address : int
            Address of the first row.
        shape : tuple of two ints
            (n_samples, n_features).
        dtype : numpy.dtype
            float32 or float64.

        Returns
        -------
        Rows

        Raises
        ------
        ValueError, DeviceError
            As `upload`.
        """
        dtype, (n_samples, n_features) = device.check_dtype(dtype), shape
        if n_samples == 0 or n_features == 0:
            return cls.upload(device, np.empty(shape, dtype))
        n_blocks = -(-n_samples // BLOCK)
        data = device.empty(n_blocks * n_features * BLOCK, dtype)
        device.store_from(address, n_samples * n_features, data)
        _lay_out(device, data, 0, n_blocks, n_samples, n_features)
        device.wait()
        return cls(device, data, n_samples, n_features, None)

    @classmethod
    def read(
        cls,
        device: Device,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        fill: Fill,
        sample_weight: npt.NDArray[Any] | None = None,
        threads: int | None = None,
    ) -> tuple[Rows, bool]:
        """Read rows in pieces, with a thread for each core, and arrange them while they are in the cores' caches.

        Parameters
        ----------
        device : Device
        shape : tuple of two ints
            (n_samples, n_features).
        dtype : numpy.dtype
            float32 or float64.
        fill : callable
            Called in several threads; with one thread, in the order of the rows.
        sample_weight : numpy.ndarray of shape (n_samples,) or None
            Converted to the dtype of the rows.
        threads : int, optional
            Number of threads; by default one for each core.

        Returns
        -------
        rows : Rows
        finite : bool
            True if there is no NaN and no infinity. False if there may be any: a sum of large numbers is infinite, too.

        Raises
        ------
        ValueError
            If the weights do not fit.
        DeviceError
            If the dtype is not one that the device computes with, or its memory is full.
        """
        dtype, (n_samples, n_features) = device.check_dtype(dtype), shape
        data = device.recycled(-(-n_samples // BLOCK) * n_features * BLOCK, dtype)
        finite = True
        for stage, first, n, piece_finite in read_pieces(device, (n_samples, n_features), dtype, fill, threads=threads):
            finite = finite and piece_finite
            _arrange(device, stage, data, first // BLOCK, n, n_features)
        return cls._of(device, data, n_samples, n_features, sample_weight), finite

    @classmethod
    def passing(
        cls,
        device: Device,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        fill: Fill,
        sample_weight: npt.NDArray[Any] | None = None,
    ) -> Iterator[tuple[Rows, int]]:
        """Read rows as `read` does, but keep a few MiB of them at a time, which the cores' last cache holds.

        NaN and infinity are not looked for: sums over the rows show them.

        Parameters
        ----------
        device, shape, dtype, fill, sample_weight
            As for `read`.

        Yields
        ------
        rows : Rows
            The next rows. They replace the rows before them, after the kernels launched so far.
        first : int
            Index of the first of them, a multiple of BLOCK.

        Raises
        ------
        ValueError, DeviceError
            As `read`.
        """
        dtype, (n_samples, n_features) = device.check_dtype(dtype), shape
        weights = None if sample_weight is None else _padded(device, sample_weight, n_samples, dtype)

        def part(first: int, n: int) -> Rows:
            assert data is not None
            some = None if weights is None else weights.part(first, -(-n // BLOCK) * BLOCK)
            return cls(device, data, n, n_features, some)

        data: Array | None
        data, most, begin, there = None, 0, 0, 0
        for stage, first, n, _ in read_pieces(device, (n_samples, n_features), dtype, fill, checked=False):
            if data is None:
                most = n * max(1, min(_PASSING_BYTES // (n * n_features * dtype.itemsize), -(-n_samples // n)))
                data = device.recycled(-(-most // BLOCK) * BLOCK * n_features, dtype)
            elif there == most:
                yield part(begin, there), begin
                begin, there = first, 0
            _arrange(device, stage, data, there // BLOCK, n, n_features)
            there += n
        if data is not None:
            yield part(begin, there), begin

    @classmethod
    def adopt(
        cls,
        device: Device,
        block: SharedBlock,
        shape: tuple[int, int],
        dtype: npt.DTypeLike,
        sample_weight: npt.NDArray[Any] | None = None,
    ) -> Rows:
        """Use the rows at the start of a shared block.

        If the device uses the memory of the block (see `Device.adopt`), the rows are rearranged in place, so the block
        no longer has them in C order. Otherwise the device gets a copy.

        Parameters
        ----------
        device : Device
        block : SharedBlock
            A writable block, which may be closed afterwards.
        shape : tuple of two ints
            (n_samples, n_features).
        dtype : numpy.dtype
            float32 or float64.
        sample_weight : numpy.ndarray of shape (n_samples,) or None
            Converted to the dtype of the rows.

        Returns
        -------
        Rows

        Raises
        ------
        ValueError, DeviceError
            As `upload`.
        """
        dtype, (n_samples, n_features) = device.check_dtype(dtype), shape
        if n_samples == 0 or n_features == 0:
            return cls.upload(device, np.empty(shape, dtype), sample_weight)
        n_blocks = -(-n_samples // BLOCK)
        data = device.adopt(block, n_samples * n_features, n_blocks * n_features * BLOCK, dtype)
        _lay_out(device, data, 0, n_blocks, n_samples, n_features)
        device.wait()
        return cls._of(device, data, n_samples, n_features, sample_weight)

    @classmethod
    def _of(
        cls, device: Device, data: Array, n_samples: int, n_features: int, weights: npt.NDArray[Any] | None
    ) -> Rows:
        padded = None if weights is None else _padded(device, weights, n_samples, data.dtype)
        return cls(device, data, n_samples, n_features, padded)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the rows: float32 or float64."""
        return self.data.dtype

    @property
    def n_blocks(self) -> int:
        """Number of blocks; the last one may be partly filled."""
        return -(-self.n_samples // BLOCK)

    @property
    def n_spans(self) -> int:
        """Number of partial sums."""
        return -(-self.n_samples // SPAN)

    @property
    def shared(self) -> bool:
        """Whether the memory is a block that the notebook shares."""
        return self.data.adopted

    @property
    def nbytes(self) -> int:
        """Number of bytes on the device."""
        return self.data.nbytes + (0 if self.sample_weight is None else self.sample_weight.nbytes)

    def part(self, first: int, n: int) -> Rows:
        """Return `n` of the rows, not copied, from row `first` on, which is a multiple of BLOCK."""
        size = -(-n // BLOCK) * BLOCK
        weights = None if self.sample_weight is None else self.sample_weight.part(first, size)
        data = self.data.part(first * self.n_features, size * self.n_features)
        return Rows(self.device, data, n, self.n_features, weights)

    def shift_or_zero(self, shift: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        """Convert a shift (n_features,) to the dtype of the rows; return zeros for None."""
        if shift is None:
            return np.zeros(self.n_features, self.dtype)
        return np.ascontiguousarray(shift, self.dtype)

    def host_weights(self) -> npt.NDArray[np.float64]:
        """Return the weights (n_samples,) in float64, which are ones if the rows have no weights."""
        if self.sample_weight is None:
            return np.ones(self.n_samples)
        return self.device.fetch(self.sample_weight, stop=self.n_samples, copied=False).astype(np.float64)

    def weights_or(self, other: Array) -> tuple[Array, np.int32]:
        """Return two arguments for kernels that read weights if there are any: the weights and 1, or an array and 0."""
        return (other, np.int32(0)) if self.sample_weight is None else (self.sample_weight, np.int32(1))


def read_pieces(
    device: Device,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    fill: Fill,
    checked: bool = True,
    threads: int | None = None,
) -> Iterator[tuple[Array, int, int, bool]]:
    """Read rows in pieces, with a thread for each core, into memory that the cores' caches hold.

    Parameters
    ----------
    device : Device
    shape : tuple of two ints
        (n_samples, n_features).
    dtype : numpy.dtype
    fill : callable
        Called in several threads.
    checked : bool
        Whether to look for NaN and infinity.
    threads : int, optional
        Number of threads; by default one for each core.

    Yields
    ------
    stage : Array
        Rows in C order, with at least `lanes` more elements of any value. The next piece replaces them, after the
        kernels launched so far.
    first, n : int
        Index of the first row, and number of rows. `first` is a multiple of BLOCK.
    finite : bool
        False if there may be NaN or infinity: a sum of large numbers is infinite, too.
    """
    n_samples, n_features = shape
    threads = threads or (min(device.compute_units, _READERS) if device.is_cpu else 1)
    step = BLOCK * max(1, min(_READ_BYTES // (BLOCK * n_features * dtype.itemsize), -(-n_samples // BLOCK)))
    stage = device.empty(step * threads * n_features + device.lanes, dtype)
    host = stage.host if stage.host is not None else np.empty(stage.size, dtype)
    pieces = host[: step * threads * n_features].reshape(threads, step, n_features)

    def read(place: int, first: int) -> bool:
        part = pieces[place, : min(step, n_samples - first)]
        fill(first, part)
        with np.errstate(over="ignore", invalid="ignore"):
            return not checked or bool(np.isfinite(part.sum()))

    with ThreadPoolExecutor(threads, "xpulab-read") as pool:
        run = pool.map if threads > 1 else map
        for first in range(0, n_samples, step * threads):
            starts = range(first, min(first + step * threads, n_samples), step)
            finite = all(list(run(read, range(threads), starts)))
            there = min(step * threads, n_samples - first)
            if stage.host is None:
                device.store(host[: there * n_features], stage)
            yield stage, first, there, finite
            device.wait()


def copying(block: npt.NDArray[Any]) -> Fill:
    """Return a function for `Rows.read` that copies rows of an array."""

    def fill(first: int, part: npt.NDArray[Any]) -> None:
        part[...] = block[first : first + len(part)]

    return fill


def weighted(rows: Rows, sample_weight: npt.NDArray[Any]) -> Rows:
    """Return the same rows, not copied, with other weights (n_samples,)."""
    return replace(rows, sample_weight=_padded(rows.device, sample_weight, rows.n_samples, rows.dtype))


def _padded(device: Device, weights: npt.NDArray[Any], n: int, dtype: np.dtype[Any]) -> Array:
    """Return weights of n rows on the device, with zeros after the last row."""
    if weights.shape != (n,):
        raise ValueError(f"weights of shape {weights.shape} were given for {n} rows")
    padded = np.zeros(-(-n // BLOCK) * BLOCK, dtype)
    padded[:n] = weights
    return device.array(padded)


def shift_for(rows: Rows, mean: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the mean of all rows, which is subtracted from each row for precision."""
    return mean.astype(rows.dtype)


@cache
def _lay_out_kernel(dtype: np.dtype[Any], lanes: int, rows_at_once: int) -> Kernel:
    zero = dtype.type(0)

    @kernel("T[] i8 i8 i8 i8 T*", dtype)
    def lay_out(item, data, first, n_blocks, n, n_features, stage):  # type: ignore[no-untyped-def]
        # The rows of a block take the same memory in both orders, so each block is rearranged in place.
        worker = item.get_group().get_group_id(0)
        workers = item.get_group().get_group_range(0)
        lane = item.get_local_id(0)
        size = n_features * BLOCK
        mine = worker * size
        for block in range(first + worker * n_blocks // workers, first + (worker + 1) * n_blocks // workers):
            there = min(n - block * BLOCK, BLOCK) * n_features
            for i in range(lane, there, lanes):
                stage[index(mine + i)] = data[index(block * size + i)]
            # Each work-item writes the same positions of the stage in both loops, so no barrier is needed in between.
            for i in range((there + lanes - 1 - lane) // lanes * lanes + lane, size, lanes):
                stage[index(mine + i)] = zero
            group_barrier(item.get_group())
            for row in range(lane * rows_at_once, BLOCK, lanes * rows_at_once):
                for f in range(n_features):
                    for r in range(rows_at_once):
                        data[index(block * size + f * BLOCK + row + r)] = stage[
                            index(mine + (row + r) * n_features + f)
                        ]
            group_barrier(item.get_group())

    return lay_out


def _lay_out_cut(device: Device) -> tuple[int, int]:
    """Return the number of work-items of a work-group, and of rows that each of them rearranges at a time.

    On a CPU, one work-item rearranges a whole block, eight rows at a time. This takes a third of the time of
    neighbouring work-items, which would read distant numbers with gather instructions.
    """
    return (1, 8) if device.is_cpu else (BLOCK, 1)


def lay_out_kernels(device: Device, dtype: np.dtype[Any]) -> tuple[Kernel, Kernel]:
    """Return the kernels that rearrange rows into blocks: in place, and from other memory."""
    cut = _lay_out_cut(device)
    return _lay_out_kernel(dtype, *cut), _arrange_kernel(
        dtype, *cut, _square(dtype, device.wide) if device.is_cpu else 0
    )


def _square(dtype: np.dtype[Any], wide: bool) -> int:
    """Return how many numbers a register of a CPU has."""
    return (64 if wide else 32) // dtype.itemsize


def _lay_out(device: Device, data: Array, first: int, n_blocks: int, n: int, n_features: int) -> None:
    """Rearrange rows in C order into blocks, in place: `n_blocks` blocks from `first` on, of `n` rows in all."""
    lanes, _ = _lay_out_cut(device)
    block_bytes = n_features * BLOCK * data.dtype.itemsize
    workers = min(n_blocks, 8 * device.compute_units, max(1, _STAGE_BYTES // block_bytes))
    stage = device.empty(workers * n_features * BLOCK, data.dtype)
    launch(
        device, lay_out_kernels(device, data.dtype)[0], workers, lanes,
        data, np.int64(first), np.int64(n_blocks), np.int64(n), np.int64(n_features), stage,
    )  # fmt: skip


def _order_kernel_of(device: Device, dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel that copies blocks of rows into C order."""
    return _order_kernel(dtype, *_lay_out_cut(device), _square(dtype, device.wide) if device.is_cpu else 0)


def _smaller(square: int) -> tuple[int, int]:
    """Return the sizes of squares for fewer columns than `square`."""
    least = min(square, _LEAST_SQUARE)
    return max(square // 2, least), max(square // 4, least)


@cache
def _transposing(size: int) -> DeviceFunction:
    """Return a function for a CPU's kernels that transposes a table of at least so many rows and columns."""

    @device_function
    def in_squares(source, first, step, target, to, next_row, n_rows, n_columns):  # type: ignore[no-untyped-def]
        # The last squares may overlap those before them.
        for row in range(0, n_rows, size):
            r = min(row, n_rows - size)
            for column in range(0, n_columns, size):
                c = min(column, n_columns - size)
                transpose(source, first + r * step + c, step, target, to + c * next_row + r, next_row, size)

    return in_squares


@cache
def _arrange_kernel(dtype: np.dtype[Any], lanes: int, rows_at_once: int, square: int) -> Kernel:
    zero = dtype.type(0)
    half, quarter = _smaller(square)
    transpose_whole, transpose_halves, transpose_quarters = map(_transposing, (square, half, quarter))

    @kernel("T* T[] i8 i8 i8", dtype)
    def arrange(item, given, data, first, n, n_features):  # type: ignore[no-untyped-def]
        # Each work-group writes one block, with zeros after the last row. A CPU transposes squares of a whole block.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        there = n - group * BLOCK
        columns = 0
        if square and there >= BLOCK:
            columns = n_features
            at = group * BLOCK * n_features
            to = (first + group) * BLOCK * n_features
            if n_features >= square:
                transpose_whole(given, at, n_features, data, to, BLOCK, BLOCK, n_features)
            elif n_features >= half:
                transpose_halves(given, at, n_features, data, to, BLOCK, BLOCK, n_features)
            elif n_features >= quarter:
                transpose_quarters(given, at, n_features, data, to, BLOCK, BLOCK, n_features)
            elif n_features == 1:
                for row in range(BLOCK):
                    data[index(to + row)] = given[index(at + row)]
            else:
                columns = 0
        for row in range(lane * rows_at_once, BLOCK, lanes * rows_at_once):
            at = group * BLOCK * n_features + row * n_features
            to = (first + group) * BLOCK * n_features + row
            if row + rows_at_once <= there:
                for f in range(columns, n_features):
                    for r in range(rows_at_once):
                        data[index(to + f * BLOCK + r)] = given[index(at + r * n_features + f)]
            else:
                for f in range(n_features):
                    for r in range(rows_at_once):
                        x = zero
                        if row + r < there:
                            x = given[index(at + r * n_features + f)]
                        data[index(to + f * BLOCK + r)] = x

    return arrange


def _arrange(device: Device, given: Array, data: Array, first: int, n: int, n_features: int) -> None:
    """Write `n` rows of C order into blocks, from block `first` on."""
    lanes, _ = _lay_out_cut(device)
    launch(
        device, lay_out_kernels(device, data.dtype)[1], -(-n // BLOCK), lanes,
        given, data, np.int64(first), np.int64(n), np.int64(n_features),
    )  # fmt: skip


@cache
def _order_kernel(dtype: np.dtype[Any], lanes: int, rows_at_once: int, square: int) -> Kernel:
    half, quarter = _smaller(square)
    transpose_whole, transpose_halves, transpose_quarters = map(_transposing, (square, half, quarter))

    @kernel("T* T[] i8 i8 i8", dtype)
    def order(item, data, out, first, n, n_features):  # type: ignore[no-untyped-def]
        # The reverse of `arrange`: each work-group copies the rows of one block into C order.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        there = min(n - group * BLOCK, BLOCK)
        at = (first + group) * BLOCK * n_features
        to = group * BLOCK * n_features
        columns = 0
        if square and there == BLOCK:
            columns = n_features
            if n_features >= square:
                transpose_whole(data, at, BLOCK, out, to, n_features, n_features, BLOCK)
            elif n_features >= half:
                transpose_halves(data, at, BLOCK, out, to, n_features, n_features, BLOCK)
            elif n_features >= quarter:
                transpose_quarters(data, at, BLOCK, out, to, n_features, n_features, BLOCK)
            elif n_features == 1:
                for row in range(BLOCK):
                    out[index(to + row)] = data[index(at + row)]
            else:
                columns = 0
        for row in range(lane * rows_at_once, there, lanes * rows_at_once):
            for f in range(columns, n_features):
                for r in range(rows_at_once):
                    if row + r < there:
                        out[index(to + (row + r) * n_features + f)] = data[index(at + f * BLOCK + row + r)]

    return order


@cache
def _take_kernel(dtype: np.dtype[Any]) -> Kernel:
    @kernel("T[] i8 i8* i8 T* T*", dtype)
    def take_rows(item, data, n_features, chosen, n, shift, out):  # type: ignore[no-untyped-def]
        i = item.get_global_id(0)
        if i < n:
            row = chosen[index(i)]
            at = row // BLOCK * (BLOCK * n_features) + row % BLOCK
            for f in range(n_features):
                out[index(i * n_features + f)] = data[index(at + f * BLOCK)] - shift[index(f)]

    return take_rows


def take(rows: Rows, index: npt.ArrayLike, shift: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """Copy some rows to the host.

    Parameters
    ----------
    rows : Rows
    index : array-like of int of shape (m,)
        Indices of the rows, from 0 to n_samples - 1.
    shift : numpy.ndarray of shape (n_features,) or None
        Subtracted from each row.

    Returns
    -------
    numpy.ndarray of shape (m, n_features), in the dtype of the rows

    Raises
    ------
    IndexError
        If an index is out of range.
    """
    positions = np.asarray(index, np.int64)
    m = len(positions)
    if m == 0:
        return np.empty((0, rows.n_features), rows.dtype)
    if positions.min() < 0 or positions.max() >= rows.n_samples:
        raise IndexError(f"rows {positions.min()} to {positions.max()} were asked for, of {rows.n_samples}")
    device = rows.device
    if rows.data.host is not None and m <= _FEW:
        device.wait()
        blocks = rows.data.host[: rows.n_blocks * rows.n_features * BLOCK].reshape(-1, rows.n_features, BLOCK)
        return blocks[positions // BLOCK, :, positions % BLOCK] - rows.shift_or_zero(shift)
    out = device.empty(m * rows.n_features, rows.dtype)
    launch(
        device, _take_kernel(rows.dtype), -(-m // BLOCK), BLOCK,
        rows.data, np.int64(rows.n_features), device.array(positions), np.int64(m),
        device.array(rows.shift_or_zero(shift)), out,
    )  # fmt: skip
    return device.fetch(out).reshape(m, rows.n_features)


def consecutive(rows: Rows, first: int, last: int) -> npt.NDArray[Any]:
    """Copy the rows from `first` up to, not including, `last` to the host.

    Parameters
    ----------
    rows : Rows
    first, last : int
        From 0 to n_samples.

    Returns
    -------
    numpy.ndarray of shape (last - first, n_features), in the dtype of the rows
    """
    device, d, begin = rows.device, rows.n_features, first // BLOCK
    n = last - begin * BLOCK
    if last <= first:
        return np.empty((0, d), rows.dtype)
    out = device.scratch("rows in C order", n * d, rows.dtype)
    lanes, _ = _lay_out_cut(device)
    launch(
        device, _order_kernel_of(device, rows.dtype), -(-n // BLOCK), lanes,
        rows.data, out, np.int64(begin), np.int64(n), np.int64(d),
    )  # fmt: skip
    return device.fetch(out, start=(first - begin * BLOCK) * d, stop=n * d).reshape(last - first, d)


def in_order(rows: Rows, n: int) -> Array:
    """Return the rows one after the other on the device, as (n, n_features), and zeros after them."""
    device, d = rows.device, rows.n_features
    out = device.full(n * d, 0, rows.dtype)
    if rows.n_samples:
        launch(
            device, _take_kernel(rows.dtype), -(-rows.n_samples // BLOCK), BLOCK,
            rows.data, np.int64(d), device.array(np.arange(rows.n_samples)), np.int64(rows.n_samples),
            device.array(np.zeros(d, rows.dtype)), out,
        )  # fmt: skip
        device.wait()  # the rows may go now
    return out


@cache
def _column_kernel(dtype: np.dtype[Any], squared: bool) -> Kernel:
    blocks_of_span = SPAN // BLOCK
    zero = dtype.type(0)

    @kernel("T[] i8 i8 i8 T* T*", dtype)
    def column(item, data, n_features, n, first, shift, partial):  # type: ignore[no-untyped-def]
        # A work-group reads a span in the order of memory. partial: for each span and feature, a sum for each lane.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        mine = group * n_features * _LANES + lane
        for f in range(n_features):
            partial[index(mine + f * _LANES)] = zero
        begin = (first + group) * blocks_of_span
        for block in range(begin, min(begin + blocks_of_span, (n + (BLOCK - 1)) // BLOCK)):
            for f in range(n_features):
                middle = shift[index(f)]
                total = zero
                for part in range(BLOCK // _LANES):
                    x = data[index((block * n_features + f) * BLOCK + part * _LANES + lane)] - middle
                    x = x if block * BLOCK + part * _LANES + lane < n else zero
                    if squared:
                        total += x * x
                    else:
                        total += x
                partial[index(mine + f * _LANES)] += total

    return column


def column_kernels(dtype: np.dtype[Any]) -> tuple[Kernel, Kernel]:
    """Return the kernels of `column_sums`."""
    return _column_kernel(dtype, False), _column_kernel(dtype, True)


def column_sums(rows: Rows, shift: npt.NDArray[Any] | None = None, squared: bool = False) -> npt.NDArray[np.float64]:
    """Sum ``x - shift``, or its square, over the rows for each column. Weights are not used.

    Parameters
    ----------
    rows : Rows
    shift : numpy.ndarray of shape (n_features,) or None
        Subtracted from each row.
    squared : bool
        Whether to sum the squares.

    Returns
    -------
    numpy.ndarray of float64 of shape (n_features,)
    """
    d = rows.n_features
    if rows.n_samples == 0:
        return np.zeros(d)
    step = min(rows.n_spans, max(1, _STAGE_BYTES // (d * _LANES * rows.dtype.itemsize)))
    partial = rows.device.empty(step * d * _LANES, rows.dtype)
    middle = rows.device.array(rows.shift_or_zero(shift))
    sums = np.zeros(d)
    for first in range(0, rows.n_spans, step):
        n_spans = min(step, rows.n_spans - first)
        launch(
            rows.device, _column_kernel(rows.dtype, squared), n_spans, _LANES,
            rows.data, np.int64(d), np.int64(rows.n_samples), np.int64(first), middle, partial,
        )  # fmt: skip
        found = rows.device.fetch(partial, stop=n_spans * d * _LANES, copied=False)
        sums += found.reshape(n_spans, d, _LANES).sum(axis=(0, 2), dtype=np.float64)
    return sums


@cache
def _finite_kernel(dtype: np.dtype[Any]) -> Kernel:
    @kernel("T[] i8 T i4*", dtype)
    def finite(item, data, n_features, zero, bad):  # type: ignore[no-untyped-def]
        block = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        total = zero
        for f in range(n_features):
            total += data[index((block * n_features + f) * BLOCK + lane)] * zero  # 0 * inf is NaN
        bad[index(block * BLOCK + lane)] = 0 if total == zero else 1

    return finite


def find_nonfinite(rows: Rows) -> int:
    """Return the index on this rank of the first row with NaN or infinity, or -1 if there is none."""
    if rows.n_samples == 0:
        return -1
    bad = rows.device.empty(rows.n_blocks * BLOCK, np.int32)
    launch(
        rows.device, _finite_kernel(rows.dtype), rows.n_blocks, BLOCK,
        rows.data, np.int64(rows.n_features), rows.dtype.type(0), bad,
    )  # fmt: skip
    flags = rows.device.fetch(bad)
    first = int(flags.argmax())
    return first if flags[first] else -1


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    for dtype in map(np.dtype, (np.float32, np.float64)):
        yield from (_lay_out_kernel(dtype, *cut) for cut in ((1, 8), (BLOCK, 1)))
        yield from (_arrange_kernel(dtype, 1, 8, _square(dtype, wide)) for wide in (False, True))
        yield _arrange_kernel(dtype, BLOCK, 1, 0)
        yield from (_order_kernel(dtype, 1, 8, _square(dtype, wide)) for wide in (False, True))
        yield _order_kernel(dtype, BLOCK, 1, 0)
        yield from (_column_kernel(dtype, squared) for squared in (False, True))
        yield from (_take_kernel(dtype), _finite_kernel(dtype))
