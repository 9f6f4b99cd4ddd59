"""Cuts rows into one block per rank, sends them to the engines, and has the handle for rows that stay there."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import operator
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import DTypeLike

from xpulab.caching import Origin, register
from xpulab.deploy.watch.signals import interruptible
from xpulab.exceptions import HandleError
from xpulab.report.rendering import format_size
from xpulab.sharing.memory import BlockPool, SharedBlock, file_state, keep_reachable, reachable
from xpulab.sharing.process_memory import ProcessMemory

__all__ = [
    "Outgoing",
    "ShardedArray",
    "bounds_by_stored",
    "bounds_of",
    "looked_at_later",
    "mapped",
    "place_named",
    "result_of_engines",
]

_CHUNK = 8 << 20  # bytes that a thread copies at a time; an array that is smaller is copied by one thread
_PIECE = 1 << 20  # bytes that are checked for NaN and then copied while they are in the processor's cache
_THREADS = 4  # more threads do not fill new pages faster


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


def bounds_by_stored(indptr: np.ndarray[Any, Any], size: int) -> list[int]:
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


class Outgoing:
    """Sends arrays to the engines of this host.

    Large arrays of rows are not copied: the engines read them in this process's memory. Other arrays are copied once,
    into shared memory that the engines map.

    Use it as a context manager. At its end the pool keeps the shared memory for the next call. After an error an engine
    may still be reading the shared memory, so it is not used again.

    Parameters
    ----------
    pool : BlockPool, optional
        Lends the shared memory, and takes it back. Without a pool the memory is new, and freed at the end.
    readable : callable, optional
        Returns whether the engines can read this process's memory. By default they cannot.
    """

    def __init__(self, pool: BlockPool | None = None, readable: Callable[[], bool] = lambda: False) -> None:
        self._pool = pool
        self._readable = readable
        self._sent: list[SharedBlock] = []
        self._results: list[SharedBlock] = []
        self._read: list[np.ndarray[Any, Any]] = []  # arrays that the engines read, which must live as long
        self._doubts: list[Callable[[], None]] = []
        self._undone: list[Callable[[], object]] = []

    def __enter__(self) -> Outgoing:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for block in self.keep():
            self._pool.give(block) if self._pool and kind is None else block.close()
        for block in self._results:
            if kind is None and block.nbytes >= _PIECE:
                keep_reachable(block)  # if this result is the input of the next call, that call has nothing to send
            block.close()  # the user's arrays still map the memory
        self._results.clear()
        self._read.clear()
        undone, self._undone = self._undone, []
        for undo in undone if kind is not None else []:
            undo()
        doubts, self._doubts = self._doubts, []
        if kind is ValueError:  # an engine may have found NaN or infinity, of which scikit-learn's own error says more
            try:
                for doubt in doubts:
                    doubt()
            except ValueError as exact:
                raise exact from None

    def after_error(self, undo: Callable[[], object]) -> None:
        """Call a function if an error or Ctrl-C ends this context.

        It frees a handle that nobody gets: the traceback of the error holds all variables of the call.
        """
        self._undone.append(undo)

    def keep(self) -> list[SharedBlock]:
        """Return the blocks that were sent. The caller has to release them."""
        sent, self._sent = self._sent, []
        return sent

    def drop(self) -> None:
        """Free the blocks that were sent, and never use them again: engines that were lost may have changed them."""
        for block in self.keep():
            block.close()

    def send(self, array: np.ndarray[Any, Any]) -> dict[str, Any]:
        """Copy an array, and return the description that tells the engines where the copy is."""
        (block,) = self._copies(array, [0, len(array)])
        return _place_in(block, array.shape, array.dtype)

    def send_rows(
        self, rows: np.ndarray[Any, Any], bounds: list[int], doubt: Callable[[], None] | None = None
    ) -> dict[str, Any]:
        """Let each rank read its part of the rows, or copy each part into a block that the rank may use as its memory.

        Parameters
        ----------
        rows : numpy.ndarray of shape (n_samples, n_features)
        bounds : list of int
            Rank r gets the rows from the r-th of these numbers up to, not including, the next one.
        doubt : callable, optional
            If given, the rows may have NaN or infinity. If they may be found to have any while they are copied or read,
            this function is called: it checks exactly, and raises an error if there are any.

        Returns
        -------
        dict
            The description that tells the engines where the rows are.
        """
        doubt = doubt if looked_at_later(rows) else None
        source = {"shape": list(rows.shape), "dtype": rows.dtype.str, "bounds": bounds}
        if rows.nbytes >= _PIECE and rows.flags.c_contiguous and rows.dtype.kind == "f" and self._readable():
            self._read.append(rows)
            self._doubts += [doubt] if doubt is not None else []
            memory = {**asdict(ProcessMemory.own()), "address": rows.ctypes.data}
            return {**source, "memory": memory, "finite": doubt is None}
        return {**source, "parts": [block.path for block in self._copies(rows, bounds, doubt)]}

    def receive(self, shape: tuple[int, ...], dtype: DTypeLike) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
        """Allocate memory for a result.

        Returns
        -------
        description : dict
            Tells the engines where to write the result.
        array : numpy.ndarray
            The array that will contain the result.
        """
        block = SharedBlock.create(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        self._results.append(block)
        return {**_place_in(block, shape, dtype), "result": True}, block.array(shape, dtype)

    def _copies(
        self, array: np.ndarray[Any, Any], bounds: list[int], doubt: Callable[[], None] | None = None
    ) -> list[SharedBlock]:
        """Copy each part of the array into a block of its own, with several threads."""
        row_bytes = array[:1].nbytes or array.itemsize
        parts = list(itertools.pairwise(bounds))
        blocks = []
        for first, last in parts:
            blocks.append((self._pool or BlockPool()).take((last - first) * row_bytes))
            self._sent.append(blocks[-1])
        step, few = max(1, _CHUNK // row_bytes), max(1, _PIECE // row_bytes)

        def copy(part: int, start: int) -> bool:
            first, last = parts[part]
            rows, finite = np.ascontiguousarray(array[start : min(start + step, last)]), True
            for at in range(0, len(rows), few):
                piece = rows[at : at + few]
                if doubt is not None:
                    with np.errstate(over="ignore", invalid="ignore"):
                        finite = finite and bool(np.isfinite(piece.sum()))
                blocks[part].write(piece, (start - first + at) * row_bytes)
            return finite

        jobs = [(part, start) for part, (first, last) in enumerate(parts) for start in range(first, last, step)]
        if len(jobs) <= len(parts):
            finite = [copy(*job) for job in jobs]
        else:
            jobs.sort(key=lambda job: job[1] - parts[job[0]][0])
            with _threads() as pool:
                finite = list(pool.map(copy, *zip(*jobs, strict=True)))
        if doubt is not None and not all(finite):
            doubt()
        return blocks


def looked_at_later(X: Any) -> bool:
    """Return whether `Outgoing.send_rows` checks X for NaN and infinity during the copy.

    It does for large arrays of float32 or float64, because scikit-learn's check takes one thread and a separate pass
    over the memory. All other input goes through scikit-learn's check, which raises its own errors.
    """
    rows = isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype in (np.float32, np.float64)
    return rows and X.nbytes >= 2 * _CHUNK


@contextlib.contextmanager
def place_named(X: Any) -> Iterator[None]:
    """Add to scikit-learn's error about X where the first NaN or infinity is, or which columns hold no numbers."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if re.search("contains (NaN|infinity)", str(error)):
            where = _first_not_finite(X)
        else:
            where = _columns_without_numbers(X)
        if where is None:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{error}\n{where}") from None


