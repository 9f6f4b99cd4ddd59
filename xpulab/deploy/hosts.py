"""Look at the hosts of a cluster before anything starts: whether ssh or srun reaches each, its versions and devices."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from xpulab.deploy import about
from xpulab.deploy.addresses import Address, interface_with, is_here, own_address
from xpulab.deploy.launchers import choice as schedulers
from xpulab.deploy.launchers.scheduler import Job
from xpulab.deploy.launchers.ssh import CONNECT, Ssh
from xpulab.deploy.mpi import choice
from xpulab.deploy.mpi.command import DEFAULT
from xpulab.deploy.plan import Offer
from xpulab.deploy.probe import Probe
from xpulab.exceptions import ClusterStartError, UsageError
from xpulab.rendering import Displayed, block, escape, plain, table_html, table_text
from xpulab.sharing.program import program

__all__ = ["Host", "Hosts", "interface_to", "look"]

_TIMEOUT = 60.0  # seconds that a host has to answer; a first import from a network's disk takes long

#: What ssh or the host's shell says -> what is wrong, and what to type.
_BY_SSH = (
    ("Host key verification failed", "its key is not known, or has changed; compare it, and type once: {ssh}{name}"),
    (
        "Permission denied",
        "ssh has no key for it; type: %xpu_cluster hosts --make-keys {name} (or, with a key of your own, in a "
        "terminal: ssh-copy-id {options}{name})",
    ),
    ("Could not resolve hostname", "its name is not known; give its address, or a Host entry in ~/.ssh/config"),
    ("Connection refused", "no sshd answers there; start it, or give its port in ~/.ssh/config"),
    ("timed out|No route to host|Network is unreachable", "it cannot be reached; check its network: ping {name}"),
)

#: The same for what the host's Python or shell says, or srun in its place.
_ON_HOST = (
    ("No module named '?xpulab", "xpulab is not installed there; type: {ssh}{name} {python} -m pip install xpulab"),
    ("not found|No such file", "it has no {python}; install xpulab there in the same folder as here"),
)


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
    """

    hosts: tuple[Host, ...]
    ssh_config: str | None = None
    mpi: str = DEFAULT
    job: Job | None = None

    @property
    def ready(self) -> bool:
        """Whether engines can run on all hosts."""
        return not any(host.problem for host in self.hosts)

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
        mpi = "" if self.mpi == DEFAULT else f" --mpi {self.mpi}"
        return ",".join(names) + ("" if self.ssh_config is None else f" --ssh-config {self.ssh_config}") + mpi

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable values."""
        return {**asdict(self), "ready": self.ready}

    def require_ready(self) -> None:
        """Raise `ClusterStartError` if engines cannot run on one of the hosts."""
        problems = [f"{host.name}: {host.problem}" for host in self.hosts if host.problem]
        if problems:
            raise ClusterStartError("\n".join(["engines cannot run on all hosts:", *problems, self.to_type]))

    def offers(self) -> list[Offer]:
        """What `plan` needs to know about the hosts that have been found."""
        return [
            Offer(host.probe, "" if host.here else host.name, host.slots)
            for host in self.hosts
            if host.probe is not None
        ]

    def __str__(self) -> str:
        table = table_text(_HEADER, map(_row, self.hosts), _ALIGN)
        return "\n".join(["Hosts", table, *(f"  {plain(note)}" for note in self._notes())])

    def _repr_html_(self) -> str:
        table = table_html(_HEADER, map(_row, self.hosts), _ALIGN, caption="Hosts")
        return block("hosts", [table, *(f'<div class="xpu-note">{escape(note)}</div>' for note in self._notes())])

    def _notes(self) -> Iterator[str]:
        for host in self.hosts:
            if host.problem:
                yield f"{host.name}: {host.problem}"
        yield self.to_type


_HEADER = ("host", "name", "address", "cores", "devices", "state")
_ALIGN = "lllrll"


def _row(host: Host) -> tuple[object, ...]:
    found = host.probe
    devices = ", ".join(dict.fromkeys(device.name for device in found.devices)) if found else ""
    cores = len(found.logical_cores) if found else ""
    state = "not ready" if host.problem else "ready"
    return (host.name, found.host if found else "", host.address or "here" * host.here, cores, devices, state)


def look(
    addresses: Sequence[Address],
    ssh_config: str | os.PathLike[str] | None = None,
    mpi: str = DEFAULT,
    job: Job | None = None,
    connect: int = CONNECT,
) -> Hosts:
    """Look at all hosts at the same time, at other hosts by a program that ssh or srun starts there.

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

    Returns
    -------
    Hosts

    Raises
    ------
    UsageError
        If the file with ssh's configuration cannot be read, or if two names mean this host.
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
    mpiexec = choice.find(mpi).mpiexec
    with ThreadPoolExecutor(max(1, len(hosts)), "xpulab-hosts") as pool:
        found = list(pool.map(lambda host: _looked_at(host, config, job, (mpi, mpiexec), connect), hosts))
    return Hosts(tuple(found), config, mpi, job)


