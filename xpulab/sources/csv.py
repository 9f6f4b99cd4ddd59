"""CSV: parts of the file that end with a line are blocks, which pyarrow parses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.sources.arrow import columns_of, values_of
from xpulab.sources.decoded import Decode
from xpulab.sources.files import FileSource
from xpulab.sources.needed import needed
from xpulab.sources.source import Column
from xpulab.sources.states import file_state

__all__ = ["Csv"]


@dataclass(frozen=True)
class Csv(FileSource):
    """Rows in a CSV file, whose first line has the names of the columns.

    The dtypes are those of the first megabyte. Whole numbers there may have fractions later, because they are read as
    float64. A line break inside of quotes is refused, because blocks end at line breaks.

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
        """Look for the line breaks of a file, of which it reads some megabytes at a time."""
        state = file_state(path)
        schema = cls._schema(path)
        places, sizes = _lines_of(path, cls.part_bytes)
        return cls(path, state, tuple(schema), tuple(itertools.accumulate(sizes, initial=0)), tuple(places))

    @classmethod
    def look(cls, path: str) -> tuple[Sequence[Column], Sequence[int]]:
        """Return the columns, and the number of lines of each block."""
        return cls._schema(path), _lines_of(path, cls.part_bytes)[1]

    @staticmethod
    def _schema(path: str) -> Sequence[Column]:
        csv = needed("pyarrow.csv", "CSV")
        try:
            with csv.open_csv(path) as reader:
                return tuple(
                    Column(each.name, "float64", np.dtype(np.float64)) if _is_number(each) else each
                    for each in columns_of(reader.schema)
                )
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read as CSV: {error}") from error

    def decoder(self, columns: Sequence[int]) -> Decode:
        """Return a function that parses blocks."""
        pa, csv = needed("pyarrow", "CSV"), needed("pyarrow.csv", "CSV")
        names = [column.name for column in self.schema]
        wanted = [names[number] for number in columns]
        types = {each.name: pa.float64() if _is_number(each) else pa.bool_() for each in self.schema if each.numeric}
        read = csv.ReadOptions(column_names=names)
        convert = csv.ConvertOptions(column_types=types, include_columns=list(dict.fromkeys(wanted)))

        def decode(first: int, last: int) -> list[npt.NDArray[Any]]:
            with open(self.path, "rb") as file:
                file.seek(self.places[first])
                text = pa.py_buffer(file.read(self.places[last] - self.places[first]))
            table = csv.read_csv(pa.BufferReader(text), read_options=read, convert_options=convert)
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


def _lines_of(path: str, part: int) -> tuple[list[int], list[int]]:
    """Return the places of blocks in a file, and the number of lines of each that are not empty."""
    places, sizes = [], []
    with open(path, "rb") as file:
        file.readline()
        places.append(file.tell())
        while text := file.read(part):
            text += file.readline()
            places.append(file.tell())
            sizes.append(_lines(text))
    return places, sizes


def _lines(text: bytes) -> int:
    """Return the number of lines that are not empty."""
    found = np.frombuffer(text.replace(b"\r\n", b"\n") if b"\r" in text else text, np.uint8)
    ends = found == 10
    empty = int((ends[1:] & ends[:-1]).sum()) + bool(len(ends) and ends[0])
    return int(ends.sum()) - empty + (0 if ends[-1] else 1)
