"""Rows on the device: how they get there, and their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.layout import BLOCK, arrange, lay_out
from xpulab.kernels.runtime.device import Array, Device
from xpulab.sharing.memory import SharedBlock

__all__ = ["SPAN", "Fill", "Rows", "are_few", "copying", "read_pieces", "shift_for", "weighted"]

#: Number of rows of a partial sum. A work-item adds at most this many numbers; then one work-item or the CPU adds the
#: partial sums. So chains of additions are short, and their rounding error does not grow with the number of rows.
SPAN = 1024
_READ_BYTES = 1 << 20  # that a thread reads at a time, and that its core's cache holds until they are laid out
_READERS = 8  # threads that read at the same time
_STREAM_BYTES = 8 << 20
_FEW = 1 << 16  # multiply-adds that one core does in about the time of a launch

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
        """Copy rows in C order from memory that the device can read. They do not pass through the CPU.

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
        lay_out(device, data, 0, n_blocks, n_samples, n_features)
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
        by_columns: bool = False,
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
        by_columns : bool
            Whether `fill` has each column in memory of its own. If the host shares the device's memory, it then writes
            into the blocks themselves, with arrays of shape (n_blocks, BLOCK, n_features).

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
        if device.shares_memory and are_few(n_samples, n_features):
            few = np.empty((n_samples, n_features), dtype)
            fill(0, few)
            with np.errstate(over="ignore", invalid="ignore"):
                finite = bool(np.isfinite(few.sum()))
            return cls._of(device, _laid_out(device, few), n_samples, n_features, sample_weight), finite
        data = device.recycled(-(-n_samples // BLOCK) * n_features * BLOCK, dtype)
        if by_columns and data.host is not None:
            device.wait()
            finite = _fill_blocks(device, data.host, n_features, fill, 0, n_samples)
            return cls._of(device, data, n_samples, n_features, sample_weight), finite
        finite = True
        for stage, first, n, piece_finite in read_pieces(device, (n_samples, n_features), dtype, fill, threads=threads):
            finite = finite and piece_finite
            arrange(device, stage, data, first // BLOCK, n, n_features)
        return cls._of(device, data, n_samples, n_features, sample_weight), finite

    @classmethod
    def stream(
        cls,
        device: Device,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        fill: Fill,
        sample_weight: npt.NDArray[Any] | None = None,
        by_columns: bool = False,
    ) -> Iterator[tuple[Rows, int]]:
        """Read rows as `read` does, but keep a few MiB of them at a time, which the last cache of the cores holds.

        NaN and infinity are not looked for: sums over the rows show them.

        Parameters
        ----------
        device, shape, dtype, fill, sample_weight, by_columns
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
            of_part = None if weights is None else weights.part(first, -(-n // BLOCK) * BLOCK)
            return cls(device, data, n, n_features, of_part)

        data: Array | None
        if by_columns and device.shares_memory and n_samples:
            most = max(1, _STREAM_BYTES // (n_features * dtype.itemsize * BLOCK)) * BLOCK
            data = device.recycled(-(-min(most, n_samples) // BLOCK) * BLOCK * n_features, dtype)
            assert data.host is not None
            for begin in range(0, n_samples, most):
                device.wait()
                there = min(most, n_samples - begin)
                _fill_blocks(device, data.host, n_features, fill, begin, there)
                yield part(begin, there), begin
            return
        data, most, begin, there = None, 0, 0, 0
        for stage, first, n, _ in read_pieces(device, (n_samples, n_features), dtype, fill, find_nonfinite=False):
            if data is None:
                most = n * max(1, min(_STREAM_BYTES // (n * n_features * dtype.itemsize), -(-n_samples // n)))
                data = device.recycled(-(-most // BLOCK) * BLOCK * n_features, dtype)
            elif there == most:
                yield part(begin, there), begin
                begin, there = first, 0
            arrange(device, stage, data, there // BLOCK, n, n_features)
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
        if device.shares_memory and n_samples * n_features <= _FEW:
            data = _laid_out(device, block.array(shape, dtype))
            return cls._of(device, data, n_samples, n_features, sample_weight)
        n_blocks = -(-n_samples // BLOCK)
        data = device.adopt(block, n_samples * n_features, n_blocks * n_features * BLOCK, dtype)
        lay_out(device, data, 0, n_blocks, n_samples, n_features)
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

    def are_few(self, k: int = 1) -> bool:
        """Return whether the CPU can pass over them, k numbers at a time, and takes less time than a kernel."""
        return self.data.host is not None and are_few(self.n_samples, self.n_features, k)

    def columns_of_few(self) -> npt.NDArray[Any]:
        """Copy the columns of rows that `are_few`: (n_features, n_samples)."""
        self.device.wait()
        assert self.data.host is not None
        blocks = self.data.host[: self.n_blocks * self.n_features * BLOCK].reshape(-1, self.n_features, BLOCK)
        return blocks.transpose(1, 0, 2).reshape(self.n_features, -1)[:, : self.n_samples]

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

    def weights_on_cpu(self) -> npt.NDArray[np.float64]:
        """Return the weights (n_samples,) in float64, which are ones if the rows have no weights."""
        if self.sample_weight is None:
            return np.ones(self.n_samples)
        return self.device.fetch(self.sample_weight, stop=self.n_samples, copied=False).astype(np.float64)

    def weights_or(self, other: Array) -> tuple[Array, np.int32]:
        """Return two arguments for kernels that read weights if there are any: the weights and 1, or an array and 0."""
        return (other, np.int32(0)) if self.sample_weight is None else (self.sample_weight, np.int32(1))


def are_few(n_samples: int, n_features: int, k: int = 1) -> bool:
    """Return whether the CPU passes over so many rows, k numbers at a time, in less time than a kernel takes.

    A launch takes 30 µs, and afterwards a thread of the CPU device uses the core for 0.15 ms more, while the ranks
    meet. Then the kernel computes whole blocks of rows: of 3 rows of 64 it takes 21 times as long as these.
    """
    padded = -(-n_samples // BLOCK) * BLOCK
    return n_samples > 0 and n_samples * n_features * k * n_samples <= _FEW * padded


def read_pieces(
    device: Device,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    fill: Fill,
    find_nonfinite: bool = True,
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
    find_nonfinite : bool
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
    threads = max(1, min(threads, -(-n_samples // step)))
    stage = device.recycled(step * threads * n_features + device.lanes, dtype)
    memory = stage.host if stage.host is not None else np.empty(stage.size, dtype)
    pieces = memory[: step * threads * n_features].reshape(threads, step, n_features)

    def read(piece: int, first: int) -> bool:
        part = pieces[piece, : min(step, n_samples - first)]
        fill(first, part)
        with np.errstate(over="ignore", invalid="ignore"):
            return not find_nonfinite or bool(np.isfinite(part.sum()))

    with ThreadPoolExecutor(threads, "xpulab-read") if threads > 1 else nullcontext() as pool:
        run = map if pool is None else pool.map
        for first in range(0, n_samples, step * threads):
            starts = range(first, min(first + step * threads, n_samples), step)
            finite = all(list(run(read, range(threads), starts)))
            there = min(step * threads, n_samples - first)
            if stage.host is None:
                device.store(memory[: there * n_features], stage)
            yield stage, first, there, finite
            device.wait()


def _laid_out(device: Device, few: npt.NDArray[Any]) -> Array:
    """Copy a few rows (n, n_features) into blocks in memory that the CPU shares with the device, without a kernel."""
    (n, d), whole = few.shape, len(few) // BLOCK * BLOCK
    data = device.recycled(-(-n // BLOCK) * d * BLOCK, few.dtype)
    assert data.host is not None
    blocks = data.host.reshape(-1, d, BLOCK)
    blocks[: whole // BLOCK] = few[:whole].reshape(-1, BLOCK, d).transpose(0, 2, 1)
    if whole < n:
        blocks[-1, :, : n - whole] = few[whole:].T
        blocks[-1, :, n - whole :] = 0
    return data


def _fill_blocks(
    device: Device, memory: npt.NDArray[Any], n_features: int, fill: Fill, begin: int, n_samples: int
) -> bool:
    """Have rows written into blocks of a device's memory, in several threads; return False if there may be NaN."""
    whole, rest = divmod(n_samples, BLOCK)
    blocks = memory[: (whole + bool(rest)) * n_features * BLOCK].reshape(-1, n_features, BLOCK)
    step = max(1, _READ_BYTES // (BLOCK * n_features * memory.itemsize))

    def read(first: int) -> bool:
        part = blocks[first : min(first + step, whole)]
        fill(begin + first * BLOCK, part.transpose(0, 2, 1))
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(part.sum()))

    threads = min(device.compute_units, _READERS, -(-whole // step))
    with ThreadPoolExecutor(threads, "xpulab-read") if threads > 1 else nullcontext() as pool:
        run = map if pool is None else pool.map
        finite = all(list(run(read, range(0, whole, step))))
    if rest:
        last = np.empty((rest, n_features), memory.dtype)
        fill(begin + whole * BLOCK, last)
        blocks[whole, :, :rest], blocks[whole, :, rest:] = last.T, 0
        with np.errstate(over="ignore", invalid="ignore"):
            finite = finite and bool(np.isfinite(last.sum()))
    return finite


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
