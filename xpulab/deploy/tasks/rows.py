"""Rows on the engines of a cluster: send them, find them, free them."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from xpulab.advice import to_attach
from xpulab.caching import register
from xpulab.data import Outgoing, ShardedArray, bounds_of, looked_at_later, mapped, place_named
from xpulab.deploy.options import StartOptions
from xpulab.deploy.tasks.conversation import Conversation
from xpulab.deploy.tasks.limits import LEAST, Demand, require_room
from xpulab.deploy.watch.signals import interruptible
from xpulab.exceptions import EngineLostError, HandleError
from xpulab.sharing import host_memory
from xpulab.sharing.memory import BlockPool, SharedBlock
from xpulab.sharing.process_memory import ProcessMemory, allow

__all__ = ["RowsOnEngines"]

_PROOF = 32  # random bytes that an engine has to read and return


class RowsOnEngines(Conversation):
    """The part of `XPUCluster` that manages the rows on the engines.

    A thread frees the rows of deleted handles while the cluster runs: ``_watch_handles`` starts it, and
    ``_forget_handles`` ends it.

    Parameters
    ----------
    options : StartOptions
        As for `XPUCluster`.

    Attributes
    ----------
    blocks : BlockPool
        Shared memory for rows on their way to the engines.
    """

    def __init__(self, options: StartOptions) -> None:
        super().__init__(options)
        self.blocks = BlockPool()
        self._readable: bool | None = None
        self._handles: set[str] = set()
        self._released: queue.SimpleQueue[tuple[str, Sequence[SharedBlock]] | None] = queue.SimpleQueue()
        self._watching = False

    def outgoing(self) -> Outgoing:
        """Return a context in which arrays are sent to the engines."""
        return Outgoing(self.blocks, self._engines_read)

    def _engines_read(self) -> bool:
        """Return whether the engines can read this process's memory. Allow it where the system asks for permission."""
        if self._processes is not None:
            allow(self._processes.launcher)
        if self._readable is None:
            proof = np.frombuffer(os.urandom(_PROOF), np.uint8)
            memory = {**asdict(ProcessMemory.own()), "address": proof.ctypes.data}
            try:
                answer = self.call("reads", {"memory": memory, "expected": proof.tobytes()})
            except KeyboardInterrupt:  # the call for which this process asks says that it was interrupted
                raise KeyboardInterrupt from None
            self._readable = all(result["read"] for result in answer.results)
        return self._readable

    @interruptible("scatter")
    def scatter(
        self, X: Any, *, counts: list[int] | None = None, name: str | None = None, allow_nan: bool = False
    ) -> ShardedArray:
        """Send rows to the engines, and keep them on the devices.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples,)
            float32 and float64 keep their dtype, other numbers become float64. The engines themselves read a
            memory-mapped array (``np.load(path, mmap_mode="r")``), also on other hosts that have the same file; other
            hosts get their rows from this one.
        counts : list of int, optional
            Number of rows of each rank; the sum must be n_samples. By default the rows are distributed evenly.
        name : str, optional
            Name under which other processes find the rows, see `handles`. Named rows stay after the handle is deleted,
            until the cluster stops, `release` is called, or other rows are sent under the same name.
        allow_nan : bool, default=False
            Whether X may have NaN, which scalers and imputers take. All other estimators refuse such rows.

        Returns
        -------
        ShardedArray

        Raises
        ------
        ValueError
            If X has more than two dimensions, is empty, or has infinity, or NaN without `allow_nan`, or if `counts`
            does not fit.
        NoClusterError
            If the cluster is not running.
        NotEnoughMemoryError
            If the host or the devices have too little memory.
        """
        from xpulab.checks import check_array

        where = mapped(X)
        columns = getattr(X, "columns", None)
        flat = np.ndim(X) == 1  # targets, with one number per row

        def checked(look: bool = True) -> Any:
            ensure_all_finite = ("allow-nan" if allow_nan else True) if look else False
            with place_named(X):
                kinds = [np.float64, np.float32]
                return check_array(
                    X, dtype=kinds, input_name="X", ensure_all_finite=ensure_all_finite, ensure_2d=not flat
                )

        rows = X if where else checked(not looked_at_later(X))
        bounds = bounds_of(len(rows), self._require_running().size, counts)
        n_columns = 1 if flat else rows.shape[1]
        what = f"X of {rows.shape[0]:,} × {n_columns:,} {rows.dtype}"
        row_bytes = n_columns * rows.dtype.itemsize
        double = rows.dtype == np.float64
        self.require_room(Demand(what, np.diff(bounds).tolist(), row_bytes, sent=where is None, double=double))
        array = ShardedArray(self, rows.shape, rows.dtype, bounds, columns, name=name, nan=allow_nan)
        blocks: list[SharedBlock] = []
        # Set up before the transfer, so that the rows of an interrupted transfer are freed, too.
        array.discard = keeper = self.release_with(array, array.id, blocks)
        with self.outgoing() as outgoing:
            outgoing.after_error(keeper)

            def payload(lost: EngineLostError | None = None) -> dict[str, Any]:
                outgoing.drop()
                whole = rows.reshape(len(rows), -1)
                source = {**where, "bounds": bounds} if where else outgoing.send_rows(whole, bounds, checked)
                source |= {"nan": True} if allow_nan else {}
                return {"source": source, "handle": array.id, "about": array.about()}

            answer = self.call("scatter", payload(), again=payload)
            if any(result["shared"] for result in answer.results) and (sent := outgoing.keep()):
                # The rows live in these blocks until the handle is deleted; those of other hosts in memory there.
                blocks += (block for block, fact in zip(sent, self.facts, strict=True) if fact["here"])
        self._handles.add(array.id)
        if name is not None:
            keeper.detach()
        return array

    def receive(
        self, outgoing: Outgoing, X: Any, shape: tuple[int, ...], dtype: Any
    ) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
        """Allocate memory for a result with one entry per row of X; see `Outgoing.receive`."""
        return outgoing.receive(shape, dtype)

    def entries(self, X: Any) -> range:
        """The rows of X for which results with one entry per row come to this process: all of them."""
        return range(X.shape[0])

    def made_handle(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        bounds: list[int],
        columns: Any = None,
        blocks: Sequence[SharedBlock] = (),
        nan: bool = False,
    ) -> ShardedArray:
        """A handle for rows that a task is going to compute on the engines. They are freed when it is deleted."""
        array = ShardedArray(self, shape, dtype, bounds, columns, nan=nan)
        array.discard = self.release_with(array, array.id, blocks)
        self._handles.add(array.id)
        return array

    def handles(self) -> dict[str, ShardedArray]:
        """The rows that all processes have sent to the engines, by name. Rows without a name have a generated name.

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
        for about in self.call("handles", {}).results[0]["handles"]:
            array = ShardedArray(
                self, tuple(about["shape"]), about["dtype"], about["bounds"], about["columns"], name=about["name"],
                nan=about["nan"],
            )  # fmt: skip
            array.id = about["id"]
            register(array, array.id)
            self._handles.add(array.id)
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
        self.call("release", {"handles": [array.id]})
        self._handles.discard(array.id)

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

    def release_with(self, owner: Any, handle: str, blocks: Sequence[SharedBlock] = ()) -> weakref.finalize[Any, Any]:
        """Free the rows of `handle` and their blocks of shared memory when this process deletes `owner`."""
        keeper = weakref.finalize(owner, self._released.put, (handle, blocks))
        keeper.atexit = False  # at exit the cluster ends anyway, or it is detached and other processes may use the rows
        return keeper

    def require_handle(self, array: ShardedArray) -> None:
        """Raise `HandleError` if the array's rows are not on the engines."""
        if array.id not in self._handles:
            if self._left:
                raise HandleError(
                    f"this process has left the cluster {self._left}, which has the rows of this ShardedArray; type: "
                    f"{to_attach(self._left)}, and then cluster.handles()"
                )
            raise HandleError(
                "the rows of this ShardedArray are gone: the engines were stopped or restarted after they were sent; "
                "type: cluster.scatter(X) again"
            )

    def require_room(self, rows: Demand) -> None:
        """Raise `NotEnoughMemoryError` if host or devices have too little memory for the rows and working arrays."""
        if self._board is None or rows.nbytes + rows.result < LEAST:
            return
        held, free_elsewhere = (self._board.ranks[field].tolist() for field in ("device_bytes", "free"))
        hosts: dict[tuple[bool, str], list[int]] = {}
        for rank, fact in enumerate(self.facts):
            hosts.setdefault((fact["here"], fact["host"]), []).append(rank)
        if self._helper is not None and rows.sent and not rows.there:
            room = host_memory.available(swap=True) + self.blocks.nbytes - rows.nbytes
            require_room(replace(rows, counts=[]), [], [], room)
        for (here, host), ranks in hosts.items():
            part = replace(rows, counts=[rows.counts[rank] for rank in ranks], result=rows.result * here)
            if here:  # rows for other hosts pass through this host's shared memory
                passing = rows.nbytes - part.nbytes if rows.sent and not rows.there else 0
                free = host_memory.available(swap=True) + self.blocks.nbytes - passing
            else:
                free = free_elsewhere[ranks[0]]
            facts = [self.facts[rank] for rank in ranks]
            require_room(part, facts, [held[rank] for rank in ranks], free, "this host" if here else host)

    def _watch_handles(self) -> None:
        """Start the thread that frees rows when their handles are deleted."""
        self._watching = True
        threading.Thread(target=self._release_handles, name="xpulab-handles", daemon=True).start()

    def _forget_handles(self) -> None:
        """Forget all rows: the cluster has stopped, or this process no longer uses it."""
        if self._watching:
            self._watching = False
            self._released.put(None)
        self._readable = None
        self._handles.clear()
        self.blocks.clear()

    def _release_handles(self) -> None:
        """Free the rows of deleted handles. It runs in a thread, because a handle may be deleted at any moment."""
        while True:
            released = self._released.get()
            if released is None:
                return
            handle, blocks = released
            self._handles.discard(handle)
            with contextlib.suppress(Exception):  # the cluster may be stopping
                self._exchange("release", {"handles": [handle]}, None)
                for block in blocks:
                    self.blocks.give(block)
