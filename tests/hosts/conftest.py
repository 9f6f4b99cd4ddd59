"""Two hosts for the tests of this folder, which are skipped where there can be none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from machines import Network, network, why_not


@pytest.fixture(scope="session")
def hosts() -> Iterator[Network]:
    """Two hosts with sshd, and this machine on their network."""
    if reason := why_not():
        pytest.skip(reason)
    with network(2) as made:
        yield made
