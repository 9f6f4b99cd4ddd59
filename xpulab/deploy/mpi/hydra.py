"""What Intel MPI and MPICH have in common: both start ranks with Hydra."""

from __future__ import annotations

import re
from collections.abc import Mapping

from xpulab.deploy.network.ports import Ports

__all__ = ["LOG_ENDS", "of_libfabric", "of_ranks", "statuses"]

#: Option with which mpiexec logs the wait statuses of all ranks.
LOG_ENDS = ("-print-all-exitcodes",)

#: What mpiexec writes about ranks that ended: the banner, and the wait status of each rank.
_BANNER = re.compile(
    r"^(=.*|\[mpiexec@.*|YOUR APPLICATION TERMINATED.*|This typically refers to.*|Please see the FAQ.*|)$"
)
_CODES = re.compile(r"Exit codes: (\[.*)")
_OF_HOST = re.compile(r"\[[^\]]*\] ([\d,]+)")


def of_ranks(variables: Mapping[str, str]) -> list[str]:
    """Return the options that set the environment variables of some of the ranks."""
    return [word for name, value in variables.items() for word in ("-env", name, value)]


def of_libfabric(ports: Ports) -> dict[str, str]:
    """Return the variables with which libfabric, by which both send messages, listens on these ports only."""
    return {"FI_TCP_PORT_LOW_RANGE": str(ports.first), "FI_TCP_PORT_HIGH_RANGE": str(ports.last)}


def statuses(said: str) -> tuple[dict[int, int], str]:
    """Return the wait statuses of the ranks, with `LOG_ENDS`, and the lines that are not about ended ranks."""
    hosts = [codes for line in _CODES.findall(said) for codes in _OF_HOST.findall(line)]
    found = [int(number) for codes in hosts for number in codes.split(",")]
    rest = [line for line in said.splitlines() if not _BANNER.match(line) and not _CODES.search(line)]
    return dict(enumerate(found)), "\n".join(rest)
