"""What a call sends to the engines: nothing at all, if it refuses its arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import xpulab

__all__ = ["nothing_sent"]


@contextlib.contextmanager
def nothing_sent(cluster: xpulab.XPUCluster) -> Iterator[None]:
    """Check that no task is sent meanwhile; only rows of earlier calls that die are released."""
    exchange, sent = cluster.tasks.exchange, []

    def noting(name: str, *arguments: Any) -> Any:
        sent.append(name)
        return exchange(name, *arguments)

    vars(cluster.tasks)["exchange"] = noting  # in place of the method, also in the thread that frees rows
    try:
        yield
    finally:
        del vars(cluster.tasks)["exchange"]
    assert set(sent) <= {"release"}, f"something was sent: {sent}"
