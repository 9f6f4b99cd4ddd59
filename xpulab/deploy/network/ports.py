"""The TCP ports on which the processes of a cluster listen. A firewall between hosts has to let these through."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from xpulab.exceptions import UsageError

__all__ = ["EACH_HOST", "PROPOSED", "Ports", "claimed", "listening", "ports", "reserved"]

#: Ports that a host of a cluster needs beside one for each of its ranks: those of the controller, of mpiexec and of
#: what they start, with room for those of a cluster that has just ended.
EACH_HOST = 20

#: Ports for users who have none to choose.
PROPOSED = "50000-50100"

_LOWEST, _HIGHEST = 1024, 65535  # the ports below belong to root


@dataclass(frozen=True)
class Ports:
    """A range of TCP ports.

    Attributes
    ----------
    first, last : int
        The last port belongs to the range.
    """

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def __len__(self) -> int:
        return self.last - self.first + 1

    def free(self, n: int) -> Ports:
        """Return the first `n` ports in a row that are free on this host; if there are none, the first `n`."""
        starts = range(self.first, self.last + 2 - n)
        first = next((start for start in starts if all(map(_free, range(start, start + n)))), self.first)
        return Ports(first, first + n - 1)

    def require_enough(self, ranks: int) -> None:
        """Raise `UsageError` if the range is too small for a host with so many ranks."""
        needed = EACH_HOST + ranks
        if len(self) < needed:
            raise UsageError(
                f"--ports {self} has {len(self)} ports, and a host with {ranks} of the ranks needs {needed}; type for "
                f"example: --ports {self.first}-{self.first + max(100, needed)}"
            )


def ports(text: object) -> Ports | None:
    """Return the range that a user has typed, such as ``"50000-50100"``; None for None.

    Raises
    ------
    UsageError
        If it is no such range.
    """
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d{1,5})\s*[-:]\s*(\d{1,5})\s*", text) if isinstance(text, str) else None
    if found is None or not _LOWEST <= int(found[1]) <= int(found[2]) <= _HIGHEST:
        raise UsageError(
            f"--ports: received {text!r}, expected the first and the last port of a range from {_LOWEST} to "
            f"{_HIGHEST}, such as --ports {PROPOSED}"
        )
    return Ports(int(found[1]), int(found[2]))


def listening(address: str, among: Ports | None) -> list[socket.socket]:
    """Sockets of this host that listen on the first and the last free port, or on any one; none if no port is free.

    Parameters
    ----------
    address : str
        This host's address.
    among : Ports or None
        By default any port.
    """
    every = range(among.first, among.last + 1) if among else range(1)
    found = (_listening(address, candidates) for candidates in ([every, every[::-1]] if among else [every]))
    return [each for each in found if each is not None]


def _listening(address: str, candidates: Iterable[int]) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in candidates:
        with contextlib.suppress(OSError):
            return socket.create_server((address, port), family=family)
    return None


def claimed(among: Ports) -> Iterator[int]:
    """Free ports, which no other process that calls this function gets until this process ends.

    They come from the last one on, because MPI takes the first ones.
    """
    for port in range(among.last, among.first - 1, -1):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0xpulab-port-{port}")  # a name without a file, which only one process of the host can have
        except OSError:
            claim.close()
            continue
        if _free(port):
            _claims.append(claim)
            yield port
        else:
            claim.close()


def _free(port: int) -> bool:
    try:
        with socket.create_server(("", port)):
            return True
    except OSError:
        return False


def reserved() -> int:
    """Return a free port, which the system gives to no other socket until this process ends.

    This process can listen on it. A port that is only looked up may be another's before it is used, if several clusters
    start at once.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a socket that also has it may listen on the port
    holder.bind(("", 0))
    _claims.append(holder)
    return int(holder.getsockname()[1])


_claims: list[socket.socket] = []
