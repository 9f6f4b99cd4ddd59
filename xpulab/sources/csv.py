"""CSV: parts of the file that end with a line are blocks, which pyarrow parses."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.sources.arrow import columns_of, values_of
from xpulab.sources.decoded import Decode
from xpulab.sources.files import FileSource
from xpulab.sources.needed import needed
from xpulab.sources.source import NO_VALUES, Column
from xpulab.sources.states import file_state

__all__ = ["Csv"]


@dataclass(frozen=True)
class Csv(FileSource):
    """Rows in a CSV file, whose first line has the names of the columns.

    The dtypes are those of the first megabyte; of columns that are empty there, those of the first block with values.
    Whole numbers may have fractions later, because they are read as float64. A line break inside of quotes is refused,
    because blocks end at line breaks.

    Attributes
    ----------
    places : tuple of int
        Byte at which each block begins, and the end of the last one.
    """

    #: Bytes of a block.
    part_bytes = 4 << 20

    places: tuple[int, ...] = ()

    @classmethod
    def open(cls, path: str) -> Csv:
        """Count the lines of a file, which has no metadata, some megabytes at a time."""
        state = file_state(path)
        schema, places, sizes = cls._found(path)
        return cls(path, state, tuple(schema), tuple(itertools.accumulate(sizes, initial=0)), tuple(places))

    @classmethod
    def look(cls, path: str) -> tuple[Sequence[Column], Sequence[int]]:
        """Return the columns, and the number of lines of each block."""
        schema, _, sizes = cls._found(path)
        return schema, sizes

    @classmethod
    def _found(cls, path: str) -> tuple[Sequence[Column], list[int], list[int]]:
        """Return the columns, the places of the blocks, and the number of lines of each."""
        try:
            with needed("pyarrow.csv", "CSV").open_csv(path) as reader:
                schema = [_in_float64(each) for each in columns_of(reader.schema)]
            places, sizes = _lines_of(path, cls.part_bytes)
            return _with_later_values(path, schema, places, sizes), places, sizes
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read as CSV: {error}") from error

    def decoder(self, columns: Sequence[int]) -> Decode:
        """Return a function that parses blocks."""
        pa = needed("pyarrow", "CSV")
        names = [column.name for column in self.schema]
        wanted = [names[number] for number in columns]
        types = {each.name: pa.float64() if _is_number(each) else pa.bool_() for each in self.schema if each.numeric}
        types |= {each.name: pa.string() for each in self.schema if each.dtype == "string"}

        def decode(first: int, last: int) -> list[npt.NDArray[Any]]:
            table = _parsed(self.path, (self.places[first], self.places[last]), names, wanted, types)
            n = self.bounds[last] - self.bounds[first]
            if len(table) != n:
                raise ValueError(
                    f"{len(table):,} rows were found in {n:,} lines; line breaks inside of quotes cannot be read: "
                    "write the table as Parquet"
                )
            return [values_of(table.column(name)) for name in wanted]

        return decode


def _is_number(column: Column) -> bool:
    return column.numeric is not None and column.numeric.kind in "fiu"


def _in_float64(column: Column) -> Column:
    if column.dtype == NO_VALUES or not _is_number(column):
        return column
    return replace(column, dtype="float64", numeric=np.dtype(np.float64))


def _parsed(path: str, lines: tuple[int, int], names: Any, wanted: Sequence[Any], types: dict[Any, Any]) -> Any:
    """Return columns of the lines between two places of a file as a table."""
    pa, csv = needed("pyarrow", "CSV"), needed("pyarrow.csv", "CSV")
    with open(path, "rb") as file:
        file.seek(lines[0])
        text = pa.py_buffer(file.read(lines[1] - lines[0]))
    read = csv.ReadOptions(column_names=names)
    convert = csv.ConvertOptions(column_types=types, include_columns=list(dict.fromkeys(wanted)))
    return csv.read_csv(pa.BufferReader(text), read_options=read, convert_options=convert)


def _with_later_values(
    path: str, schema: Sequence[Column], places: Sequence[int], sizes: Sequence[int]
) -> Sequence[Column]:
    """Return the columns, of which those that are empty at first have the dtypes of the first block with values."""
    names = [each.name for each in schema]
    for lines, size in zip(itertools.pairwise(places), sizes, strict=True):
        empty = [each.name for each in schema if each.dtype == NO_VALUES]
        if empty and size:
            later = {each.name: each for each in columns_of(_parsed(path, lines, names, empty, {}).schema)}
            schema = [_in_float64(later.get(each.name, each)) for each in schema]
    return schema


def _lines_of(path: str, part: int) -> tuple[list[int], list[int]]:
    """Return the places of blocks in a file, and the number of lines of each that are not empty.

    The blocks are counted in threads, because the disk reads faster than one core counts.
    """
    with open(path, "rb") as file:
        file.readline()
        places = [file.tell()]
        end = os.path.getsize(path)
        while places[-1] < end:
            file.seek(min(places[-1] + part, end))
            file.readline()
            places.append(file.tell())
        with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "xpulab-lines") as pool:
            return places, list(pool.map(functools.partial(_lines, file.fileno()), places[:-1], places[1:]))


def _lines(file: int, first: int, last: int) -> int:
    """Return the number of lines between two places of an open file that are not empty."""
    text = os.pread(file, last - first, first)
    ends = np.frombuffer(text.replace(b"\r\n", b"\n") if b"\r" in text else text, np.uint8) == ord("\n")
    empty = np.count_nonzero(ends[1:] & ends[:-1]) + ends[:1].any()
    return int(np.count_nonzero(ends) - empty + (not ends[-1:].all()))
