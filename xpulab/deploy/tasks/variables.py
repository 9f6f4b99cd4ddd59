"""Send variables of ``%%xpu`` cells to the engines, and return them to the notebook."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xpulab.data import Holder, Outgoing, ShardedArray
from xpulab.deploy.tasks.completion import NamesOnEngines
from xpulab.deploy.tasks.conversation import Conversation
from xpulab.deploy.tasks.names import Names
from xpulab.deploy.tasks.rows import RowsOnEngines
from xpulab.exceptions import UsageError
from xpulab.sharing.classes import dumps
from xpulab.sharing.memory import shared_or_sent
from xpulab.sharing.sources import Pickled, Source, bounds_of
from xpulab.sharing.variables import GIVEN

__all__ = ["VariablesOnEngines", "checked_ranks", "received"]

_KINDS = "biufcmMSU"  # kinds of dtypes that can be cut into parts: bool, numbers, times and text


def checked_ranks(ranks: Sequence[int] | None, size: int) -> list[int]:
    """Return the ranks, sorted and without repetition; by default all ranks.

    Raises
    ------
    UsageError
        If `ranks` is empty, or has a rank that the cluster does not have.
    """
    if ranks is None:
        return list(range(size))
    if size and (not ranks or set(ranks) - set(range(size))):
        raise UsageError(f"ranks: received {','.join(map(str, ranks))}, expected ranks from 0 to {size - 1}")
    return sorted(set(ranks))


def received(value: Pickled) -> Any:
    """Return a variable that a rank has sent.

    Its large arrays stay in the shared memory to which the rank has copied them.
    """
    buffers: list[bytearray | np.ndarray[Any, Any]] = []
    for part in value["buffers"]:
        if isinstance(part, bytes):
            buffers.append(bytearray(part))
        else:
            buffers.append(part.open(writable=True))
    return pickle.loads(value["pickle"], buffers=buffers)


class VariablesOnEngines:
    """The variables of a cluster's ``%%xpu`` cells.

    Parameters
    ----------
    tasks : Conversation
    rows : RowsOnEngines
    holder : Holder
        The cluster, to which handles belong.

    Attributes
    ----------
    completion : NamesOnEngines
        What a user who types a cell is offered.
    """

    def __init__(self, tasks: Conversation, rows: RowsOnEngines, holder: Holder) -> None:
        self._tasks, self._rows, self._holder = tasks, rows, holder
        self.completion = NamesOnEngines(tasks.engines)

    def push(self, variables: Mapping[str, Any], *, ranks: Sequence[int] | None = None, scatter: bool = False) -> None:
        """Send objects to the engines, as variables of ``%%xpu`` cells.

        Large arrays, also those inside of other objects, travel through shared memory.

        Parameters
        ----------
        variables : mapping of str to object
            Name -> object. For a `ShardedArray`, each rank gets a NumPy array of its own rows.
        ranks : sequence of int, optional
            The ranks that get the variables; all by default.
        scatter : bool
            Whether each of the ranks gets a part of each array, as even as possible along the first axis. The array may
            have any shape, and any dtype of numbers, bool, text or times. By default each rank gets the whole object.

        Raises
        ------
        UsageError
            If a name is not a Python identifier, a rank does not exist, or an object cannot be cut into parts.
        TypeError
            If an object cannot be pickled.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        MemoryError
            If the host has too little memory.
        NoClusterError
            If the cluster is not running.
        """
        chosen = checked_ranks(ranks, self._size())
        with Outgoing(self._rows.blocks) as outgoing:
            things = {
                _named(name): self._sent(name, thing, outgoing, chosen, scatter) for name, thing in variables.items()
            }
            self._tasks.call("push", {"things": things, "ranks": chosen})
            outgoing.drop()  # the ranks now own the memory of these parts

    def put(self, name: str, value: object) -> None:
        """Send an object to all engines, as `push`: ``cluster["x"] = 1``."""
        self.push({name: value})

    def keys(self) -> list[str]:
        """Return the names that complete in ``cluster["``: the variables of cells on rank 0."""
        return [name for name in self.completion.after("") if name not in GIVEN]

    def pull(self, name: str, *, ranks: Sequence[int] | None = None) -> list[Any]:
        """Return a variable of ``%%xpu`` cells from the ranks.

        Parameters
        ----------
        name : str
            Name of the variable.
        ranks : sequence of int, optional
            The ranks to ask; all by default.

        Returns
        -------
        list
            The value of each of these ranks. Arrays on a device become NumPy arrays.

        Raises
        ------
        UsageError
            If the name is not a Python identifier, or a rank does not exist.
        EngineError
            If a rank does not have the variable, or if the value cannot be pickled.
        NoClusterError
            If the cluster is not running.
        """
        chosen = checked_ranks(ranks, self._size())
        results = self._tasks.call("pull", {"name": _named(name), "ranks": chosen}).results
        return [received(results[rank]["value"]) for rank in chosen]

    def names(self) -> Names:
        """Say what lives on the ranks: the variables of ``%%xpu`` cells, and the rows of `handles`.

        Returns
        -------
        Names
            For each variable its name, type, shape and bytes, and whether it is the same on all ranks.

        Raises
        ------
        NoClusterError
            If the cluster is not running.
        """
        results = self._tasks.call("names", {}).results
        return Names({rank: result["variables"] for rank, result in enumerate(results)}, results[0]["rows"])

    def _size(self) -> int:
        self._tasks.engines.require_running()
        return self._tasks.engines.size

    def _sent(self, name: str, thing: Any, outgoing: Outgoing, ranks: list[int], scatter: bool) -> Source | Pickled:
        """Return what the ranks make the object of."""
        if isinstance(thing, ShardedArray):
            return thing.source(self._holder)
        if scatter:
            array = np.asarray(thing)
            if array.ndim == 0 or array.dtype.kind not in _KINDS:
                raise UsageError(
                    f"{name}: {type(thing).__name__} with {array.ndim} dimensions of dtype {array.dtype} was given; "
                    "expected an array of numbers, text or times with at least 1 dimension, to be cut along the first"
                )
            rows = array.reshape(len(array), int(np.prod(array.shape[1:])))
            return replace(outgoing.send_rows(rows, bounds_of(len(array), len(ranks))), shape=array.shape)
        buffers: list[pickle.PickleBuffer] = []
        try:
            head = dumps(thing, protocol=5, buffer_callback=buffers.append)
        except Exception as error:
            raise TypeError(f"{name} cannot be sent to the engines: {error}") from error
        return {"pickle": head, "buffers": shared_or_sent(buffers, outgoing.send)}


def _named(name: str) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(f"{name!r} was given; expected the name of a variable")
    return name
