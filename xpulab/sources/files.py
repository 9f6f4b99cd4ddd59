"""Files with rows: which files a user means, and one or more of them as one source."""

from __future__ import annotations

import bisect
import glob
import itertools
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.sources.decoded import Decode, DecodedSource
from xpulab.sources.source import Column, common_column
from xpulab.sources.states import file_state, require_same

__all__ = ["FileSource", "JoinedFiles", "joined", "paths_of"]


@dataclass(frozen=True)
class FileSource(DecodedSource):
    """Rows in one file.

    A subclass says what is in the file (`look`) and how its blocks become columns (`decode`).

    Attributes
    ----------
    path : str
    state : list of int
        `file_state` when the file was scanned.
    schema : tuple of Column
    bounds : tuple of int
        Bounds of the blocks.
    """

    #: What the format calls its blocks, for messages.
    block_name = "block"

    path: str
    state: list[int]
    schema: tuple[Column, ...]
    bounds: tuple[int, ...]

    @classmethod
    def open(cls, path: str) -> FileSource:
        """Look into a file, without reading its rows.

        Raises
        ------
        ValueError
            If the file is not of this format, or is damaged.
        """
        state = file_state(path.partition(":/")[0])
        try:
            schema, sizes = cls.look(path)
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"{path} cannot be read as {cls.__name__}: {error}") from error
        return cls(path, state, tuple(schema), tuple(itertools.accumulate(sizes, initial=0)))

    @classmethod
    @abstractmethod
    def look(cls, path: str) -> tuple[Sequence[Column], Sequence[int]]:
        """Return the columns of a file, and the number of rows of each block."""

    @abstractmethod
    def decoder(self, columns: Sequence[int]) -> Decode:
        """Open the file, and return a function that decodes these columns of blocks."""

    @property
    def columns(self) -> Sequence[Column]:
        """The columns."""
        return self.schema

    @property
    def blocks(self) -> Sequence[int]:
        """Bounds of the blocks."""
        return self.bounds

    @property
    def files(self) -> Sequence[str]:
        """Path of the file."""
        return (self.path.partition(":/")[0],)

    def decoding(self, columns: Sequence[int]) -> Decode:
        """Return the decoder, whose errors say which file and which block is damaged."""
        opened: list[Decode] = []

        def decode(first: int, last: int) -> list[npt.NDArray[Any]]:
            try:
                if not opened:
                    opened.append(self.decoder(columns))
                return opened[0](first, last)
            except (OSError, ValueError) as error:
                self.require_unchanged()
                which = (
                    f"{self.block_name} {first}" if last == first + 1 else f"{self.block_name}s {first} to {last - 1}"
                )
                raise ValueError(f"{self.path}: {which} cannot be read: {error}") from error

        return decode

    def require_unchanged(self) -> None:
        """Raise ValueError if the file has changed since it was scanned."""
        require_same(self.files[0], self.state)

    def on_this_host(self) -> FileSource:
        """Return this source with the state of the file of this host."""
        return replace(self, state=file_state(self.files[0]))


