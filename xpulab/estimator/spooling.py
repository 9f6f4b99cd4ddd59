"""Rows of this process that do not fit into memory go to a file without a name, which engines read in passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xpulab.scanning import Scan
from xpulab.sharing.memory import SharedBlock
from xpulab.sources.mapped import MappedFile
from xpulab.sources.states import file_state
from xpulab.sources.tables import ArrayInMemory

__all__ = ["SpooledRows", "spooled"]

#: Bytes of rows that are written at a time.
PIECE = 16 << 20


@dataclass(frozen=True)
class SpooledRows(MappedFile):
    """Rows in a file without a name, whose space is free again when this object and the engines' mappings are gone.

    Attributes
    ----------
    block : SharedBlock
        The file. It stays in this process: the engines get a `MappedFile`.
    """

    block: SharedBlock = field(compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedFile, (self.path, self.state, self.shape, self.dtype, self.offset, self.order)


def spooled(X: Any, tell: Callable[[int, int, int], None]) -> tuple[Scan, Callable[[], None]]:
    """Write rows of this process to a file without a name, in their order.

    Parameters
    ----------
    X : numpy.ndarray or Scan of shape (n_samples, n_features)
        Of numbers. An array of float32 or float64.
    tell : callable
        Called with the number of parts that are written, with that of all, and with the bytes of all, before each part.

    Returns
    -------
    rows : Scan
        The rows of the file, which lives as long.
    close : callable
        Frees the file at once, for a call that fails.

    Raises
    ------
    MemoryError
        If the disk has too little space.
    """
    rows = (X if isinstance(X, Scan) else Scan(ArrayInMemory(X))).block_rows([0, len(X)])
    step = max(1, PIECE // rows.row_bytes)
    starts = range(0, len(X), step)
    nbytes = len(X) * rows.row_bytes
    block = SharedBlock.create_on_disk(nbytes)
    try:
        with rows.rows.reading(rows.first, rows.first + len(X), rows.columns) as fill:
            for number, first in enumerate(starts):
                tell(number, len(starts), nbytes)
                fill(first, part := np.empty((min(step, len(X) - first), rows.n_features), rows.dtype))
                block.write(part, first * rows.row_bytes)
        path = block.path.partition("?")[0]
        made = SpooledRows(path, file_state(path), rows.shape, rows.dtype, 0, "C", block)
    except BaseException:
        block.close()
        raise
    return Scan(made), block.close
