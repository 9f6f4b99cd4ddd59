"""Tables and tensors in this process: what has Arrow's C interface, and what has DLPack's."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.sources.arrow import codes_of_texts, columns_of, values_of
from xpulab.sources.coded import code_dtype
from xpulab.sources.decoded import Decode, DecodedSource
from xpulab.sources.mapped import copying_from
from xpulab.sources.needed import needed
from xpulab.sources.source import Column, Fill, RowSource, columns_of_array

__all__ = ["ArrayInMemory", "ArrowTable"]

#: Methods that copy an array of a device into the memory of the CPU: those of dpnp and dpctl, CuPy, and torch.
_TO_HOST = ("asnumpy", "get", "cpu")


class ArrowTable(DecodedSource):
    """A table of polars, pyarrow, pandas, or whatever else has ``__arrow_c_stream__`` or ``__arrow_c_array__``.

    Its columns are not copied before they become rows, if their types are those of NumPy and they have no nulls.
    """

    def __init__(self, table: Any) -> None:
        self._table = _table_of(table)
        self._columns: list[Column] = list(columns_of(self._table.schema))
        chunks = self._table.column(0).chunks if self._columns else []
        self._blocks = tuple(itertools.accumulate(map(len, chunks), initial=0))

    @property
    def columns(self) -> Sequence[Column]:
        """The columns."""
        return self._columns

    @property
    def blocks(self) -> Sequence[int]:
        """Bounds of the first column's chunks."""
        return self._blocks

    def coded(self, columns: Sequence[int]) -> ArrowTable:
        """Return this table with numbers in place of the strings of columns, also of dictionary-encoded ones."""
        made = copy.copy(self)
        made._columns = list(self._columns)
        for number in columns:
            column = self._columns[number]
            texts, codes = codes_of_texts(self._table.column(number), column)
            made._table = made._table.set_column(number, str(column.name), codes)
            made._columns[number] = replace(column, numeric=code_dtype(len(texts)), categories=texts)
        return made

    def decoding(self, columns: Sequence[int]) -> Decode:
        """Return a function that takes columns of some blocks from the table."""

        def decode(first: int, last: int) -> list[npt.NDArray[Any]]:
            begin, end = self._blocks[first], self._blocks[last]
            some = self._table.slice(begin, end - begin)
            return [values_of(some.column(number)) for number in columns]

        return decode


def _table_of(table: Any) -> Any:
    """Return a table as one of pyarrow.

    Raises
    ------
    TypeError
        If a column was given.
    """
    pa = needed("pyarrow", "a table")
    if hasattr(table, "to_frame") or isinstance(table, pa.Array | pa.ChunkedArray):
        made = "X.to_frame()" if hasattr(table, "to_frame") else "pyarrow.table({'x': X})"
        raise TypeError(f"a {type(table).__name__} was given, which is a column; expected a table: pass {made}")
    if isinstance(table, pa.Table):  # which its own stream would read anew
        return table
    if hasattr(table, "iloc"):
        swapped = {
            name: dtype.newbyteorder("=")
            for name, dtype in table.dtypes.items()
            if isinstance(dtype, np.dtype) and not dtype.isnative
        }
        return pa.Table.from_pandas(table.astype(swapped) if swapped else table, preserve_index=False)
    if hasattr(table, "__arrow_c_stream__"):
        return pa.table(table)
    return pa.Table.from_batches([pa.record_batch(table)])


class ArrayInMemory(RowSource):
    """A tensor or array that has ``__dlpack__``. One that is not in the CPU's memory is copied there."""

    def __init__(self, array: Any) -> None:
        given = array.detach() if hasattr(array, "detach") else array
        try:
            found = given if isinstance(given, np.ndarray) else np.from_dlpack(given)
        except (BufferError, RuntimeError, TypeError) as error:
            names = [name for name in _TO_HOST if callable(getattr(given, name, None))]
            if not names:
                raise ValueError(
                    f"a {type(array).__name__} cannot be read by the CPU: {error}; copy it there"
                ) from error
            found = np.asarray(getattr(given, names[0])())
        if found.ndim not in (1, 2):
            raise ValueError(f"an array of shape {found.shape} was given; expected rows, of 2 dimensions")
        self._rows = found[:, None] if found.ndim == 1 else found

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self._rows)

    @property
    def columns(self) -> Sequence[Column]:
        """The columns, which have no names."""
        return columns_of_array(self._rows.dtype, self._rows.shape[1])

    @contextlib.contextmanager
    def reading(self, start: int, stop: int, columns: Sequence[int]) -> Iterator[Fill]:
        """Open a context in which rows are copied."""
        yield copying_from(self._rows[start:stop], columns)
