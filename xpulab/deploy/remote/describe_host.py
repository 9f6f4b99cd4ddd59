"""``python -m xpulab.deploy.remote.describe_host``: write what a cluster needs to know about a host, as JSON.

The notebook's host starts this program on each host by ssh or srun, before engines start there. The arguments are the
name of the MPI, the path that its mpiexec has on the notebook's host, and the ports on which the cluster may listen.
The program then listens on such a port, and when it reads where the other hosts listen, it says to which of them it
cannot connect.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

from xpulab._version import __version__
from xpulab.deploy.mpi import choice
from xpulab.deploy.mpi.command import DEFAULT
from xpulab.deploy.network.addresses import reached_at
from xpulab.deploy.network.ports import listening, ports
from xpulab.deploy.network.reach import Door, closed_doors
from xpulab.deploy.plan.probe import probe
from xpulab.exceptions import XpulabError

__all__ = ["VERSIONS", "Answer", "Question", "describe", "digest", "versions"]

#: What has to be the same on all hosts: the key in the document -> its name in messages.
VERSIONS = {
    "xpulab": "xpulab",
    "digest": "a source of xpulab with the digest",
    "python": "Python",
    "mpi4py": "mpi4py",
    "mpi": "",
}


class Question(TypedDict):
    """To which doors can the host connect, which is called `source`? `doors` has the fields of each `Door`."""

    source: str
    doors: Sequence[Mapping[str, Any]]


class Answer(TypedDict, total=False):
    """A document of this program: first the description of the host, and to each question what is closed.

    `versions` are those of `versions`. `probe` has the fields of `Probe`, or is None; `error` then says why, or why
    there is no mpiexec. `address` is the one at which the notebook's host has reached it, empty if neither ssh nor srun
    has started this program; `ports` are those on which it listens there. `closed` has the fields of each `Closed`.
    """

    versions: dict[str, str]
    probe: Mapping[str, Any] | None
    error: str
    address: str
    ports: list[int]
    closed: Sequence[Mapping[str, Any]]


def versions(mpi: str = DEFAULT, mpiexec: str = "") -> dict[str, str]:
    """Return the versions of this environment that have to be the same on all hosts, under the keys of `VERSIONS`.

    Parameters
    ----------
    mpi : str
        Name of the MPI.
    mpiexec : str
        Path of its mpiexec; not needed for Intel MPI, which is in the environment.
    """
    found = _version("impi-rt") if mpi == DEFAULT else choice.version_of(mpi, mpiexec)
    label = choice.module(mpi).LABEL
    here = {
        "xpulab": __version__,
        "digest": digest(),
        "python": platform.python_version(),
        "mpi4py": _version("mpi4py"),
    }
    return {**here, "mpi": f"{label} {found}" if found else f"no {label} in {mpiexec}"}


def digest(folder: Path = Path(__file__).parents[2]) -> str:
    """Return a digest of the package's files: two sources may have the same version.

    Takes some hundredths of a second.
    """
    found = hashlib.blake2b(digest_size=6)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in name.parts):
            content = path.read_bytes()
            found.update(f"{name}\0{len(content)}\0".encode() + content)
    return found.hexdigest()


def describe(mpi: str = DEFAULT, mpiexec: str = "") -> Answer:
    """Describe this host: its versions, its devices, and the address at which the notebook's host has reached it.

    Parameters
    ----------
    mpi, mpiexec : str
        As for `versions`.

    Returns
    -------
    Answer
    """
    found = versions(mpi, mpiexec)
    document: Answer = {"versions": found, "probe": None, "error": "", "address": reached_at(), "ports": []}
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


def main() -> None:
    """Describe this host, and say to which other hosts it cannot connect. Ends with its standard input."""
    mpi, mpiexec, among = sys.argv[1:]
    document = describe(mpi, mpiexec)
    listeners = listening(document["address"], ports(among or None)) if document["address"] else []
    document["ports"] = [listener.getsockname()[1] for listener in listeners]
    print(json.dumps(document), flush=True)
    for line in sys.stdin:  # while this program waits for the end, the others can connect
        question: Question = json.loads(line)
        closed = closed_doors(question["source"], [Door(**door) for door in question["doors"]])
        print(json.dumps({"closed": [asdict(each) for each in closed]}), flush=True)


if __name__ == "__main__":
    main()
