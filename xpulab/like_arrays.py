"""What handles have in common with NumPy's arrays: functions of single numbers, and rows by their numbers.

The engines compute the functions, such as `np.log1p`, and copy the rows, such as the folds of scikit-learn's searches.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from xpulab.sharing.sources import bounds_of
from xpulab.sources.source import Column

__all__ = ["ChoosesRows", "Elementwise", "numbers_of_rows"]

_HOMES = "numpy", "scipy.special"


class Elementwise:
    """Gives a handle NumPy's functions of single numbers, and arithmetic: the engines compute, and it is a handle.

    The other operands may be numbers, arrays (n_features,), and handles with the same rows on each engine. Comparisons
    give 1 and 0. Infinity is an error, as it is in the input of estimators.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bounds: list[int]
    cluster: Any
    nan: bool

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: object) -> Any:
        """Compute a function of each number on the engines, for NumPy.

        Raises
        ------
        TypeError
            For functions that are none of single numbers of NumPy or `scipy.special`, and for other operands.
        ValueError
            If a result is infinite, or two handles have other rows on the engines.
        """
        home = next((each for each in _HOMES if _has(each, ufunc)), None)
        if home is None or method != "__call__" or kwargs or ufunc.nout != 1 or ufunc.signature is not None:
            how = f"{ufunc.__name__}{'' if method == '__call__' else '.' + method}"
            self._refuse(f"{how}{'(..., ' + ', '.join(kwargs) + '=)' if kwargs else ''}")
        handles = [each for each in inputs if isinstance(each, Elementwise)]
        for each in handles:
            self._require_beside(each)
        others = [None if isinstance(each, Elementwise) else self._operand(each) for each in inputs]
        with np.errstate(all="ignore"):
            some = [np.ones(1, each.dtype) if isinstance(each, Elementwise) else each for each in inputs]
            found = ufunc(*[np.asarray(each).ravel()[:1] if np.ndim(each) else each for each in some]).dtype
        dtype = found if found in (np.float32, np.float64) else np.result_type(*(each.dtype for each in handles))
        return self._computed(handles, home, ufunc.__name__, others, dtype)

    def _computed(self, handles: Sequence[Any], home: str, name: str, others: list[Any], dtype: Any) -> Any:
        described = next((each.described for each in handles if each.shape == self.shape), None)
        plain = None if described is None else _of_numbers(described, np.dtype(dtype))
        made = self.cluster.made_handle(self.shape, dtype, self.bounds, plain, nan=True)
        sources = [each.source(self.cluster) for each in handles]
        payload = {"sources": sources, "home": home, "name": name, "others": others, "kept": made.handle}
        made.nan = bool(self.cluster.call("columns.elementwise", payload).results[0]["nan"])
        return made

    def _require_beside(self, other: Any) -> None:
        other.require_numbers()
        other.source(self.cluster)
        if other.shape != self.shape or other.bounds != self.bounds:
            raise ValueError(
                f"handles of shapes {self.shape} and {other.shape}, with rows on the engines as {self.bounds} and "
                f"{other.bounds}, were given; expected the same shape, and the same rows on each engine"
            )

    def _operand(self, value: object) -> Any:
        """Return another operand, a number or an array (n_features,), as the engines take it."""
        given = np.asarray(value)
        if given.dtype.kind not in "biuf" or (given.ndim and given.shape != self.shape[1:]):
            self._refuse(f"a function with {type(value).__name__} of shape {given.shape}")
        return value if given.ndim == 0 else given

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(
            f"{what} was asked of {type(self).__name__}, whose rows are on the engines; these compute functions of "
            "single numbers of NumPy and scipy.special, such as np.log1p(X) and X / 2, with numbers, arrays of a "
            "number for each column, and handles of the same rows; for others pass X.gather()"
        )

    def __add__(self, other: object) -> Any:
        return _applied(np.add, self, other)

    def __radd__(self, other: object) -> Any:
        return _applied(np.add, other, self)

    def __sub__(self, other: object) -> Any:
        return _applied(np.subtract, self, other)

    def __rsub__(self, other: object) -> Any:
        return _applied(np.subtract, other, self)

    def __mul__(self, other: object) -> Any:
        return _applied(np.multiply, self, other)

    def __rmul__(self, other: object) -> Any:
        return _applied(np.multiply, other, self)

    def __truediv__(self, other: object) -> Any:
        return _applied(np.true_divide, self, other)

    def __rtruediv__(self, other: object) -> Any:
        return _applied(np.true_divide, other, self)

    def __pow__(self, other: object) -> Any:
        return _applied(np.power, self, other)

    def __neg__(self) -> Any:
        return _applied(np.negative, self)

    def __abs__(self) -> Any:
        return _applied(np.absolute, self)

    def __lt__(self, other: object) -> Any:
        return _applied(np.less, self, other)

    def __le__(self, other: object) -> Any:
        return _applied(np.less_equal, self, other)

    def __gt__(self, other: object) -> Any:
        return _applied(np.greater, self, other)

    def __ge__(self, other: object) -> Any:
        return _applied(np.greater_equal, self, other)


