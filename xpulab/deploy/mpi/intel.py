"""The command line of Intel MPI, and what its mpiexec says about ranks that have ended."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Sequence

from xpulab.deploy.launchers import ssh
from xpulab.deploy.mpi.command import HERE, Command, RanksOfHost, ending
from xpulab.deploy.mpi.hydra import LOG_ENDS, of_libfabric, of_ranks, statuses
from xpulab.deploy.network.ports import Ports
from xpulab.libraries import oneapi
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

LABEL = LABELS["intel"]

#: Whether files are left if mpiexec is killed.
LEAVES_FILES = False

#: File names of the library.
LIBRARIES = ("libmpi.so.12",)

#: "RANK 1 PID 4711 RUNNING AT node1", and in the next line the cause; also for the ranks that mpiexec has killed.
_ENDED = r"RANK {rank} PID {pid} .*\n=\s+(.*)"
_VERSION = re.compile(r"Intel\(R\) MPI Library.* Version (\d+)\.(\d+)")

#: Ranks bind themselves to cores (`oneapi.confine`). If a user's shell has I_MPI_OFFLOAD=1, MPI_Init crashes on a
#: machine without a Level Zero GPU. xpulab copies messages from devices through host memory, so it does not need this
#: option. CMA has the kernel copy from another process: with it, messages that do not block take up to twice as long as
#: those that do; without it both take as long as those that block.
_ALWAYS = {"I_MPI_PIN": "0", "I_MPI_OFFLOAD": "0", "I_MPI_SHM_CMA": "0"}

#: How a rank that waits in a blocking call lets others use its core. 2: it looks again as soon as no other process
#: wants the core; where each rank has a core, an Allreduce of 8 bytes to 4 MiB takes as long as with a rank that never
#: yields. 3: it sleeps for so many microseconds; an Allreduce of 4 MiB then takes up to twice as long, but 140 tests
#: on three ranks, which share two cores with other programs, take 49 s instead of 82, and 44 s of processor time
#: instead of 57.
_WITH_OWN_CORES = {"I_MPI_THREAD_YIELD": "2"}
_ON_SHARED_CORES = {"I_MPI_THREAD_YIELD": "3", "I_MPI_THREAD_SLEEP": "50"}

#: Without "fork", mpiexec calls srun or pbsdsh in a batch job, even for this host.
_HERE = {"I_MPI_FABRICS": "shm", "I_MPI_HYDRA_BOOTSTRAP": "fork"}

_HOSTS = {"I_MPI_FABRICS": "shm:ofi", "FI_PROVIDER": "tcp"}


def command(
    ranks: Sequence[RanksOfHost],
    interface: str = "lo",
    ssh_config: str | None = None,
    extra: Sequence[str] = (),
    starter: Sequence[str] = (),
) -> Command:
    """Return the command line of mpiexec, which starts ranks here, or on several hosts by ssh or another program.

    Parameters
    ----------
    ranks : sequence of RanksOfHost
        The hosts in the order of the ranks. Without them mpiexec would start ranks on all hosts of a batch job.
    interface : str
        Network interface of this host on which mpiexec listens.
    ssh_config : str, optional
        File with ssh's configuration.
    extra : sequence of str
        The user's own options, which follow those of xpulab and so take precedence.
    starter : sequence of str
        The program, with its options, that takes the place of ssh, such as srun in a job; empty for ssh.

    Returns
    -------
    Command
    """
    if {each.host for each in ranks} == {HERE}:
        places, environment = ["-hosts", HERE], _HERE
    else:
        # One rank for each time that a host is named: mpiexec ignores a number of ranks behind a host's name.
        names = [name for each in ranks for name in [each.host] * each.n]
        places = ["-ppn", "1", "-hosts", ",".join(names)]
        environment = {**_HOSTS, **(_by(*starter) if starter else _by_ssh(ssh_config))}
    words = (str(oneapi.mpiexec()), "-iface", interface, *places, *extra)
    return Command(words, {**_ALWAYS, **_yielding(ranks), **environment})


def _yielding(ranks: Sequence[RanksOfHost]) -> dict[str, str]:
    """Return the variables with which waiting ranks let others use their cores, unless the user has set them."""
    if "I_MPI_THREAD_YIELD" in os.environ:
        return {}
    shared = any(each.host == HERE and each.n > len(os.sched_getaffinity(0)) for each in ranks)
    return _ON_SHARED_CORES if shared else _WITH_OWN_CORES


def _by_ssh(config: str | None) -> dict[str, str]:
    return {"I_MPI_HYDRA_BOOTSTRAP": "ssh", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": shlex.join(ssh.options(config))}


def _by(program: str, *options: str) -> dict[str, str]:
    """mpiexec calls rsh with its options, the name of a host, and a command. srun and pbs_tmrsh take the same words."""
    start = {"I_MPI_HYDRA_BOOTSTRAP": "rsh", "I_MPI_HYDRA_BOOTSTRAP_EXEC": program}
    return {**start, **({"I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": shlex.join(options)} if options else {})}


def interface_variables(interface: str) -> dict[str, str]:
    """Return the variables with which a rank uses a network interface of its host."""
    return {"FI_TCP_IFACE": interface}


def port_variables(ports: Ports, few: Ports) -> dict[str, str]:
    """Return the variables with which mpiexec, its programs and the ranks each listen on one of `ports`."""
    return {"I_MPI_PORT_RANGE": f"{ports.first}:{ports.last}", **of_libfabric(ports)}


def version(said: str) -> tuple[int, ...] | None:
    """Return the version from what an mpiexec says; None if it is another MPI's."""
    found = _VERSION.search(said)
    return None if found is None else tuple(map(int, found.groups()))


def cause(log: str, rank: int, pid: int) -> str:
    """Return why a rank ended, from mpiexec's log; "" if it does not say it, or says that mpiexec killed the rank."""
    every = statuses(log)[0]
    by_themselves = {of: status for of, status in every.items() if status not in (0, signal.SIGKILL)}
    if by_themselves:
        return ending(by_themselves[rank]) if rank in by_themselves else ""
    if [of for of, status in every.items() if status == 0] == [rank]:  # mpiexec has killed all others
        return ending(0)
    found = re.search(_ENDED.format(rank=rank, pid=pid), log)
    return found[1].lower() if found else ""
