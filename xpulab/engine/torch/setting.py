"""Sets PyTorch up on a rank: its device, the cores it uses, and its default process group."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from xpulab.engine.engine import this_engine
from xpulab.engine.torch.choice import Choice, Found, chosen
from xpulab.engine.torch.gloo import noting
from xpulab.engine.torch.group import NAME, reachable, register
from xpulab.engine.torchrun import INTERFACE, Port, address_of
from xpulab.engine.users_mpi.interruptible import WORLD

__all__ = ["Setting", "found", "init"]

_TIMEOUT = datetime.timedelta(minutes=30)  # of PyTorch's own process groups; that of xpulab needs none


@dataclass(frozen=True)
class Setting:
    """PyTorch on this rank.

    Attributes
    ----------
    device : torch.device
        The device on which this rank computes.
    backend : str
        Name of the process group.
    rank, size : int
        Number of this rank in the group, and number of ranks.
    why : str
        Why this device and this process group were chosen.
    """

    device: Any
    backend: str
    rank: int
    size: int
    why: str


def found() -> Found:
    """Return what the PyTorch that is installed has."""
    devices = {
        kind: module.device_count() if module.is_available() else 0
        for kind in ("xpu", "cuda")
        if (module := getattr(torch, kind, None)) is not None
    }
    has = {
        "gloo": dist.is_gloo_available(),
        "xccl": getattr(dist, "is_xccl_available", lambda: False)(),
        "nccl": dist.is_nccl_available(),
    }
    return Found(devices, tuple(name for name, there in has.items() if there), torch.__version__)


def init(backend: str | None = None, device: str | None = None) -> Setting:
    """Set up PyTorch on all ranks that run this code. All of them call this together; it can be called again.

    Parameters
    ----------
    backend : str, optional
        The process group: "xpulab", "gloo", "xccl" or "nccl". By default that of the device, and "xpulab" on a CPU.
    device : str, optional
        "cpu", "xpu" or "cuda"; by default the engine's own device if PyTorch knows it, and otherwise the CPU.

    Returns
    -------
    Setting

    Raises
    ------
    DeviceError
        If PyTorch lacks the device or the process group.
    UsageError
        If a name is unknown, or if the process group does not send tensors of the device.

    Examples
    --------
    In a ``%%xpu`` cell, or in a script under ``xpulab run``::

        device = xpulab.torch.init().device  # device(type='cpu') without a GPU
    """
    register()
    ranks = reachable()
    rank, size = ranks.index(WORLD.rank), len(ranks)
    choice = _choice(ranks, backend, device)
    if dist.is_initialized() and (dist.get_backend(), dist.get_world_size()) != (choice.group, size):
        dist.destroy_process_group()
    if not dist.is_initialized():
        store = dist.HashStore() if choice.group == NAME else _store(ranks, rank)
        dist.init_process_group(choice.group, store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
    if choice.device != "cpu":
        getattr(torch, choice.device.partition(":")[0]).set_device(choice.device)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0))))
    return Setting(torch.device(choice.device), choice.group, rank, size, choice.why)


def _choice(ranks: list[int], backend: str | None, device: str | None) -> Choice:
    engine = this_engine()
    if engine is None:
        return chosen("opencl", "cpu", found(), len(ranks), device=device, group=backend)
    about = engine.device.describe()
    leaders = engine.host.leaders
    mine = [rank for rank in ranks if leaders[rank] == leaders[engine.rank]]
    place = mine.index(engine.rank), len(mine)
    return chosen(about.backend, about.device_type, found(), len(ranks), place, device, backend)


def _store(ranks: list[int], rank: int) -> Any:
    """Return the store of PyTorch's own process groups. Rank 0 listens on the cluster's address, at a free port."""
    engine = this_engine()
    comm = engine.communicators.of(ranks) if engine is not None else WORLD
    if engine is None:
        os.environ.setdefault(INTERFACE, "lo")  # engines have the interface of their cluster
    port = Port(address_of(os.environ.get(INTERFACE, ""))) if rank == 0 else None
    served = {} if port is None else {"wait_for_workers": False, "master_listen_fd": port.listening()}
    place = comm.bcast(port and port.place)
    with noting():
        return dist.TCPStore(*place, len(ranks), rank == 0, _TIMEOUT, **served)
