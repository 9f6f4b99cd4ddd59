"""Sets PyTorch up on a rank: its device, the cores it uses, and its default process group."""

from __future__ import annotations

import datetime
import os
import socket
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from xpulab.engine.engine import this_engine
from xpulab.engine.interruptible import WORLD
from xpulab.engine.torch.choice import Choice, Found, chosen
from xpulab.engine.torch.group import NAME, reachable, register

__all__ = ["Setting", "found", "init"]

_TIMEOUT = datetime.timedelta(minutes=30)  # of PyTorch's own process groups; that of xpulab needs none
_INTERFACE = "FI_TCP_IFACE"  # the launcher gives MPI the interface that connects the hosts of the cluster


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
    >>> xpulab.torch.init().device  # doctest: +SKIP
    device(type='cpu')
    """
    register()
    ranks = reachable()
    rank, size = ranks.index(WORLD.rank), len(ranks)
    choice = _choice(ranks, backend, device)
    if dist.is_initialized() and (dist.get_backend(), dist.get_world_size()) != (choice.group, size):
        dist.destroy_process_group()
    if not dist.is_initialized():
        store = dist.HashStore() if choice.group == NAME else _store(ranks, rank)
        with _OnInterface():
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
    return chosen(about["backend"], about["device_type"], found(), len(ranks), place, device, backend)


def _interface() -> str:
    """Return the network interface that only the cluster uses: loopback on one host."""
    engine = this_engine()
    several = engine is not None and engine.host.several
    return os.environ.get(_INTERFACE, "") if several else "lo"


class _OnInterface:
    """A context in which gloo listens on this interface only: it has no other argument for this."""

    def __enter__(self) -> None:
        self._before = os.environ.get("GLOO_SOCKET_IFNAME")
        if interface := _interface():
            os.environ["GLOO_SOCKET_IFNAME"] = interface

    def __exit__(self, *_: object) -> None:
        os.environ.pop("GLOO_SOCKET_IFNAME", None)
        if self._before is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = self._before


def _store(ranks: list[int], rank: int) -> Any:
    """Return the store of PyTorch's own process groups. Rank 0 listens on the cluster's address, at a free port."""
    engine = this_engine()
    comm = engine.communicator(ranks) if engine is not None else WORLD
    place, listening = None, None
    if rank == 0:
        listening = socket.socket()
        listening.bind((_address(_interface()), 0))
        listening.listen()
        place = listening.getsockname()
    host, port = comm.bcast(place)
    if listening is None:
        return dist.TCPStore(host, port, len(ranks), False, timeout=_TIMEOUT)
    return dist.TCPStore(
        host, port, len(ranks), True, _TIMEOUT, wait_for_workers=False, master_listen_fd=listening.detach()
    )


def _address(interface: str) -> str:
    """Return the IPv4 address of an interface; without one, that of this host's name."""
    import psutil

    entries = psutil.net_if_addrs().get(interface, [])
    mine = [entry.address for entry in entries if entry.family is socket.AF_INET]
    return mine[0] if mine else socket.gethostbyname(socket.gethostname())
