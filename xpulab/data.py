"""Sends rows to the engines, and has the handle for rows that stay there."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, Protocol, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

from xpulab.caching import Origin, register
from xpulab.calls import public_methods
from xpulab.exceptions import HandleError
from xpulab.like_arrays import ChoosesRows, Elementwise
from xpulab.names import Listed
from xpulab.report.rendering import format_size
from xpulab.scanning import Scan
from xpulab.sharing.memory import BlockPool, SharedBlock, keep_reachable
from xpulab.sharing.process_memory import ProcessMemory
from xpulab.sharing.sources import (
    Description,
    Handle,
    HandleRows,
    ProcessRows,
    SharedArray,
    SharedRows,
    Source,
    Target,
)

__all__ = ["Outgoing", "ShardedArray", "looked_at_later"]

_CHUNK = 8 << 20  # bytes that a thread copies at a time; an array that is smaller is copied by one thread
_PIECE = 1 << 20  # bytes that are checked for NaN and then copied while they are in the processor's cache
_THREADS = 4  # more threads do not fill new pages faster


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
        self.doubts: list[Callable[[], None]] = []  # after a ValueError of the engines, they raise the exact error
        self._undone: list[Callable[[], object]] = []
        self._owner: list[SharedBlock] | None = None

    def __enter__(self) -> Outgoing:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._owner is not None and kind is None:
            self._owner += self.keep()
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
        doubts, self.doubts = self.doubts, []
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

    def give_to(self, owner: list[SharedBlock]) -> None:
        """Append the blocks that were sent to a list if this context ends without an error; they live as the list."""
        self._owner = owner

    def keep(self) -> list[SharedBlock]:
        """Return the blocks that were sent. The caller has to release them."""
        sent, self._sent = self._sent, []
        return sent

    def drop(self) -> None:
        """Free the blocks that were sent, and never use them again: engines that were lost may have changed them."""
        for block in self.keep():
            block.close()

    def send(self, array: np.ndarray[Any, Any]) -> SharedArray:
        """Copy an array, and return where the copy is."""
        (block,) = self._copies(array, [0, len(array)])
        return SharedArray(block.path, array.shape, array.dtype)

    def send_rows(
        self, rows: np.ndarray[Any, Any] | Scan, bounds: list[int], doubt: Callable[[], None] | None = None
    ) -> ProcessRows | SharedRows:
        """Let each rank read its part of the rows, or copy each part into a block that the rank may use as its memory.

        Parameters
        ----------
        rows : numpy.ndarray or Scan of shape (n_samples, n_features)
        bounds : list of int
            Rank r gets the rows from the r-th of these numbers up to, not including, the next one.
        doubt : callable, optional
            If given, the rows may have NaN or infinity. If they may be found to have any while they are copied or read,
            this function is called: it checks exactly, and raises an error if there are any.

        Returns
        -------
        ProcessRows or SharedRows
            Where the rows are.
        """
        if isinstance(rows, Scan):
            of_scan = rows.block_rows(bounds)
            with of_scan.rows.reading(of_scan.first, of_scan.first + len(rows), of_scan.columns) as fill:

                def piece(first: int, last: int) -> np.ndarray[Any, Any]:
                    fill(first, made := np.empty((last - first, of_scan.n_features), of_scan.dtype))
                    return made

                sequential = of_scan.rows.sequential
                paths = [block.path for block in self._written(of_scan.row_bytes, bounds, piece, doubt, sequential)]
            return SharedRows(of_scan.shape, of_scan.dtype, bounds, paths)
        doubt = doubt if looked_at_later(rows) else None
        if rows.nbytes >= _PIECE and rows.flags.c_contiguous and rows.dtype.kind == "f" and self._readable():
            self._read.append(rows)
            self.doubts += [doubt] if doubt is not None else []
            return ProcessRows(rows.shape, rows.dtype, bounds, ProcessMemory.of(rows), finite=doubt is None)
        paths = [block.path for block in self._copies(rows, bounds, doubt)]
        return SharedRows(rows.shape, rows.dtype, bounds, paths)

    def receive(
        self, shape: tuple[int, ...], dtype: DTypeLike, on_disk: bool = False
    ) -> tuple[Target, np.ndarray[Any, Any]]:
        """Allocate memory for a result, or a file without a name that is mapped into memory.

        Returns
        -------
        target : Target
            Where the engines write the result.
        array : numpy.ndarray
            The array that will contain the result.
        """
        create = SharedBlock.create_on_disk if on_disk else SharedBlock.create
        block = create(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        self._results.append(block)
        return Target(block.path, shape, np.dtype(dtype)), block.array(shape, dtype)

    def _copies(
        self, array: np.ndarray[Any, Any], bounds: list[int], doubt: Callable[[], None] | None = None
    ) -> list[SharedBlock]:
        """Copy each part of the array into a block of its own, with several threads."""
        row_bytes = array[:1].nbytes or array.itemsize
        return self._written(row_bytes, bounds, lambda first, last: np.ascontiguousarray(array[first:last]), doubt)

    def _written(
        self,
        row_bytes: int,
        bounds: list[int],
        piece_of: Callable[[int, int], np.ndarray[Any, Any]],
        doubt: Callable[[], None] | None,
        sequential: bool = False,
    ) -> list[SharedBlock]:
        """Write each part of rows into a block of its own, with several threads; `piece_of` makes some rows."""
        parts = list(itertools.pairwise(bounds))
        blocks = []
        for first, last in parts:
            blocks.append((self._pool or BlockPool()).take((last - first) * row_bytes))
            self._sent.append(blocks[-1])
        step, few = max(1, _CHUNK // row_bytes), max(1, _PIECE // row_bytes)

        def copy(part: int, start: int) -> bool:
            first, last = parts[part]
            rows, finite = piece_of(start, min(start + step, last)), True
            for at in range(0, len(rows), few):
                piece = rows[at : at + few]
                if doubt is not None:
                    with np.errstate(over="ignore", invalid="ignore"):
                        finite = finite and bool(np.isfinite(piece.sum()))
                blocks[part].write(piece, (start - first + at) * row_bytes)
            return finite

        jobs = [(part, start) for part, (first, last) in enumerate(parts) for start in range(first, last, step)]
        if len(jobs) <= len(parts) or sequential:
            finite = [copy(*job) for job in jobs]
        else:
            jobs.sort(key=lambda job: job[1] - parts[job[0]][0])
            with _threads() as pool:
                finite = list(pool.map(copy, *zip(*jobs, strict=True)))
        if doubt is not None and not all(finite):
            doubt()
        return blocks


def looked_at_later(X: object) -> bool:
    """Return whether `Outgoing.send_rows` checks X for NaN and infinity during the copy.

    It does for large arrays of float32 or float64, because scikit-learn's check takes one thread and a separate pass
    over the memory. All other input goes through scikit-learn's check, which raises its own errors.
    """
    return isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype in (np.float32, np.float64) and X.nbytes >= 2 * _CHUNK


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_THREADS, len(os.sched_getaffinity(0))), "xpulab-copy")


class Holder(Protocol):
    """The cluster that holds the rows of a `ShardedArray`."""

    @property
    def size(self) -> int:
        """Number of engines."""

    def outgoing(self) -> Outgoing:
        """Return a context in which arrays are sent to the engines."""

    def call(self, name: str, payload: dict[str, object]) -> Any:
        """Run a task on all engines."""

    def made_handle(
        self, shape: tuple[int, ...], dtype: DTypeLike, bounds: list[int], columns: Any = None, *, nan: bool = False
    ) -> ShardedArray:
        """Return a handle for rows that a task is going to compute on the engines."""

    def require_handle(self, array: ShardedArray) -> None:
        """Raise `HandleError` if the array's rows are not on the engines."""

    def release_with(self, owner: object, handle: str, blocks: Sequence[SharedBlock] = ()) -> Any:
        """Free the rows that the engines keep under the name `handle` when this process deletes `owner`."""


