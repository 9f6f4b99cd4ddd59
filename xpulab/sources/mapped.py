"""Rows in a file that is mapped into memory, as numpy.save writes it."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.sources.source import Column, Fill, RowSource
from xpulab.sources.states import file_state

__all__ = ["MappedFile", "copying_from", "mapped"]


@dataclass(frozen=True)
class MappedFile(RowSource):
    """Rows in a file that is mapped into memory.

    Attributes
    ----------
    path : str
    state : list of int
        `file_state` when the call began.
    shape : tuple of int
    dtype : numpy.dtype
    offset : int
        Bytes in front of the rows.
    order : {"C", "F"}
    """

    path: str
    state: list[int]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    order: str

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def columns(self) -> Sequence[Column]:
        """The columns, which have no names."""
        return [Column(None, self.dtype.name, self.dtype)] * math.prod(self.shape[1:])

    @property
    def files(self) -> Sequence[str]:
        """Path of the file."""
        return (self.path,)

    @contextlib.contextmanager
    def reading(self, start: int, stop: int, columns: Sequence[int]) -> Iterator[Fill]:
        """Open a context in which rows are copied from their mapping."""
        yield copying_from(self.open()[start:stop], columns)

    def require_unchanged(self) -> None:
        """Raise ValueError if the file has changed since the call began."""
        # Reading mapped pages beyond the end of the file would kill this process.
        has, needs = os.path.getsize(self.path), self.offset + math.prod(self.shape) * self.dtype.itemsize
        if has < needs:
            raise ValueError(
                f"{self.path} has {has:,} bytes, and the rows of the memory-mapped X end at {needs:,}; it was written "
                "to since: map it again"
            )
        if file_state(self.path) != self.state:
            raise ValueError(
                f"{self.path} was written to or replaced since the call began; end what writes to it, and map it again"
            )

    def on_this_host(self) -> MappedFile:
        """Return this source with the state of the file of this host."""
        return replace(self, state=file_state(self.path))

    def open(self) -> npt.NDArray[Any]:
        """Return all rows, mapped from the file.

        Raises
        ------
        ValueError
            If the file has changed since the call began.
        """
        self.require_unchanged()
        rows: npt.NDArray[Any] = np.memmap(self.path, self.dtype, "r", self.offset, self.shape, self.order)  # type: ignore[call-overload]
        return rows


def copying_from(rows: npt.NDArray[Any], columns: Sequence[int]) -> Fill:
    """Return a function that fills arrays with rows and columns of an array."""
    some = None if list(columns) == list(range(rows.shape[1])) else list(columns)

    def fill(first: int, part: npt.NDArray[Any]) -> None:
        these = rows[first : first + math.prod(part.shape[:-1])]
        with np.errstate(over="ignore"):
            np.copyto(part, (these if some is None else these[:, some]).reshape(part.shape), casting="same_kind")

    return fill


def mapped(X: object) -> MappedFile | None:
    """Return the file of a memory-mapped array, which the engines read themselves.

    Parameters
    ----------
    X : array-like

    Returns
    -------
    MappedFile or None
        None if X is not a file mapped as float32 or float64 in C or Fortran order.

    Raises
    ------
    ValueError
        If the file was removed or replaced since it was mapped, so that the engines would read other rows.
    """
    if not isinstance(X, np.memmap) or X.ndim != 2 or X.dtype not in (np.float32, np.float64) or not X.size:
        return None
    if X.filename is None or X.mode == "c" or not X.flags.forc:  # "c": the file lacks changes of the array
        return None
    whole = X
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    address = X.__array_interface__["data"][0]
    offset = whole.offset + address - whole.__array_interface__["data"][0]
    path = os.path.abspath(X.filename)
    order = "C" if X.flags.c_contiguous else "F"
    return MappedFile(path, _state_of_mapped(path, address), X.shape, X.dtype, offset, order)


def _state_of_mapped(path: str, address: int) -> list[int]:
    """Return the state of the file at a path.

    Raises
    ------
    ValueError
        If another file is mapped at the address of this process.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise ValueError(f"{path} was removed since X was mapped; pass a copy: numpy.array(X)") from None
    with file:
        state = file_state(file.fileno())
        # An empty file cannot be mapped; the engines raise an error for it. /proc/self/maps may show another device
        # number than stat, so the file is mapped once more, and the two entries of maps are compared.
        same = not os.fstat(file.fileno()).st_size or _mapping_at(address) == _mapping_of(file.fileno())
    if not same:
        raise ValueError(f"{path} was replaced since X was mapped; map it again, or pass a copy: numpy.array(X)")
    return state


def _mapping_of(descriptor: int) -> str:
    mapping = mmap.mmap(descriptor, 1, access=mmap.ACCESS_READ)  # no `with`: after Ctrl-C, its array keeps it open
    return _mapping_at(int(np.frombuffer(mapping, np.uint8).ctypes.data))


def _mapping_at(address: int) -> str:
    """Return device and inode of the file that is mapped at an address, as /proc/self/maps shows them."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, _, _, device, inode, *_ = line.split()
            first, _, last = addresses.partition("-")
            if int(first, 16) <= address < int(last, 16):
                return f"{device} {inode}"
    raise ValueError(f"nothing is mapped at {address:#x}")
