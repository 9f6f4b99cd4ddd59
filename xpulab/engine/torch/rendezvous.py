"""The rendezvous of PyTorch's own process groups at the port that torchrun's variables name.

In ``torch.distributed.init_process_group()`` the ranks meet in a store, which is served on ``MASTER_PORT``. Under
torchrun its agent serves the store. Here the first rank that runs the code does, on the port that it holds. One server
is for all groups that the process makes after one another, and each group has a part of the store of its own: a rank
that makes the next group must not read what the ranks wrote for the one before.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world
from torch.distributed.rendezvous import _rendezvous_handlers

from xpulab.engine.torch import gloo
from xpulab.engine.torchrun import Torchrun, here
from xpulab.engine.waiting import poll

__all__ = ["prepare"]

_LAST = 3.0  # seconds for which the first rank of a script serves the store at its end, for ranks that still read it
_ASKS = 5e-3  # seconds between two questions to the store: many of them would look as if a long message moved
_SERVER = datetime.timedelta(minutes=30)  # for the connection of the server to itself

_served: list[Any] = []  # at most one: the store that this process serves until its end
_turn: tuple[tuple[int, ...], int] = ((), 0)  # the code for which this process made the last group, and its groups


def prepare() -> None:
    """Have groups that are made by torchrun's variables use the port that the cluster holds."""
    if not torch.accelerator.is_available():
        # accelerate knows no other sign that the processes of a machine without GPUs belong together.
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    if dist.is_available():
        gloo.note_connections()
        for scheme in ("env", "tcp"):
            _rendezvous_handlers[scheme] = _handler(_rendezvous_handlers[scheme])


def _handler(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Return a handler of rendezvous that calls PyTorch's own, unless the place is the cluster's port."""

    def handle(url: str, **options: Any) -> Iterator[Any]:
        torchrun = here()
        if torchrun is None or _port(url) != torchrun.place[1]:
            yield from original(url, **options)
            return
        try:
            met = _met(torchrun, url, options.get("timeout", dist.constants.default_pg_timeout))
        except BaseException:
            if not dist.is_initialized():
                # init_process_group has numbered the group that was not made. The next one needs the same number on
                # all ranks, of which some may not have begun this one.
                _world.group_count = 0
            raise
        yield met

    return handle


def _port(url: str) -> int | None:
    """Return the port at which the ranks meet."""
    parts = urlparse(url)
    return int(os.environ.get("MASTER_PORT") or 0) if parts.scheme == "env" else parts.port


def _met(torchrun: Torchrun, url: str, timeout: datetime.timedelta) -> tuple[Any, int, int]:
    """Return the store of a new group, the number of this rank, and the number of ranks.

    The ranks wait for each other here, where Stop, or the exception of another rank, ends the wait. PyTorch would wait
    in C++ code for ranks that have not come.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    if torchrun.rank == torchrun.ranks[0] and not _served:
        options = {"wait_for_workers": False, "master_listen_fd": torchrun.port.listening()}
        _served.append(dist.TCPStore(*torchrun.place, None, True, _SERVER, **options))
    _await(lambda: _listens(torchrun.place), deadline, f"rank 0 at {torchrun.place}")
    asked = {name: value for name, (value, *_) in parse_qs(urlparse(url).query).items()}
    rank, size = (int(asked.get(name.lower(), os.environ.get(name, -1))) for name in ("RANK", "WORLD_SIZE"))
    with gloo.noting():
        whole = dist.TCPStore(*torchrun.place, size, False, timeout, False)
    store = dist.PrefixStore(_next(torchrun), whole)
    store.add("arrived", 1)
    _await(lambda: store.add("arrived", 0) >= size, deadline, f"all of {size} ranks")
    if torchrun.is_script:
        _note_end(whole)
    return store, rank, size


def _listens(place: tuple[str, int]) -> bool:
    """Return whether a process listens at an address and a port."""
    try:
        socket.create_connection(place).close()
    except ConnectionRefusedError:
        return False
    return True


def _await(there: Callable[[], bool], deadline: float, what: str) -> None:
    """Wait until a condition is true.

    Raises
    ------
    TimeoutError
        If it is not true at the deadline.
    """

    asked = 0.0

    def ready() -> bool:
        nonlocal asked
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(f"init_process_group has waited for {what}; expected that all ranks call it together")
        if now - asked < _ASKS:
            return False
        asked = now
        return there()

    poll(ready)


def _next(torchrun: Torchrun) -> str:
    """Return the name of this group's part of the store. All ranks of the code make the same groups in this order."""
    global _turn
    code, number = _turn
    _turn = torchrun.code, number + 1 if code == torchrun.code else 0
    return "/".join(map(str, (*torchrun.ranks, *_turn[0], _turn[1])))


def _note_end(store: dist.Store) -> None:
    """Have the first rank of a script end after the other ranks, which may still read the store."""
    store.add("began", 1)

    def end() -> None:
        with contextlib.suppress(RuntimeError):  # the first rank has ended early, and its store with it
            store.add("ended", 1)
            deadline = time.monotonic() + _LAST
            while _served and store.add("ended", 0) < store.add("began", 0) and time.monotonic() < deadline:
                time.sleep(0.01)

    atexit.register(end)