def _columns_without_numbers(X: Any) -> str | None:
    """Return a sentence about the columns of a data frame that hold no numbers; None if there are none."""
    if not hasattr(X, "columns") or getattr(X, "ndim", 2) != 2:
        return None
    names = []
    for name in X.columns:
        column = np.asarray(X[name])
        try:
            if column.dtype.kind not in "mM":  # NumPy converts columns of times only if there are no others
                column.astype(np.float64)
                continue
        except (TypeError, ValueError):
            pass
        begins = f" (which begins with {column[0]!r})" if len(column) else ""
        names.append(f"{name!r}{begins}")
    if not names:
        return None
    which = f"column{'s' * (len(names) > 1)} {', '.join(names)}"
    return (
        f"No numbers: {which}. Leave out such columns, or encode them first, for example with "
        "sklearn.preprocessing.OneHotEncoder in a ColumnTransformer."
    )


def _first_not_finite(X: Any) -> str | None:
    """Return a sentence about the place of the first NaN or infinity in X; None if X has neither, or no numbers."""
    place = _place_not_finite(X)
    if place is None:
        return None
    row, column = place
    label = f" (index {X.index[row]!r})" if hasattr(X, "iloc") else ""  # pandas has labels of rows, others have none
    if column is None:
        where = f"row {row}{label}"
    else:
        named = getattr(X, "columns", None)
        where = f"row {row}{label}, column {column if named is None else named[column]!r}"
    return f"The first such value is in {where}."


