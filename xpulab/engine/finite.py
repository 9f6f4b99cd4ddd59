"""Refuses NaN and infinity in rows that the ranks have read, with the same error on all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xpulab.engine.engine import Task
from xpulab.kernels.kmeans.choice import AnyRows, kernels_for
from xpulab.kernels.moments import column_facts
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import StreamedRows, parts_of

__all__ = ["require_all_finite", "require_no_infinity"]


def require_all_finite(
    task: Task,
    rows: AnyRows,
    bounds: list[int],
    name: str = "X",
    own: bool = False,
    names: Sequence[str | None] | None = None,
) -> None:
    """Raise the same error on all ranks if a row has NaN or infinity. With names of columns, it has that of the first.

    A null of a table is NaN.
    """
    kernels = kernels_for(rows)
    local = kernels.find_nonfinite(rows)
    places = task.comm.allgather(local)
    rank = next((rank for rank, place in enumerate(places) if place >= 0), None)
    if rank is None:
        return
    where = f"row {places[rank]} of rank {rank}" if own else f"row {bounds[rank] + places[rank]}"
    kinds = "NaN or infinity"
    if names is not None:
        column = -1 if local < 0 else int(np.argmin(np.isfinite(kernels.take(rows, np.array([local]))[0])))
        where += f", column {names[task.comm.allgather(column)[rank]]!r}"
        kinds = "null, NaN or infinity"
    raise ValueError(f"Input {name} contains {kinds}; the first such row is {where}.")


def require_no_infinity(task: Task, rows: Rows | StreamedRows) -> None:
    """Raise scikit-learn's error on all ranks if a row has infinity."""
    infinite = False
    for _, part in parts_of(rows):
        facts = column_facts(part)
        infinite |= bool((facts.minimum == -np.inf).any() or (facts.maximum == np.inf).any())
    if any(task.comm.allgather(infinite)):
        raise ValueError(f"Input X contains infinity or a value too large for {rows.dtype!r}.")
