"""``python -m xpulab.deploy.about``: write what a cluster needs to know about this host, as a JSON document.

The notebook's host starts this program on each host by ssh, before engines start there.
"""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import xpulab
from xpulab import oneapi
from xpulab.deploy.probe import probe
from xpulab.exceptions import XpulabError

__all__ = ["VERSIONS", "describe", "versions"]

#: What has to be the same on all hosts: the key in the document -> its name in messages.
VERSIONS = {"xpulab": "xpulab", "python": "Python", "mpi4py": "mpi4py", "mpi": "Intel MPI"}


def versions() -> dict[str, str]:
    """The versions of this environment that have to be the same on all hosts, under the keys of `VERSIONS`."""
    packages = {"mpi4py": "mpi4py", "mpi": "impi-rt"}
    found = {key: _version(package) for key, package in packages.items()}
    return {"xpulab": xpulab.__version__, "python": platform.python_version(), **found}


def describe() -> dict[str, Any]:
    """Versions, devices, and the address at which ssh has reached this host.

    Returns
    -------
    dict
        ``versions``; ``probe``, the fields of `Probe`, or None; ``error``, why there is no probe, or no mpiexec;
        ``address``, empty if ssh has not started this program.
    """
    document: dict[str, Any] = {"versions": versions(), "probe": None, "error": ""}
    connection = os.environ.get("SSH_CONNECTION", "").split()  # client's address and port, this host's address and port
    document["address"] = connection[2] if len(connection) == 4 else ""
    try:
        document["probe"] = probe().to_dict()
        oneapi.mpiexec()
    except XpulabError as error:
        document["error"] = str(error)
    return document


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    print(json.dumps(describe()))
