"""Handles of tables: rows with named columns of several types, which stay on the engines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from xpulab.csr import ShardedCSR, is_sparse
from xpulab.data import Holder, ShardedArray
from xpulab.like_arrays import numbers_of_rows
from xpulab.report.rendering import counted, format_size
from xpulab.scanning import Scan, by_blocks, require_table, tabled
from xpulab.sources.coded import codes_of, labels_of
from xpulab.sources.needed import needed
from xpulab.sources.source import Column

__all__ = [
    "ShardedColumn",
    "ShardedTable",
    "coded",
    "columns_of_frame",
    "columns_of_rows",
    "handle_of",
    "named",
    "refuse_rounded",
]

_FEW = 12  # columns that a drawing shows


class Asked(Protocol):
    """Ranks that compute a task."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def call(self, name: str, payload: dict[str, object]) -> Any:
        """Run a task on all ranks."""


def handle_of(
    cluster: Holder,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    bounds: list[int],
    columns: Any,
    *,
    name: str | None = None,
    nan: bool = False,
    stored: Sequence[int] | None = None,
) -> ShardedArray:
    """Return a handle for rows: a table's if the columns are described as such; of CSR rows if `stored` is given."""
    if stored is not None:
        return ShardedCSR(cluster, shape, dtype, bounds, columns, name=name, nan=nan, stored=stored)
    described = columns is not None and len(columns) > 0 and all(isinstance(each, Column) for each in columns)
    kind = ShardedArray if not described else ShardedColumn if len(shape) == 1 else ShardedTable
    return kind(cluster, shape, dtype, bounds, columns, name=name, nan=nan)


def _texts_of(cluster: Asked, scan: Scan) -> list[tuple[str, ...]]:
    """Return the distinct strings of each column of a scan of files, which the engines of a cluster find."""
    rows = scan.block_rows(scan.bounds_for(cluster.size))
    found: list[tuple[str, ...]] = cluster.call("encoding.texts", {"source": rows}).results[0]["texts"]
    return found


def coded(X: object, cluster: Asked) -> Any:
    """Return a table, a data frame or a scan with numbers in place of strings, and other rows as they are."""
    if isinstance(X, ShardedArray) or is_sparse(X):
        return X
    require_table(X)
    X = by_blocks(X)
    table = X if isinstance(X, Scan) else _with_strings(X)
    return X if table is None else table.coded(functools.partial(_texts_of, cluster))


def _with_strings(X: object) -> Scan | None:
    """Return a table of this process that has columns of strings as a scan; None for others."""
    if not (hasattr(X, "iloc") or hasattr(X, "__arrow_c_stream__")) or columns_of_frame(X):
        return None
    table = tabled(X)
    return table if table is not None and np.dtype(object) in table.numeric_dtypes else None


def columns_of_frame(X: object) -> list[Column]:
    """Return the columns of a pandas data frame of NumPy's numbers, whose names are strings; none of other things."""
    dtypes: Any = getattr(X, "dtypes", None)
    if not hasattr(X, "iloc") or not hasattr(dtypes, "items"):
        return []
    found = [Column(name, str(dtype), dtype) for name, dtype in dtypes.items()]
    plain = (isinstance(each.numeric, np.dtype) and each.numeric.kind in "fiub" for each in found)
    named = all(isinstance(each.name, str) for each in found) and len({each.name for each in found}) == len(found)
    return found if named and all(plain) else []


def columns_of_rows(X: Any, n_columns: int) -> list[Column]:
    """Return descriptions of the columns of rows; those of `n_columns` columns of numbers for arrays."""
    known = X.described if isinstance(X, Scan | ShardedArray) else None
    if known is not None and all(isinstance(each, Column) for each in known):
        return list(known)
    return [Column(None, "", None)] * n_columns


def named(rows: ShardedArray, names: Sequence[str]) -> ShardedArray:
    """Return a handle for the rows of a dense handle, as a table whose columns have these names. Nothing is copied."""
    if rows.columns is not None and list(rows.columns) == list(names):
        return rows
    plain = Column(None, str(rows.dtype), rows.dtype)
    known = (column if column.dtype else plain for column in columns_of_rows(rows, len(names)))
    columns = [replace(column, name=str(name)) for column, name in zip(known, names, strict=True)]
    made = handle_of(rows.cluster, rows.shape, rows.dtype, rows.bounds, columns, name=rows.name, nan=rows.nan)
    made.id, made.origin, made.again = rows.id, rows.origin, rows.again
    made.discard = lambda: rows.discard()  # it keeps the handle, with which the engines would free the rows
    return made