def _place_not_finite(X: Any) -> tuple[int, int | None] | None:
    """Return row and column of the first NaN or infinity, row by row; None if X has neither, or no numbers."""
    try:
        stored = X.tocsr() if hasattr(X, "tocsr") else None
        values = np.asarray(X if stored is None else stored.data)
        values = values if values.dtype.kind == "f" else values.astype(np.float64)
    except (TypeError, ValueError):
        return None
    by_row = values.reshape(len(values), -1)
    found = np.flatnonzero(~np.isfinite(by_row).all(axis=1))
    if not len(found):
        return None
    first = int(found[0])
    if stored is not None:
        return int(np.searchsorted(stored.indptr, first, side="right") - 1), int(stored.indices[first])
    column = int(np.flatnonzero(~np.isfinite(by_row[first]))[0])
    return first, column if values.ndim == 2 else None


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_THREADS, len(os.sched_getaffinity(0))), "xpulab-copy")


def mapped(X: Any) -> dict[str, Any] | None:
    """Return the description of a memory-mapped array with which the engines read the file themselves.

    Parameters
    ----------
    X : array-like

    Returns
    -------
    dict or None
        None if X is not a file mapped as float32 or float64 in C or Fortran order.

    Raises
    ------
    ValueError
        If the file was removed or replaced since it was mapped, so that the engines would read other rows.
    """
    if not isinstance(X, np.memmap) or X.ndim != 2 or X.dtype not in (np.float32, np.float64) or not X.size:
        return None
    if X.filename is None or X.mode == "c" or not X.flags.forc:  # "c": the file lacks changes of the array
        return None
    whole = X
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    address = X.__array_interface__["data"][0]
    offset = whole.offset + address - whole.__array_interface__["data"][0]
    path = os.path.abspath(X.filename)
    return {
        "file": path,
        "state": _state_of_mapped(path, address),
        "shape": list(X.shape),
        "dtype": X.dtype.str,
        "offset": offset,
        "order": "C" if X.flags.c_contiguous else "F",
    }


def result_of_engines(X: Any) -> dict[str, Any] | None:
    """Return the description of rows that the engines returned in shared memory, with which they can read them.

    Parameters
    ----------
    X : array-like

    Returns
    -------
    dict or None
        None if X is not such a result, or a part of one, of float32 or float64 in C order.
    """
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype not in (np.float32, np.float64):
        return None
    found = reachable(X) if X.size and X.flags.c_contiguous else None
    if found is None:
        return None
    path, offset = found
    return {"block": path, "shape": list(X.shape), "dtype": X.dtype.str, "offset": offset}


