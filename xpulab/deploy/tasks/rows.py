"""Rows on the engines of a cluster: send them, find them, free them."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xpulab.advice import to_attach
from xpulab.caching import register
from xpulab.csr import as_sent, is_sparse, nbytes_of, sent_csr
from xpulab.data import Holder, Outgoing, ShardedArray, looked_at_later
from xpulab.deploy.memory import read_memory
from xpulab.deploy.tasks.conversation import Conversation
from xpulab.deploy.tasks.limits import LEAST, Demand, require_room, that_fit
from xpulab.exceptions import EngineLostError, HandleError, NotEnoughMemoryError
from xpulab.report.rendering import format_size
from xpulab.scanning import Scan, by_blocks, require_table, scanned, tabled
from xpulab.sharing import host_memory
from xpulab.sharing.memory import BlockPool, SharedBlock
from xpulab.sharing.process_memory import ProcessMemory, allow
from xpulab.sharing.sources import Source, Target, bounds_by_stored, bounds_of
from xpulab.sources.mapped import mapped
from xpulab.sources.source import Column
from xpulab.tables import coded, columns_of_frame, handle_of

__all__ = ["RowsOnEngines"]

_PROOF = 32  # random bytes that an engine has to read and return


class RowsOnEngines:
    """The rows on the engines of a cluster.

    A thread frees the rows of deleted handles while the cluster runs.

    Parameters
    ----------
    tasks : Conversation
    holder : Holder
        The cluster, to which the handles belong.

    Attributes
    ----------
    blocks : BlockPool
        Shared memory for rows on their way to the engines.
    handles_here : set of str
        The handles of this process whose rows are on the engines.
    """

    def __init__(self, tasks: Conversation, holder: Holder) -> None:
        self._tasks = tasks
        self._engines = tasks.engines
        self._holder = holder
        self.blocks = BlockPool()
        self.readable: bool | None = None
        self.handles_here: set[str] = set()
        self._held: dict[int, _Held] = {}
        self._released: queue.SimpleQueue[_Held | None] = queue.SimpleQueue()
        self._watching = False

    def outgoing(self) -> Outgoing:
        """Return a context in which arrays are sent to the engines."""
        return Outgoing(self.blocks, self._engines_read)

    def _engines_read(self) -> bool:
        """Return whether the engines can read this process's memory. Allow it where the system asks for permission."""
        if self._engines.processes is not None:
            allow(self._engines.processes.launcher)
        if self.readable is None:
            proof = np.frombuffer(os.urandom(_PROOF), np.uint8)
            try:
                answer = self._tasks.call("reads", {"memory": ProcessMemory.of(proof), "expected": proof.tobytes()})
            except KeyboardInterrupt:  # the call for which this process asks says that it was interrupted
                raise KeyboardInterrupt from None
            self.readable = all(result["read"] for result in answer.results)
        return self.readable

    def scatter(
        self, X: Any, *, counts: list[int] | None = None, name: str | None = None, allow_nan: bool = False
    ) -> ShardedArray:
        """Send rows to the engines, and keep them on the devices.

        Parameters
        ----------
        X : array-like, sparse matrix, table or Scan of shape (n_samples, n_features) or (n_samples,)
            float32 and float64 keep their dtype, other numbers become float64. A table, such as a data frame, may have
            columns of strings, which become numbers, if its columns have names. The engines themselves read a
            memory-mapped array (``np.load(path, mmap_mode="r")``), also on other hosts that have the same file; other
            hosts get their rows from this one. Sparse rows of any format stay in CSR form on the engines.
        counts : list of int, optional
            Number of rows of each rank; the sum must be n_samples. By default the rows are distributed evenly, and
            sparse rows so that each rank has about as many stored values.
        name : str, optional
            Name under which other processes find the rows, see `handles`. Named rows stay after the handle is deleted,
            until the cluster stops, `release` is called, or other rows are sent under the same name.
        allow_nan : bool, default=False
            Whether X may have NaN, which scalers and imputers take. All other estimators refuse such rows.

        Returns
        -------
        ShardedArray
            A `ShardedTable`, with columns by name, for a table whose columns have names; a `ShardedCSR` for a sparse
            matrix.

        Raises
        ------
        ValueError
            If X has more than two dimensions, is empty, or has infinity, or NaN without `allow_nan`, if X is an array
            of one dimension with whole numbers that float64 would round, or if `counts` does not fit.
        NoClusterError
            If the cluster is not running.
        NotEnoughMemoryError
            If the host or the devices have too little memory.
        """
        with _naming_allow_nan(allow_nan):
            rows, columns, check = self._looked_at(X, allow_nan)
        scan = rows if isinstance(rows, Scan) else None
        from_files = scan is not None and bool(scan.files)
        self._engines.require_running()
        bounds, stored = self._bounds_for(rows, counts)
        self.require_room(_demand(rows, bounds, sent=not from_files))
        about: dict[str, Any] = {"name": name, "nan": allow_nan, "stored": stored}
        array = handle_of(self._holder, rows.shape, rows.dtype, bounds, columns, **about)
        blocks: list[SharedBlock] = []
        # Set up before the transfer, so that the rows of an interrupted transfer are freed, too.
        array.discard = keeper = self.release_with(array, array.id, blocks)
        with _naming_allow_nan(allow_nan), self.outgoing() as outgoing:
            outgoing.after_error(keeper)

            def payload(lost: EngineLostError | None = None) -> dict[str, Any]:
                outgoing.drop()
                source: Source
                if stored is not None:
                    source = sent_csr(outgoing, rows, bounds)
                elif scan is None:
                    source = outgoing.send_rows(rows.reshape(len(rows), -1), bounds, check)
                else:
                    source = scan.block_rows(bounds) if from_files else outgoing.send_rows(scan, bounds, check)
                return {"source": replace(source, nan=allow_nan, keep=array.handle)}

            answer = self._tasks.call("scatter", payload(), again=payload)
            if any(result["shared"] for result in answer.results) and (sent := outgoing.keep()):
                # The rows live in these blocks until the handle is deleted; those of other hosts in memory there.
                blocks += (block for block, fact in zip(sent, self._engines.facts, strict=True) if fact.here)
        self.handles_here.add(array.id)
        if name is not None:  # they stay when the handle is deleted
            for key in [key for key, held in self._held.items() if held.handle == array.id]:
                self._held.pop(key, None)
        return array

    def _bounds_for(self, rows: Any, counts: list[int] | None) -> tuple[list[int], list[int] | None]:
        """Return the bounds of each rank's rows, and of sparse rows the numbers of stored values of each rank."""
        size = self._engines.size
        if counts is None and isinstance(rows, Scan):
            return rows.bounds_for(size), None
        if not is_sparse(rows):
            return bounds_of(len(rows), size, counts), None
        bounds = bounds_by_stored(rows.indptr, size) if counts is None else bounds_of(rows.shape[0], size, counts)
        return bounds, np.diff(rows.indptr[bounds]).tolist()

    def _looked_at(self, X: Any, allow_nan: bool) -> tuple[Any, Any, Callable[[], Any]]:
        """Return rows to send, their columns, and a function that raises an error if they have NaN or infinity.

        `rows` is an array or a scan. All were looked through but large arrays, tables and scans.
        """
        from xpulab.checks import check_array, place_named, require_exact

        require_table(X)
        X = by_blocks(X)
        described = columns_of_frame(X)  # its numbers are one array for NumPy, in half the time that Arrow takes
        table = None if described else tabled(X)
        scan = scanned(X) if table is None else coded(table, self._holder)
        if scan is not None:
            scan.require_numbers()
        columns = described or (getattr(X, "columns", None) if scan is None or scan.columns is None else scan.described)
        flat = (np.ndim(X) if scan is None else scan.ndim) == 1  # targets, with one number per row
        if flat and not isinstance(X, Scan):
            values = np.asarray(X)
            require_exact(values)
            if columns is None and (given := values.dtype).kind in "biu":
                columns = [Column(None, str(given), given.newbyteorder("="), exact=True)]  # classes keep their dtype

        def checked(look: bool = True) -> Any:
            if scan is not None and (isinstance(X, Scan) or any(each.categories for each in scan.described)):
                scan.require_finite(allow_nan)
                return scan
            ensure_all_finite = ("allow-nan" if allow_nan else True) if look else False
            rules = {"accept_sparse": "csr", "ensure_all_finite": ensure_all_finite, "ensure_2d": not flat}
            with place_named(X):
                rows = check_array(X, dtype=[np.float64, np.float32], input_name="X", **rules)
            return as_sent(rows) if is_sparse(rows) else rows

        return checked(not looked_at_later(X)) if scan is None else scan, columns, checked

    def receive(
        self, outgoing: Outgoing, bounds: list[int] | None, shape: tuple[int, ...], dtype: Any, on_disk: bool = False
    ) -> tuple[Target, np.ndarray[Any, Any]]:
        """Allocate memory for a result with one entry per row; see `Outgoing.receive`."""
        return outgoing.receive(shape, dtype, on_disk)

    def entries(self, X: Any) -> range:
        """Return the rows of X for which results with one entry per row come to this process: all of them."""
        return range(X.shape[0])

    def made_handle(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        bounds: list[int],
        columns: Any = None,
        blocks: Sequence[SharedBlock] = (),
        nan: bool = False,
        stored: Sequence[int] | None = None,
    ) -> ShardedArray:
        """Return a handle for rows that a task is going to compute on the engines.

        They are freed when it is deleted.
        """
        array = handle_of(self._holder, shape, dtype, bounds, columns, nan=nan, stored=stored)
        array.discard = self.release_with(array, array.id, blocks)
        self.handles_here.add(array.id)
        return array

    def handles(self) -> dict[str, ShardedArray]:
        """Return the rows that all processes have sent to the engines, by name.

        Rows without a name have a generated name.

        Deleting a returned `ShardedArray` does not free its rows. Named rows stay until the cluster stops or `release`
        is called. Other rows stay until the `ShardedArray` that `scatter` returned is deleted, or until the cluster
        stops if the process that had it has ended.

        Returns
        -------
        dict of str to ShardedArray

        Raises
        ------
        NoClusterError
            If the cluster is not running.
        """
        found = {}
        for handle in self._tasks.call("handles", {}).results[0]["handles"]:
            rows, holder = handle.description, self._holder
            about = {"name": rows.name, "nan": rows.nan, "stored": rows.stored}
            array = handle_of(holder, rows.shape, rows.dtype, rows.bounds, rows.columns, **about)
            array.id = handle.id
            register(array, array.id)
            self.handles_here.add(array.id)
            found[array.name or array.id] = array
        return found

    def release(self, array: ShardedArray) -> None:
        """Free rows on the engines, for all processes.

        Parameters
        ----------
        array : ShardedArray
            A handle from `scatter` or `handles`.

        Raises
        ------
        NoClusterError
            If the cluster is not running.
        """
        self._tasks.call("release", {"handles": [array.id]})
        self.handles_here.discard(array.id)

    def load_npy(
        self, path: str | os.PathLike[str], *, counts: list[int] | None = None, name: str | None = None
    ) -> ShardedArray:
        """Load rows from a file of `numpy.save` onto the engines. Each engine reads its rows, if its host has the file.

        Parameters
        ----------
        path : path-like
            File with an array of shape (n_samples, n_features), float32 or float64.
        counts : list of int, optional
        name : str, optional
            As for `scatter`.

        Returns
        -------
        ShardedArray

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If the file does not hold rows of float32 or float64, or if a row has NaN or infinity.
        """
        try:
            X = np.load(path, mmap_mode="r", allow_pickle=False)
        except EOFError as error:
            raise ValueError(f"{path} is empty; expected a file of numpy.save: {error}") from error
        if mapped(X) is None:
            raise ValueError(
                f"{path} holds an array of shape {X.shape} and dtype {X.dtype}; expected rows (2 dimensions, not "
                "empty) of float32 or float64: convert it with numpy.save(path, array.astype('float32'))"
            )
        return self.scatter(X, counts=counts, name=name)

    def release_with(self, owner: Any, handle: str, blocks: Sequence[SharedBlock] = ()) -> Callable[[], None]:
        """Free the rows of `handle` and their blocks of shared memory when this process deletes `owner`.

        Returns
        -------
        callable
            A function that frees them at once. Repeated calls do nothing.
        """
        held = _Held(owner, self._released.put)  # no code of Python runs then, into which Ctrl-C could fall
        held.handle, held.blocks = handle, blocks
        self._held[id(held)] = held
        return lambda: self._released.put(held)

    def require_handle(self, array: ShardedArray) -> None:
        """Raise `HandleError` if the array's rows are not on the engines."""
        if array.id not in self.handles_here:
            if left := self._engines.left:
                raise HandleError(
                    f"this process has left the cluster {left}, which has the rows of this ShardedArray; type: "
                    f"{to_attach(left)}, and then cluster.handles()"
                )
            raise HandleError(
                "the rows of this ShardedArray are gone: the engines were stopped or restarted after they were sent; "
                "type: cluster.scatter(X) again"
            )

    def require_room(self, rows: Demand) -> None:
        """Raise `NotEnoughMemoryError` if host or devices have too little memory for the rows and working arrays."""
        if self._engines.board is None:
            return
        given = self._engines.options.memory
        if given is not None and not (rows.passes or rows.there) and (rows.fits or rows.nbytes >= LEAST):
            self._require_fit(rows, given)
        if given is not None and rows.passes and rows.least:
            self._require_least(rows, given)
        if rows.nbytes + rows.result < LEAST:
            return
        if self._engines.helper is not None and rows.sent and not rows.there:
            room = host_memory.available(swap=True) + self.blocks.nbytes - rows.nbytes
            require_room(replace(rows, counts=[]), [], [], room)
        for ranks, part, held, free, host in self._by_hosts(rows):
            require_room(part, [self._engines.facts[rank] for rank in ranks], held, free, host)

    def that_fit(self, rows: Demand) -> list[int] | None:
        """Return how many rows each rank keeps of those that it reads from files, by `memory`; None for all."""
        given = self._engines.options.memory
        if self._engines.board is None or (given is None and rows.nbytes < LEAST):
            return None
        memory, kept = read_memory(given), list(rows.counts)
        for ranks, part, held, free, _ in self._by_hosts(rows):
            facts = [self._engines.facts[rank] for rank in ranks]
            for rank, count in zip(ranks, that_fit(part, facts, held, free, memory), strict=True):
                kept[rank] = count
        return None if kept == list(rows.counts) else kept

    def _require_fit(self, rows: Demand, given: str | float) -> None:
        kept = self.that_fit(rows)
        if kept is not None:
            need, room = (format_size(sum(counts) * rows.row_bytes) for counts in (rows.counts, kept))
            raise NotEnoughMemoryError(
                f"{rows.what} takes {need}, all of which this call needs at once, and memory={given!r} has room for "
                f"{room} of it on the engines; {rows.instead}, or set cluster.memory to more"
            )

    def _require_least(self, rows: Demand, given: str | float) -> None:
        """Raise `NotEnoughMemoryError` if what a call in passes keeps of each row does not fit on a host."""
        memory = read_memory(given)
        for _, part, held, free, host in self._by_hosts(rows):
            room, need = memory.of_free(free, sum(held), 1.0), part.least * sum(rows.counts)
            if need > room:
                raise NotEnoughMemoryError(
                    f"{rows.what} takes {format_size(rows.nbytes)}, and what this call keeps of it on {host}, "
                    f"{rows.least:.0f} bytes a row, takes {format_size(need)}; memory={given!r} has room for "
                    f"{format_size(room)}; {rows.instead}, or set cluster.memory to more"
                )

    def _by_hosts(self, rows: Demand) -> Iterator[tuple[list[int], Demand, list[int], float, str]]:
        """Yield the ranks of each host, what they need, the bytes that they hold, free bytes, and the host's name."""
        board = self._engines.board
        assert board is not None
        held, free_elsewhere = (board.ranks[field].tolist() for field in ("device_bytes", "free"))
        hosts: dict[tuple[bool, str], list[int]] = {}
        for rank, fact in enumerate(self._engines.facts):
            hosts.setdefault((fact.here, fact.host), []).append(rank)
        for (here, host), ranks in hosts.items():
            part = replace(rows, counts=[rows.counts[rank] for rank in ranks], result=rows.result * here)
            if here:  # rows for other hosts pass through this host's shared memory
                passing = rows.nbytes - part.nbytes if rows.sent and not rows.there else 0
                free = host_memory.available(swap=True) + self.blocks.nbytes - passing
            else:
                free = free_elsewhere[ranks[0]]
            yield ranks, part, [held[rank] for rank in ranks], free, "this host" if here else host

    def watch_handles(self) -> None:
        """Start the thread that frees rows when their handles are deleted."""
        self._watching = True
        threading.Thread(target=self._release_handles, name="xpulab-handles", daemon=True).start()

    def forget_handles(self) -> None:
        """Forget all rows: the cluster has stopped, or this process no longer uses it."""
        if self._watching:
            self._watching = False
            self._released.put(None)
        self.readable = None
        self.handles_here.clear()
        self.blocks.clear()

    def _release_handles(self) -> None:
        """Free the rows of deleted handles. It runs in a thread, because a handle may be deleted at any moment."""
        while True:
            released = self._released.get()
            if released is None:
                return
            if self._held.pop(id(released), None) is None:  # they are free already
                continue
            self.handles_here.discard(released.handle)
            with contextlib.suppress(Exception):  # the cluster may be stopping
                self._tasks.exchange("release", {"handles": [released.handle]})
                for block in released.blocks:
                    self.blocks.give(block)


