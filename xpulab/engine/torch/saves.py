"""The state of a net on the ranks, with which a fit goes on: after Stop, and on new engines."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist

from xpulab.engine.hosts.helper import SentCheckpoint
from xpulab.sharing.checkpoint import Checkpoint

if TYPE_CHECKING:
    import skorch

__all__ = ["Saves", "moved", "set_randoms"]


class Saves:
    """The state of a net: it is kept on rank 0 every few seconds, and continues a fit on new engines.

    Parameters
    ----------
    resume : dict or None
        A state that `state` has made.
    checkpoint : Checkpoint, SentCheckpoint or None
        Where rank 0 keeps states.
    every : float
        Seconds between two states.
    """

    def __init__(
        self, resume: dict[str, Any] | None, checkpoint: Checkpoint | SentCheckpoint | None, every: float
    ) -> None:
        self.place: dict[str, Any] = {"epoch": 0, "drawn": None, "step": 0, "rows": 0}
        self.history: list[tuple[Any, ...]] = []
        self._randoms: list[Any] | None = None
        if resume is not None:
            self.place, self._randoms = resume["place"], resume["randoms"]
        self._checkpoint = checkpoint
        self._every, self._last = every, time.monotonic()

    def due(self) -> bool:
        """Return whether this rank wants to keep the state now."""
        return self._checkpoint is not None and time.monotonic() - self._last >= self._every

    def apply(self) -> None:
        """Set the generators of random numbers: as they were, or, at the beginning, differently on each rank."""
        rank = dist.get_rank()
        if self._randoms is not None and rank < len(self._randoms):
            set_randoms(self._randoms[rank])
        elif rank > 0:  # the ranks draw the same rows' order from rank 0, and different masks in dropout layers
            seed = torch.initial_seed() + rank
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 -- a user's dataset may use it
            random.seed(seed)

    def state(self, net: skorch.NeuralNet) -> dict[str, Any]:
        """Return the state. All ranks call this together; rank 0 gets the net, too."""
        randoms: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(randoms, randoms_now())
        state = {"run": 0, "iteration": self.place["epoch"], "place": dict(self.place), "randoms": randoms}
        return {**state, "net": packed_net(net)} if dist.get_rank() == 0 else state

    def keep(self, net: skorch.NeuralNet) -> None:
        """Keep the state. All ranks call this together."""
        state = self.state(net)
        if self._checkpoint is not None:
            self._checkpoint.write(state)
        self._last = time.monotonic()

    def close(self) -> None:
        """Close the checkpoint."""
        if self._checkpoint is not None:
            self._checkpoint.close()


#: Attributes of a net on a rank that are not the net's.
_OURS = ("_task", "_setting", "_saves", "_ddp", "_trained", "_gathers", "_share", "_weight", "_began", "_rows")


def packed_net(net: skorch.NeuralNet) -> bytes:
    """Return the attributes of a net, on the CPU, for the notebook."""
    kept = {
        name: value
        for name, value in vars(net).items()
        if name not in _OURS and name not in ("forward_seconds", "backward_seconds", "device")
    }
    if str(net.device) != "cpu":
        kept = copy.deepcopy(kept)
        moved(kept["module_"], kept.get("criterion_"), kept.get("optimizer_"), "cpu")
    return cloudpickle.dumps(kept)


def moved(
    module: torch.nn.Module, criterion: object, optimizer: torch.optim.Optimizer | None, device: torch.device
) -> None:
    """Move the parts of a net to a device."""
    module.to(device)
    if isinstance(criterion, torch.nn.Module):
        criterion.to(device)
    if optimizer is not None:
        optimizer.load_state_dict(optimizer.state_dict())  # puts the state where the parameters are


def randoms_now() -> tuple[Any, ...]:
    """Return the states of the generators of random numbers of this process."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def set_randoms(states: Sequence[Any]) -> None:
    """Set the generators of random numbers of this process."""
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])
