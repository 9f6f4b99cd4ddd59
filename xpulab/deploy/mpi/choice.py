"""Which MPI starts the ranks: its mpiexec and its library on this host, and the functions of its module.

An MPI's mpiexec is looked for in the folders of PATH, and before them in the folder of this Python, if that is not on
PATH. The first mpiexec.openmpi (or mpiexec.mpich) or mpiexec that says to be of this MPI is taken. The library is the
one in the variable MPI4PY_LIBMPI, if the user has set it, and otherwise the one that was installed together with
mpiexec. Intel MPI is the one that pip has installed with this package, and PATH is not read for it.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from xpulab.deploy.launchers import choice as schedulers
from xpulab.deploy.launchers.scheduler import Job
from xpulab.deploy.mpi import intel, mpich, openmpi
from xpulab.deploy.mpi.command import LIBMPI, NAMES, Command, Found, RanksOfHost
from xpulab.deploy.network.ports import Ports
from xpulab.exceptions import ClusterStartError, UsageError
from xpulab.libraries import oneapi

__all__ = ["command", "environment_of", "find", "module", "require", "version_of"]

_MODULES: dict[str, ModuleType] = dict(zip(NAMES, (intel, openmpi, mpich), strict=True))

_ANSWER = 20.0  # seconds that an mpiexec has to say its version

_FEW = 2  # ports for a daemon that listens on all that it may take

#: What to type if an MPI is not found.
_INSTALL = {"openmpi": "sudo apt install openmpi-bin", "mpich": "sudo apt install mpich"}


def require(name: object) -> str:
    """Return the name of an MPI.

    Raises
    ------
    UsageError
        If it is not one of `NAMES`.
    """
    if name not in NAMES:
        raise UsageError(f"mpi={name!r} was given; expected one of {', '.join(NAMES)}")
    return str(name)


def module(name: str) -> ModuleType:
    """Return the module of an MPI."""
    return _MODULES[name]


def environment_of(name: str, interface: str) -> dict[str, str]:
    """Return the variables with which a rank, and gloo in its user's code, use a network interface of their host."""
    of_gloo = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
    return {**of_gloo, **_MODULES[name].interface_variables(interface)}


def find(name: str) -> Found:
    """Return the mpiexec and the library of an MPI on this host.

    Parameters
    ----------
    name : str
        One of `NAMES`.

    Raises
    ------
    OneAPIError
        If the environment has no Intel MPI.
    ClusterStartError
        If another MPI was not found. The message says what to type.
    """
    own = os.environ.get(LIBMPI, "")
    if name == "intel":
        mpiexec = oneapi.mpiexec()
        return Found(str(mpiexec), (), own or _library(name, mpiexec))
    for path in _candidates(name):
        if (version := _version(name, str(path), path.stat().st_mtime_ns)) is not None:
            return Found(str(path), version, own or _library(name, path))
    label = _MODULES[name].LABEL
    raise ClusterStartError(
        f"{label} was not found: no mpiexec.{name} or mpiexec in {os.pathsep.join(map(str, _folders()))} is {label}'s; "
        f"type: {_INSTALL[name]}, or, before you start Jupyter, load your site's module: module load {name}"
    )


def command(
    name: str,
    ranks: Sequence[RanksOfHost],
    interface: str = "lo",
    ssh_config: str | None = None,
    extra: Sequence[str] = (),
    variables: Sequence[str] = (),
    job: Job | None = None,
    ports: Ports | None = None,
) -> Command:
    """Return the command line of the mpiexec of an MPI on this host, which also logs how ranks end.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    ranks, interface, ssh_config, extra
        As for the functions `command` of the MPIs.
    variables : sequence of str
        Names of environment variables that the ranks on other hosts need.
    job : Job, optional
        The job whose nodes the hosts are.
    ports : Ports, optional
        Ports on which mpiexec and the ranks listen; by default any.

    Raises
    ------
    UsageError
        If this MPI does not start ranks on the nodes of such a job.
    OneAPIError, ClusterStartError
        As `find`.
    """
    found = find(name)
    scheduler = schedulers.module(job.scheduler) if job else None
    if name == "intel":
        starter = scheduler.starter(job) if scheduler and job else ()
        start = intel.command(ranks, interface, ssh_config, extra, starter)
    elif scheduler and not scheduler.BY_SSH:
        raise UsageError(
            f"mpi={name!r} was given, which xpulab does not start on several nodes by {scheduler.REACH}; type: "
            "--mpi intel, or for this host only --launcher local, or, if ssh reaches the nodes, name them: --hosts "
            "node1,node2"
        )
    elif name == "mpich":
        start = mpich.command(found, ranks, interface, ssh_config, extra)
    else:
        start = openmpi.command(found, ranks, interface, ssh_config, extra, [LIBMPI, *variables])
    limits = _MODULES[name].port_variables(ports, ports.free(_FEW)) if ports else {}
    library = {LIBMPI: found.library} if found.library else {}
    program, *options = start.words
    words = (program, *_MODULES[name].LOG_ENDS, *options)
    return Command(words, {**start.environment, **limits, **library}, name, bool(os.environ.get(LIBMPI)))


def version_of(name: str, mpiexec: str) -> str:
    """Return the version of the mpiexec with this path, such as "4.1.4"; empty if it is missing, or another MPI's."""
    path = Path(mpiexec)
    version = _version(name, mpiexec, path.stat().st_mtime_ns) if path.exists() else None
    return ".".join(map(str, version or ()))


def _candidates(name: str) -> Iterator[Path]:
    """Return the programs that may be an MPI's mpiexec, in the order in which they count; each file once."""
    known = set()
    for path in (folder / program for folder in _folders() for program in (f"mpiexec.{name}", "mpiexec")):
        if os.access(path, os.X_OK) and path.resolve() not in known:
            known.add(path.resolve())
            yield path


def _folders() -> list[Path]:
    """Return the folders of PATH, and before them the folder of this Python, if it is not on PATH."""
    on_path, own = list(map(Path, os.get_exec_path())), Path(sys.executable).parent
    return on_path if own in on_path else [own, *on_path]


@functools.cache
def _version(name: str, path: str, changed: int) -> tuple[int, ...] | None:
    """Return the version that a program says; None if it is not the mpiexec of this MPI.

    `changed` is the file's time.
    """
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found: tuple[int, ...] | None = _MODULES[name].version(done.stdout + done.stderr)
    return found


def _library(name: str, mpiexec: Path) -> str:
    """Return the library that was installed together with an mpiexec; empty if it is in none of the usual folders."""
    for program in (mpiexec, mpiexec.resolve()):
        folder = program.parent.parent / "lib"
        for place in (folder, folder / (sysconfig.get_config_var("MULTIARCH") or ""), folder.with_name("lib64")):
            for file in _MODULES[name].LIBRARIES:
                if (place / file).exists():
                    return str(place / file)
    return ""
