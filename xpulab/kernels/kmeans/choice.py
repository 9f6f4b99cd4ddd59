"""Chooses the module of kernels for dense or sparse rows, or for dense rows that come in parts."""

from __future__ import annotations

from types import ModuleType

from xpulab.kernels.kmeans import dense, sparse, streamed
from xpulab.kernels.kmeans.sparse import SparseRows
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import StreamedRows

__all__ = ["AnyRows", "kernels_for"]

AnyRows = Rows | SparseRows | StreamedRows


def kernels_for(rows: AnyRows) -> ModuleType:
    """Return the module `dense`, `sparse` or `streamed` of `xpulab.kernels.kmeans`, which have the same functions."""
    if isinstance(rows, StreamedRows):
        return streamed
    return sparse if isinstance(rows, SparseRows) else dense