def _looked_at(host: Host, config: str | None, job: Job | None, mpi: tuple[str, str], connect: int) -> Host:
    if host.here:
        document, problem = about.describe(*mpi), ""
    else:
        document, problem = _answer_of(host.name, config, job, mpi, connect)
    if problem:
        return replace(host, problem=problem)
    theirs, mine = document["versions"], about.versions(*mpi)
    other = [key for key in about.VERSIONS if theirs.get(key) != mine[key]]
    if other:
        names = [f"{about.VERSIONS[key]} {theirs.get(key, 'none')}".strip() for key in other]
        differ = ", ".join(f"{name} (here {mine[key]})" for name, key in zip(names, other, strict=True))
        return replace(host, problem=f"it has {differ}; install the versions of this host there")
    if document["error"]:
        return replace(host, problem=document["error"])
    address = "" if host.here else document["address"]
    return replace(host, address=address, probe=Probe.from_dict(document["probe"]))


def _answer_of(
    name: str, config: str | None, job: Job | None, mpi: tuple[str, str], connect: int
) -> tuple[dict[str, Any], str]:
    """What `about` says on another host, or why it does not, and what to type."""
    scheduler = schedulers.module(job.scheduler) if job else None
    launcher = scheduler.launcher(name, job, config) if scheduler and job else Ssh(name, config, connect)
    command = launcher.command(program("xpulab.deploy.about", *mpi))
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT)
    except FileNotFoundError:
        if scheduler and not scheduler.BY_SSH:
            return {}, f"{scheduler.REACH} was not found on PATH; {scheduler.INSTALL}"
        return {}, "this host has no ssh; type: sudo apt install openssh-client"
    except subprocess.TimeoutExpired:
        return {}, f"it did not answer within {_TIMEOUT:g} s"
    try:
        return json.loads(done.stdout.splitlines()[-1]), ""  # a shell's start file may have printed lines before
    except (IndexError, ValueError):
        return {}, _reason(name, config, job, (done.stderr or done.stdout).strip())


def _reason(name: str, config: str | None, job: Job | None, words: str) -> str:
    """What is wrong, and what to type, from what ssh, srun or the host has said."""
    options = "" if config is None else f"-F {config} "
    scheduler = schedulers.module(job.scheduler) if job else None
    by_ssh = scheduler is None or scheduler.BY_SSH
    reach = f"ssh {options}"
    if scheduler and job and not by_ssh:
        reach = shlex.join(scheduler.launcher("", job, config).command([])[:-1]) + " "
    known = {"name": name, "python": sys.executable, "options": options, "ssh": reach}
    for pattern, cure in (*_BY_SSH, *_ON_HOST) if by_ssh else _ON_HOST:
        if re.search(pattern, words):
            return cure.format(**known)
    return f"the program that looks for devices did not answer; it said: {words[-2000:] or 'nothing'}"


def interface_to(address: str) -> tuple[str, str]:
    """The interface of this host through which packets to an address go: its name, and this host's address there.

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
