"""The forms in which a task's payload has rows, arrays and results: where they are, and how a rank opens them.

`Source` and its subclasses are the rows of all ranks, which `bounds_of` cuts into one block per rank. A rank reads its
own part of them with the function for their class in `xpulab.engine.dataset`, where two more forms are, which exist on
ranks only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.process_memory import ProcessMemory
from xpulab.sources.source import Fill, RowSource

__all__ = [
    "BlockRows",
    "CSRRows",
    "Description",
    "Growth",
    "Handle",
    "HandleRows",
    "HandleTargets",
    "Pickled",
    "ProcessRows",
    "ReadRows",
    "ResultRows",
    "SharedArray",
    "SharedRows",
    "Source",
    "Target",
    "bounds_by_stored",
    "bounds_of",
]


@dataclass(frozen=True)
class SharedArray:
    """An array in shared memory of this host.

    Attributes
    ----------
    path : str
        `SharedBlock.path` of its memory.
    shape : tuple of int
    dtype : numpy.dtype
    offset : int
        Bytes in front of it.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def open(self, *, writable: bool = False) -> npt.NDArray[Any]:
        """Return the array. Its memory belongs to the process that has created it, which may use it again later."""
        with SharedBlock.open(self.path, writable=writable) as block:
            return block.array(self.shape, self.dtype, self.offset)


@dataclass(frozen=True)
class Target(SharedArray):
    """Shared memory for a result.

    Attributes
    ----------
    first : int
        Number of the row to which its first entry belongs: not 0 if it is for the rows of one rank.
    number : int or None
        Number of the result among those of the task, if the memory is that of another host than the notebook's.
    """

    first: int = 0
    number: int | None = None

    @contextlib.contextmanager
    def held_open(self) -> Iterator[Target]:
        """Keep the shared memory open, also if the process that created it ends."""
        with SharedBlock.open(self.path, writable=True) as block:
            yield dataclasses.replace(self, path=block.path)


class Pickled(TypedDict):
    """An object as pickle gives it, and its buffers: the bytes of small ones, and where large ones are."""

    pickle: bytes
    buffers: list[bytes | SharedArray]


@dataclass(frozen=True)
class Description:
    """What any process needs to know about rows that the ranks keep under a handle.

    Attributes
    ----------
    name : str or None
        The name that the user has given.
    shape : tuple of int
        (n_samples, n_features), or (n_samples,) for targets.
    dtype : numpy.dtype
    bounds : list of int
        Rank r has the rows from bounds[r] up to, not including, bounds[r + 1].
    columns : list or None
        Names of the columns.
    nan : bool
        Whether there may be NaN.
    stored : tuple of int or None
        Numbers of stored values of each rank, if the rows are sparse.
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bounds: list[int]
    columns: list[Any] | None
    nan: bool
    stored: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Handle:
    """A handle under which the ranks keep rows for other tasks: its id, and the description of its rows."""

    id: str
    description: Description


@dataclass(frozen=True)
class Source:
    """The rows of all ranks.

    Attributes
    ----------
    shape : tuple of int
        (n_samples, n_features), or (n_samples,) for one number per row.
    dtype : numpy.dtype
    bounds : list of int
        Rank r has the rows from bounds[r] up to, not including, bounds[r + 1].
    nan : bool
        Whether NaN is allowed.
    finite : bool
        Whether the rows were checked for NaN and infinity before they were sent.
    keep : Handle or None
        If given, the ranks keep the rows, for other tasks.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bounds: list[int]
    nan: bool = field(default=False, kw_only=True)
    finite: bool = field(default=False, kw_only=True)
    keep: Handle | None = field(default=None, kw_only=True)

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return math.prod(self.shape[1:])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.n_features * self.dtype.itemsize

    def shape_of(self, rank: int) -> tuple[int, int]:
        """Return the shape of the rows of a rank."""
        return self.bounds[rank + 1] - self.bounds[rank], self.n_features

    def read_columns(self, first: int, last: int) -> npt.NDArray[Any] | None:
        """Read the columns from `first` up to, not including, `last` of all ranks' rows, if these are in memory.

        No rank may have used the memory as its own before all have read. None for rows that are elsewhere.
        """
        return None


