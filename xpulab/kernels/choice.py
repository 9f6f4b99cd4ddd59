"""Chooses the module of kernels for dense or sparse rows."""

from __future__ import annotations

from types import ModuleType

from xpulab.kernels import dense, sparse
from xpulab.kernels.rows import Rows
from xpulab.kernels.sparse import SparseRows

__all__ = ["AnyRows", "kernels_for"]

AnyRows = Rows | SparseRows


def kernels_for(rows: AnyRows) -> ModuleType:
    """Return `xpulab.kernels.dense` or `xpulab.kernels.sparse`, which have the same functions."""
    return sparse if isinstance(rows, SparseRows) else dense
