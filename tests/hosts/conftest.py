"""Two hosts for the tests of this folder, which run with XPULAB_HOSTS and are skipped where there can be no hosts.

With XPULAB_REQUIRE_SYSTEM, as `.ci/run` sets it for root, they fail instead.
"""

from __future__ import annotations

from collections.abc import Iterator

import chromium
import pytest
from machines import Network, network, why_not
from mpis import skip_or_fail

browser = chromium.browser  # a fixture


@pytest.fixture(scope="session")
def hosts() -> Iterator[Network]:
    """Two hosts with sshd, and this machine on their network."""
    if reason := why_not():
        skip_or_fail(reason)
    with network(2) as made:
        yield made
