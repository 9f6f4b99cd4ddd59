"""HDF5: a dataset of two dimensions, whose chunks are blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xpulab.sources.decoded import Decode, columns_by_chunks
from xpulab.sources.files import FileSource
from xpulab.sources.needed import needed
from xpulab.sources.source import Column, columns_of_array

__all__ = ["Hdf5"]

_BLOCK = 65_536  # rows of a block of a dataset that is not stored in chunks


@dataclass(frozen=True)
class Hdf5(FileSource):
    """Rows in a dataset: the path is ``"file.h5:/group/data"``, or the file's if it has one dataset only."""

    block_name = "chunk"

    @classmethod
    def look(cls, path: str) -> tuple[Sequence[Column], Sequence[int]]:
        """Read the dataset's description."""
        with needed("h5py", "HDF5").File(path.partition(":/")[0], "r") as file:
            rows = _dataset(file, path)
            n, n_columns = rows.shape if rows.ndim == 2 else (len(rows), 1)
            step = rows.chunks[0] if rows.chunks else _BLOCK
            sizes = [min(step, n - first) for first in range(0, n, step)]
            return columns_of_array(rows.dtype, n_columns), sizes

    def decoder(self, columns: Sequence[int]) -> Decode:
        """Open the file, of which chunks without these columns are not read."""
        rows = _dataset(needed("h5py", "HDF5").File(self.files[0], "r"), self.path)
        taken = columns_by_chunks(rows, columns, rows.chunks[-1] if rows.chunks else len(self.schema))
        return lambda first, last: taken(self.bounds[first], self.bounds[last])


def _dataset(file: Any, path: str) -> Any:
    """Return the dataset of a path, or the only one."""
    h5py, inside = needed("h5py", "HDF5"), path.partition(":/")[2]
    names: list[str] = []
    file.visititems(lambda name, each: names.append(name) if isinstance(each, h5py.Dataset) else None)
    if not inside and len(names) != 1:
        raise ValueError(f"it has {len(names)} datasets; name one: {path}:/{names[0] if names else 'group/data'}")
    if inside and inside not in names:
        raise ValueError(f"it has no dataset /{inside}; it has {', '.join(f'/{name}' for name in names) or 'none'}")
    rows = file[inside or names[0]]
    if rows.ndim not in (1, 2):
        raise ValueError(f"/{inside or names[0]} has the shape {rows.shape}; expected rows, of 2 dimensions")
    return rows
