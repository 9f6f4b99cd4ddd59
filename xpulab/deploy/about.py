"""``python -m xpulab.deploy.about``: write what a cluster needs to know about this host, as a JSON document.

The notebook's host starts this program on each host by ssh or srun, before engines start there. The arguments are the
name of the MPI, and the path that its mpiexec has on the notebook's host.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import xpulab
from xpulab.deploy.addresses import reached_at
from xpulab.deploy.mpi import choice
from xpulab.deploy.mpi.command import DEFAULT
from xpulab.deploy.probe import probe
from xpulab.exceptions import XpulabError

__all__ = ["VERSIONS", "describe", "versions"]

#: What has to be the same on all hosts: the key in the document -> its name in messages.
VERSIONS = {"xpulab": "xpulab", "python": "Python", "mpi4py": "mpi4py", "mpi": ""}


def versions(mpi: str = DEFAULT, mpiexec: str = "") -> dict[str, str]:
    """The versions of this environment that have to be the same on all hosts, under the keys of `VERSIONS`.

    Parameters
    ----------
    mpi : str
        Name of the MPI.
    mpiexec : str
        Path of its mpiexec; not needed for Intel MPI, which is in the environment.
    """
    found = _version("impi-rt") if mpi == DEFAULT else choice.version_of(mpi, mpiexec)
    label = choice.module(mpi).LABEL
    here = {"xpulab": xpulab.__version__, "python": platform.python_version(), "mpi4py": _version("mpi4py")}
    return {**here, "mpi": f"{label} {found}" if found else f"no {label} in {mpiexec}"}


def describe(mpi: str = DEFAULT, mpiexec: str = "") -> dict[str, Any]:
    """Versions, devices, and the address at which the notebook's host has reached this host.

    Parameters
    ----------
    mpi, mpiexec : str
        As for `versions`.

    Returns
    -------
    dict
        ``versions``; ``probe``, the fields of `Probe`, or None; ``error``, why there is no probe, or no mpiexec;
        ``address``, empty if neither ssh nor srun has started this program.
    """
    document: dict[str, Any] = {"versions": versions(mpi, mpiexec), "probe": None, "error": ""}
    document["address"] = reached_at()
    try:
        document["probe"] = probe().to_dict()
        if mpi == DEFAULT:
            choice.find(mpi)
    except XpulabError as error:
        document["error"] = str(error)
    return document


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    print(json.dumps(describe(*sys.argv[1:])))
