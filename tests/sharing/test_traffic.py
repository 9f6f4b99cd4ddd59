"""The bytes that a process has sent and received by TCP, on real connections."""

from __future__ import annotations

import socket

from waiting import until

from xpulab.sharing.traffic import tcp_bytes


def test_what_both_ends_of_a_connection_move_is_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as here, server.accept()[0] as there:
            before = tcp_bytes()
            here.sendall(bytes(100_000))
            got = 0
            while got < 100_000:
                got += len(there.recv(65536))
            until(lambda: tcp_bytes() - before == 200_000)  # the last acknowledgement may be on its way
        assert here.fileno() == there.fileno() == -1


def test_sockets_that_are_no_connections_are_left_as_they_are() -> None:
    one, other = socket.socketpair()
    with one, other, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        tcp_bytes()
        one.sendall(b"x")
        assert other.recv(1) == b"x"
        assert datagrams.fileno() >= 0
