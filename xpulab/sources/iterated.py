"""Rows from a function that returns a new iterator of blocks, each an array or a table, for each pass over the rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.sources.decoded import Decode, DecodedSource
from xpulab.sources.source import Column, RowSource, common_column

__all__ = ["IteratedBlocks"]


class IteratedBlocks(DecodedSource):
    """Blocks that a function's iterator yields. The first pass counts the rows of the blocks, and looks at the columns.

    Parameters
    ----------
    begin : callable
        Returns a new iterator of blocks. Each pass has to yield the same rows.
    open_block : callable
        Returns a block as a source.
    """

    sequential = True

    def __init__(self, begin: Callable[[], Iterable[Any]], open_block: Callable[[Any], RowSource]) -> None:
        self._begin, self._open = begin, open_block
        sizes: list[int] = []
        self._found: list[tuple[Column, ...]] = []  # the columns of each block
        known: dict[tuple[Column, ...], tuple[tuple[Column, ...], str]] = {}
        for number, block in enumerate(self._pass()):
            columns, _ = known.setdefault(each := tuple(block.columns), (each, f"block {number} of {begin!r}"))
            self._found.append(columns)
            if (said := _names(columns)) != (first := _names(self._found[0])):
                raise ValueError(f"block {number} of {begin!r} has the columns {said}, and block 0 {first}")
            sizes.append(block.n_rows)
        if not sizes:
            raise ValueError(f"{begin!r} returned an iterator without blocks; expected a new iterator at each call")
        wheres = [where for _, where in known.values()]
        self._columns = [common_column(list(zip(every, wheres, strict=True))) for every in zip(*known, strict=True)]
        self._blocks = tuple(itertools.accumulate(sizes, initial=0))

    @property
    def columns(self) -> Sequence[Column]:
        """The columns, with dtypes that have the values of all blocks."""
        return self._columns

    @property
    def blocks(self) -> Sequence[int]:
        """Bounds of the blocks."""
        return self._blocks

    def _pass(self) -> Iterator[RowSource]:
        blocks = self._begin()
        if not isinstance(blocks, Iterable):
            raise TypeError(
                f"{self._begin!r} returned a {type(blocks).__name__}; expected an iterator of blocks of rows"
            )
        return map(self._open, blocks)

    def decoding(self, columns: Sequence[int]) -> Decode:
        """Return a function that takes columns from blocks; it begins a new pass for blocks before the last ones."""
        blocks: Iterator[RowSource] = iter(())
        at = len(self._blocks)  # no pass has begun

        def decode(first: int, last: int) -> list[npt.NDArray[Any]]:
            nonlocal blocks, at
            if first < at:
                blocks, at = self._pass(), 0
            pieces = []
            for block in itertools.islice(blocks, last - at):
                self._require_same(at, block)
                if at >= first:
                    pieces.append(_columns_of(block, columns, self._columns))
                at += 1
            if at < last:
                raise ValueError(
                    f"{self._begin!r} yielded {self._blocks[-1]:,} rows in its first pass, and {self._blocks[at]:,} in "
                    "a later one; expected a new iterator over the same rows at each call"
                )
            return [np.concatenate(each) for each in zip(*pieces, strict=True)]

        return decode

    def _require_same(self, number: int, block: RowSource) -> None:
        found, expected = (
            [(each.name, each.dtype) for each in columns] for columns in (block.columns, self._found[number])
        )
        if found != expected:
            raise ValueError(
                f"block {number} of {self._begin!r} has the columns {found}, and had {expected} in the first pass"
            )
        before = self._blocks[number + 1] - self._blocks[number]
        if block.n_rows != before:
            raise ValueError(
                f"block {number} of {self._begin!r} had {before:,} rows in the first pass, and has {block.n_rows:,} "
                "in a later one; expected the same rows at each call"
            )


def _names(columns: Sequence[Column]) -> list[str | None]:
    return [column.name for column in columns]


def _columns_of(block: RowSource, columns: Sequence[int], known: Sequence[Column]) -> list[npt.NDArray[Any]]:
    found = []
    for number in columns:
        numeric = block.columns[number].numeric
        if known[number].numeric is None and numeric is not None:  # only nulls, where other blocks have strings
            found.append(np.full(block.n_rows, None, object))
            continue
        column = np.empty((block.n_rows, 1), object if numeric is None else np.result_type(numeric, np.float32))
        with block.reading(0, block.n_rows, [number]) as fill:
            fill(0, column)
        found.append(column[:, 0])
    return found
