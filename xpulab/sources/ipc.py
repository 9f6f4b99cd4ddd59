"""Arrow IPC and Feather: record batches are blocks, which are mapped into memory."""

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

__all__ = ["ArrowFile"]


@dataclass(frozen=True)
class ArrowFile(FileSource):
    """Rows in a file of record batches. What is not compressed is not copied before it becomes rows."""

    block_name = "record batch"

    @classmethod
    def look(cls, path: str) -> tuple[Sequence[Column], Sequence[int]]:
        """Read the file's footer, and the heads of its record batches."""
        pa = needed("pyarrow", "Arrow IPC")
        one = pa.ipc.IpcReadOptions(included_fields=[0])  # so that others are not decompressed
        with pa.memory_map(path) as mapped, pa.ipc.open_file(mapped, options=one) as file:
            sizes = [file.get_batch(number).num_rows for number in range(file.num_record_batches)]
        with pa.memory_map(path) as mapped, pa.ipc.open_file(mapped) as file:
            return columns_of(file.schema), sizes

    def decoder(self, columns: Sequence[int]) -> Decode:
        """Map the file, and open the batches with these columns only."""
        pa = needed("pyarrow", "Arrow IPC")
        options = pa.ipc.IpcReadOptions(included_fields=sorted(set(columns)))
        file = pa.ipc.open_file(pa.memory_map(self.path), options=options)
        names = [self.schema[number].name for number in columns]

        def decode(first: int, last: int) -> list[npt.NDArray[Any]]:
            table = pa.Table.from_batches([file.get_batch(number) for number in range(first, last)])
            return [values_of(table.column(name)) for name in names]

        return decode
