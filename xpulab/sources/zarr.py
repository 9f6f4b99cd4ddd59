"""Zarr: an array of two dimensions, whose chunks of rows are blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from xpulab.sources.decoded import Decode, columns_by_chunks
from xpulab.sources.files import FileSource
from xpulab.sources.needed import needed
from xpulab.sources.source import Column, columns_of_array

__all__ = ["Zarr"]


@dataclass(frozen=True)
class Zarr(FileSource):
    """Rows in an array: the path is ``"folder.zarr:/group/data"``, or the folder's if it has one array only.

    zarr 3 reads both formats, zarr 2 the second.
    """

    block_name = "chunk"

    @classmethod
    def look(cls, path: str) -> tuple[Sequence[Column], Sequence[int]]:
        """Read the array's description."""
        rows = _array(path)
        n, n_columns = rows.shape if rows.ndim == 2 else (rows.shape[0], 1)
        step = (getattr(rows, "shards", None) or rows.chunks)[0]
        sizes = [min(step, n - first) for first in range(0, n, step)]
        return columns_of_array(rows.dtype, n_columns), sizes

    def decoder(self, columns: Sequence[int]) -> Decode:
        """Open the array, of which chunks without these columns are not read."""
        rows = _array(self.path)
        taken = columns_by_chunks(rows, columns, rows.chunks[-1])

        def decode(first: int, last: int) -> list[npt.NDArray[Any]]:
            try:
                return taken(self.bounds[first], self.bounds[last])
            except RuntimeError as error:  # of a codec
                raise ValueError(str(error)) from error

        return decode


def _array(path: str) -> Any:
    """Return the array of a path, or the only one."""
    folder, _, inside = path.partition(":/")
    found = needed("zarr", "Zarr").open(folder, mode="r")
    arrays = {"": found} if hasattr(found, "shape") else dict(_arrays_of(found))
    if not inside and len(arrays) != 1:
        raise ValueError(f"it has {len(arrays)} arrays; name one: {path}:/{next(iter(arrays), 'group/data')}")
    if inside and inside not in arrays:
        raise ValueError(f"it has no array /{inside}; it has {', '.join(f'/{name}' for name in arrays) or 'none'}")
    rows = arrays[inside] if inside else next(iter(arrays.values()))
    if rows.ndim not in (1, 2):
        raise ValueError(f"/{inside} has the shape {rows.shape}; expected rows, of 2 dimensions")
    return rows


def _arrays_of(group: Any, within: str = "") -> Iterator[tuple[str, Any]]:
    for name, array in sorted(group.arrays()):
        yield within + name, array
    for name, inner in sorted(group.groups()):
        yield from _arrays_of(inner, f"{within}{name}/")
