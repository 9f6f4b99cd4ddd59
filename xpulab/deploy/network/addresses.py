"""The hosts that a user names: a list, or a file in Open MPI's, Intel MPI's or plain form."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from xpulab.exceptions import UsageError

__all__ = ["Address", "addresses", "interface_with", "is_here", "own_address", "reached_at"]

#: A host, and its number of engines: ``node1``, ``node1:2`` (Intel MPI, MPICH), ``node1 slots=2`` (Open MPI).
_LINE = re.compile(
    r"(?P<name>[\w.@-]+|\[[0-9A-Fa-f:]+\])(:(?P<colon>\d+))?"
    r"(\s+slots\s*=\s*(?P<slots>\d+))?(\s+max[-_]slots\s*=\s*\d+)?"
)


@dataclass(frozen=True)
class Address:
    """A host as the user names it.

    Attributes
    ----------
    name : str
        The name or address, as ssh takes it.
    slots : int or None
        Number of engines that the user gives it; None if the devices decide.
    """

    name: str
    slots: int | None = None


def addresses(hosts: str | Sequence[str] | None, hostfile: str | os.PathLike[str] | None) -> list[Address]:
    """Return the hosts from a list, or from a file.

    Parameters
    ----------
    hosts : str or sequence of str, optional
        ``"node1,node2:2"``, or the same as a list.
    hostfile : path-like, optional
        File with a host on each line. Empty lines and what follows a ``#`` are ignored.

    Returns
    -------
    list of Address
        Each host once, in the order in which it was named first; empty if neither argument is given.

    Raises
    ------
    UsageError
        If both are given, if a host cannot be read, or if the file has none.
    """
    if hosts is not None and hostfile is not None:
        raise UsageError("both hosts and a hostfile were given; expected one of them")
    if hostfile is not None:
        return _from_file(Path(hostfile))
    if hosts is None:
        return []
    words = hosts.split(",") if isinstance(hosts, str) else hosts
    if isinstance(words, bytes) or not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise UsageError(f"hosts={hosts!r} was given; expected names of hosts such as 'node1,node2'")
    return _once(_read(word, f"hosts={hosts!r}") for word in words)


def _from_file(path: Path) -> list[Address]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the hostfile {path} cannot be read: {error}") from None
    stripped = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    found = _once(_read(line, f"{path}, line {number}") for number, line in stripped if line)
    if not found:
        raise UsageError(f"the hostfile {path} names no host; expected lines such as 'node1' or 'node1 slots=2'")
    return found


def _read(text: str, where: str) -> Address:
    found = _LINE.fullmatch(text.strip())
    # A name that begins with a dash would be an option of ssh.
    if found is None or found["name"].startswith("-") or (found["colon"] and found["slots"]):
        raise UsageError(f"{where}: received {text!r}, expected a host such as node1, node1:2 or 'node1 slots=2'")
    number = found["colon"] or found["slots"]
    if number is not None and int(number) < 1:
        raise UsageError(f"{where}: received {text!r}, expected a number of engines of at least 1")
    return Address(found["name"].strip("[]"), None if number is None else int(number))


def _once(found: Iterable[Address]) -> list[Address]:
    """Return each host once; the numbers of a host that was named several times are added, as MPI does."""
    known: dict[str, Address] = {}
    for address in found:
        before = known.get(address.name)
        slots = address.slots
        if before is not None:
            slots = (before.slots or 1) + (address.slots or 1)
        known[address.name] = Address(address.name, slots)
    return list(known.values())


def is_here(name: str) -> bool:
    """Return whether a name or address is that of this host."""
    name = name.rpartition("@")[2]
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError:  # ssh may know it by another name
        return False
    return any(map(interface_with, found))


def interface_with(address: str) -> str:
    """Return the network interface of this host that has this address; "" if none has it."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return str(name)
    return ""


def own_address(other: str) -> str:
    """Return this host's address on the network through which packets to another address go.

    Raises
    ------
    OSError
        If no network leads to the address.
    """
    family = socket.AF_INET6 if ":" in other else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probing:
        probing.connect((other, 9))  # a datagram's socket: nothing is sent
        return str(probing.getsockname()[0])


def reached_at() -> str:
    """Return this host's address to the notebook's host, which has started this process by srun or ssh; "" otherwise.

    srun passes on the notebook's variables, and so perhaps those of a login by ssh to the notebook's host.
    """
    if launched_from := os.environ.get("SLURM_LAUNCH_NODE_IPADDR", ""):
        return own_address(launched_from)
    connection = os.environ.get("SSH_CONNECTION", "").split()  # client's address and port, this host's address and port
    return connection[2] if len(connection) == 4 else ""
