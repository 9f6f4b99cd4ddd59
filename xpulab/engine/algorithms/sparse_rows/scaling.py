"""Changes the stored values of sparse rows, which stay where they are: by column, and by row to a norm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xpulab.engine.algorithms.passes import whole_rows
from xpulab.engine.dataset import Data, keep_rows, kind_of, rows_of
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans import sparse
from xpulab.kernels.kmeans.sparse_gather import on_cpu
from xpulab.kernels.kmeans.sparse_rows import SparseRows, with_values
from xpulab.kernels.rows import Rows
from xpulab.kernels.scaling import pieces_on_cpu
from xpulab.sharing.answers import Frequencies, OwnRows, StoredRows
from xpulab.sharing.sources import Handle, Source

__all__ = ["as_stored", "keep_stored", "scaled"]

_PIECE = 1 << 20  # stored values that are computed at a time


def scaled(
    rows: SparseRows,
    logarithm: bool = False,
    factor: np.ndarray | None = None,
    clip: tuple[float, float] | None = None,
    norm: str | None = None,
) -> SparseRows:
    """Compute new stored values, in the dtype of the rows.

    Parameters
    ----------
    rows : SparseRows
    logarithm : bool
        Whether a value x first becomes ``log(x) + 1``.
    factor : numpy.ndarray of shape (n_features,), optional
        By which each column is multiplied.
    clip : (float, float), optional
        Least and greatest value after that.
    norm : {"l1", "l2"}, optional
        The norm to which each row that has other values than 0 is then scaled.
    """
    data, columns, starts = on_cpu(rows)
    made = np.empty_like(data)
    with rows.device.computing(), np.errstate(divide="ignore", invalid="ignore"):
        for first in range(0, len(data), _PIECE):
            part = slice(first, first + _PIECE)
            values = np.log(data[part]) + rows.dtype.type(1) if logarithm else data[part]
            made[part] = values if factor is None else values * factor[columns[part]]
            if clip is not None:
                np.clip(made[part], *clip, out=made[part])
        if norm is not None:
            _normalise(made, starts, norm)
    return with_values(rows, made)


def _normalise(values: np.ndarray, starts: np.ndarray, norm: str) -> None:
    """Divide the values of each row by their norm, summed in float64, as scikit-learn does."""
    lengths = np.diff(starts)
    there = np.flatnonzero(lengths)
    for some in np.array_split(there, max(1, len(values) // _PIECE)):
        if not len(some):
            continue
        first, last = starts[some[0]], starts[some[-1] + 1]
        part = values[first:last]
        sizes = np.square(part, dtype=np.float64) if norm == "l2" else np.abs(part, dtype=np.float64)
        sums = np.add.reduceat(sizes, starts[some] - first)
        sums = np.sqrt(sums) if norm == "l2" else sums
        part /= np.repeat(np.where(sums == 0, 1, sums), lengths[some])


def as_stored(rows: Rows | SparseRows) -> SparseRows:
    """Return dense rows as sparse rows, without weights."""
    if isinstance(rows, SparseRows):
        return rows
    values, columns = [np.empty(0, rows.dtype)], [np.empty(0, np.int32)]
    lengths = [np.zeros(1, np.int64)]
    for piece in pieces_on_cpu(rows):
        there = piece != 0
        values.append(piece[there])
        columns.append(np.nonzero(there)[1].astype(np.int32))
        lengths.append(there.sum(axis=1))
    starts = np.cumsum(np.concatenate(lengths))
    return SparseRows.upload(rows.device, np.concatenate(values), np.concatenate(columns), starts, rows.n_features)


def keep_stored(task: Task, rows: SparseRows, kept: Handle) -> tuple[int, ...]:
    """Keep sparse rows under a handle that does not know how many values are stored; return those of each rank."""
    stored = tuple(task.comm.allgather(rows.n_stored))
    keep_rows(task, rows, replace(kept, description=replace(kept.description, stored=stored)))
    return stored


@task("scale_stored")
def _scale_stored(
    task: Task,
    source: Source,
    weights: None,
    kept: Handle,
    logarithm: bool = False,
    factor: np.ndarray | None = None,
    clip: tuple[float, float] | None = None,
    norm: str | None = None,
) -> StoredRows:
    """Keep the rows of a handle with new stored values under a new handle."""
    rows = as_stored(whole_rows(task, source))
    stored = keep_stored(task, replace(scaled(rows, logarithm, factor, clip, norm), sample_weight=None), kept)
    return {"rows": rows.n_samples, "stored": stored}


@task("cast_stored")
def _cast_stored(task: Task, source: Source, kept: Handle) -> OwnRows:
    """Keep the rows of a handle with stored values of another dtype under a new handle."""
    rows = rows_of(task, source)
    assert isinstance(rows, SparseRows)
    data, columns, starts = on_cpu(rows)
    made = data.astype(kept.description.dtype)
    keep_rows(task, SparseRows.upload(task.device, made, columns, starts, rows.n_features), kept)
    return {"rows": rows.n_samples}


@task("frequencies")
def _frequencies(task: Task, source: Source, weights: None) -> Frequencies:
    """Count in how many rows each column has a stored value, or one other than 0 if the rows are dense."""
    if kind_of(task, source)[0] is sparse:
        rows = rows_of(task, source)
        assert isinstance(rows, SparseRows)
        with task.device.computing():
            counts = np.bincount(on_cpu(rows)[1], minlength=rows.n_features)
        return {"rows": rows.n_samples, "counts": task.comm.allreduce(counts)}
    data = Data(task, source)
    counts, total = np.zeros(data.n_features, np.int64), 0.0
    for part, _ in data.parts():
        for piece in pieces_on_cpu(part):
            counts += np.count_nonzero(piece, axis=0)
            with np.errstate(over="ignore", invalid="ignore"):
                total += float(piece.sum(dtype=np.float64))
    data.require_finite(task.comm.allreduce(np.array([total])))
    return {"rows": data.n_own, "counts": task.comm.allreduce(counts)}
