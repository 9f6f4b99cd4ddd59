"""Sources whose blocks are decoded to columns before rows can be taken from them."""

from __future__ import annotations

import bisect
import contextlib
import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.sources.source import Fill, RowSource

__all__ = ["Decode", "DecodedSource", "columns_by_chunks"]

#: Decodes the blocks from one number up to, not including, another: an array of each column.
Decode = Callable[[int, int], list[npt.NDArray[Any]]]


class DecodedSource(RowSource):
    """Rows in blocks that are decoded as a whole, each column into an array of its own.

    While rows are taken from a block, a thread decodes the next.
    """

    by_columns = True
    #: Bytes of rows that are decoded at a time, at least: smaller blocks are decoded together.
    together_bytes = 4 << 20
    #: Bytes of decoded rows that are kept, at least: several threads read at different places.
    kept_bytes = 16 << 20

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.blocks[-1]

    @abstractmethod
    def decoding(self, columns: Sequence[int]) -> Decode:
        """Return a function that decodes these columns of blocks. It raises ValueError if a block is damaged."""

    @contextlib.contextmanager
    def reading(self, start: int, stop: int, columns: Sequence[int]) -> Iterator[Fill]:
        """Open a context in which blocks are decoded, and rows are taken from them."""
        self.require_unchanged()
        if start == stop:
            yield lambda first, part: None
            return
        with _Decoded(self, start, stop, columns) as blocks:
            yield blocks.fill
        self.require_unchanged()


def columns_by_chunks(rows: Any, columns: Sequence[int], step: int) -> Callable[[int, int], list[npt.NDArray[Any]]]:
    """Return a function that reads columns of some rows of a chunked array, of which only chunks with them are read.

    Parameters
    ----------
    rows : array-like of shape (n_rows, n_columns) or (n_rows,)
        Such as an array of Zarr: a slice reads the chunks that it meets.
    columns : sequence of int
    step : int
        How many columns a chunk has.
    """
    spans: list[tuple[int, int]] = []  # of columns whose chunks lie side by side
    for chunk in sorted({number // step for number in columns}):
        begin, end = chunk * step, (chunk + 1) * step
        if spans and spans[-1][1] == begin:
            spans[-1] = spans[-1][0], end
        else:
            spans.append((begin, end))

    def taken(first: int, last: int) -> list[npt.NDArray[Any]]:
        if rows.ndim == 1:
            return [rows[first:last]] * len(columns)
        found: dict[int, npt.NDArray[Any]] = {}
        for begin, end in spans:
            some = rows[first:last, begin:end]
            found |= {number: some[:, number - begin] for number in columns if begin <= number < end}
        return [found[number] for number in columns]

    return taken


class _Decoded:
    """The decoded blocks of some rows: those in use, and the next one."""

    def __init__(self, source: DecodedSource, start: int, stop: int, columns: Sequence[int]) -> None:
        row_bytes = 8 * len(columns)
        self._start = start
        self._units = _together(source.blocks, start, stop, max(1, source.together_bytes // row_bytes))
        self._begins = [source.blocks[first] for first, _ in self._units]
        largest = max(source.blocks[last] - source.blocks[first] for first, last in self._units)
        self._kept = 2 + source.kept_bytes // (largest * row_bytes)
        self._decode = source.decoding(columns)
        self._blocks: dict[int, Future[list[npt.NDArray[Any]]]] = {}  # the last one was used last
        #: Rows of each unit that nobody has taken.
        self._left = [min(source.blocks[last], stop) - max(source.blocks[first], start) for first, last in self._units]
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "xpulab-decode")

    def __enter__(self) -> _Decoded:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def fill(self, first: int, part: npt.NDArray[Any]) -> None:
        """Fill an array with rows."""
        begin, shape = self._start + first, part.shape[:-1]
        end = begin + math.prod(shape)
        if begin == end:
            return
        pieces = []
        for unit in range(self._unit_of(begin), self._unit_of(end - 1) + 1):
            at = self._begins[unit]
            last = self._begins[unit + 1] if unit + 1 < len(self._begins) else end
            n = min(end, last) - max(begin, at)
            pieces.append([column[max(begin - at, 0) : end - at] for column in self._block(unit, n)])
        with np.errstate(over="ignore"):  # numbers that are too large for the dtype become infinite, and are found
            for number, columns in enumerate(zip(*pieces, strict=True)):
                column = columns[0] if len(columns) == 1 else np.concatenate(columns)
                part[..., number] = column.reshape(shape)

    def _unit_of(self, row: int) -> int:
        return bisect.bisect_right(self._begins, row) - 1

    def _block(self, unit: int, n: int) -> list[npt.NDArray[Any]]:
        """Return the columns of a unit of blocks, from which `n` rows are taken.

        The next unit is decoded if the rows are read in their order. A unit of which each row was taken is not kept:
        its memory is then still in the processor's cache when it becomes that of the next.
        """
        with self._lock:
            before = unit - 1
            in_order = unit == 0 or unit in self._blocks or before in self._blocks or self._left[before] <= 0
            found = self._decoded(unit)
            self._left[unit] -= n
            if self._left[unit] == 0:
                del self._blocks[unit]
            if in_order and unit + 1 < len(self._units) and unit + 1 not in self._blocks:
                self._decoded(unit + 1)
            while len(self._blocks) > self._kept + 1:
                del self._blocks[next(iter(self._blocks))]
        return found.result()

    def _decoded(self, unit: int) -> Future[list[npt.NDArray[Any]]]:
        found = self._blocks.pop(unit, None) or self._pool.submit(self._decode, *self._units[unit])
        self._blocks[unit] = found
        return found


def _together(blocks: Sequence[int], start: int, stop: int, least: int) -> list[tuple[int, int]]:
    """Return the first and the last number, not included, of the blocks to decode together for some rows."""
    units = []
    first = bisect.bisect_right(blocks, start) - 1
    for block in range(first, len(blocks) - 1):
        ends = blocks[block + 1]
        if ends - blocks[first] >= least or ends >= stop:
            units.append((first, block + 1))
            first = block + 1
        if ends >= stop:
            break
    return units