@dataclass(frozen=True)
class HandleRows(Source):
    """Rows that the ranks keep under the handle with this id."""

    handle: str


@dataclass(frozen=True)
class HandleTargets:
    """The targets of all rows, which the ranks keep under a handle.

    Attributes
    ----------
    source : Source
    classes : list of numpy.ndarray or None
        The classes of each output in ascending order, if the targets are labels.
    middle : numpy.ndarray of shape (n_outputs,) or None
        Subtracted from the targets.
    weights : list of numpy.ndarray or None
        Weight of each class of each output.
    """

    source: Source
    classes: list[npt.NDArray[Any]] | None = None
    middle: npt.NDArray[Any] | None = None
    weights: list[npt.NDArray[Any]] | None = None


@dataclass(frozen=True)
class SharedRows(Source):
    """Rows in shared memory: the paths of one block for each rank, which the rank may use as its own memory."""

    paths: list[str]

    def read_columns(self, first: int, last: int) -> npt.NDArray[Any]:
        """Copy columns of all blocks."""
        found = np.empty((self.shape[0], last - first), self.dtype)
        for rank, path in enumerate(self.paths):
            with SharedBlock.open(path) as block:
                rows = block.array(self.shape_of(rank), self.dtype)
                found[self.bounds[rank] : self.bounds[rank + 1]] = rows[:, first:last]
        return found


@dataclass(frozen=True)
class CSRRows(Source):
    """The rows of a CSR matrix, whose three arrays are in shared memory."""

    data: SharedArray
    indices: SharedArray
    indptr: SharedArray


@dataclass(frozen=True)
class ReadRows(Source):
    """Rows that a rank reads from where they are, some at a time."""

    @property
    def by_columns(self) -> bool:
        """Whether rows are best written by columns."""
        return False

    def reading(self, rank: int) -> contextlib.AbstractContextManager[Fill]:
        """Open a context with a function that fills an array with rows of a rank, which it counts from the first."""
        raise NotImplementedError


@dataclass(frozen=True)
class ProcessRows(ReadRows):
    """Rows in C order in the own memory of the process that sent them."""

    memory: ProcessMemory

    @contextlib.contextmanager
    def reading(self, rank: int) -> Iterator[Fill]:
        """Open a context in which the rows are read. At its end, the process must still run."""
        begin = self.bounds[rank] * self.row_bytes
        yield lambda first, part: self.memory.read(begin + first * self.row_bytes, part)
        self.memory.require_running()

    def read_columns(self, first: int, last: int) -> npt.NDArray[Any]:
        """Read columns, one row after the other."""
        found = np.empty((self.shape[0], last - first), self.dtype)
        for number, row in enumerate(found):
            self.memory.read(number * self.row_bytes + first * self.dtype.itemsize, row)
        self.memory.require_running()
        return found


@dataclass(frozen=True)
class ResultRows(ReadRows):
    """Rows in the shared memory of an earlier result, which a rank maps into its memory."""

    array: SharedArray

    @contextlib.contextmanager
    def reading(self, rank: int) -> Iterator[Fill]:
        """Open a context in which the rows are copied from their mapping."""
        rows = self.array.open()[self.bounds[rank] : self.bounds[rank + 1]]
        yield lambda first, part: np.copyto(part, rows[first : first + len(part)])

    def read_columns(self, first: int, last: int) -> npt.NDArray[Any]:
        """Copy columns of the mapped rows."""
        return self.array.open()[:, first:last].copy()


