"""Variables of ``%%xpu`` cells: send them to the engines, and bring them back."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np

from xpulab.data import Outgoing, ShardedArray, bounds_of
from xpulab.deploy.rows import RowsOnEngines
from xpulab.exceptions import UsageError
from xpulab.sharing.memory import LEAST_SHARED, SharedBlock

__all__ = ["VariablesOnEngines", "checked_ranks", "received"]

_KINDS = "biufcmMSU"  # of dtypes: bool, numbers, times and text


def checked_ranks(ranks: Sequence[int] | None, size: int) -> list[int]:
    """The ranks in order, all by default.

    Raises
    ------
    UsageError
        If there is none, or one that the cluster does not have.
    """
    if ranks is None:
        return list(range(size))
    if size and (not ranks or set(ranks) - set(range(size))):
        raise UsageError(f"ranks: received {','.join(map(str, ranks))}, expected ranks from 0 to {size - 1}")
    return sorted(set(ranks))


def received(value: Mapping[str, Any]) -> Any:
    """A variable that a rank has sent; its large arrays stay in the shared memory to which the rank has copied them."""
    buffers: list[bytearray | np.ndarray[Any, Any]] = []
    for part in value["buffers"]:
        if isinstance(part, bytes):
            buffers.append(bytearray(part))
        else:
            with SharedBlock.open(part["path"], writable=True) as block:
                buffers.append(block.array((part["nbytes"],), np.uint8))
    return pickle.loads(value["pickle"], buffers=buffers)


class VariablesOnEngines(RowsOnEngines):
    """The variables of a cluster's ``%%xpu`` cells."""

    def push(self, variables: Mapping[str, Any], *, ranks: Sequence[int] | None = None, scatter: bool = False) -> None:
        """Make variables for ``%%xpu`` cells.

        Large arrays travel through shared memory, also those inside of other objects.

        Parameters
        ----------
        variables : mapping of str to object
            By name. A `ShardedArray` becomes each rank's own rows, as a NumPy array.
        ranks : sequence of int, optional
            Who gets them; all ranks by default.
        scatter : bool
            Whether each of the ranks gets a part of each array, as even as possible along the first axis. The array may
            have any shape, and any dtype of numbers, bool, text or times. By default each rank gets the whole object.

        Raises
        ------
        UsageError
            If a name is not one of a variable, a rank does not exist, or an object cannot be cut into parts.
        TypeError
            If an object cannot be pickled.
        HandleError
            For a `ShardedArray` whose rows are elsewhere or gone.
        MemoryError
            If the host has no memory for them.
        """
        chosen = checked_ranks(ranks, self._require_running().size)
        with Outgoing(self.blocks) as outgoing:
            things = {
                _named(name): self._sent(name, thing, outgoing, chosen, scatter) for name, thing in variables.items()
            }
            self.call("push", {"things": things, "ranks": chosen})
            outgoing.drop()  # the parts of arrays are the memory of the ranks now

    def pull(self, name: str, *, ranks: Sequence[int] | None = None) -> list[Any]:
        """A variable of ``%%xpu`` cells, by rank.

        Parameters
        ----------
        name : str
        ranks : sequence of int, optional
            All by default.

        Returns
        -------
        list
            One value for each of the ranks; arrays on the device become NumPy arrays.

        Raises
        ------
        EngineError
            If a rank does not have the variable, or if it cannot be pickled.
        """
        chosen = checked_ranks(ranks, self._require_running().size)
        results = self.call("pull", {"name": _named(name), "ranks": chosen}).results
        return [received(results[rank]["value"]) for rank in chosen]

    def _sent(self, name: str, thing: Any, outgoing: Outgoing, ranks: list[int], scatter: bool) -> dict[str, Any]:
        """What tells the ranks how to make the object."""
        if isinstance(thing, ShardedArray):
            return {"handle": thing.source(self), "shape": thing.shape}
        if scatter:
            array = np.asarray(thing)
            if array.ndim == 0 or array.dtype.kind not in _KINDS:
                raise UsageError(
                    f"{name}: {type(thing).__name__} with {array.ndim} dimensions of dtype {array.dtype} was given; "
                    "expected an array of numbers, text or times with at least 1 dimension, to be cut along the first"
                )
            rows = array.reshape(len(array), int(np.prod(array.shape[1:])))
            return {"rows": outgoing.send_rows(rows, bounds_of(len(array), len(ranks))), "shape": array.shape}
        buffers: list[pickle.PickleBuffer] = []
        try:
            head = cloudpickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
        except Exception as error:
            raise TypeError(f"{name} cannot be sent to the engines: {error}") from error
        return {"pickle": head, "buffers": [_buffer(buffer, outgoing) for buffer in buffers]}


def _buffer(buffer: pickle.PickleBuffer, outgoing: Outgoing) -> bytes | dict[str, Any]:
    raw = np.frombuffer(buffer.raw(), np.uint8)
    return outgoing.send(raw) if raw.nbytes >= LEAST_SHARED else raw.tobytes()


def _named(name: str) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(f"{name!r} was given; expected the name of a variable")
    return name