@dataclass(frozen=True)
class JoinedFiles(DecodedSource):
    """The rows of several files, one file after the other.

    Attributes
    ----------
    parts : tuple of FileSource
    schema : tuple of Column
        The columns, with dtypes that have the values of all files.
    places : tuple of tuple of int
        The numbers of these columns in each file.
    """

    parts: tuple[FileSource, ...]
    schema: tuple[Column, ...]
    places: tuple[tuple[int, ...], ...]

    @property
    def columns(self) -> Sequence[Column]:
        """The columns."""
        return self.schema

    @cached_property
    def blocks(self) -> Sequence[int]:
        """Bounds of the blocks."""
        sizes = (b - a for part in self.parts for a, b in itertools.pairwise(part.blocks))
        return tuple(itertools.accumulate(sizes, initial=0))

    @property
    def files(self) -> Sequence[str]:
        """Paths of the files."""
        return [path for part in self.parts for path in part.files]

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self.parts, "schema": self.schema, "places": self.places}

    def decoding(self, columns: Sequence[int]) -> Decode:
        """Return a function that decodes blocks of any of the files, of which the last one stays open."""
        firsts = list(itertools.accumulate((len(part.blocks) - 1 for part in self.parts), initial=0))
        opened: dict[int, Decode] = {}

        def decode(first: int, last: int) -> list[npt.NDArray[Any]]:
            pieces = []
            while first < last:
                number = bisect.bisect_right(firsts, first) - 1
                end = min(last, firsts[number + 1])
                if number not in opened:
                    opened.clear()
                    opened[number] = self._decoding(number, columns)
                pieces.append(opened[number](first - firsts[number], end - firsts[number]))
                first = end
            return pieces[0] if len(pieces) == 1 else [np.concatenate(each) for each in zip(*pieces, strict=True)]

        return decode

    def _decoding(self, part: int, columns: Sequence[int]) -> Decode:
        """Return the decoder of a file; nulls of a column that has strings in other files are None."""
        file, there = self.parts[part], [self.places[part][number] for number in columns]
        decode = file.decoding(there)
        empty = [
            at
            for at, (number, own) in enumerate(zip(columns, there, strict=True))
            if self.schema[number].numeric is None and file.schema[own].numeric is not None
        ]

        def decode_strings(first: int, last: int) -> list[npt.NDArray[Any]]:
            found = decode(first, last)
            for at in empty:
                found[at] = np.full(len(found[at]), None, object)
            return found

        return decode_strings if empty else decode

    def require_unchanged(self) -> None:
        """Raise ValueError if a file has changed since it was scanned."""
        for part in self.parts:
            part.require_unchanged()

    def on_this_host(self) -> JoinedFiles:
        """Return this source with the states of the files of this host."""
        return replace(self, parts=tuple(part.on_this_host() for part in self.parts))


def joined(parts: Sequence[FileSource]) -> FileSource | JoinedFiles:
    """Return several files as one source. The order of the files and of their columns changes no value.

    Raises
    ------
    ValueError
        If a file has other columns than the first one, or a dtype that no other goes with without loss: the message
        says which file, and which column.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    same = tuple(range(len(first.schema)))
    places = tuple(_places(first, part) or same for part in parts)
    schema = (
        common_column([(part.schema[there[at]], part.path) for part, there in zip(parts, places, strict=True)])
        for at in same
    )
    return JoinedFiles(tuple(parts), tuple(schema), places)


def _places(first: FileSource, part: FileSource) -> tuple[int, ...] | None:
    """Return where a file has the columns of the first one; None if it has them in their order."""
    names, others = ([column.name for column in each.schema] for each in (first, part))
    if names == others:
        return None
    if missing := [name for name in names if name not in others]:
        raise ValueError(f"{part.path} has no column {missing[0]!r}, which {first.path} has")
    if more := [name for name in others if name not in names]:
        raise ValueError(f"{part.path} has a column {more[0]!r}, which {first.path} has not")
    if len(names) != len(others):
        raise ValueError(f"{part.path} has {len(others)} columns, and {first.path} has {len(names)}")
    return tuple(others.index(name) for name in names)


def _within(path: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Yield the files of a folder, and the folders that are of a kind themselves, as those of Zarr are."""
    for folder, folders, names in os.walk(path):
        known = [name for name in (*folders, *names) if name.endswith(suffixes) and not name.startswith((".", "_"))]
        folders[:] = set(folders).difference(known)
        yield from (os.path.join(folder, name) for name in known)


def paths_of(files: object, suffixes: Sequence[str]) -> list[str]:
    """Return the paths of a file, a folder, a glob, or a list of these, in the order of their names.

    Parameters
    ----------
    files : path-like or sequence of path-like
    suffixes : sequence of str
        Suffixes of the files that are taken from a folder.

    Raises
    ------
    FileNotFoundError
        If there is no such file, if a glob matches nothing, or if a folder has no files of these suffixes.
    """
    if isinstance(files, list | tuple):
        if not files:
            raise FileNotFoundError("an empty list of files was given")
        return [path for each in files for path in paths_of(each, suffixes)]
    path, colon, inside = os.path.abspath(os.path.expanduser(os.fspath(files))).partition(":/")  # type: ignore[call-overload]
    if glob.has_magic(path) and not os.path.exists(path):
        found = sorted(glob.glob(path, recursive=True))
        if not found:
            raise FileNotFoundError(f"no file matches {path}")
        return [each + colon + inside for each in found]
    if os.path.isdir(path) and not path.endswith(tuple(suffixes)):
        found = sorted(_within(path, tuple(suffixes)))
        if not found:
            raise FileNotFoundError(f"the folder {path} has no files of rows; known are {', '.join(suffixes)}")
        return found
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no file {path}")
    return [path + colon + inside]
