"""Chooses the module of kernels for dense or sparse rows."""

from __future__ import annotations

from types import ModuleType

from xpulab.kernels.kmeans import dense, sparse
from xpulab.kernels.kmeans.sparse import SparseRows
from xpulab.kernels.rows import Rows

__all__ = ["AnyRows", "kernels_for"]

AnyRows = Rows | SparseRows


def kernels_for(rows: AnyRows) -> ModuleType:
    """Return `xpulab.kernels.kmeans.dense` or `xpulab.kernels.kmeans.sparse`, which have the same functions."""
    return sparse if isinstance(rows, SparseRows) else dense
