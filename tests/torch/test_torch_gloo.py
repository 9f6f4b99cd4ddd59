"""Which connections are closed to end a wait inside of gloo."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("skorch")  # without PyTorch, `import torch` would find the folder of this file

from xpulab.engine.torch.gloo import close_connections, noting


def test_noted_connections_are_closed_and_no_others() -> None:
    beside = socket.socketpair()
    with noting():
        listening = socket.create_server(("127.0.0.1", 0))
        noted = socket.create_connection(listening.getsockname()), listening.accept()[0]
        gone = socket.socketpair()
    for each in gone:
        each.close()
    later = socket.socketpair()  # whose descriptors are those of the ones that are gone
    close_connections()
    assert noted[0].recv(1) == b""  # the end, as where the other side has closed
    for pair in (beside, later):
        pair[0].send(b"x")
        assert pair[1].recv(1) == b"x"
    again = socket.create_connection(listening.getsockname()), listening.accept()[0]
    for each in (*beside, *noted, *later, *again, listening):
        each.close()
