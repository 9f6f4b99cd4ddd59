"""Some rows of a source, in any order."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.sources.source import Column, Fill, RowSource

__all__ = ["ChosenRows"]

_PIECE = 4 << 20  # bytes of rows that are read at a time


@dataclass(frozen=True)
class ChosenRows(RowSource):
    """Rows of a source with given numbers, in the order of these.

    The rows are picked in passes over the source in its own order, because a block has rows from many places.

    Attributes
    ----------
    rows : RowSource
    numbers : numpy.ndarray of shape (n_rows,)
    """

    sequential = True
    #: Bytes of rows that one pass over the source picks.
    kept_bytes = 256 << 20

    rows: RowSource
    numbers: npt.NDArray[Any]

    @classmethod
    def of(cls, rows: RowSource, numbers: npt.NDArray[Any]) -> ChosenRows:
        """Return some rows; those of rows that were chosen already are chosen from their source."""
        if isinstance(rows, ChosenRows):
            return cls(rows.rows, rows.numbers[numbers])
        return cls(rows, numbers.astype(np.uint32 if rows.n_rows < 1 << 32 else np.int64))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.numbers)

    @property
    def columns(self) -> Sequence[Column]:
        """The columns."""
        return self.rows.columns

    @property
    def files(self) -> Sequence[str]:
        """Paths of the files."""
        return self.rows.files

    @contextlib.contextmanager
    def reading(self, start: int, stop: int, columns: Sequence[int]) -> Iterator[Fill]:
        """Open a context in which rows are picked, as many at a time as are kept."""
        self.require_unchanged()
        yield _Picked(self.rows, self.numbers[start:stop], columns, self.kept_bytes).fill
        self.require_unchanged()

    def require_unchanged(self) -> None:
        """Raise ValueError if a file has changed since the source was made."""
        self.rows.require_unchanged()

    def on_this_host(self) -> ChosenRows:
        """Return this source for another host."""
        return replace(self, rows=self.rows.on_this_host())


class _Picked:
    """The rows that were picked last."""

    def __init__(self, rows: RowSource, numbers: npt.NDArray[Any], columns: Sequence[int], kept_bytes: int) -> None:
        self._rows, self._numbers, self._columns = rows, numbers.astype(np.int64), columns
        self._kept_bytes = kept_bytes
        self._kept: npt.NDArray[Any] | None = None
        self._first = 0
        self._lock = threading.Lock()

    def fill(self, first: int, part: npt.NDArray[Any]) -> None:
        """Fill an array with rows."""
        n, width = math.prod(part.shape[:-1]), len(self._columns)
        flat = part.reshape(n, width) if part.flags.c_contiguous else np.empty((n, width), part.dtype)
        done = 0
        while done < n:
            with self._lock:
                kept = self._kept
                at = first + done - self._first
                if kept is None or not 0 <= at < len(kept):
                    kept, at = self._pick(first + done, part.dtype), 0
                some = kept[at : at + n - done]
            flat[done : done + len(some)] = some
            done += len(some)
        if not part.flags.c_contiguous:
            part[...] = flat.reshape(part.shape)

    def _pick(self, first: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Pick the rows from this one on in one pass over the source."""
        row_bytes = len(self._columns) * dtype.itemsize
        numbers = self._numbers[first : first + max(1, self._kept_bytes // row_bytes)]
        kept = np.empty((len(numbers), len(self._columns)), dtype)
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order]
        begin, end = int(ascending[0]), int(ascending[-1]) + 1
        step = max(1, _PIECE // row_bytes)
        with self._rows.reading(begin, end, self._columns) as fill:
            for at in range(begin, end, step):
                low, high = np.searchsorted(ascending, [at, at + step])
                if low == high:
                    continue
                last = int(ascending[high - 1]) + 1
                fill(at - begin, piece := np.empty((last - at, len(self._columns)), dtype))
                kept[order[low:high]] = piece[ascending[low:high] - at]
        self._kept, self._first = kept, first
        return kept