def refuse_rounded(column: Column, found: npt.NDArray[Any]) -> None:
    """Raise ValueError if numbers of a column, which are labels, may be those of other labels that float64 rounds."""
    if column.may_be_rounded(found):
        raise ValueError(
            f"labels of column {column.name!r} ({column.dtype}) may have become others, such as "
            f"{int(found[np.argmax(np.abs(found))])}: the engines have float64, which is exact up to 2**53. Pass these "
            "labels as an array of this process, y=frame['name'].to_numpy(), or send them as strings, "
            "frame.astype({'name': str}), or as the numbers of numpy.unique(y, return_inverse=True)"
        )


class ShardedColumn(ShardedArray):
    """A handle for one column of a table, or for whole numbers, of shape (n_samples,), as estimators take it for `y`.

    Attributes
    ----------
    columns : list of str or None
        Names of the columns; None if they have none.
    dtypes : dict of str to str
        The type of each column in the table that was sent.
    categories : dict of str to numpy.ndarray
        The strings of each column that has strings, in ascending order.
    """

    columns: list[str] | None

    def __init__(
        self,
        cluster: Holder,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        bounds: list[int],
        columns: Sequence[Column],
        *,
        name: str | None = None,
        nan: bool = False,
    ) -> None:
        self._described = list(columns)
        names = None if columns[0].name is None else [str(each.name) for each in columns]
        super().__init__(cluster, shape, dtype, bounds, names, name=name, nan=nan)

    @property
    def described(self) -> list[Column]:
        """The columns."""
        return self._described

    @property
    def dtypes(self) -> dict[str, str]:
        """The type of each column in the table that was sent."""
        return {str(each.name): each.dtype for each in self.described}

    @property
    def categories(self) -> dict[str, npt.NDArray[Any]]:
        """The strings of each column that has strings."""
        some = (each for each in self.described if each.categories is not None)
        return {str(each.name): np.array(each.categories, object) for each in some}

    def require_numbers(self, what: str = "X") -> None:
        """Raise ValueError if a column has strings, whose numbers only encoders may take."""
        names = ", ".join(map(repr, self.categories))
        if names:
            raise ValueError(
                f"No numbers in {what}: {names} of {type(self).__name__} are strings. Leave out such columns, "
                "X[['a', 'b']], or encode them with xpulab.preprocessing.OneHotEncoder or OrdinalEncoder, in a "
                "ColumnTransformer if others have numbers."
            )

    def require_exact(self, found: npt.NDArray[Any], column: int = 0) -> None:
        """Raise ValueError if these are labels that float64 may have rounded: whole numbers beyond 2**53.

        Raises
        ------
        ValueError
            If there is one; the message says what to type.
        """
        refuse_rounded(self.described[column], found)

    def labels(self, found: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the strings, or the numbers in their own type, for which the numbers of the first column stand."""
        column = self.described[0]
        whole = not np.isnan(found).any() and not column.may_be_rounded(found)
        if column.categories is None and column.numeric is not None and whole:
            return found.astype(column.numeric)
        return labels_of(column, found)

    def code(self, labels: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the numbers that stand for labels in the first column."""
        if labels.dtype.kind in "iu":
            self.require_exact(labels.astype(np.float64))
        return codes_of(self.described[0], labels)

    def __repr__(self) -> str:
        """Draw which rows and columns are on which engine, and their memory."""
        if self.columns is None:
            return super().__repr__()
        ranks, size = range(len(self.counts)), self.dtype.itemsize
        title = (
            f"{type(self).__name__} of {len(self):,} rows and {counted(len(self.columns), 'column')}: {self.dtype}, "
            f"{format_size(self.nbytes)} on {counted(len(ranks), 'engine')}"
        )
        lines = [["", "", *(f"engine {rank}" for rank in ranks)]]
        lines += [["", "rows", *(_range(*self.bounds[rank : rank + 2]) for rank in ranks)]]
        for each in self.described[:_FEW]:
            kind = each.dtype if each.categories is None else f"{len(each.categories):,} strings"
            lines.append([str(each.name), kind, *(format_size(size * self.counts[rank]) for rank in ranks)])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        drawn = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        more = [f"and {len(self.described) - _FEW:,} more columns"] * (len(self.described) > _FEW)
        return "\n".join([title, *(f"  {line}" for line in [*drawn, *more])])


class ShardedTable(ShardedColumn):
    """A handle for the rows of a table that stay on the engines.

    `XPUCluster.scatter` returns one for a table with named columns. The engines have all columns in one dtype; a string
    is the number of its category, of which each column has those that occur, in ascending order. ``table["a"]`` is one
    column, of shape (n_samples,), as estimators take it for `y`; ``table[["a", "b"]]`` are some columns. These are
    handles too, whose rows the engines copy where they are.

    Attributes
    ----------
    columns : list of str
        Names of the columns.
    dtypes : dict of str to str
        The type of each column in the table that was sent.
    categories : dict of str to numpy.ndarray
        The strings of each column that has strings, in ascending order.
    """

    columns: list[str]
    _internal = ShardedArray._internal | {"iloc", "index", "loc"}
    #: Whether columns can be replaced, because no other handle has these rows, and the handle that has them since.
    _replaces = False
    _keeps: ShardedArray | None = None

    def __getitem__(self, key: Any) -> Any:
        """Return one column, some columns, or rows by a slice, their numbers or a mask; the engines copy them."""
        if not (isinstance(key, str) or (isinstance(key, list) and key and isinstance(key[0], str))):
            rows = numbers_of_rows(key, len(self))
            return self._refuse_rows(key) if rows is None else self._rows_at(rows)
        names = [key] if isinstance(key, str) else key
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise KeyError(f"there is no column {missing[0]!r}; the columns are {', '.join(self.columns)}")
        return self._chosen([self.columns.index(name) for name in names], isinstance(key, str))

    def _refuse_rows(self, key: object) -> NoReturn:
        raise TypeError(
            f"{key!r} was asked of a table whose rows are on the engines; expected the name of a column, or a list of "
            "names; for some rows pass a slice, an array of their numbers or a mask"
        )

    def _chosen(self, numbers: list[int], flat: bool) -> ShardedArray:
        """Return a handle of some columns."""
        n, described = self.shape[0], [self.described[number] for number in numbers]
        shape = (n,) if flat else (n, len(numbers))
        made = self.cluster.made_handle(shape, self.dtype, self.bounds, described, nan=self.nan)
        payload: dict[str, object] = {
            "source": self.source(self.cluster),
            "weights": None,
            "chosen": numbers,
            "kept": made.handle,
        }
        self.cluster.call("columns.choose", payload)
        return made

    def head(self, n: int = 5) -> Any:
        """Return the first rows, with strings for their numbers.

        Parameters
        ----------
        n : int
            How many rows.

        Returns
        -------
        pyarrow.Table
        """
        pa = needed("pyarrow", "the head of a table")
        n = min(n, len(self))
        payload: dict[str, object] = {"source": self.source(self.cluster), "weights": None, "n": n}
        found: npt.NDArray[Any] = self.cluster.call("columns.head", payload).results[0]["first"]
        return pa.table(
            {str(each.name): _as_sent(each, numbers) for each, numbers in zip(self.described, found.T, strict=True)}
        )

    def to_arrow(self) -> Any:
        """Copy the rows into this process, with strings for their numbers.

        Returns
        -------
        pyarrow.Table
        """
        pa = needed("pyarrow", "the rows of a table")
        rows = self.gather()
        return pa.table(
            {str(each.name): _as_sent(each, numbers) for each, numbers in zip(self.described, rows.T, strict=True)}
        )

    # What scikit-learn's ColumnTransformer and make_column_selector ask of a data frame.

    @property
    def iloc(self) -> _Indexer:
        """Some columns by their numbers, as ``iloc[:, [0, 2]]``; the first rows as a data frame without rows."""
        return _Indexer(self, lambda key: self.columns[key])

    @property
    def loc(self) -> _Indexer:
        """Some columns by their names, as ``loc[:, ["a", "c"]]``."""
        return _Indexer(self, str)

    def take(self, indices: npt.ArrayLike, axis: int = 0) -> ShardedArray:
        """Return rows by their numbers, or with `axis` 1 columns, as pandas' `take` does; the engines copy them.

        Parameters
        ----------
        indices : array-like of int
        axis : {0, 1}, default=0

        Returns
        -------
        ShardedTable
        """
        numbers = np.asarray(indices)
        chosen: ShardedArray = self.iloc[:, numbers] if axis else self[numbers]
        return chosen

    # What scikit-learn's permutation_importance asks of a data frame.

    @property
    def index(self) -> range:
        """The numbers of the rows, in place of labels."""
        return range(len(self))

    def copy(self) -> ShardedTable:
        """Return a copy of the rows, distributed evenly over the engines, whose columns can be replaced.

        Returns
        -------
        ShardedTable
        """
        made: ShardedTable = self._rows_at(np.arange(len(self)))
        return made

    def _rows_at(self, rows: npt.NDArray[np.int64]) -> Any:
        made = super()._rows_at(rows)
        made._replaces = True
        return made

    def __setitem__(self, name: str, column: object) -> None:
        """Replace a column of a copy, or of some rows, by another with as many rows of each engine."""
        if not self._replaces:
            raise TypeError(f"column {name!r} of a table was to be replaced; expected a copy: type: table.copy()")
        if name not in self.columns:
            raise KeyError(f"there is no column {name!r}; the columns are {', '.join(self.columns)}")
        number = self.columns.index(name)
        if not isinstance(column, ShardedColumn) or column.ndim > 1 or column.bounds != self.bounds:
            raise TypeError(
                f"column {name!r} was to be replaced by {type(column).__name__}; expected a column on the same engines "
                f"with {self.counts} rows, such as table.iloc[numbers, {number}]"
            )
        if column.described[0].categories != self.described[number].categories:
            raise ValueError(f"column {name!r} was to be replaced by one with other strings; expected the same")
        cluster, nan = self.cluster, self.nan or column.nan
        made = cluster.made_handle(self.shape, self.dtype, self.bounds, self.described, nan=nan)
        sources = [each.source(cluster) for each in (self, column)]
        try:
            cluster.call("columns.replace", {"sources": sources, "number": number, "kept": made.handle})
        except BaseException:
            made.discard()
            raise
        self.discard()
        self.id, self.digest, self.discard, self.nan, self._keeps = made.id, made.digest, made.discard, nan, made

    def __narwhals_dataframe__(self) -> _Names:
        return _Names(self)

    def __dataframe__(self, *_: object, **__: object) -> _Names:
        return _Names(self)


class _Names:
    """The names of a table's columns, as data frame libraries ask for them through narwhals and the older protocol."""

    _version: Any = None

    def __init__(self, table: ShardedTable) -> None:
        self.columns = list(table.columns)
        self.shape = table.shape

    def __narwhals_dataframe__(self) -> _Names:
        return self

    def _with_version(self, version: object) -> _Names:
        self._version = version
        return self

    def column_names(self) -> list[str]:
        """Return the names."""
        return self.columns

    def num_columns(self) -> int:
        """Return how many there are."""
        return len(self.columns)

    def num_rows(self) -> int:
        """Return the number of rows."""
        return self.shape[0]


class _Indexer:
    """Selects columns of a table as the indexers of pandas do."""

    def __init__(self, table: ShardedTable, name_of: Callable[[Any], str]) -> None:
        self._table, self._name_of = table, name_of

    def __getitem__(self, key: Any) -> Any:
        table = self._table
        if isinstance(key, slice):  # make_column_selector looks at the types of the first row
            import pandas as pd

            return pd.DataFrame({str(each.name): pd.Series([], dtype=_pandas_type(each)) for each in table.described})
        if not isinstance(key, tuple):
            return table[key]
        chosen = key[1]
        if not isinstance(key[0], slice) or key[0] != slice(None):
            if not isinstance(chosen, int | np.integer | str) or np.ndim(key[0]) != 1:
                table._refuse_rows(key)
            return table[self._name_of(chosen)][key[0]]  # some rows of a column
        if isinstance(chosen, str) or np.isscalar(chosen):
            return table[self._name_of(chosen)]
        if isinstance(chosen, slice):
            first, last = (
                table.columns.index(end) if isinstance(end, str) else end for end in (chosen.start, chosen.stop)
            )
            names = table.columns[first : last + 1 if isinstance(chosen.stop, str) else last]
        elif len(chosen) and isinstance(chosen[0], bool | np.bool_):
            names = [name for name, there in zip(table.columns, chosen, strict=True) if there]
        else:
            names = [self._name_of(each) for each in chosen]
        return table[names]


def _pandas_type(column: Column) -> Any:
    return "object" if column.categories is not None else column.numeric


def _as_sent(column: Column, numbers: npt.NDArray[Any]) -> Any:
    """Return numbers of the engines as the values that were sent: strings, whole numbers and booleans, None for NaN."""
    if column.categories is not None:
        return [None if label != label else label for label in labels_of(column, numbers.astype(np.float64))]
    if column.numeric is None or column.numeric.kind == "f" or np.isnan(numbers).any():
        return numbers
    return numbers.astype(column.numeric)


def _range(first: int, last: int) -> str:
    return f"{first:,} to {last - 1:,}" if last > first else "none"
