"""Whether the hosts of a cluster reach each other by TCP: one connection is tried for each pair.

ssh reaches a host also where a firewall lets nothing else in. MPI then waits for ever for its connections.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from xpulab.deploy.network.ports import PROPOSED, Ports, ports

__all__ = ["Closed", "Door", "closed_doors", "opening", "sentences"]

_PATIENCE = 3.5  # seconds in which the system sends the first packet of a connection three times
_AT_ONCE = 64  # connections that a host tries at the same time

#: Errors of a connection without a route to the other host. All others but silence are a firewall's answers.
_NO_ROUTE = (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True)
class Door:
    """A port on which a host listens while the others try to connect.

    Attributes
    ----------
    host : str
        The host as the user names it.
    address : str
        Its address among the hosts.
    port : int
    """

    host: str
    address: str
    port: int


@dataclass(frozen=True)
class Closed:
    """A pair of hosts of which the first cannot connect to the second.

    Attributes
    ----------
    source : str
        The host that has tried.
    door : Door
        Where it has tried.
    how : str
        "REJECT" if a firewall answers, "DROP" if nothing does, or "no route".
    said : str
        The operating system's words.
    """

    source: str
    door: Door
    how: str
    said: str


def closed_doors(source: str, doors: Sequence[Door]) -> list[Closed]:
    """Return those of the other hosts' doors to which this host, which is called `source`, cannot connect."""
    others = [door for door in doors if door.host != source]
    with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(others))), "xpulab-reach") as pool:
        found = pool.map(lambda door: _tried(source, door), others)
        return [each for each in found if each is not None]


def _tried(source: str, door: Door) -> Closed | None:
    try:
        socket.create_connection((door.address, door.port), _PATIENCE).close()
    except TimeoutError:
        return Closed(source, door, "DROP", f"no answer within {_PATIENCE:g} s")
    except OSError as error:
        how = "no route" if error.errno in _NO_ROUTE else "REJECT"
        return Closed(source, door, how, os.strerror(error.errno) if error.errno else str(error))
    return None


def sentences(closed: Collection[Closed], here: str) -> Iterator[str]:
    """Yield a sentence for each host that others cannot reach, and how; `here` is the notebook's host."""
    for door, how, said in dict.fromkeys((each.door, each.how, each.said) for each in closed):
        sources = [each.source for each in closed if (each.door, each.how, each.said) == (door, how, said)]
        where = f"{door.host} ({'the notebook, ' * (door.host == here)}{door.address})"
        yield f"{' and '.join(sources)} cannot connect to port {door.port} of {where}: {how} ({said})"


def opening(closed: Collection[Closed], among: Ports | None) -> str:
    """Return what to do so that the hosts reach each other."""
    hosts = ", ".join(dict.fromkeys(each.door.host for each in closed))
    few = among or ports(PROPOSED)
    assert few is not None
    choose = f"MPI and the controller listen on any port from 1024 on; choose some (--ports {few}), and "
    return (
        f"{choose * (among is None)}let the firewall of {hosts} take TCP connections from the other hosts to the ports "
        f"{few}; type there, for example: sudo firewall-cmd --add-port={few}/tcp, or: sudo ufw allow "
        f"{few.first}:{few.last}/tcp"
    )