class _Held(weakref.ref[Any]):
    """What is on the engines as long as an object of this process exists.

    Attributes
    ----------
    handle : str
    blocks : sequence of SharedBlock
    """

    __slots__ = ("blocks", "handle")

    handle: str
    blocks: Sequence[SharedBlock]


@contextlib.contextmanager
def _naming_allow_nan(allow_nan: bool) -> Iterator[None]:
    """Say in an error about missing values, which are not allowed, how they are sent."""
    try:
        yield
    except ValueError as error:
        if not allow_nan and "NaN" in str(error):
            more = "To send missing values, which scalers and imputers take, type: cluster.scatter(X, allow_nan=True)"
            error.args = (f"{error}\n{more}",)
        raise


def _demand(rows: Any, bounds: list[int], sent: bool) -> Demand:
    """Return the memory that rows need that stay on the engines."""
    n, *rest = rows.shape
    n_columns = math.prod(rest)  # targets have one number per row
    sparse = is_sparse(rows)
    return Demand(
        what=f"X of {n:,} × {n_columns:,} {rows.dtype}",
        counts=np.diff(bounds).tolist(),
        row_bytes=nbytes_of(rows) / n if sparse else n_columns * rows.dtype.itemsize,
        sent=sent,
        adopted=not sparse,
        double=rows.dtype == np.float64,
    )
