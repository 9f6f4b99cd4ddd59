"""Parquet: its row groups are blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from xpulab.sources.arrow import columns_of, values_of
from xpulab.sources.decoded import Decode
from xpulab.sources.files import FileSource
from xpulab.sources.needed import needed
from xpulab.sources.source import Column

__all__ = ["Parquet"]


@dataclass(frozen=True)
class Parquet(FileSource):
    """Rows in a Parquet file."""

    block_name = "row group"

    @classmethod
    def look(cls, path: str) -> tuple[Sequence[Column], Sequence[int]]:
        """Read the file's footer."""
        with needed("pyarrow.parquet", "Parquet").ParquetFile(path) as file:
            metadata = file.metadata
            sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            return columns_of(file.schema_arrow), sizes

    def decoder(self, columns: Sequence[int]) -> Decode:
        """Open the file. Arrow decodes the columns of a row group in several threads."""
        file = needed("pyarrow.parquet", "Parquet").ParquetFile(self.path)
        names = [self.schema[number].name for number in columns]

        def decode(first: int, last: int) -> list[npt.NDArray[Any]]:
            table = file.read_row_groups(list(range(first, last)), columns=names, use_threads=True)
            return [values_of(table.column(name)) for name in names]

        return decode
