"""The kinds of sources, by the suffix of a file."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from xpulab.sources.files import FileSource, joined, paths_of
from xpulab.sources.iterated import IteratedBlocks
from xpulab.sources.source import RowSource

__all__ = ["opened", "register", "suffixes"]

# The module and the class of each kind, which is imported at its first use.
_KINDS: dict[str, str | type[FileSource]] = {
    ".arrow": "xpulab.sources.ipc:ArrowFile",
    ".csv": "xpulab.sources.csv:Csv",
    ".feather": "xpulab.sources.ipc:ArrowFile",
    ".h5": "xpulab.sources.hdf5:Hdf5",
    ".hdf5": "xpulab.sources.hdf5:Hdf5",
    ".ipc": "xpulab.sources.ipc:ArrowFile",
    ".npy": "xpulab.sources.npy:Npy",
    ".parquet": "xpulab.sources.parquet:Parquet",
    ".pq": "xpulab.sources.parquet:Parquet",
    ".zarr": "xpulab.sources.zarr:Zarr",
}


# What an object has, and the kind that is made of it: the first that fits.
_OBJECTS: dict[str, str | type[FileSource] | Callable[[Any], RowSource]] = {
    "__dask_graph__": "xpulab.sources.dask:of_dask",
    "__arrow_c_stream__": "xpulab.sources.tables:ArrowTable",
    "__arrow_c_array__": "xpulab.sources.tables:ArrowTable",
    "__dlpack__": "xpulab.sources.tables:ArrayInMemory",
}


def register(what: str, kind: str | type[FileSource] | Callable[[Any], RowSource]) -> None:
    """Have files or objects of one more kind read by a class.

    Parameters
    ----------
    what : str
        The suffix of the files, such as ``".fits"``, or the attribute by which an object is known, such as
        ``"__xarray__"``. It is looked for before those that were known before.
    kind : str or callable
        The class, or ``"module:Class"``, which is imported at its first use. That of files is a `FileSource`, which the
        engines import from the same module. That of objects gets the object, and returns a source.
    """
    if what.startswith("."):
        _KINDS[what] = kind  # type: ignore[assignment]
        return
    others = {name: each for name, each in _OBJECTS.items() if name != what}
    _OBJECTS.clear()
    _OBJECTS.update({what: kind, **others})


def suffixes() -> list[str]:
    """Return the known suffixes."""
    return sorted(_KINDS)


def opened(files: Any, block: bool = False) -> RowSource:
    """Return files, or an object of this process, as one source, without reading its rows.

    Parameters
    ----------
    files : path-like, list of path-like, or object
    block : bool
        Whether this is a block of other rows, which may have no rows.

    Raises
    ------
    FileNotFoundError
        If there are no such files.
    ValueError
        If a file is of no known kind, is damaged, or has other columns than the first one; if a stream has no rows.
    TypeError
        If the object is of no known kind.
    """
    for has, kind in _OBJECTS.items():
        if hasattr(files, has):
            made: RowSource = _imported(kind)(files)
            if not block and not made.n_rows and isinstance(files, Iterator):
                raise ValueError(
                    f"a {type(files).__name__} without rows was given; one that was read before has no more: make a "
                    "new one, or pass a table of its rows, reader.read_all(), which is read as often as a fit needs"
                )
            return made
    if hasattr(files, "tocsr"):
        raise TypeError(f"a {type(files).__name__} was given; pass it to the estimator itself, or c.scatter(X)")
    if callable(files):
        return IteratedBlocks(files, functools.partial(opened, block=True))
    if not isinstance(files, str | os.PathLike | list | tuple):
        raise TypeError(
            f"a {type(files).__name__} was given; expected files, an object that has {', '.join(_OBJECTS)}, or a "
            "function that returns an iterator of such objects"
        )
    return joined([_kind_of(path).open(path) for path in paths_of(files, suffixes())])


def _kind_of(path: str) -> type[FileSource]:
    name = path.partition(":/")[0]
    suffix = next((each for each in _KINDS if name.endswith(each)), None)
    if suffix is None:
        raise ValueError(f"{path} is of no known kind; known are {', '.join(suffixes())}")
    found: type[FileSource] = _imported(_KINDS[suffix])
    return found


def _imported(kind: str | type[FileSource] | Callable[[Any], RowSource]) -> Any:
    if not isinstance(kind, str):
        return kind
    module, _, name = kind.partition(":")
    return getattr(importlib.import_module(module), name)
