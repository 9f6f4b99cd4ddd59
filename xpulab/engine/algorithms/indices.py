"""The rows of a rank in which neighbours are searched: on the device, or in passes over those that it does not keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xpulab.engine.algorithms.clustering.ranges import ordinary, unit_for, unit_of
from xpulab.engine.algorithms.passes import whole_rows
from xpulab.engine.algorithms.sparse_rows.neighbors import SparseIndex
from xpulab.engine.dataset import Data, data_of, kind_of, on_host
from xpulab.engine.engine import Task
from xpulab.engine.streaming import others
from xpulab.exceptions import HandleError
from xpulab.kernels.kmeans import sparse
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.neighbors import Index
from xpulab.kernels.rows import Rows
from xpulab.kernels.scaling import reach
from xpulab.sharing.sources import BlockRows, Source

__all__ = ["AnyIndex", "IndexInParts", "index_of", "parts_of", "rows_at_a_time", "targets_of"]


@dataclass(frozen=True, eq=False)
class IndexInParts:
    """Rows of a rank that can be searched: an index of those that it keeps, and one of each part of the others.

    The others are read again for each search, some queries at a time.

    Attributes
    ----------
    kept : Index
    source : BlockRows
    directions : bool
        Whether rows are divided by their norms.
    n_parts : int
        Parts of the others in each pass; the same on all ranks, which search for the same queries together.
    """

    kept: Index
    source: BlockRows
    directions: bool
    n_parts: int

    @classmethod
    def of(cls, task: Task, source: BlockRows, directions: bool, power: float) -> IndexInParts:
        """Make the index after one pass over all rows, which looks for NaN and infinity."""
        data = Data(task, source)
        rows, kept, largest, size, n_parts = data.streamed, None, 0.0, 0.0, 0
        assert rows is not None
        for first, part in rows.parts():
            made = Index.of(part, directions)
            if first == 0 and part is rows.kept:
                kept = made
            else:
                n_parts += 1
            largest, size = max(largest, made.largest), max(size, reach(part))
        data.require_finite()
        unit = 1.0
        if not ordinary(float(task.comm.allreduce(np.array([largest]), np.maximum)[0]), rows.dtype, power):
            unit = unit_for(task, size, rows.dtype, power=power)
        if kept is None or (unit != 1 and not directions):
            kept = Index.of(rows.kept, directions, unit)
        most = int(task.comm.allreduce(np.array([n_parts]), np.maximum)[0])
        return cls(replace(kept, unit=unit), source, directions, most)

    @property
    def unit(self) -> float:
        """A power of two, by which the rows are divided."""
        return self.kept.unit

    @property
    def nbytes(self) -> int:
        """Number of bytes on the device."""
        return self.kept.nbytes

    def parts(self, task: Task) -> Iterator[tuple[int, Index]]:
        """Yield indexes of all rows of the rank, in their order, with the number of the first; as many on each rank."""
        yield 0, self.kept
        rows = others(task, self.source, self.kept.n_samples)
        made = (
            (first, Index.of(part, self.directions, self.unit)) for first, part in rows.parts() if part is not rows.kept
        )
        for _ in range(self.n_parts):
            yield next(made, (0, _empty(rows)))
        next(made, None)  # the pass ends


def _empty(rows: Any) -> Index:
    return Index.of(Rows.upload(rows.device, np.empty((0, rows.n_features), rows.dtype)))


#: Dense or sparse rows of a rank that can be searched.
AnyIndex = Index | SparseIndex | IndexInParts


def index_of(task: Task, index: str, metric: str, power: float, rows: dict[str, Any] | None) -> AnyIndex:
    """Return the index that is kept here under a name, made of rows that come with the task if there are any.

    Parameters
    ----------
    task : Task
    index : str
        Id of the handle under which it is kept.
    metric : str
        The ranks' name of the metric.
    power : float
        Of the distances that are compared.
    rows : dict or None
        The rows that come with the task.
    """
    directions = metric == "cosine"
    if rows is not None and kind_of(task, rows["source"])[0] is sparse:
        stored = whole_rows(task, rows["source"])
        assert isinstance(stored, SparseRows)
        task.engine.handles[index] = SparseIndex.of(stored, metric)
    elif rows is not None and isinstance(rows["source"], BlockRows) and rows["source"].kept is not None:
        task.engine.handles[index] = IndexInParts.of(task, rows["source"], directions, power)
    elif rows is not None:
        data = data_of(task, rows["source"])
        task.show(doing="computing the index")
        made = Index.of(data.rows, directions)
        largest = float(task.comm.allreduce(np.array([made.largest]), np.maximum)[0])
        if not ordinary(largest, data.dtype, power):
            unit = unit_of(task, data.rows, power=power)
            made = made if unit == 1 else Index.of(data.rows, unit=unit)
        task.engine.handles[index] = made
    kept = task.engine.handles.get(index)
    if kept is None:
        raise HandleError("the rows of this estimator are gone from the engines; type: fit(X) again")
    assert isinstance(kept, AnyIndex)
    return kept


def parts_of(task: Task, index: AnyIndex) -> Iterator[tuple[int, Index | SparseIndex]]:
    """Yield an index, or those of its parts one after the other; with the number of the first row, on this rank."""
    if isinstance(index, IndexInParts):
        yield from index.parts(task)
    else:
        yield 0, index


def rows_at_a_time(index: AnyIndex, number: int, n_samples: int) -> int:
    """Return about how many of the `n_samples` rows of all ranks are in the part of this number, for all ranks."""
    return n_samples // max(1, index.n_parts) if isinstance(index, IndexInParts) and number else n_samples


@contextmanager
def targets_of(task: Task, targets: Source | None) -> Iterator[Callable[[int, int], np.ndarray]]:
    """Open a context with a function that returns the targets (n, n_targets) of `n` rows from a row of this rank on.

    Those of files are read for each call.
    """
    if targets is None:
        yield lambda first, n: np.empty((n, 0))
    elif isinstance(targets, BlockRows) and not task.engine.host.several:  # some hosts may not have the files
        with targets.reading(task.comm.rank) as fill:

            def read(first: int, n: int) -> np.ndarray:
                fill(first, some := np.empty((n, targets.n_features), targets.dtype))
                return some.astype(np.float64, copy=False)

            yield read
    else:
        values = on_host(data_of(task, targets).rows, np.float64)
        yield lambda first, n: values[first : first + n]