@dataclass(frozen=True)
class BlockRows(ReadRows):
    """Rows of a source of blocks, which each rank reads by itself.

    Attributes
    ----------
    rows : RowSource
    columns : sequence of int
        The numbers of the source's columns that these rows have.
    first : int
        The number of the source's row that is the first of these.
    argument : str
        Name of the argument, for messages.
    kept : sequence of int or None
        How many of its first rows each rank keeps; it reads the others again in each pass. None for all.
    """

    rows: RowSource
    columns: Sequence[int]
    first: int = 0
    argument: str = "X"
    kept: Sequence[int] | None = None

    @classmethod
    def of_all(cls, rows: RowSource, dtype: npt.DTypeLike, bounds: list[int]) -> BlockRows:
        """Return all rows and columns of a source."""
        columns = range(len(rows.columns))
        return cls((rows.n_rows, len(columns)), np.dtype(dtype), bounds, rows, columns)

    @property
    def by_columns(self) -> bool:
        """Whether the source has each column in memory of its own."""
        return self.rows.by_columns

    @property
    def names(self) -> list[str] | None:
        """Names of the columns; None if they have none."""
        columns = self.rows.columns
        names = [columns[number].name for number in self.columns]
        return None if None in names else [str(name) for name in names]

    def reading(self, rank: int) -> contextlib.AbstractContextManager[Fill]:
        """Open a context in which the source reads the rows of a rank."""
        start, stop = (self.first + bound for bound in self.bounds[rank : rank + 2])
        return self.rows.reading(start, stop, self.columns)


def bounds_of(n_samples: int, size: int, counts: list[int] | None = None) -> list[int]:
    """Cut rows into one contiguous block per rank.

    Parameters
    ----------
    n_samples, size : int
        Number of rows, and of ranks.
    counts : list of int, optional
        Rows of each rank; as even as possible by default.

    Returns
    -------
    list of int of length size + 1
        Rank r has the rows from the r-th of these numbers up to, not including, the next one.

    Raises
    ------
    ValueError
        If `counts` is not `size` whole numbers of at least 0 that add up to `n_samples`.
    """
    if counts is None:
        return [n_samples * rank // size for rank in range(size + 1)]
    try:
        rows = [operator.index(count) for count in counts]
    except TypeError:  # counts is not a list, or has other things than whole numbers
        rows = []
    if len(rows) != size or min(rows) < 0 or sum(rows) != n_samples:
        raise ValueError(
            f"counts={counts!r} cannot cut {n_samples} rows for {size} engines: expected {size} whole numbers of at "
            f"least 0 that add up to {n_samples}"
        )
    return list(itertools.accumulate(rows, initial=0))


def bounds_by_stored(indptr: npt.NDArray[Any], size: int) -> list[int]:
    """Cut the rows of a CSR matrix into one contiguous block per rank, with similar numbers of stored values.

    Parameters
    ----------
    indptr : numpy.ndarray of int of shape (n_samples + 1,)
        Row pointers of the CSR matrix.
    size : int
        Number of ranks.

    Returns
    -------
    list of int of length size + 1
        Rank r has the rows from the r-th of these numbers up to, not including, the next one.
    """
    n = len(indptr) - 1
    # A row takes some time even without stored values: as much as about four of them.
    work = indptr.astype(np.int64) + 4 * np.arange(n + 1)
    inner = np.searchsorted(work, work[-1] * np.arange(1, size) / size)
    return [0, *(int(bound) for bound in np.minimum(inner, n)), n]


@dataclass(frozen=True, kw_only=True)
class CategoricalColumns:
    """Columns of categories of gradient boosting, whose trees have these before the other columns.

    Attributes
    ----------
    order : list of int
        The columns of the rows in the order of the trees.
    names : list of str
        What errors call the columns of categories.
    values : list of numpy.ndarray of float64 or None
        The numbers in the rows that are categories, of each such column in ascending order; None for all numbers.
    places : list of numpy.ndarray of float64 or None
        The numbers of these categories in the trees, with NaN at the end, for other numbers; None for their places.
    """

    order: list[int]
    names: list[str]
    values: list[npt.NDArray[Any]] | None = None
    places: list[npt.NDArray[Any]] | None = None


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How trees of gradient boosting are grown, in scikit-learn's words.

    Attributes
    ----------
    constraints : numpy.ndarray of int64 of shape (n_features,)
        Monotonic constraints: 1 if values must not fall with the column, -1 if they must not rise.
    interactions : list of list of int or None
        Groups of columns that may interact.
    """

    learning_rate: float
    max_leaf_nodes: int | None
    max_depth: int | None
    min_samples_leaf: int
    l2_regularization: float
    max_features: float
    constraints: npt.NDArray[Any]
    interactions: list[list[int]] | None
