"""torchrun's environment variables on a rank, and the port that they name.

Scripts that were written for torchrun find the other ranks by these variables, and so do accelerate and Lightning.
Each rank holds a port from its start on. ``MASTER_PORT`` is that of the first rank that runs the code, which serves
PyTorch's store there when the code asks for it, see `xpulab.engine.torch.rendezvous`. In between, no other process can
take the port. This module imports neither PyTorch nor MPI: most engines and scripts use none of this.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence

from xpulab.libraries import oneapi

__all__ = ["INTERFACE", "LOOPBACK", "Port", "Torchrun", "address_of", "here", "variables"]

#: Variable that names the network interface of gloo's connections; the relay and the agents set it on several hosts.
INTERFACE = "GLOO_SOCKET_IFNAME"

LOOPBACK = "127.0.0.1"

_Place = tuple[str, int]


def address_of(interface: str) -> str:
    """Return the address of an interface of this host; without one, that of this host's name."""
    import psutil

    entries = psutil.net_if_addrs().get(interface, [])
    for family in (socket.AF_INET, socket.AF_INET6):
        for entry in entries:
            if entry.family is family:
                return str(entry.address)
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return LOOPBACK


class Port:
    """A free TCP port of this host, which this process holds. Nothing listens there before `listening` is called.

    Parameters
    ----------
    address : str
        The address of this host on which the port is.

    Attributes
    ----------
    place : tuple of str and int
        The address and the number of the port.
    """

    def __init__(self, address: str = LOOPBACK) -> None:
        held = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        held.bind((address, 0))
        self.place: _Place = (address, held.getsockname()[1])
        self._descriptor = held.detach()

    def listening(self) -> int:
        """Listen, and give the socket's descriptor to the caller, who then owns it. May be called once."""
        with socket.socket(fileno=self._descriptor) as held:
            held.listen()
            return held.detach()


def variables(rank: int, ranks: Sequence[int], leaders: Sequence[int], place: _Place) -> dict[str, str]:
    """Return torchrun's variables for code that runs on some ranks.

    Parameters
    ----------
    rank : int
        One of `ranks`.
    ranks : sequence of int
        The ranks that run the code, which are numbered in this order.
    leaders : sequence of int
        For each rank of the cluster, the first rank of its host.
    place : tuple of str and int
        Address and port of the first of `ranks`.

    Returns
    -------
    dict of str to str
    """
    hosts = list(dict.fromkeys(leaders[each] for each in ranks))
    mine = [each for each in ranks if leaders[each] == leaders[rank]]
    number, size = str(ranks.index(rank)), str(len(ranks))
    return {
        "RANK": number,
        "WORLD_SIZE": size,
        "LOCAL_RANK": str(mine.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(mine)),
        "GROUP_RANK": str(hosts.index(leaders[rank])),
        "GROUP_WORLD_SIZE": str(len(hosts)),
        "ROLE_NAME": "default",
        "ROLE_RANK": number,
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": place[0],
        "MASTER_PORT": str(place[1]),
        "TORCHELASTIC_RUN_ID": "xpulab",  # Lightning looks for it
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


class Torchrun:
    """torchrun's variables of this process.

    Parameters
    ----------
    rank : int
    port : Port
        The port of this rank.
    places : sequence of tuple of str and int
        Address and port of every rank.
    leaders : sequence of int
        For each rank, the first rank of its host.
    users : iterable of str
        Names of variables that the user has given the ranks; they keep their values.
    is_script : bool
    prepare : callable
        Called when this process has imported PyTorch: it tells PyTorch of the port, as `xpulab.engine.torch.prepare`
        does.

    Attributes
    ----------
    rank : int
    port : Port
    ranks : tuple of int
        The ranks that run the code of now.
    code : tuple of int
        Identifies this code; all of its ranks have the same one.
    is_script : bool
        Whether the code is a script that has this process to itself, and not a user's code on an engine.
    """

    def __init__(
        self,
        rank: int,
        port: Port,
        places: Sequence[_Place],
        leaders: Sequence[int],
        users: Iterable[str] = (),
        is_script: bool = False,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank, self.port, self.is_script = rank, port, is_script
        self._places, self._leaders = list(places), list(leaders)
        # Variables that this process has inherited are those of another world, such as that of the notebook's process.
        self._given = {name: value for name, value in os.environ.items() if name not in set(users)}
        self.ranks: tuple[int, ...] = ()
        self.tell(range(len(places)))
        _here[:] = [self]
        oneapi.after_torch(prepare)

    @property
    def place(self) -> _Place:
        """Address and port of the first rank that runs the code."""
        return self._places[self.ranks[0]]

    def tell(self, ranks: Sequence[int], code: tuple[int, ...] = ()) -> None:
        """Set the variables for code that runs on some ranks. What a user's code has set otherwise stays as it is."""
        self.code = code
        if tuple(ranks) == self.ranks:
            return
        self.ranks = tuple(ranks)
        for name, value in variables(self.rank, self.ranks, self._leaders, self.place).items():
            if os.environ.get(name) == self._given.get(name):
                os.environ[name] = value
            self._given[name] = value


_here: list[Torchrun] = []  # at most one: that of this process


def here() -> Torchrun | None:
    """Return the variables of this process, or None if neither a cluster nor ``xpulab run`` has started it."""
    return _here[0] if _here else None
