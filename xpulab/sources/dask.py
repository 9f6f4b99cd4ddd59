"""Arrays and frames of dask: their chunks and partitions are blocks, which this process computes in their order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.sources.arrow import columns_of, values_of
from xpulab.sources.decoded import Decode, DecodedSource
from xpulab.sources.needed import needed
from xpulab.sources.source import NO_VALUES, Column, columns_of_array

__all__ = ["DaskArray", "DaskFrame", "of_dask"]


def of_dask(collection: Any) -> DaskArray | DaskFrame:
    """Return an array or a frame of dask as a source."""
    kind = type(collection)  # a delayed object has each attribute that it is asked for
    if hasattr(kind, "partitions") and hasattr(kind, "columns"):
        return DaskFrame(collection)
    if not hasattr(kind, "chunks"):
        raise TypeError(f"a {type(collection).__name__} of dask was given; expected an array or a frame")
    return DaskArray(collection)


class DaskArray(DecodedSource):
    """An array of dask. A block has the rows of one chunk, with all columns."""

    sequential = True

    def __init__(self, array: Any) -> None:
        if array.ndim not in (1, 2):
            raise ValueError(f"an array of shape {array.shape} was given; expected rows, of 2 dimensions")
        if any(map(math.isnan, array.shape)):
            raise ValueError("the chunks of the array have unknown sizes; type: array.compute_chunk_sizes()")
        self._array = array.reshape(len(array), -1) if array.ndim == 1 else array
        self._blocks = tuple(itertools.accumulate(self._array.chunks[0], initial=0))

    @property
    def columns(self) -> Sequence[Column]:
        """The columns, which have no names."""
        return columns_of_array(self._array.dtype, self._array.shape[1])

    @property
    def blocks(self) -> Sequence[int]:
        """Bounds of the chunks of rows."""
        return self._blocks

    def decoding(self, columns: Sequence[int]) -> Decode:
        """Return a function that computes columns of some chunks."""

        def decode(first: int, last: int) -> list[npt.NDArray[Any]]:
            some = np.asarray(self._array[self._blocks[first] : self._blocks[last]].compute())
            return [some[:, number] for number in columns]

        return decode


class DaskFrame(DecodedSource):
    """A frame of dask. To know the number of its rows, its partitions are computed once when it is scanned."""

    sequential = True

    def __init__(self, frame: Any) -> None:
        pa = needed("pyarrow", "a frame of dask")
        self._frame = frame
        self._columns = columns_of(pa.Schema.from_pandas(frame._meta_nonempty, preserve_index=False))
        self._blocks = tuple(itertools.accumulate(map(int, frame.map_partitions(len).compute()), initial=0))

    @property
    def columns(self) -> Sequence[Column]:
        """The columns."""
        return self._columns

    @property
    def blocks(self) -> Sequence[int]:
        """Bounds of the partitions."""
        return self._blocks

    def decoding(self, columns: Sequence[int]) -> Decode:
        """Return a function that computes columns of some partitions."""
        pa = needed("pyarrow", "a frame of dask")
        chosen = self._frame[[self._columns[number].name for number in dict.fromkeys(columns)]]

        def decode(first: int, last: int) -> list[npt.NDArray[Any]]:
            table = pa.Table.from_pandas(chosen.partitions[first:last].compute(), preserve_index=False)
            return [self._values(number, table.column(self._columns[number].name)) for number in columns]

        return decode

    def _values(self, number: int, column: Any) -> npt.NDArray[Any]:
        found = values_of(column)
        only_nulls = str(column.type) == NO_VALUES and self._columns[number].numeric is None
        return np.full(len(found), None, object) if only_nulls else found
