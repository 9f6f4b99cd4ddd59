"""Lazy rows: what `scan` returns, which estimators take in place of an array."""

from __future__ import annotations

import bisect
import html
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from xpulab.like_arrays import numbers_of_rows
from xpulab.names import Listed
from xpulab.report.rendering import format_size
from xpulab.sharing.sources import BlockRows
from xpulab.sources.chosen import ChosenRows
from xpulab.sources.coded import CodedSource, texts_in
from xpulab.sources.kinds import opened
from xpulab.sources.mapped import mapped
from xpulab.sources.source import Column, Fill, RowSource
from xpulab.sources.states import file_state
from xpulab.sources.tables import ArrowTable

__all__ = ["Scan", "by_blocks", "read_here", "require_table", "scan", "scanned", "tabled"]

_FEW = 8  # files and columns that a text shows
_PIECE = 8 << 20  # bytes of rows that are looked through at a time
_SHARE = 0.1  # of the rows of a rank, that it may have more or fewer so that blocks stay whole


def scan(files: Any, columns: Sequence[str] | None = None) -> Scan:
    """Open files or tables of rows, without reading the rows: estimators take the result in place of an array.

    The engines read the files themselves, each its own blocks of rows, and the rows do not pass through this process.
    Columns of tables and tensors of this process are copied once, into memory that the engines share.

    Parameters
    ----------
    files : path-like, list of path-like, table, tensor, or callable
        A file, a folder, a pattern such as ``"flights/*.parquet"``, or a list of these. Their suffixes say what they
        are: Parquet (``.parquet``, ``.pq``), Arrow IPC and Feather (``.arrow``, ``.feather``, ``.ipc``), CSV
        (``.csv``), files of `numpy.save` (``.npy``), HDF5 (``.h5``, ``.hdf5``), of which ``"file.h5:/group/data"``
        names a dataset, and in the same way Zarr (``.zarr``). A table is an object that has ``__arrow_c_stream__`` or
        ``__arrow_c_array__``, as those of polars, pyarrow and pandas; a tensor has ``__dlpack__``. Arrays and frames of
        dask are computed block by block. A function returns a new iterator of blocks, each an array or a table, at each
        call; it is called once to count the rows.
    columns : list of str, optional
        Names of the columns; all by default.

    Returns
    -------
    Scan

    Raises
    ------
    FileNotFoundError
        If there is no such file, if a pattern matches nothing, or if a folder has no such files.
    ValueError
        If a file is of another kind or damaged, has other columns than the first one, or types that none joins.
    KeyError
        If there is no column of a name.
    TypeError
        If an object is of no known kind.
    ImportError
        If the package for the kind of the files is missing.

    Examples
    --------
    A table of this process; the name of a file in its place gives the same:

    >>> import pyarrow
    >>> import xpulab
    >>> flights = xpulab.scan(pyarrow.table({"distance": [90.0, 210.5, 77.0], "carrier": ["A", "B", "A"]}))
    >>> flights
    Scan(shape=(3, 2), distance: float64, carrier: string, in this process)
    >>> from xpulab.preprocessing import StandardScaler
    >>> with xpulab.XPUCluster(n=2):
    ...     scaler = StandardScaler().fit(flights[["distance"]])
    >>> scaler.mean_.round(1)
    array([125.8])
    """
    found = Scan(opened(files))
    return found if columns is None else found[list(columns)]


def scanned(X: object) -> Scan | None:
    """Return rows that this process does not look through: a scan, and that of a memory-mapped file; None for others.

    Raises
    ------
    ValueError
        If a memory-mapped file was removed or replaced since it was mapped.
    """
    if isinstance(X, Scan):
        return X
    file = mapped(X) if isinstance(X, np.memmap) else None
    return None if file is None else Scan(file)


def by_blocks(X: object) -> Any:
    """Return an array or a frame of dask as a scan, whose blocks are computed one after the other; others as they are.

    Raises
    ------
    TypeError
        For other collections of dask.
    ValueError
        For an array whose chunks have unknown sizes.
    """
    return Scan(opened(X)) if hasattr(X, "__dask_graph__") else X


def tabled(X: object) -> Scan | None:
    """Return a table of this process as a scan, and a scan as it is; None for others.

    A table is a data frame or what has Arrow's C interface, if its columns have names that are strings.
    """
    if isinstance(X, Scan):
        return X
    names = getattr(X, "column_names", getattr(X, "columns", None))
    framed = hasattr(X, "__arrow_c_stream__") or hasattr(X, "iloc")
    if not framed or names is None or not len(names) or not all(isinstance(name, str) for name in names):
        return None
    return Scan(opened(X) if hasattr(X, "__arrow_c_stream__") else ArrowTable(X))


