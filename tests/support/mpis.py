"""Open MPI and MPICH for tests: those of the system. Their tests run with XPULAB_HOSTS, as those in tests/hosts.

Where an MPI is missing, they are skipped. With XPULAB_REQUIRE_SYSTEM, as `.ci/run` sets it for root, they fail instead.
"""

from __future__ import annotations

import os

import pytest

from xpulab.deploy.mpi import choice
from xpulab.exceptions import ClusterStartError

__all__ = ["skip_or_fail", "with_mpi"]


def skip_or_fail(reason: str) -> None:
    """Skip the test for this reason, or fail if the system has to have what is missing."""
    if os.environ.get("XPULAB_REQUIRE_SYSTEM"):
        pytest.fail(reason)
    pytest.skip(reason)


def with_mpi(name: str) -> str:
    """Return the name of an MPI that is installed; otherwise skip the test."""
    if not os.environ.get("XPULAB_HOSTS"):
        pytest.skip("XPULAB_HOSTS is not set, with which tests use MPIs of the system")
    try:
        choice.find(name)
    except ClusterStartError as absent:
        skip_or_fail(str(absent))
    return name
