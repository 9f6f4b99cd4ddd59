"""Results with one entry for each row that go to a file, and are computed for one part of the rows after the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy import sparse

from xpulab._sklearn import _get_output_config, _num_samples, _safe_indexing
from xpulab.data import ShardedArray
from xpulab.scanning import Scan, scan

__all__ = ["in_file"]

#: Bytes of a result that are in this process at a time.
PART = 64 << 20

_FIRST = 1024  # rows of the first part, which shows how long the result of a row is


class _File(Protocol):
    def write(self, first: int, part: npt.NDArray[Any]) -> None:
        """Write the next rows of the result, of which the first has this number."""

    def close(self) -> None:
        """End the file."""


class _Npy:
    """A file of `numpy.save`."""

    def __init__(self, path: str, n: int, first: npt.NDArray[Any], names: list[str]) -> None:
        if first.dtype.hasobject:
            raise ValueError(
                f"the result has entries of {type(first.flat[0]).__name__}, which .npy files do not hold; pass out= "
                "with a name that ends with .parquet"
            )
        shape = (n, *first.shape[1:])
        self._rows = np.lib.format.open_memmap(path, "w+", first.dtype, shape)  # type: ignore[no-untyped-call]

    def write(self, first: int, part: npt.NDArray[Any]) -> None:
        """Write the next rows."""
        self._rows[first : first + len(part)] = part

    def close(self) -> None:
        """End the file."""
        self._rows.flush()


class _Parquet:
    """A Parquet file, which gets row groups for each part."""

    def __init__(self, path: str, n: int, first: npt.NDArray[Any], names: list[str]) -> None:
        import pyarrow.parquet  # it takes a tenth of a second

        self._names = names
        kind: Any = pyarrow.parquet.ParquetWriter
        self._writer = kind(path, self._table(first).schema)

    def _table(self, part: npt.NDArray[Any]) -> Any:
        import pyarrow

        columns = part.reshape(len(part), -1).T
        return pyarrow.table([np.ascontiguousarray(column) for column in columns], self._names)

    def write(self, first: int, part: npt.NDArray[Any]) -> None:
        """Write the next rows."""
        self._writer.write_table(self._table(part))

    def close(self) -> None:
        """End the file."""
        self._writer.close()


_KINDS: dict[str, tuple[Callable[..., _File], Callable[[str], Any]]] = {
    ".npy": (_Npy, lambda path: np.load(path, mmap_mode="r")),
    ".parquet": (_Parquet, scan),
}


def in_file(method: Callable[[Any], Any], X: Any, out: str | os.PathLike[str]) -> Any:
    """Call an estimator's method for one part of X after the other, and write what it returns to a file.

    The file takes its name when all of the result is there.

    Parameters
    ----------
    method : callable
        A method of an estimator, which returns one entry or one row for each row of X.
    X : array-like or Scan of shape (n_samples, n_features)
    out : path-like
        Name of the file. It ends with ``.npy`` or ``.parquet``.

    Returns
    -------
    numpy.memmap or Scan
        The file.

    Raises
    ------
    ValueError
        If the file's name ends otherwise, if the file cannot hold the result, or if `set_output` asks for data frames.
    TypeError
        If X is a handle, of which the result stays on the engines.
    """
    path, suffix = os.path.abspath(os.fspath(out)), os.path.splitext(os.fspath(out))[1]
    if suffix not in _KINDS:
        raise ValueError(f"out={out!r} was given; expected the name of a file that ends with .npy or .parquet")
    if isinstance(X, ShardedArray):
        raise TypeError("out= takes the result of rows of a file or an array, and X is a ShardedArray; leave out= away")
    _require_no_frames(method)
    create, opened = _KINDS[suffix]
    n, first, step, writing = _num_samples(X), 0, _FIRST, f"{path}.{os.getpid()}.part"
    file: _File | None = None
    try:
        while file is None or first < n:
            part = _made(method, _rows_of(X, slice(first, first + step)))
            if file is None:
                file = create(writing, n, part, _names(method, part))
                step = max(1, PART // max(1, part.nbytes // len(part)))
            file.write(first, part)
            first += len(part)
        file.close()
        os.replace(writing, path)
    finally:
        if file is not None:  # closing again does nothing
            file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(writing)
    return opened(path)


def _rows_of(X: Any, some: slice) -> Any:
    return X[some] if isinstance(X, np.ndarray | Scan) else _safe_indexing(X, some)


def _require_no_frames(method: Any) -> None:
    if method.__name__ != "transform":
        return
    dense = _get_output_config("transform", method.__self__)["dense"]
    if dense != "default":
        raise ValueError(
            f"set_output(transform={dense!r}) makes data frames, and out= writes files; call "
            "set_output(transform='default') first: a .parquet file has the names of the columns, too"
        )


def _made(method: Callable[[Any], Any], part: Any) -> npt.NDArray[Any]:
    """Return the result of a part as an array."""
    found = method(part)
    if isinstance(found, list):
        raise ValueError(f"the result is a list of {len(found)} arrays, one for each output; out= holds one")
    return np.asarray(found.toarray() if sparse.issparse(found) else found)


def _names(method: Any, part: npt.NDArray[Any]) -> list[str]:
    """Return names of the columns of a result: those that transformers give, classes, or the name of the method."""
    estimator, name = method.__self__, method.__name__
    if part.ndim == 1:
        return [name]
    if name == "transform" and hasattr(estimator, "get_feature_names_out"):
        names = estimator.get_feature_names_out()
    elif name == "inverse_transform":
        names = getattr(estimator, "feature_names_in_", [])
    else:
        names = getattr(estimator, "classes_", [])
    numbered = [f"{name}{column}" for column in range(part.shape[1])]
    return [str(each) for each in names] if len(names) == part.shape[1] else numbered
