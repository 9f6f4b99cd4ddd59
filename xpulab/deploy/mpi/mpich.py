"""The command line of MPICH, and what its mpiexec says about ranks that have ended."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from xpulab.deploy.launchers import ssh
from xpulab.deploy.mpi.command import HERE, Command, Found, RanksOfHost, ending
from xpulab.deploy.mpi.hydra import LOG_ENDS, of_libfabric, of_ranks, statuses
from xpulab.deploy.network.ports import Ports
from xpulab.libraries.libmpi import LABELS

__all__ = [
    "LABEL",
    "LEAVES_FILES",
    "LIBRARIES",
    "LOG_ENDS",
    "cause",
    "command",
    "interface_variables",
    "of_ranks",
    "port_variables",
    "statuses",
    "version",
]

LABEL = LABELS["mpich"]

#: Whether files are left if mpiexec is killed.
LEAVES_FILES = True

#: File names of the library: Debian's has a name of its own.
LIBRARIES = ("libmpich.so.12", "libmpi.so.12")

#: A release that was built with both UCX and libfabric uses libfabric.
_ALWAYS = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}

#: "PID 4711 RUNNING AT node1", and in the next line the wait status.
_ENDED = r"PID {pid} RUNNING AT .*\n=\s+EXIT CODE: (\d+)"
_VERSION = re.compile(r"HYDRA build details:\s+Version:\s+(\d+)\.(\d+)\.?(\d*)")


def version(said: str) -> tuple[int, ...] | None:
    """Return the version from what an mpiexec says; None if it is another MPI's."""
    found = _VERSION.search(said)
    return None if found is None else tuple(int(part or 0) for part in found.groups())


def command(
    found: Found,
    ranks: Sequence[RanksOfHost],
    interface: str = "lo",
    ssh_config: str | None = None,
    extra: Sequence[str] = (),
) -> Command:
    """Return the command line of mpiexec, which starts ranks on this host, or on several hosts by ssh.

    Parameters
    ----------
    found : Found
        mpiexec.
    ranks : sequence of RanksOfHost
        The hosts in the order of the ranks. Without them mpiexec would start ranks on all hosts of a batch job.
    interface : str
        Network interface of this host on which mpiexec listens.
    ssh_config : str, optional
        File with ssh's configuration.
    extra : sequence of str
        The user's own options, which follow those of xpulab and so take precedence.

    Returns
    -------
    Command
    """
    if {each.host for each in ranks} == {HERE}:
        places = ["-hosts", HERE]
        environment = {"HYDRA_LAUNCHER": "fork", **interface_variables(interface)}
    else:
        # mpiexec ends if a host does not have its folder. The engines go to that folder themselves.
        places = ["-wdir", "/", "-hosts", ",".join(f"{each.host}:{each.n}" for each in ranks)]
        environment = {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXTRA_ARGS": shlex.join(ssh.options(ssh_config))}
    words = (found.mpiexec, "-iface", interface, "-bind-to", "none", *places, *extra)
    return Command(words, {**_ALWAYS, **environment})


def interface_variables(interface: str) -> dict[str, str]:
    """Return the variables with which a rank uses a network interface of its host."""
    return {"FI_TCP_IFACE": interface, "UCX_NET_DEVICES": interface}


def port_variables(ports: Ports, few: Ports) -> dict[str, str]:
    """Return the variables with which mpiexec, its programs and the ranks each listen on one of `ports`."""
    return {
        "MPIEXEC_PORT_RANGE": f"{ports.first}:{ports.last}",
        "MPIR_CVAR_CH3_PORT_RANGE": f"{ports.first}:{ports.last}",
        "UCX_TCP_PORT_RANGE": str(ports),  # Debian's MPICH has UCX in place of libfabric
        **of_libfabric(ports),
    }


def cause(log: str, rank: int, pid: int) -> str:
    """Return why a rank ended, from mpiexec's log; "" if the log does not say it."""
    found, _ = statuses(log)  # with ranks on several hosts, mpiexec may fail before it writes them
    banner = re.search(_ENDED.format(pid=pid), log)
    status = found.get(rank) or (int(banner[1]) if banner else 0)
    return ending(status) if status else ""
