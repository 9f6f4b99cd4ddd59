"""Files of numpy.save."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.sources.decoded import Decode
from xpulab.sources.files import FileSource
from xpulab.sources.mapped import copying_from
from xpulab.sources.source import Column, Fill, columns_of_array

__all__ = ["Npy"]

_BLOCK = 65_536  # rows of a block; any number would do


@dataclass(frozen=True)
class Npy(FileSource):
    """Rows in a file of numpy.save."""

    by_columns = False

    @classmethod
    def look(cls, path: str) -> tuple[Sequence[Column], Sequence[int]]:
        """Read the file's header."""
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
        if rows.ndim not in (1, 2):
            raise ValueError(f"it holds an array of shape {rows.shape}; expected rows, of 2 dimensions")
        n, n_columns = rows.shape if rows.ndim == 2 else (len(rows), 1)
        sizes = [min(_BLOCK, n - first) for first in range(0, n, _BLOCK)]
        return columns_of_array(rows.dtype, n_columns), sizes

    @contextlib.contextmanager
    def reading(self, start: int, stop: int, columns: Sequence[int]) -> Iterator[Fill]:
        """Open a context in which rows are copied from their mapping."""
        self.require_unchanged()
        yield copying_from(self._rows()[start:stop], columns)

    def _rows(self) -> npt.NDArray[Any]:
        rows: npt.NDArray[Any] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return rows.reshape(self.n_rows, -1)

    def decoder(self, columns: Sequence[int]) -> Decode:
        """Map the file."""
        rows = self._rows()

        def decode(first: int, last: int) -> list[npt.NDArray[Any]]:
            some = rows[self.bounds[first] : self.bounds[last]]
            return [some[:, number] for number in columns]

        return decode
