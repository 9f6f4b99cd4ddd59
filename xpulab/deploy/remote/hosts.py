"""Look at the hosts of a cluster before anything starts.

Does ssh or srun reach each, which versions and devices does it have, and do the hosts reach each other?
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from xpulab.deploy.launchers import choice as schedulers
from xpulab.deploy.launchers.scheduler import Job
from xpulab.deploy.launchers.ssh import CONNECT
from xpulab.deploy.mpi import choice
from xpulab.deploy.mpi.command import DEFAULT
from xpulab.deploy.network.addresses import Address, interface_with, is_here, own_address
from xpulab.deploy.network.ports import PROPOSED, Ports, listening
from xpulab.deploy.network.reach import Closed, Door, closed_doors, opening, sentences
from xpulab.deploy.plan.plan import Offer, plan
from xpulab.deploy.plan.probe import Probe
from xpulab.deploy.remote import describe_host
from xpulab.deploy.remote.asking import Asked
from xpulab.deploy.remote.describe_host import Answer
from xpulab.exceptions import ClusterStartError, DeviceNotFoundError, UsageError
from xpulab.report.rendering import Displayed, block, escape, plain, table_html, table_text

__all__ = ["Host", "Hosts", "interface_to", "look"]


@dataclass(frozen=True)
class Host:
    """A host, and what was found on it.

    Attributes
    ----------
    name : str
        The host as the user names it, and ssh knows it, or as Slurm names it.
    here : bool
        Whether it is the notebook's host.
    slots : int or None
        Number of engines that the user gives it.
    address : str
        Its address to the notebook's host; empty for the notebook's host.
    probe : Probe or None
        Its devices; None if there is a problem.
    problem : str
        Why no engine can run there, and what to type; empty if engines can run there.
    """

    name: str
    here: bool
    slots: int | None = None
    address: str = ""
    probe: Probe | None = None
    problem: str = ""


@dataclass(frozen=True)
class Hosts(Displayed):
    """The hosts of a cluster. A notebook shows them as a table.

    Attributes
    ----------
    hosts : tuple of Host
        The notebook's host comes first, if it is one of them.
    ssh_config : str or None
        File with ssh's configuration.
    mpi : str
        Name of the MPI that they all have to have.
    job : Job or None
        The scheduler's job whose nodes they are.
    among : Ports or None
        The ports on which the cluster may listen.
    here : str
        Name of the notebook's host.
    closed : tuple of Closed
        The pairs of hosts of which the first cannot connect to the second.
    """

    hosts: tuple[Host, ...]
    ssh_config: str | None = None
    mpi: str = DEFAULT
    job: Job | None = None
    among: Ports | None = None
    here: str = ""
    closed: tuple[Closed, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether engines can run on all hosts, and all hosts reach each other."""
        return not self.closed and not any(host.problem for host in self.hosts)

    @property
    def to_type(self) -> str:
        """What to type next."""
        if self.job and self.job.submitted:
            return f"the nodes are those of {schedulers.label(self.job)}, which was ended"
        if self.job:
            return f"to use only this host of {schedulers.label(self.job)}, type: %xpu_cluster start --launcher local"
        if not self.ready:
            return "after you have mended this, look again: %xpu_cluster hosts " + self._options
        return f"all hosts are ready; type: %xpu_cluster start --hosts {self._options}"

    @property
    def _options(self) -> str:
        names = [host.name + ("" if host.slots is None else f":{host.slots}") for host in self.hosts]
        options = {"--ssh-config": self.ssh_config, "--mpi": "" if self.mpi == DEFAULT else self.mpi}
        options["--ports"] = str(self.among or PROPOSED * bool(self.closed))
        return " ".join([",".join(names), *(f"{option} {value}" for option, value in options.items() if value)])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-serialisable values."""
        return {**asdict(self), "ready": self.ready}

    def require_ready(self) -> None:
        """Raise `ClusterStartError` if engines cannot run on one of the hosts."""
        if not self.ready:
            raise ClusterStartError("\n".join(["engines cannot run on all hosts:", *self._notes()]))

    def offers(self) -> list[Offer]:
        """Return what `plan` needs to know about the hosts that have been found."""
        return [
            Offer(host.probe, "" if host.here else host.name, host.slots)
            for host in self.hosts
            if host.probe is not None
        ]

    def __str__(self) -> str:
        table = table_text(_HEADER, self._rows(), _ALIGN)
        return "\n".join(["Hosts", table, *(f"  {plain(note)}" for note in self._notes())])

    def _repr_html_(self) -> str:
        table = table_html(_HEADER, self._rows(), _ALIGN, caption="Hosts")
        return block("hosts", [table, *(f'<div class="xpu-note">{escape(note)}</div>' for note in self._notes())])

    def _notes(self) -> Iterator[str]:
        for host in self.hosts:
            if host.problem:
                yield f"{host.name}: {host.problem}"
        if self.closed:
            yield from sentences(self.closed, self.here)
            yield opening(self.closed, self.among)
        yield self.to_type

    def _rows(self) -> Iterator[tuple[object, ...]]:
        apart = {each.door.host for each in self.closed}
        return (_row(host, not host.problem and host.name not in apart) for host in self.hosts)


_HEADER = ("host", "name", "address", "cores", "devices", "state")
_ALIGN = "lllrll"


def _row(host: Host, ready: bool) -> tuple[object, ...]:
    found = host.probe
    devices = ", ".join(dict.fromkeys(device.name for device in found.devices)) if found else ""
    cores = len(found.logical_cores) if found else ""
    state = "ready" if ready else "not ready"
    return (host.name, found.host if found else "", host.address or "here" * host.here, cores, devices, state)


def look(
    addresses: Sequence[Address],
    ssh_config: str | os.PathLike[str] | None = None,
    mpi: str = DEFAULT,
    job: Job | None = None,
    connect: int = CONNECT,
    among: Ports | None = None,
) -> Hosts:
    """Look at all hosts at the same time, at other hosts by a program that ssh or srun starts there.

    The hosts then try to connect to each other, and this host and they do, because the controller and the helper rank
    run here.

    Parameters
    ----------
    addresses : sequence of Address
    ssh_config : path-like, optional
        File with ssh's configuration; by default the user's and the system's.
    mpi : str
        Name of the MPI that has to be on all hosts.
    job : Job, optional
        The scheduler's job whose nodes the hosts are; in a job of Slurm, srun takes the place of ssh.
    connect : int
        Seconds after which a host that does not answer ssh counts as not reachable.
    among : Ports, optional
        The ports on which the cluster may listen; by default any.

    Returns
    -------
    Hosts

    Raises
    ------
    UsageError
        If the file with ssh's configuration cannot be read, if two names mean this host, or if none of the ports is
        free on this host.
    ClusterStartError, OneAPIError
        If this host does not have the MPI.
    """
    config = None if ssh_config is None else os.path.abspath(ssh_config)
    if config is not None and not os.access(config, os.R_OK):
        raise UsageError(f"--ssh-config: received {config!r}, expected a file that you may read")
    node = job.here if job else ""
    hosts = [Host(each.name, each.name == node or is_here(each.name), each.slots) for each in addresses]
    hosts.sort(key=lambda host: not host.here)
    if sum(host.here for host in hosts) > 1:
        names = " and ".join(host.name for host in hosts if host.here)
        raise UsageError(f"{names} are names of the same host, this one; expected each host once")
    mine = (mpi, choice.find(mpi).mpiexec)
    with _asked(hosts, config, job, (*mine, str(among or "")), connect) as asked:
        with ThreadPoolExecutor(max(1, len(hosts)), "xpulab-hosts") as pool:
            answers = pool.map(
                lambda host: describe_host.describe(*mine) if host.here else asked[host.name].answer(), hosts
            )
            documents = {host.name: document for host, document in zip(hosts, answers, strict=True)}
        versions = describe_host.versions(*mine)
        found = [_looked_at(host, documents[host.name], asked, versions) for host in hosts]
        doors = [
            Door(host.name, host.address, port) for host in found for port in documents[host.name].get("ports", ())
        ]
        here = next((host.name for host in hosts if host.here), platform.node())
        closed = _closed(here, [door for door in doors if door.address], asked, among)
        found = [replace(host, problem=host.problem or _problem(host, asked)) for host in found]
    return Hosts(tuple(found), config, mpi, job, among, here, closed)


@contextlib.contextmanager
def _asked(
    hosts: Sequence[Host], config: str | None, job: Job | None, arguments: Sequence[str], connect: int
) -> Iterator[dict[str, Asked]]:
    """Open a context in which the other hosts are asked, by their names."""
    asked: dict[str, Asked] = {}
    try:
        for host in hosts:
            if not host.here:
                asked[host.name] = Asked(host.name, config, job, arguments, connect)
        yield asked
    finally:
        for each in asked.values():
            each.end()


def _problem(host: Host, asked: Mapping[str, Asked]) -> str:
    return asked[host.name].problem if host.name in asked else ""


def _looked_at(host: Host, document: Answer, asked: Mapping[str, Asked], versions: Mapping[str, str]) -> Host:
    """Return a host with what `describe_host` has said of it, or with what is wrong there."""
    if problem := _problem(host, asked):
        return replace(host, problem=problem)
    if differ := _differences(document["versions"], versions):
        return replace(host, problem=f"it has {differ}; install the versions of this host there")
    if document["error"]:
        return replace(host, problem=document["error"])
    assert document["probe"] is not None
    found = Probe.from_dict(document["probe"])
    helps = host.here and host.slots is None and asked  # without a device, if there are other hosts
    try:
        if not helps:
            plan(found)
    except DeviceNotFoundError as error:
        return replace(host, problem=str(error))
    if host.here:
        return replace(host, probe=found)
    if document["address"] and not document["ports"]:
        return replace(host, problem="none of the ports is free there; type others: --ports FIRST-LAST")
    return replace(host, address=document["address"], probe=found)


def _differences(theirs: Mapping[str, str], mine: Mapping[str, str]) -> str:
    """Return what is not as on this host: "xpulab 0.1 (here 0.2)"."""
    other = [key for key in describe_host.VERSIONS if theirs.get(key) != mine[key]]
    if "xpulab" in other:  # whose digest then differs, too
        other = [key for key in other if key != "digest"]
    words = ((f"{describe_host.VERSIONS[key]} {theirs.get(key, 'none')}".strip(), mine[key]) for key in other)
    return ", ".join(f"{name} (here {here})" for name, here in words)


def _closed(here: str, doors: list[Door], asked: Mapping[str, Asked], among: Ports | None) -> tuple[Closed, ...]:
    """Return the pairs among this host, called `here`, and these others of which one cannot connect to the other."""
    if not doors:
        return ()
    _, address = interface_to(doors[0].address)
    if not (listeners := listening(address, among)):
        raise UsageError(f"--ports {among}: none of these ports is free on this host; type others: --ports FIRST-LAST")
    with contextlib.ExitStack() as stack:
        mine = [Door(here, address, stack.enter_context(each).getsockname()[1]) for each in listeners]
        others = list(dict.fromkeys(door.host for door in doors))
        for name in others:
            asked[name].say({"source": name, "doors": [asdict(each) for each in (*mine, *doors)]})
        found = closed_doors(here, doors)
        for name in others:
            for each in asked[name].answer().get("closed", ()):
                found.append(Closed(**{**each, "door": Door(**each["door"])}))
    return tuple(found)


def interface_to(address: str) -> tuple[str, str]:
    """Return the interface through which packets to an address go: its name, and this host's address there.

    Raises
    ------
    ClusterStartError
        If there is none.
    """
    try:
        mine = own_address(address)
    except OSError as error:
        raise ClusterStartError(f"no interface of this host leads to {address}: {error}") from None
    if not (name := interface_with(mine)):
        raise ClusterStartError(f"no interface of this host has the address {mine}, which leads to {address}")
    return name, mine
