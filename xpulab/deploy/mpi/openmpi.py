"""The command line of Open MPI 4 and 5, and what its mpiexec says about ranks that have ended."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from xpulab.deploy.launchers import ssh
from xpulab.deploy.mpi.command import HERE, Command, Found, RanksOfHost, ending
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

LABEL = LABELS["openmpi"]

#: Whether files are left if mpiexec is killed.
LEAVES_FILES = True

#: File names of the library.
LIBRARIES = ("libmpi.so.40",)

#: mpiexec logs how ranks ended without an option.
LOG_ENDS = ()

_VERSION = re.compile(r"\((?:Open MPI|OpenRTE)\) (\d+)\.(\d+)\.(\d+)")

# Parameters are environment variables, so that the user's own options on the command line take precedence.
_ROOT = {
    4: {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    5: {f"{name}_ALLOW_RUN_AS_ROOT{confirm}": "1" for name in ("OMPI", "PRTE") for confirm in ("", "_CONFIRM")},
}

#: A rank that waits inside the library yields its core: ranks may share cores. "ob1" with these transports uses neither
#: UCX nor libfabric, which would open connections on further interfaces.
_ALWAYS = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_pml": "ob1"}

#: If a rank has ended, mpiexec ends the others at once, instead of after a second.
_AT_ONCE = {4: {"OMPI_MCA_odls_base_sigkill_timeout": "0"}, 5: {"PRTE_MCA_odls_base_sigkill_timeout": "0"}}

#: Name of the transport by shared memory.
_SHARED = {4: "vader", 5: "sm"}

#: Without these, mpiexec starts its daemons by srun in a Slurm job, and places ranks on the hosts of a batch job.
_NO_BATCH = {
    4: {"OMPI_MCA_ras": "^slurm,gridengine,tm,lsf,alps", "OMPI_MCA_plm": "rsh"},
    5: {"PRTE_MCA_ras": "^slurm,gridengine,pbs,lsf,flux", "PRTE_MCA_plm": "ssh"},
}
_ALONE = {4: {"OMPI_MCA_plm": "isolated"}, 5: {}}

#: What mpiexec writes about ranks that ended: a block between two lines of dashes.
_DASHES = re.compile(r"^-{60,}$", re.MULTILINE)
_KILLED = re.compile(r"noticed that process rank (\d+) with PID \d+ on node \S+\s+exited on\s+signal (\d+)")
_EXITED = re.compile(r"Process name: \[.*?,\s*(\d+)\]\s+Exit code:\s+(\d+)")
_ABOUT_ENDS = re.compile(r"noticed that process rank|detected that one or more processes|\APrimary job|MPI_ABORT was")


def version(said: str) -> tuple[int, ...] | None:
    """Return the version of an mpiexec from what it says; None if it is another MPI's."""
    found = _VERSION.search(said)
    return None if found is None else tuple(map(int, found.groups()))


def command(
    found: Found,
    ranks: Sequence[RanksOfHost],
    interface: str = "lo",
    ssh_config: str | None = None,
    extra: Sequence[str] = (),
    variables: Sequence[str] = (),
) -> Command:
    """Return the command line of mpiexec, which starts ranks on this host, or on several hosts by ssh.

    Parameters
    ----------
    found : Found
        mpiexec and its version: parameters of release 5 have other names.
    ranks : sequence of RanksOfHost
        The hosts in the order of the ranks.
    interface : str
        Network interface of this host that leads to the other hosts.
    ssh_config : str, optional
        File with ssh's configuration.
    extra : sequence of str
        The user's own options, which take precedence.
    variables : sequence of str
        Names of environment variables for ranks on other hosts, which otherwise get none of this host's.

    Returns
    -------
    Command
    """
    release = 4 if found.version < (5,) else 5
    hosts = ",".join(f"{each.host}:{each.n}" for each in ranks)
    words = [found.mpiexec, "--host", hosts, "--bind-to", "none"]
    environment = {**_ROOT[release], **_ALWAYS, **_AT_ONCE[release], **_NO_BATCH[release]}
    if {each.host for each in ranks} == {HERE}:
        environment |= {"OMPI_MCA_btl": f"self,{_SHARED[release]}", **_ALONE[release]}
    else:
        words += [word for name in dict.fromkeys(variables) for word in ("-x", name)]
        arguments = shlex.join(ssh.options(ssh_config))
        name = "OMPI_MCA_plm_rsh_args" if release == 4 else "PRTE_MCA_plm_ssh_args"
        environment |= {"OMPI_MCA_btl": f"self,{_SHARED[release]},tcp", name: arguments}
    return Command((*words, *extra), environment)


def interface_variables(interface: str) -> dict[str, str]:
    """Return the variables with which a rank uses a network interface of its host."""
    return {"OMPI_MCA_btl_tcp_if_include": interface}


def port_variables(ports: Ports, few: Ports) -> dict[str, str]:
    """Return the variables with which ranks listen on ports among `ports` only, with either release.

    mpiexec and its daemons listen on all of the ports that they may take, and so get a `few` of them.
    """
    daemons = {f"{prefix}_MCA_oob_tcp_dynamic_ipv4_ports": str(few) for prefix in ("OMPI", "PRTE")}
    daemons |= {name.replace("ipv4", "ipv6"): value for name, value in daemons.items()}
    first = {f"OMPI_MCA_btl_tcp_port_min_{version}": str(ports.first) for version in ("v4", "v6")}
    number = {f"OMPI_MCA_btl_tcp_port_range_{version}": str(len(ports)) for version in ("v4", "v6")}
    return {**daemons, **first, **number}


def of_ranks(variables: Mapping[str, str]) -> list[str]:
    """Return the options that set the environment variables of some of the ranks."""
    return [word for name, value in variables.items() for word in ("-x", f"{name}={value}")]


def cause(log: str, rank: int, pid: int) -> str:
    """Return why a rank ended, from mpiexec's log; "" if the log does not say it."""
    found, _ = statuses(log)
    return ending(found[rank]) if rank in found else ""


def statuses(said: str) -> tuple[dict[int, int], str]:
    """Return the wait statuses of the ranks that failed first, and the lines that are not about ended ranks."""
    found = {int(rank): int(code) << 8 for rank, code in _EXITED.findall(said)}
    found |= {int(rank): int(number) for rank, number in _KILLED.findall(said)}
    parts = [part.strip("\n") for part in _DASHES.split(said)]
    return found, "\n".join(part for part in parts if part and not _ABOUT_ENDS.search(part))