def _applied(ufunc: Callable[..., object], *inputs: object) -> Any:
    return ufunc(*inputs)


def _has(home: str, ufunc: np.ufunc) -> bool:
    return getattr(importlib.import_module(home), ufunc.__name__, None) is ufunc


def _of_numbers(described: Sequence[Any], dtype: np.dtype[Any]) -> list[Any]:
    """Return the names of the columns, or the columns with other numbers."""
    return [replace(each, dtype=str(dtype), numeric=dtype) if isinstance(each, Column) else each for each in described]


def numbers_of_rows(key: Any, n: int) -> npt.NDArray[np.int64] | None:
    """Return the numbers of the rows that an index of NumPy selects from `n`, with an optional ``...`` after it.

    Parameters
    ----------
    key : slice, or array-like of int or of bool, or a tuple of one of them and ``...``
    n : int

    Returns
    -------
    numpy.ndarray of int64, or None
        None if the index selects no rows by their numbers: one row, some columns, or a name.

    Raises
    ------
    IndexError
        If there is no such row, or if a mask has another length.
    """
    if isinstance(key, tuple) and len(key) == 2 and key[1] is Ellipsis:
        key = key[0]
    if isinstance(key, slice):
        return np.arange(*key.indices(n), dtype=np.int64)
    if not isinstance(key, list | range | np.ndarray) or np.ndim(key) != 1:
        return None
    rows = np.asarray(key)
    if rows.dtype == bool:
        if len(rows) != n:
            raise IndexError(f"a mask of {len(rows):,} values was given for {n:,} rows")
        return np.flatnonzero(rows)
    if rows.size == 0:
        return np.empty(0, np.int64)
    if rows.dtype.kind not in "iu":
        return None
    rows = rows.astype(np.int64)
    if (outside := (rows < -n) | (rows >= n)).any():
        raise IndexError(f"row {rows[outside][0]:,} was asked for, of {n:,} rows")
    return np.where(rows < 0, rows + n, rows)


class ChoosesRows:
    """Gives a handle rows by their numbers. They are a handle, too, and no row passes the notebook's process."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    cluster: Any
    described: Any
    nan: bool
    source: Callable[[Any], Any]
    __array__: Callable[..., NoReturn]

    def __getitem__(self, key: Any) -> Any:
        """Return rows by a slice, an array of their numbers or a mask, as a handle. The engines copy them."""
        rows = numbers_of_rows(key, self.shape[0])
        return self.__array__() if rows is None else self._rows_at(rows)

    def _rows_at(self, rows: npt.NDArray[np.int64]) -> Any:
        """Return a handle for the rows with these numbers, in their order, distributed evenly over the engines.

        Raises
        ------
        ValueError
            If there are none.
        """
        if not len(rows):
            raise ValueError(f"no row was chosen of {self.shape[0]:,}; expected at least one")
        cluster = self.cluster
        bounds = bounds_of(len(rows), cluster.size)
        stored = getattr(self, "stored", None)  # of sparse rows, until the engines have told how many there are
        shape = (len(rows), *self.shape[1:])
        source = self.source(cluster)
        made = cluster.made_handle(shape, self.dtype, bounds, self.described, nan=self.nan, stored=stored)
        try:
            with cluster.outgoing() as outgoing:
                payload = {"source": source, "weights": None, "chosen": outgoing.send(rows), "new_bounds": bounds}
                answer = cluster.call("select", payload | {"kept": made.handle})
        except BaseException:
            made.discard()
            raise
        if stored is not None:
            made.stored = answer.results[0]["stored"]
        return made
