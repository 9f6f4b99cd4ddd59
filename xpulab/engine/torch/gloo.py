"""Ends calls of PyTorch's backend gloo that wait for other ranks, which gloo itself has no means for.

A call that waits raises a RuntimeError as soon as a connection of its process group is closed, or that to the store in
which the ranks meet for a new group. So the connections that gloo makes with a process group are noted, with those to
the store, and are closed where nothing else ends the wait. The group is of no use then.
Connections that gloo makes later, as it does with ``TORCH_GLOO_LAZY_INIT=1``, are not known.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from xpulab.engine.waiting import ended_by

__all__ = ["close_connections", "note_connections", "noting"]

_noted: dict[int, str] = {}  # descriptor of each socket that came with a process group, and the socket's own number


def note_connections() -> None:
    """Note the connections of each process group of gloo from now on, and have `end_waits` close them."""
    ended_by(close_connections)
    if not dist.is_gloo_available():
        return
    kind: Any = dist.ProcessGroupGloo
    connect = kind.__init__

    @functools.wraps(connect)
    def connect_noted(self: Any, *args: Any, **options: Any) -> None:
        with noting():
            connect(self, *args, **options)

    kind.__init__ = connect_noted


@contextlib.contextmanager
def noting() -> Iterator[None]:
    """Open a context that notes the connections that are made in it, as to a store."""
    before = _sockets()
    try:
        yield
    finally:
        _noted.update(_sockets().items() - before.items())


def close_connections() -> None:
    """Close all noted connections to other ranks. The calls that wait for their bytes raise an error."""
    there = _sockets()
    for descriptor, number in list(_noted.items()):
        if there.get(descriptor) == number:  # otherwise gloo has closed it, and the descriptor may be another's
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                connection.getpeername()  # raises OSError if it listens for connections, as one of each group does
                connection.shutdown(socket.SHUT_RDWR)
    _noted.clear()


def _sockets() -> dict[int, str]:
    """Return the descriptor of each socket of this process, and the socket's own number."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if (target := os.readlink(f"/proc/self/fd/{name}")).startswith("socket:"):
                found[int(name)] = target
    return found
