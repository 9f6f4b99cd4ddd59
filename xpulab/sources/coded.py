"""Numbers in place of strings: each string's place among the distinct ones of its column, in ascending order."""

from __future__ import annotations

import bisect
import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.sources.source import Column, Fill, RowSource

__all__ = ["SHOWN", "CodedSource", "code_dtype", "codes_of", "known_codes", "labels_of", "places_of", "texts_in"]

_PIECE = 65_536  # rows whose strings are in memory at a time
SHOWN = 100  # unknown numbers of a column that `places_of` notes at a time


def code_dtype(n: int) -> np.dtype[Any]:
    """Return the smallest dtype of whole numbers that has the places of n strings."""
    return np.min_scalar_type(-max(n, 1))


def texts_in(source: RowSource, start: int, stop: int, columns: Sequence[int]) -> list[set[str]]:
    """Return the distinct strings in some rows of some columns. Nulls are left out.

    Raises
    ------
    ValueError
        If a column has other things than strings.
    """
    found: list[set[str]] = [set() for _ in columns]
    with source.reading(start, stop, columns) as fill:
        for first in range(0, stop - start, _PIECE):
            fill(first, some := np.empty((min(_PIECE, stop - start - first), len(columns)), object))
            for texts, column, number in zip(found, some.T, columns, strict=True):
                texts.update(value for value in set(column) if value is not None and value == value)
                wrong = next((value for value in texts if not isinstance(value, str)), None)
                if wrong is not None:
                    about = source.columns[number]
                    raise ValueError(
                        f"column {about.name!r} ({about.dtype}) has neither numbers nor strings, such as {wrong!r}; "
                        "leave it out, or convert it first"
                    )
    return found


def labels_of(column: Column, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the strings of codes; numbers of a column without strings as they are. NaN stays NaN."""
    if column.categories is None:
        return codes
    there = ~np.isnan(codes)
    found = np.full(codes.shape, np.nan, object)
    found[there] = np.array(column.categories, object)[codes[there].astype(np.int64)]
    return found


def codes_of(column: Column, labels: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the codes of labels, which are in ascending order with NaN last; of other labels numbers between codes.

    The result is in ascending order, too.
    """
    if column.categories is None:
        return labels.astype(np.float64)
    known = {label: place for place, label in enumerate(column.categories)}
    found = np.empty(len(labels))
    for at, label in enumerate(labels):
        if label is None or label != label:
            found[at] = np.nan
        elif label in known:
            found[at] = known[label]
        else:
            after = float(bisect.bisect_left(column.categories, label))
            before = found[at - 1] if at and found[at - 1] > after - 1 else after - 1
            found[at] = before + (after - before) / 2
    return found


def known_codes(
    column: Column, categories: npt.NDArray[Any], places: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the numbers that stand for categories in rows, in ascending order with NaN last, and their places.

    Raises
    ------
    ValueError
        If the categories are strings, and the rows have numbers.
    """
    if column.categories is None:
        if categories.dtype.kind in "OUS":
            raise ValueError(f"X has numbers, and the categories of the fit are strings: {categories[:5]}")
        return categories.astype(np.float64), places
    if categories.dtype.kind not in "OUS":
        raise ValueError(f"X has strings in column {column.name!r}, and the categories of the fit are {categories[:5]}")
    missing = np.array([each is None or each != each for each in categories], bool)
    order = np.concatenate([np.flatnonzero(~missing)[np.argsort(categories[~missing])], np.flatnonzero(missing)])
    return codes_of(column, categories[order]), np.append(places[:-1][order], places[-1])


def places_of(
    some: npt.NDArray[Any],
    categories: Sequence[npt.NDArray[Any]],
    places: Sequence[npt.NDArray[Any]],
    unknown: list[list[npt.NDArray[Any]]] | None = None,
) -> npt.NDArray[Any]:
    """Return the entry of `places` for the category of each number, or the last one; note some unknown numbers."""
    found = np.empty(some.shape, places[0].dtype)
    for column, (known, place) in enumerate(zip(categories, places, strict=True)):
        numbers = some[:, column].astype(np.float64)
        if not len(known):  # a column of missing values has no category
            found[:, column] = place[-1]
            continue
        nearest = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        there = (known[nearest] == numbers) | (np.isnan(known[nearest]) & np.isnan(numbers))
        found[:, column] = np.where(there, place[nearest], place[-1])
        if unknown is not None and not there.all():  # a list, since other threads append, too
            unknown[column].append(np.unique(numbers[~there])[:SHOWN])
    return found


@dataclass(frozen=True)
class CodedSource(RowSource):
    """A source with numbers in place of the strings of some columns.

    Attributes
    ----------
    rows : RowSource
    categories : mapping of int to tuple of str
        By the number of the column, its distinct strings in ascending order.
    """

    rows: RowSource
    categories: Mapping[int, tuple[str, ...]]

    @property
    def by_columns(self) -> bool:  # type: ignore[override]
        """Whether the source has each column in memory of its own."""
        return self.rows.by_columns

    @property
    def sequential(self) -> bool:  # type: ignore[override]
        """Whether rows are best read in their order."""
        return self.rows.sequential

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.rows.n_rows

    @cached_property
    def columns(self) -> Sequence[Column]:
        """The columns, of which those with strings have categories."""
        found = list(self.rows.columns)
        for number, texts in self.categories.items():
            found[number] = replace(found[number], numeric=code_dtype(len(texts)), categories=texts)
        return found

    @property
    def blocks(self) -> Sequence[int]:
        """Bounds of the blocks."""
        return self.rows.blocks

    @property
    def files(self) -> Sequence[str]:
        """Paths of the files."""
        return self.rows.files

    @contextlib.contextmanager
    def reading(self, start: int, stop: int, columns: Sequence[int]) -> Iterator[Fill]:
        """Open a context in which strings are read, and replaced by their codes."""
        coded = [at for at, number in enumerate(columns) if number in self.categories]
        plain = [at for at, number in enumerate(columns) if number not in self.categories]
        codes = [{text: code for code, text in enumerate(self.categories[columns[at]])} for at in coded]
        with contextlib.ExitStack() as opened:
            numbers, strings = (
                opened.enter_context(self.rows.reading(start, stop, [columns[at] for at in some])) if some else None
                for some in (plain, coded)
            )

            def fill(first: int, part: npt.NDArray[Any]) -> None:
                n, shape = math.prod(part.shape[:-1]), part.shape[:-1]
                if numbers is not None:
                    numbers(first, some := np.empty((n, len(plain)), part.dtype))
                    part[..., plain] = some.reshape(*shape, -1)
                if strings is not None:
                    strings(first, texts := np.empty((n, len(coded)), object))
                    for at, known, column in zip(coded, codes, texts.T, strict=True):
                        part[..., at] = self._coded(columns[at], known, column).reshape(shape)

            yield fill

    def _coded(self, number: int, known: dict[str, int], column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        try:
            return np.array([known[each] if each is not None and each == each else np.nan for each in column])
        except KeyError as error:
            raise ValueError(
                f"column {self.columns[number].name!r} has {error}, which it had not when its strings were looked for"
            ) from None

    def require_unchanged(self) -> None:
        """Raise ValueError if a file has changed since the source was made."""
        self.rows.require_unchanged()

    def on_this_host(self) -> CodedSource:
        """Return this source for another host."""
        return replace(self, rows=self.rows.on_this_host())