def require_table(X: object) -> None:
    """Raise TypeError for a stream of rows, and for a query that was not computed, of which a fit needs the rows."""
    if hasattr(X, "__array__"):
        return
    name = type(X).__name__
    if hasattr(X, "__arrow_c_stream__"):
        raise TypeError(f"a {name} was given, whose rows were not read; pass xpulab.scan(X), which reads them once")
    if hasattr(X, "collect_schema"):
        raise TypeError(f"a {name} was given, which is not computed yet; pass X.collect()")


def read_here(X: Any) -> npt.NDArray[Any]:
    """Return rows that this process needs: those of a scan are read, and others become an array."""
    return X.read() if isinstance(X, Scan) else np.asarray(X)


class Scan(Listed):
    """Rows in files, which the engines read by themselves. `xpulab.scan` returns one.

    ``flights["delay"]`` is one column, of shape (n_samples,), as estimators take it for `y`; ``flights[["a", "b"]]``
    are some columns, and ``flights[:1000]`` some consecutive rows. Nothing is read for these. ``flights[numbers]``
    reads the rows of these numbers into this process.

    Attributes
    ----------
    shape : tuple of int
        (n_samples, n_features), or (n_samples,) for one column.
    ndim : int
        1 for one column, 2 for rows.
    dtype : numpy.dtype
        In which dtype the engines get the numbers: float32 if all columns are float32, otherwise float64; object for
        columns that are not all of numbers.
    dtypes : dict of str to str
        The type of each column in its files, by the column's name, or its number if it has none.
    columns : list of str or None
        Names of the columns; None if they have none.
    files : list of str
        Paths of the files; none of a table in this process.
    nbytes : int
        Bytes of the numbers in memory, in `dtype`.
    """

    _internal = frozenset(
        {
            "block_rows",
            "bounds_for",
            "cast",
            "chosen",
            "coded",
            "described",
            "numeric_dtypes",
            "require_finite",
            "require_numbers",
            "source",
        }
    )

    def __init__(
        self,
        source: RowSource,
        numbers: Sequence[int] | None = None,
        bounds: tuple[int, int] | None = None,
        flat: bool = False,
        dtype: npt.DTypeLike = None,
    ) -> None:
        self.source = source
        self._dtype = dtype
        self._numbers = range(len(source.columns)) if numbers is None else numbers
        self._first, self._last = bounds or (0, source.n_rows)
        self._flat = flat

    @property
    def shape(self) -> tuple[int, ...]:
        """(n_samples, n_features), or (n_samples,) for one column."""
        n = self._last - self._first
        return (n,) if self._flat else (n, len(self._numbers))

    @property
    def ndim(self) -> int:
        """1 for one column, 2 for rows."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in which the engines get the numbers."""
        if self._dtype is not None:
            return np.dtype(self._dtype)
        numeric = self.numeric_dtypes
        if np.dtype(object) in numeric:
            return np.dtype(object)
        codes = [column.numeric for column in self.described if column.categories is not None]
        others = {dtype for column, dtype in zip(self.described, numeric, strict=True) if column.categories is None}
        single = others == {np.dtype(np.float32)} and np.result_type(np.float32, *codes) == np.float32
        return np.dtype(np.float32 if single else np.float64)

    @property
    def dtypes(self) -> dict[str, str]:
        """The type of each column in its files."""
        return {
            str(number) if column.name is None else column.name: column.dtype
            for number, column in zip(self._numbers, self.described, strict=True)
        }

    @property
    def columns(self) -> list[str] | None:
        """Names of the columns; None if they have none."""
        names = [column.name for column in self.described if column.name is not None]
        return names if len(names) == len(self._numbers) else None

    @property
    def files(self) -> list[str]:
        """Paths of the files."""
        return list(self.source.files)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def described(self) -> list[Column]:
        """The columns."""
        columns = self.source.columns
        return [columns[number] for number in self._numbers]

    def __len__(self) -> int:
        return self._last - self._first

    def __getitem__(self, key: Any) -> Any:
        """Return one column, some columns, or some consecutive rows; rows of any numbers as an array.

        With ``...`` after them, as scikit-learn's searches ask, rows of any numbers are a scan, and nothing is read.
        """
        if isinstance(key, tuple) and (rows := numbers_of_rows(key, len(self))) is not None:
            return self.chosen(rows)
        if isinstance(key, slice):
            first, last, step = key.indices(len(self))
            if step != 1:
                raise IndexError(f"X[{key.start}:{key.stop}:{step}] was asked of {self!r}; expected consecutive rows")
            bounds = self._first + first, self._first + max(first, last)
            return Scan(self.source, self._numbers, bounds, self._flat, self._dtype)
        if isinstance(key, np.ndarray) and key.ndim == 1 and key.dtype.kind in "iub":
            return self._read_some(np.flatnonzero(key) if key.dtype == bool else key)
        if self._flat or not isinstance(key, str | list):
            raise IndexError(
                f"{key!r} was asked of {self!r}; expected a column's name, a list of names, or a slice of rows"
            )
        if isinstance(key, list) and not key:
            raise IndexError(f"no column was asked of {self!r}; expected names, X[['a', 'b']], or all columns, X")
        numbers = [self._number_of(name) for name in ([key] if isinstance(key, str) else key)]
        return Scan(self.source, numbers, (self._first, self._last), isinstance(key, str), self._dtype)

    def _number_of(self, name: str) -> int:
        names = self.columns
        if names is None:
            raise KeyError(f"column {name!r} was asked of rows whose columns have no names: {self!r}")
        if name not in names:
            raise KeyError(f"there is no column {name!r}; the columns are {_some(names)}")
        return self._numbers[names.index(name)]

    def coded(self, texts_of: Callable[[Scan], list[tuple[str, ...]]]) -> Scan:
        """Return this scan with numbers in place of strings.

        Parameters
        ----------
        texts_of : callable
            Has the engines find the distinct strings of columns in files.
        """
        numbers = [number for number in self._numbers if self.source.columns[number].numeric is None]
        if not numbers:
            return self
        source = self.source.coded(numbers)
        if source is None:
            end = self._first + len(self)
            if self.files:
                texts = texts_of(Scan(self.source, numbers, (self._first, end)))
            else:
                texts = [tuple(sorted(each)) for each in texts_in(self.source, self._first, end, numbers)]
            source = CodedSource(self.source, dict(zip(numbers, texts, strict=True)))
        return Scan(source, self._numbers, (self._first, self._last), self._flat, self._dtype)

    def cast(self, dtype: npt.DTypeLike) -> Scan:
        """Return this scan of numbers in another dtype, in which the engines get them."""
        return Scan(self.source, self._numbers, (self._first, self._last), self._flat, dtype)

    def chosen(self, places: npt.NDArray[Any]) -> Scan:
        """Return a scan of the rows with these numbers, in their order. Nothing is read."""
        source = ChosenRows.of(self.source, places + self._first)
        return Scan(source, self._numbers, flat=self._flat, dtype=self._dtype)

    def read(self) -> npt.NDArray[Any]:
        """Read all rows into this process.

        Returns
        -------
        numpy.ndarray
            Of the scan's shape and dtype; one column of whole numbers that float64 may round has its own dtype. A null
            is NaN in a column of numbers, and None in others.
        """

        def all_at_once(fill: Fill, rows: npt.NDArray[Any]) -> None:
            fill(0, rows)

        return self._taken(len(self), all_at_once)

    def _taken(self, n: int, take: Callable[[Fill, npt.NDArray[Any]], None]) -> npt.NDArray[Any]:
        """Return `n` rows that a function takes from the source."""

        def taken(dtype: np.dtype[Any]) -> npt.NDArray[Any]:
            rows = np.empty((n, len(self._numbers)), dtype)
            with self.source.reading(self._first, self._last, self._numbers) as fill:
                take(fill, rows)
            return rows

        rows = taken(self.dtype)
        if not self._flat:
            return rows
        return (taken(self.numeric_dtypes[0]) if self.described[0].may_be_rounded(rows) else rows)[:, 0]

    def _read_some(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        outside = numbers[(numbers < -len(self)) | (numbers >= len(self))]
        if len(outside):
            raise IndexError(f"row {outside[0]} was asked of {self!r}; expected numbers below {len(self):,}")
        numbers = np.where(numbers < 0, numbers + len(self), numbers)

        def one_by_one(fill: Fill, rows: npt.NDArray[Any]) -> None:
            for at in np.argsort(numbers, kind="stable"):  # each block is decoded once
                fill(int(numbers[at]), rows[at : at + 1])

        return self._taken(len(numbers), one_by_one)

    def head(self, n: int = 5) -> npt.NDArray[Any]:
        """Read the first rows into this process, as `read` does.

        Parameters
        ----------
        n : int
            How many rows.

        Returns
        -------
        numpy.ndarray
        """
        return self[:n].read()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Read one column into this process, as targets or labels. Rows are not read without being asked.

        Raises
        ------
        TypeError
            For rows; the message says what to type.
        """
        if not self._flat:
            self._refuse()
        found = self.read()
        return found if dtype is None else found.astype(dtype, copy=False)

    def _refuse(self) -> NoReturn:
        raise TypeError(
            f"{self!r} was given, whose rows were not read; expected an array: pass X.read(), or cluster.scatter(X), "
            "of which the engines compute NumPy's functions, or use estimators of xpulab, whose engines get the rows"
        )

    @property
    def numeric_dtypes(self) -> list[np.dtype[Any]]:
        """The dtype of each column; object if it has no numbers."""
        return [np.dtype(object) if column.numeric is None else column.numeric for column in self.described]

    def require_numbers(self, what: str = "X") -> None:
        """Raise ValueError if a column has no numbers."""
        names = [repr(column.name) for column in self.described if column.numeric is None]
        if names:
            kinds = ", ".join(sorted({column.dtype for column in self.described if column.numeric is None}))
            raise ValueError(
                f"No numbers in {what}: column{'s' * (len(names) > 1)} {_some(names)} ({kinds}). Leave out such "
                "columns, X[['a', 'b']], or encode them first with xpulab.preprocessing.OrdinalEncoder or "
                "OneHotEncoder, in a ColumnTransformer of the handle cluster.scatter(X)."
            )

    def require_finite(self, allow_nan: bool = False) -> None:
        """Raise ValueError if a row has infinity, or a null or NaN unless this is allowed; all rows are read."""
        some = max(1, _PIECE // (8 * len(self._numbers)))
        for first in range(0, len(self), some):
            rows = self[first : first + some].read().reshape(-1, len(self._numbers))
            wrong = np.isinf(rows) if allow_nan else ~np.isfinite(rows)
            if wrong.any():
                row, number = map(int, np.argwhere(wrong)[0])
                name = self.described[number].name
                kinds = "infinity" if allow_nan else "null, NaN or infinity"
                raise ValueError(
                    f"Input X contains {kinds}; the first such row is row {first + row}, column "
                    f"{number if name is None else repr(name)}."
                )

    def bounds_for(self, size: int) -> list[int]:
        """Cut the rows into one contiguous block per rank: as even as possible, or between blocks of the files.

        A rank would decode a whole block for a part of its rows. So a bound moves to the next border of two blocks, if
        this changes the rows of a rank by less than a tenth.
        """
        n, blocks = len(self), self.source.blocks
        bounds = [0]
        for rank in range(1, size):
            even = n * rank // size
            after = bisect.bisect_left(blocks, self._first + even)
            near = (blocks[at] - self._first for at in (after - 1, after) if 0 <= at < len(blocks))
            best = min(near, key=lambda bound: abs(bound - even), default=even)
            good = abs(best - even) <= _SHARE * n / size and bounds[-1] <= best <= n
            bounds.append(best if good else max(even, bounds[-1]))
        return [*bounds, n]

    def block_rows(self, bounds: list[int], dtype: npt.DTypeLike = None, nan: bool = False) -> BlockRows:
        """Return what tells the ranks to read these rows."""
        shape = len(self), len(self._numbers)
        kind = np.dtype(self.dtype if dtype is None else dtype)
        return BlockRows(shape, kind, bounds, self.source, self._numbers, self._first, nan=nan)

    def __repr__(self) -> str:
        dtypes = [f"{name}: {dtype}" for name, dtype in self.dtypes.items()]
        return f"Scan(shape={self.shape}, {_some(dtypes)}, {self._of_files()})"

    def _of_files(self) -> str:
        files = self.files
        if not files:
            return "in this process"
        size = format_size(sum(file_state(path)[3] for path in files if os.path.exists(path)))
        names = os.path.basename(files[0]) + " and others" * (len(files) > 1)
        return f"{len(files)} file{'s' * (len(files) != 1)} of {size}: {names}"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{html.escape(dtype)}</td></tr>"
            for name, dtype in list(self.dtypes.items())[: 4 * _FEW]
        )
        more = len(self._numbers) - 4 * _FEW
        rest = f"<p>and {more:,} more columns</p>" if more > 0 else ""
        return (
            f"<div><p><b>Scan</b> of {len(self):,} rows, {len(self._numbers):,} columns; "
            f"{html.escape(self._of_files())}</p>"
            f"<table><thead><tr><th>column</th><th>type</th></tr></thead><tbody>{rows}</tbody></table>{rest}</div>"
        )


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:_FEW]) + (f" and {len(texts) - _FEW:,} more" if len(texts) > _FEW else "")
