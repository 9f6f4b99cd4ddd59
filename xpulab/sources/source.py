"""The interface of a source of rows, which engines read block by block."""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["NO_VALUES", "Column", "Fill", "RowSource", "columns_of_array", "common_column"]

#: The dtype of a column that has only nulls, which are NaN. It goes with columns of any dtype in other files.
NO_VALUES = "null"

_STRINGS = re.compile(r"(dictionary<values=)?(large_)?string(_view)?\b")  # dtypes of columns of strings

#: Fills an array with rows. It is called with the index of the first of them and with the array: its last axis is that
#: of the columns, and the axes before it are those of the rows, in their order, with any strides. So the rows can be
#: written in C order, (n, n_columns), by columns, and in blocks, (n_blocks, rows of a block, n_columns).
Fill = Callable[[int, npt.NDArray[Any]], None]


@dataclass(frozen=True)
class Column:
    """A column of a source.

    Attributes
    ----------
    name : str or None
        None if the columns have no names.
    dtype : str
        In the words of the file's format.
    numeric : numpy.dtype or None
        The dtype of its numbers or booleans; None for a column of other things.
    categories : tuple of str or None
        If the numbers stand for strings, these strings in ascending order: a number is the place of its string.
    exact : bool
        Whether it is known that float64 rounds none of the numbers.
    """

    name: str | None
    dtype: str
    numeric: np.dtype[Any] | None
    categories: tuple[str, ...] | None = field(default=None, compare=False)
    exact: bool = field(default=False, compare=False)

    def may_be_rounded(self, numbers: npt.NDArray[Any]) -> bool:
        """Return whether some numbers of this column, as floats, may be rounded: whole numbers of more than 53 bits."""
        wide = not self.exact and self.categories is None and self.numeric in (np.int64, np.uint64)
        return wide and len(numbers) > 0 and bool(np.abs(numbers).max() >= 2.0**53)


def columns_of_array(dtype: np.dtype[Any], n_columns: int) -> list[Column]:
    """Return the columns of an array, which have no names. Numbers in the other byte order are read in that of here.

    Raises
    ------
    ValueError
        If the rows are records of several fields.
    """
    if dtype.names:
        raise ValueError(
            f"its rows are records with the fields {', '.join(dtype.names)}; expected numbers: pass a table of the "
            "records, xpulab.scan(pandas.DataFrame(records)), whose columns have these names"
        )
    return [Column(None, str(dtype), dtype.newbyteorder("=") if dtype.kind in "fiub" else None)] * n_columns


def common_column(found: Sequence[tuple[Column, str]]) -> Column:
    """Return a column with the dtype that has the values of the columns of several files or blocks, which are named.

    Raises
    ------
    ValueError
        If there is no such dtype.
    """
    known: dict[str, tuple[Column, str]] = {}
    for column, where in found:
        if column.dtype in known or column.dtype == NO_VALUES:
            continue
        for other, there in known.values():
            if not _goes_with(column, other):
                raise ValueError(
                    f"column {column.name!r} is {column.dtype} in {where}, and {other.dtype} in {there}; no dtype has "
                    "the values of both"
                )
        known[column.dtype] = column, where
    first = next(iter(known.values()), found[0])[0]
    if len(known) < 2:
        return first
    numeric = [column.numeric for column, _ in known.values() if column.numeric is not None]
    if not numeric:
        return replace(first, dtype="string")
    floats = [each for each in numeric if each.kind == "f"]
    every = np.result_type(*(np.result_type(each, *floats) for each in numeric))
    return replace(first, dtype=str(every), numeric=every)


def _goes_with(column: Column, other: Column) -> bool:
    """Return whether a dtype has the values of two columns of other dtypes."""
    one, two = column.numeric, other.numeric
    if one is None or two is None:
        return one is two and all(_STRINGS.match(each.dtype) is not None for each in (column, other))
    rounded = any(each.kind in "iu" and each.itemsize == 8 for each in (one, two))
    return not (rounded and np.result_type(one, two).kind == "f") and (one.kind == "b") == (two.kind == "b")


class RowSource(ABC):
    """Rows that are read block by block.

    A subclass is a frozen dataclass with few and small attributes: where the rows are, and what was found there. The
    engines get a pickled copy of it, and read the rows with it.
    """

    #: Whether each column is in memory of its own when the rows are read, so that rows are best written by columns.
    by_columns = False
    #: Whether rows are best read in their order, by one thread: to go back takes a pass from the first row.
    sequential = False

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Number of rows."""

    @property
    @abstractmethod
    def columns(self) -> Sequence[Column]:
        """The columns."""

    @property
    def blocks(self) -> Sequence[int]:
        """Bounds of the natural blocks: block i has the rows from blocks[i] up to, not including, blocks[i + 1].

        To read a part of a block may take as long as to read all of it.
        """
        return (0, self.n_rows)

    @property
    def files(self) -> Sequence[str]:
        """Paths of the files with the rows; none if only the process that has made the source can read it."""
        return ()

    @abstractmethod
    def reading(self, start: int, stop: int, columns: Sequence[int]) -> contextlib.AbstractContextManager[Fill]:
        """Open a context with a function that fills arrays with rows and columns of this source.

        Several threads may call the function, with any of the rows; it is fastest if these are in their order.

        Parameters
        ----------
        start, stop : int
            The rows that will be read. The function counts them from `start`.
        columns : sequence of int
            The numbers of the columns that will be read, in their order in the array.

        Raises
        ------
        ValueError
            If a file has changed since the source was made.
        """

    def coded(self, columns: Sequence[int]) -> RowSource | None:
        """Return this source with numbers in place of the strings of columns, if it finds them itself; or else None."""
        return None

    def require_unchanged(self) -> None:
        """Raise ValueError if a file has changed since the source was made."""
        return

    def on_this_host(self) -> RowSource:
        """Return this source for another host that has the same files: these have other times and numbers there."""
        return self
