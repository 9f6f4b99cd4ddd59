"""Sums over rows that are read for one pass: each core reads some rows, and adds them up while its cache holds them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.layout import BLOCK
from xpulab.kernels.on_cpu.host import at, functions
from xpulab.kernels.on_cpu.passing_functions import CHUNK
from xpulab.kernels.rows import Fill, Rows
from xpulab.kernels.runtime.device import Device

__all__ = ["facts_in_passing", "products_in_passing"]

_PIECE_BYTES = 1 << 21  # that a thread reads at a time: the last cache holds them, and the calls for it are few
_VECTOR_BYTES = 64


def products_in_passing(
    device: Device,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    fill: Fill,
    shift: npt.NDArray[Any],
    targets: Rows | None = None,
    target_shift: npt.NDArray[Any] | None = None,
    sample_weight: npt.NDArray[Any] | None = None,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Compute `products.gram` of rows that are read for this pass only, on a CPU device.

    Parameters
    ----------
    device : Device
    shape : tuple of two ints
        (n_samples, n_features).
    dtype : numpy.dtype
        float32 or float64.
    fill : callable
        Called in several threads, as by `Rows.read`.
    shift, target_shift : numpy.ndarray of shape (n_features,) and (n_targets,)
        Brought to the dtype of the rows; near the mean, for precision.
    targets : Rows, optional
        As many, in the same dtype.
    sample_weight : numpy.ndarray of shape (n_samples,) or None
        None of them negative.

    Returns
    -------
    products, totals
        As from `gram`.
    """
    dtype, d = device.check_dtype(dtype), shape[1]
    size = _VECTOR_BYTES // dtype.itemsize
    t = 0 if targets is None else targets.n_features
    width, panel = d + t + 1, 2 * size
    middle, other_middle = np.zeros(d + size, dtype), np.zeros(t + 1, dtype)
    middle[:d] = shift
    of_targets = np.zeros(1, dtype)
    if targets is not None:
        device.wait()
        assert targets.data.host is not None
        of_targets, other_middle[:t] = targets.data.host, target_shift
    roots = np.ones(1, dtype) if sample_weight is None else np.sqrt(sample_weight.astype(dtype, copy=False))
    padded, left = -(-width // panel) * panel, 8 if device.wide else 4
    code, threads = functions(dtype).products_of_rows, _threads(device)
    stages = [np.zeros(padded * CHUNK, dtype) for _ in range(threads)]
    sums = [np.zeros(padded * (padded + panel), dtype) for _ in range(threads)]
    found = [np.zeros(padded * (padded + panel)) for _ in range(threads)]

    def add(slot: int, part: npt.NDArray[Any], first: int) -> bool:
        code(
            at(part, dtype), len(part), d, at(middle, dtype), at(of_targets, dtype), t, at(other_middle, dtype),
            at(roots, dtype), sample_weight is not None, first, device.wide, at(stages[slot], dtype),
            at(sums[slot], dtype), at(found[slot], np.dtype(np.float64)),
        )  # fmt: skip
        return True

    _for_each_piece(device, shape, dtype, fill, add, threads)
    whole = _unpacked(np.sum(found, axis=0), width, panel, left)
    return whole[: d + t, : d + t], whole[: d + t, d + t].copy()


def facts_in_passing(
    device: Device, shape: tuple[int, int], dtype: np.dtype[Any], fill: Fill, shift: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float64], ...] | None:
    """Find sums, sums of squares, minima and maxima of the columns of rows that are read for this pass only.

    Parameters
    ----------
    device, shape, dtype, fill, shift
        As for `products_in_passing`.

    Returns
    -------
    totals, squares, minimum, maximum : numpy.ndarray of float64 of shape (n_features,)
        The first two are sums of ``x - shift`` and of its squares. Soon after a sum that is not finite, nothing more is
        read. None instead if the device is no CPU, or if a row is shorter than a vector.
    """
    dtype, d = device.check_dtype(dtype), shape[1]
    size = _VECTOR_BYTES // dtype.itemsize
    if not device.is_cpu or d < size:
        return None
    middle, threads = np.ascontiguousarray(shift, dtype), _threads(device)
    rooms = [np.empty(16 * size, dtype) for _ in range(threads)]
    found = np.zeros((threads, 4, d))
    found[:, 2], found[:, 3] = np.inf, -np.inf
    code = functions(dtype).facts_of_rows

    def add(slot: int, part: npt.NDArray[Any], first: int) -> bool:
        of_slot = found[slot]
        code(
            at(part, dtype), len(part), d, at(middle, dtype), device.wide, at(rooms[slot], dtype),
            at(of_slot, np.dtype(np.float64)),
        )  # fmt: skip
        return bool(np.isfinite(of_slot[0]).all())

    _for_each_piece(device, shape, dtype, fill, add, threads)
    return *found[:, :2].sum(axis=0), found[:, 2].min(axis=0), found[:, 3].max(axis=0)


def _unpacked(sums: npt.NDArray[np.float64], width: int, panel: int, left: int) -> npt.NDArray[np.float64]:
    """Return the symmetric matrix of products from the sums of its tiles (left, panel).

    The tiles of the first panel come first; those of a panel have columns up to its last one on the left side.
    """
    padded, begin = -(-width // panel) * panel, 0
    found = np.zeros((padded, padded))
    for last in range(panel, padded + 1, panel):
        n = -(-min(last, width) // left) * left
        found[:n, last - panel : last] = sums[begin : begin + n * panel].reshape(n, panel)
        begin += n * panel
    found = found[:width, :width]
    np.copyto(found, found.T, where=np.tri(width, k=-1, dtype=bool))
    return found


def _threads(device: Device) -> int:
    return min(device.compute_units, 8)


def _for_each_piece(
    device: Device,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    fill: Fill,
    add: Callable[[int, npt.NDArray[Any], int], bool],
    threads: int,
) -> None:
    """Read rows in pieces, with some threads, and call `add` with a thread's number, its next rows and their index.

    The reading ends where `add` returns False. Each thread has the same pieces at each call, so that sums do not depend
    on how fast the threads are. The array of the rows is in longer memory: a vector may be read at its end.
    """
    n, d = shape
    ended = threading.Event()
    step = BLOCK * max(1, _PIECE_BYTES // (BLOCK * d * dtype.itemsize))

    def of_thread(slot: int) -> float:
        memory, seconds = np.zeros(min(step, n) * d + _VECTOR_BYTES, dtype), 0.0
        for first in range(slot * step, n, threads * step):
            if ended.is_set():
                break
            there = min(step, n - first)
            part = memory[: there * d].reshape(there, d)
            fill(first, part)
            started = time.perf_counter()
            if not add(slot, part, first):
                ended.set()
            seconds += time.perf_counter() - started
        return seconds

    if threads == 1:
        device.kernel_seconds += of_thread(0)
        return
    with ThreadPoolExecutor(threads, "xpulab-read") as pool:
        device.kernel_seconds += max(pool.map(of_thread, range(threads)))