@public_methods()
class ShardedArray(Elementwise, ChoosesRows, Listed):
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

    _internal = frozenset({
        "about", "again", "bounds", "cast", "check_weights", "code", "described", "digest", "discard", "handle", "id",
        "is_on", "labels", "origin", "require_exact", "require_finite", "require_numbers", "source", "stays",
    })  # fmt: skip

    stays = True
    #: Whether new engines can get the rows after a loss: the files or this process have them.
    again = False
    digest: str
    #: Frees the rows at once, before Python deletes the handle.
    discard: Callable[[], object] = staticmethod(lambda: None)

    def __init__(
        self,
        cluster: Holder,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        bounds: list[int],
        columns: Sequence[object] | None = None,
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

    @property
    def described(self) -> Any:
        """What is known of the columns: their names, or None."""
        return self.columns

    @property
    def handle(self) -> Handle:
        """Tells the ranks to keep rows under this handle."""
        columns = None if self.described is None else list(self.described)
        return Handle(self.id, Description(self.name, self.shape, self.dtype, self.bounds, columns, self.nan))

    def require_finite(self, name: str = "X") -> None:
        """Raise ValueError if there is NaN among the rows. If it is not known, the engines look for it, once."""
        if self.nan:
            names = None if self.columns is None else list(self.columns)
            self.cluster.call("require_finite", {"source": self.source(self.cluster), "name": name, "names": names})
            self.nan = False

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

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NoReturn:
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

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
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

    def source(self, cluster: Holder) -> Source:
        """Return what tells the engines of `cluster` to use these rows.

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
        return HandleRows(self.shape, self.dtype, self.bounds, self.id)

    def is_on(self, cluster: Holder) -> bool:
        """Return whether the engines of `cluster` have these rows."""
        try:
            self.source(cluster)
        except HandleError:
            return False
        return True

    def require_numbers(self, what: str = "X") -> None:
        """Raise ValueError if a column has other things than numbers."""
        return

    def labels(self, found: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """Return the labels for which distinct numbers of a column stand: these numbers."""
        return found

    def require_exact(self, found: np.ndarray[Any, Any], column: int = 0) -> None:
        """Raise ValueError if float64 may have rounded labels, of which the engines have found these numbers."""
        return

    def code(self, labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the numbers that stand for labels in a column: those of numbers.

        Raises
        ------
        ValueError
            If labels are strings.
        """
        if labels.dtype.kind not in "biuf":
            raise ValueError(
                f"y is a handle, which contains numbers; expected an array of labels such as {labels[0]!r}"
            )
        return labels.astype(np.float64)

    def __array_function__(self, function: Any, types: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Put the columns of handles side by side on the engines, for `numpy.hstack`, as ColumnTransformer calls it."""
        if function is np.hstack and all(isinstance(each, ShardedArray) for each in args[0]):
            return self._joined(args[0])
        return function._implementation(*args, **kwargs)

    def _joined(self, parts: Sequence[ShardedArray]) -> ShardedArray:
        for part in parts:
            part.require_numbers()
            if part.bounds != self.bounds:
                raise ValueError(f"handles with rows on the engines as {self.counts} and {part.counts} were given")
        shape = self.shape[0], sum(part.shape[1] if part.ndim == 2 else 1 for part in parts)
        return self._made_of(parts, shape, np.result_type(*(part.dtype for part in parts)), None)

    def _made_of(self, parts: Sequence[ShardedArray], shape: tuple[int, ...], dtype: Any, columns: Any) -> ShardedArray:
        made = self.cluster.made_handle(shape, dtype, self.bounds, columns, nan=any(part.nan for part in parts))
        sources = [part.source(self.cluster) for part in parts]
        self.cluster.call("columns.join", {"sources": sources, "kept": made.handle})
        return made

    def cast(self, dtype: DTypeLike) -> ShardedArray:
        """Return these targets in another dtype, to which the engines copy them."""
        return self if self.dtype == dtype else self._made_of([self], self.shape, dtype, self.described)

    def check_weights(self, dtype: DTypeLike, only_non_negative: bool) -> None:
        """Refuse these rows as sample weights, which are expected in this process.

        Raises
        ------
        TypeError
            Always.
        """
        self.__array__()

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
            self.cluster.call("gather", {"source": source, "target": target})
        return rows

    def __repr__(self) -> str:
        return (
            f"ShardedArray(shape={self.shape}, dtype={self.dtype}, {format_size(self.nbytes)}, "
            f"rows by rank: {', '.join(map(str, self.counts))})"
        )
