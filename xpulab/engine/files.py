"""Rows of a file that the notebook has mapped into its memory."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from xpulab.sharing.memory import file_state

__all__ = ["file_rows"]


def file_rows(source: dict[str, Any]) -> np.ndarray:
    """The rows of all ranks, mapped from the file.

    Parameters
    ----------
    source : dict
        ``file``, ``state``, ``shape``, ``dtype``, ``offset`` and ``order``, see `xpulab.data.mapped`.

    Raises
    ------
    ValueError
        If the file has changed since the notebook has mapped it.
    """
    shape, dtype, offset = tuple(source["shape"]), np.dtype(source["dtype"]), source["offset"]
    # Reading mapped pages beyond the end of the file would kill this process.
    has, needs = os.path.getsize(source["file"]), offset + int(np.prod(shape)) * dtype.itemsize
    if has < needs:
        raise ValueError(
            f"{source['file']} has {has:,} bytes, and the rows of the memory-mapped X end at {needs:,}; it was "
            "written to since: map it again"
        )
    if file_state(source["file"]) != source["state"]:
        raise ValueError(
            f"{source['file']} was written to or replaced since the call began; end what writes to it, and map it again"
        )
    return np.memmap(source["file"], dtype, "r", offset, shape, source["order"])