def _state_of_mapped(path: str, address: int) -> list[int]:
    """Return the state of the file at a path.

    Raises
    ------
    ValueError
        If another file is mapped at the address of this process.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise ValueError(f"{path} was removed since X was mapped; pass a copy: numpy.array(X)") from None
    with file:
        state = file_state(file.fileno())
        # An empty file cannot be mapped; the engines raise an error for it. /proc/self/maps may show another device
        # number than stat, so the file is mapped once more, and the two entries of maps are compared.
        same = not os.fstat(file.fileno()).st_size or _mapping_at(address) == _mapping_of(file.fileno())
    if not same:
        raise ValueError(f"{path} was replaced since X was mapped; map it again, or pass a copy: numpy.array(X)")
    return state


def _mapping_of(descriptor: int) -> str:
    with mmap.mmap(descriptor, 1, access=mmap.ACCESS_READ) as mapping:
        return _mapping_at(int(np.frombuffer(mapping, np.uint8).ctypes.data))


def _mapping_at(address: int) -> str:
    """Return device and inode of the file that is mapped at an address, as /proc/self/maps shows them."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, _, _, device, inode, *_ = line.split()
            first, _, last = addresses.partition("-")
            if int(first, 16) <= address < int(last, 16):
                return f"{device} {inode}"
    raise ValueError(f"nothing is mapped at {address:#x}")


class Holder(Protocol):
    """The cluster that holds the rows of a `ShardedArray`."""

    def outgoing(self) -> Outgoing:
        """Return a context in which arrays are sent to the engines."""

    def call(self, name: str, payload: dict[str, Any]) -> Any:
        """Run a task on all engines."""

    def require_handle(self, array: ShardedArray) -> None:
        """Raise `HandleError` if the array's rows are not on the engines."""

    def release_with(self, owner: Any, handle: str, blocks: Sequence[SharedBlock] = ()) -> Any:
        """Free the rows that the engines keep under the name `handle` when this process deletes `owner`."""


