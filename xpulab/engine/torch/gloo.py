"""Ends calls of PyTorch's backend gloo that wait for other ranks, which gloo itself has no means for.

A call that waits raises a RuntimeError as soon as a connection of its process group is closed. So the connections that
gloo makes with a process group are noted, and are closed where nothing else ends the wait. The group is of no use then.
Connections that gloo makes later, as it does with ``TORCH_GLOO_LAZY_INIT=1``, are not known.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from typing import Any

import torch.distributed as dist

from xpulab.engine.waiting import ended_by

__all__ = ["close_connections", "note_connections"]

_noted: dict[int, str] = {}  # descriptor of each socket that came with a process group, and the socket's own number


def note_connections() -> None:
    """Note the connections of each process group of gloo from now on, and have `end_waits` close them."""
    if not dist.is_gloo_available():
        return
    ended_by(close_connections)
    kind: Any = dist.ProcessGroupGloo
    connect = kind.__init__

    @functools.wraps(connect)
    def noting(self: Any, *args: Any, **options: Any) -> None:
        before = _sockets()
        connect(self, *args, **options)
        _noted.update(_sockets().items() - before.items())

    kind.__init__ = noting


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
