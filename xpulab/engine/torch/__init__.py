"""PyTorch on the ranks: the process group, the loop of a cell, Horovod's functions. Only these modules import it."""

from __future__ import annotations

__all__ = ["prepare"]


def prepare() -> None:
    """Tell PyTorch, which this process has imported, of the cluster's port, and note the connections of gloo."""
    from xpulab.engine.torch import rendezvous

    rendezvous.prepare()