class ShardedArray:
    """A handle for rows that stay on the engines of a cluster, one contiguous block per rank.

    `XPUCluster.scatter` and `XPUCluster.load_npy` return handles. Estimators accept a handle in place of an array, and
    then send no rows. The engines free the rows when Python deletes the handle. What transforms the rows of a handle
    returns a handle, and what has one value for each row, such as `predict`, returns an array.

    Attributes
    ----------
    shape : tuple of int
        (n_samples, n_features), or (n_samples,) for targets.
    dtype : numpy.dtype
        Type of the rows: float32 or float64.
    counts : tuple of int
        Rows of each rank.
    name : str or None
        The name under which all clients of the cluster find the rows (`XPUCluster.handles`).
    ndim : int
        1 for targets, 2 for rows.
    nbytes : int
        Size of all rows in bytes.
    nan : bool
        Whether there may be NaN among the rows.
    stays : bool
        Whether rows that are computed from these stay on the engines, too.
    digest : str
        Stands for the rows in joblib's cache. Rows that are sent again have another digest.
    origin : Origin or None
        How an estimator has computed the rows, for joblib's cache; None for rows that were sent.
    """

    stays = True
    digest: str
    #: Frees the rows at once, before Python deletes the handle.
    discard: Callable[[], object] = staticmethod(lambda: None)

    def __init__(
        self,
        cluster: Holder,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        bounds: list[int],
        columns: Any = None,
        *,
        name: str | None = None,
        nan: bool = False,
    ) -> None:
        self.nan = nan
        self.cluster = cluster
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.bounds = bounds
        self.columns = columns
        self.name = name
        self.id = uuid.uuid4().hex
        self.origin: Origin | None = None
        register(self, self.id)

    def about(self) -> dict[str, Any]:
        """Return JSON-serialisable values with which another process can use the rows."""
        columns = None if self.columns is None else list(self.columns)
        shape, dtype = list(self.shape), self.dtype.str
        about = {"name": self.name, "shape": shape, "dtype": dtype, "bounds": self.bounds, "columns": columns}
        return {**about, "nan": self.nan}

    def require_finite(self, name: str = "X") -> None:
        """Raise ValueError if there may be NaN among the rows."""
        if self.nan:
            raise ValueError(
                f"Input {name} may contain NaN: {self!r} was sent with allow_nan=True; fill in the missing values with "
                "xpulab.impute.SimpleImputer first, or send rows without NaN"
            )

    @property
    def ndim(self) -> int:
        """1 for targets, 2 for rows."""
        return len(self.shape)

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows of each rank."""
        return tuple(int(n) for n in np.diff(self.bounds))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        """Refuse the conversion to a NumPy array. Without this method NumPy would make an array of one object.

        Raises
        ------
        TypeError
            Always; the message says what to pass.
        """
        raise TypeError(
            f"{self!r} was given, whose rows are on the engines; expected an array in this process: pass "
            "X.gather(), or use estimators of xpulab, xpulab.metrics and xpulab.model_selection.train_test_split"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse copies and pickles. A copy would have the same rows, which are freed with the first of the two.

        Raises
        ------
        TypeError
            Always; the message says what to do.
        """
        raise TypeError(
            f"{self!r} cannot be copied, pickled or written to a file, because its rows are on the engines. Use the "
            "handle itself; for a copy of the rows in this process, type X.gather(); for another process of yours, "
            "type cluster.scatter(X, name='rows') here, and cluster.handles()['rows'] there"
        )

    def __sklearn_clone__(self) -> ShardedArray:
        """Return this handle: the clone of an estimator that has it as a parameter uses the same rows."""
        return self

    def __getitem__(self, key: Any) -> NoReturn:
        """Raise the error of `__array__`, because this process has no rows to select, as scikit-learn's searches do."""
        self.__array__()

    def source(self, cluster: Holder) -> dict[str, Any]:
        """Return the description that tells the engines of `cluster` to use these rows.

        Raises
        ------
        HandleError
            If the rows are on another cluster, or were freed.
        """
        if self.cluster is not cluster:
            raise HandleError(
                "this ShardedArray lives on another cluster than the one in use; type: cluster.scatter(X) with the "
                "cluster in use, or pass the array itself"
            )
        cluster.require_handle(self)
        return {"handle": self.id, "bounds": self.bounds}

    def is_on(self, cluster: Holder) -> bool:
        """Return whether the engines of `cluster` have these rows."""
        try:
            return bool(self.source(cluster))
        except HandleError:
            return False

    def cast(self, dtype: DTypeLike) -> ShardedArray:
        """Return these targets for rows of another dtype, unchanged: rows on the engines keep their dtype."""
        return self

    def check_weights(self, X: Any, only_non_negative: bool) -> None:
        """Refuse these rows as sample weights, which are expected in this process.

        Raises
        ------
        TypeError
            Always.
        """
        self.__array__()

    @interruptible("gather")
    def gather(self) -> np.ndarray[Any, Any]:
        """Copy the rows into this process.

        Returns
        -------
        numpy.ndarray of the handle's shape and dtype

        Raises
        ------
        HandleError
            If the engines no longer have the rows, because the cluster was stopped or restarted.
        """
        source = self.source(self.cluster)
        with self.cluster.outgoing() as outgoing:
            target, rows = outgoing.receive(self.shape, self.dtype)
            self.cluster.call("gather", {"handle": source, "target": target})
        return rows

    def __repr__(self) -> str:
        return (
            f"ShardedArray(shape={self.shape}, dtype={self.dtype}, {format_size(self.nbytes)}, "
            f"rows by rank: {', '.join(map(str, self.counts))})"
        )


def _place_in(block: SharedBlock, shape: tuple[int, ...], dtype: DTypeLike) -> dict[str, Any]:
    """Return the description that tells the engines that an array is at the start of this block."""
    return {"path": block.path, "shape": list(shape), "dtype": np.dtype(dtype).str, "offset": 0}
