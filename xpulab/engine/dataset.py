"""Reads a rank's rows, and writes its results: from and to shared memory of this host, a file, or a handle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, singledispatch
from threading import Lock
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from xpulab.engine.engine import ArrivedRows, Task
from xpulab.engine.finite import require_all_finite, require_no_infinity
from xpulab.engine.hosts.rows import Written
from xpulab.engine.streaming import streamed
from xpulab.exceptions import HandleError, NotEnoughMemoryError
from xpulab.kernels.kmeans import dense, sparse
from xpulab.kernels.kmeans.choice import AnyRows, kernels_for
from xpulab.kernels.kmeans.sparse import SparseRows
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.row_passes import consecutive, take
from xpulab.kernels.rows import Fill, Rows, weighted
from xpulab.kernels.runtime.device import Device
from xpulab.kernels.scaling import pieces_on_cpu
from xpulab.kernels.streamed import StreamedRows, near_rows
from xpulab.report.rendering import format_size
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.sources import (
    BlockRows,
    CSRRows,
    Handle,
    HandleRows,
    ReadRows,
    SharedArray,
    SharedRows,
    Source,
    Target,
)

__all__ = [
    "Data",
    "PassedRows",
    "data_of",
    "give_computed",
    "give_rows",
    "keep_rows",
    "kind_of",
    "on_host",
    "pieces",
    "rows_of",
    "weights_of",
    "write_block",
]

_SPARSE = "the rows of this handle are sparse, and this estimator takes dense rows"
_PIECE = 4 << 20  # bytes of a result that are on the host at a time


class Passed(Protocol):
    """Rows that this rank's own code has passed."""

    #: Name of the argument, for messages.
    argument: str

    @property
    def values(self) -> np.ndarray:
        """The rows on the host."""

    def on_device(self, device: Device, sample_weight: np.ndarray | None) -> Rows:
        """Return the rows on the device."""


@dataclass(frozen=True)
class PassedRows(Source):
    """Rows, weights or targets of which each rank's own code has passed a part."""

    passed: Passed


def on_host(rows: Rows, dtype: DTypeLike) -> np.ndarray:
    """Return this rank's rows on the host in another dtype; infinity where a number is too large for it."""
    made, first = np.empty((rows.n_samples, rows.n_features), dtype), 0
    with np.errstate(over="ignore"):
        for piece in pieces_on_cpu(rows):
            made[first : first + len(piece)] = piece
            first += len(piece)
    return made


def weights_of(task: Task, weights: SharedArray | Source | None, bounds: list[int]) -> np.ndarray | None:
    """Return this rank's sample weights on the host; None if all are 1."""
    if weights is None:
        return None
    if isinstance(weights, PassedRows):
        return weights.passed.values
    if isinstance(weights, SharedArray):
        return weights.open()[bounds[task.comm.rank] : bounds[task.comm.rank + 1]]
    rows = rows_of(task, replace(weights, bounds=bounds))
    assert isinstance(rows, Rows)
    return on_host(rows, rows.dtype)[:, 0]


class Data:
    """The rows of all ranks as one data set.

    Attributes
    ----------
    rows : Rows
        This rank's block, with its sample weights. It is read to the device at the first use, which has to be at the
        same place on all ranks.
    targets : Rows or None
        The targets of these rows.
    sample_weight : numpy.ndarray of shape (n_own,) or None
        This rank's weights on the host; None if all are 1.
    dtype : numpy.dtype
        The dtype of the rows.
    by_columns : bool
        Whether `stream` reads each column in one piece.
    n_own, n_samples, n_features : int
        Numbers of rows of this rank, of rows of all ranks, and of columns.
    bounds : list of int
        Rank r has the rows from bounds[r] up to, not including, bounds[r + 1].

    Raises
    ------
    HandleError
        If the rows are sparse, or are those of a handle that was freed.
    """

    def __init__(
        self,
        task: Task,
        source: Source,
        weights: SharedArray | PassedRows | None = None,
        targets: Source | None = None,
    ) -> None:
        self._task, self._source = task, source
        kernels, self.dtype, self.n_features = kind_of(task, source)
        if kernels is sparse:
            raise HandleError(_SPARSE)
        self.by_columns = isinstance(source, ReadRows) and source.by_columns
        self.bounds = source.bounds
        self.n_own = self.bounds[task.comm.rank + 1] - self.bounds[task.comm.rank]
        self.n_samples = self.bounds[-1]
        self.sample_weight = weights_of(task, weights, self.bounds)
        self._targets = targets

    @property
    def in_passes(self) -> bool:
        """Whether the devices do not keep all rows."""
        return isinstance(self._source, BlockRows) and self._source.kept is not None

    @cached_property
    def streamed(self) -> StreamedRows | None:
        """This rank's block, if the device does not keep all of it."""
        source = self._source
        if not isinstance(source, BlockRows) or source.kept is None:
            return None
        self._task.show(rows=self.n_own, doing="reading the rows")
        with self._task.transferring():
            return streamed(self._task, source, self.sample_weight)

    @cached_property
    def rows(self) -> Rows:
        """This rank's block on its device.

        Raises
        ------
        NotEnoughMemoryError
            If the device does not keep all of it.
        """
        if self.in_passes:
            nbytes = self.n_samples * self._source.row_bytes
            raise NotEnoughMemoryError(
                f"this needs all rows at once: X takes {format_size(nbytes)}, which does not fit into the engines' "
                "memory; use fewer rows or more engines, or set cluster.memory to more"
            )
        rows = rows_of(self._task, self._source, self.sample_weight)
        assert isinstance(rows, Rows)
        return rows

    @property
    def block(self) -> Rows | StreamedRows:
        """This rank's block, in parts if the device does not keep all of it.

        Nobody has looked for NaN and infinity in parts: call `require_finite` after a pass.
        """
        return self.streamed or self.rows

    @cached_property
    def targets(self) -> Rows | None:
        """The targets of this rank's block on its device."""
        if self._targets is None:
            return None
        targets = rows_of(self._task, self._targets)
        if not isinstance(targets, Rows):
            raise HandleError(_SPARSE)
        return targets

    @property
    def _stays(self) -> bool:
        """Whether the rows are on the device, or have to stay there; on several hosts, messages bring them to some."""
        return "rows" in vars(self) or self._source.keep is not None or self._task.engine.host.several

    @contextmanager
    def stream(self) -> Iterator[Fill | None]:
        """Open a context with a function that reads this rank's rows for one pass; None for rows on the device."""
        if self._stays or not isinstance(self._source, ReadRows):
            yield None
            return
        self._task.show(doing="reading the rows")
        with self._task.transferring(), self._source.reading(self._task.comm.rank) as fill:
            yield fill

    def read_columns(self, first: int, last: int) -> np.ndarray | None:
        """Read some columns of the rows of all ranks; None, on all of them, unless one host's memory has these rows."""
        if self._stays:
            return None
        with self._task.transferring():
            return self._source.read_columns(first, last)

    def parts(self) -> Iterator[tuple[Rows, Rows | None]]:
        """Yield this rank's rows with their targets for one pass, in one part or more, on the device.

        On a CPU, each part replaces the one before it in the cores' caches, if the rows are not on the device anyway.
        They may have NaN and infinity: pass sums over all ranks' rows to `require_finite` afterwards.
        """
        task, targets = self._task, self.targets
        if self.streamed is not None:
            for first, part in self.streamed.parts():
                yield part, None if targets is None else targets.part(first, part.n_samples)
            return
        with self.stream() as fill:
            if fill is None or not task.device.is_cpu:
                yield self.rows, targets
                return
            task.show(rows=self.n_own, doing="computing")
            shape = self.n_own, self.n_features
            parts = Rows.stream(task.device, shape, self.dtype, fill, self.sample_weight, self.by_columns)
            for part, first in parts:
                yield part, None if targets is None else targets.part(first, part.n_samples)

    def require_finite(self, sums: np.ndarray | float = 0.0) -> None:
        """Raise the same error on all ranks if a row of `parts` or `block` has NaN or infinity, after a pass.

        `sums` are over the rows of all ranks, for `parts`. If they are not finite, all rows are looked through: the
        sums of large numbers are infinite, too.
        """
        if self.streamed is not None:
            _require_finite(self._task, self.streamed, self._source, self.streamed.look())
        elif not self._source.finite and not np.isfinite(sums).all():
            self.rows  # noqa: B018 - reads all rows, and looks through them

    def near(self) -> int:
        """Return how many of this rank's first rows can be looked at one by one, without much reading."""
        return self.n_own if self.streamed is None else near_rows(self.streamed)

    def rows_at(self, indices: np.ndarray) -> np.ndarray:
        """Return a few rows of this rank on the host."""
        if self.streamed is not None:
            return self.streamed.take(indices)
        with self.stream() as fill:
            if fill is None:
                return take(self.rows, indices)
            picked = np.empty((len(indices), self.n_features), self._task.device.check_dtype(self.dtype))
            for row, index in zip(picked, indices, strict=True):
                fill(int(index), row[None])
        return picked


def data_of(
    task: Task, source: Source, weights: SharedArray | PassedRows | None = None, targets: Source | None = None
) -> Data:
    """Return the rows, weights and targets that a proxy has sent, on this rank's device; for dense rows only.

    Raises
    ------
    HandleError
        If the rows of a handle are sparse, or were freed.
    """
    data = Data(task, source, weights, targets)
    data.rows, data.targets  # noqa: B018 - reads them
    return data


def keep_rows(task: Task, rows: AnyRows, handle: Handle) -> None:
    """Keep rows on this rank for other tasks, under a handle."""
    task.engine.handles[handle.id], task.engine.descriptions[handle.id] = rows, handle.description


def give_rows(
    task: Task,
    made: Rows,
    bounds: list[int],
    target: Target | None = None,
    kept: Handle | None = None,
) -> None:
    """Send rows that were computed from the rows of X to the notebook, or keep them under a new handle."""
    if kept is not None:
        keep_rows(task, made, kept)
    if target is not None:
        write_block(task, target, bounds, pieces_on_cpu(made), lasting=True)


def give_computed(
    task: Task,
    rows: Rows,
    n_columns: int,
    compute: Callable[[np.ndarray], np.ndarray],
    bounds: list[int],
    target: Target | None = None,
    kept: Handle | None = None,
) -> None:
    """Compute new rows of `n_columns` columns from this rank's rows on the host, in pieces; see `give_rows`.

    `compute` gets some rows, an array that it may change, and returns as many rows. Several threads may call it.
    """
    if target is not None:
        row_bytes = max(rows.n_features, n_columns) * max(rows.dtype.itemsize, target.dtype.itemsize)
        parts = pieces(rows.n_samples, row_bytes)
        write_block(task, target, bounds, (compute(consecutive(rows, *part)) for part in parts))
    if kept is not None:
        alone = Lock()  # the device is that of one thread at a time

        def fill(first: int, part: np.ndarray) -> None:
            with alone:
                given = consecutive(rows, first, first + len(part))
            part[...] = compute(given)

        made, _ = Rows.read(task.device, (rows.n_samples, n_columns), kept.description.dtype, fill)
        keep_rows(task, made, kept)


def kind_of(task: Task, source: Source) -> tuple[ModuleType, np.dtype[Any], int]:
    """Return the module of kernels for the rows of a source, their dtype, and their number of features."""
    if isinstance(source, HandleRows):
        held = _held(task, source)
        return kernels_for(held), held.dtype, held.n_features
    return sparse if isinstance(source, CSRRows) else dense, source.dtype, source.n_features


def _held(task: Task, source: HandleRows) -> AnyRows:
    held = task.engine.handles.get(source.handle)
    if held is None:
        raise HandleError("the rows of this handle are gone from the engines; send them again: cluster.scatter(X)")
    rows: AnyRows = held
    return rows


def rows_of(task: Task, source: Source, sample_weight: np.ndarray | None = None) -> AnyRows:
    """Return this rank's block of rows, on its device.

    Parameters
    ----------
    task : Task
        Its `transfer` is increased by the seconds that this takes, without the device's computations.
    source : Source
        Rows that nobody has checked yet are checked here for infinity, and for NaN unless it is allowed.
    sample_weight : numpy.ndarray or None
        This rank's weights, as `weights_of` returns them.

    Returns
    -------
    Rows, SparseRows or StreamedRows

    Raises
    ------
    HandleError
        If the rows of the handle were freed.
    ValueError
        If the file has changed, or if a row has NaN or infinity.
    """
    task.show(doing="reading the rows")
    with task.transferring():
        rows = _read(source, task, sample_weight)
    own = 0 if isinstance(source, HandleRows) else rows.nbytes
    if source.keep is not None:
        keep_rows(task, replace(rows, sample_weight=None), source.keep)
        own = 0
    task.show(rows=rows.n_samples, doing="computing", device_bytes=task.engine.bytes_of_handles + own)
    return rows


@singledispatch
def _read(source: Source, task: Task, sample_weight: np.ndarray | None) -> AnyRows:
    """Return this rank's block of rows on its device, with weights; there is a function for each form of a source."""
    raise TypeError(f"a rank cannot read {type(source).__name__}")


@_read.register
def _(source: HandleRows, task: Task, sample_weight: np.ndarray | None) -> AnyRows:
    held = _held(task, source)
    if sample_weight is None:
        return held
    rows: AnyRows = kernels_for(held).weighted(held, sample_weight)
    return rows


@_read.register
def _(source: PassedRows, task: Task, sample_weight: np.ndarray | None) -> Rows:
    rows = source.passed.on_device(task.device, sample_weight)
    _look_through(task, rows, source)
    return rows


@_read.register
def _(source: CSRRows, task: Task, sample_weight: np.ndarray | None) -> SparseRows:
    data, indices, indptr = (part.open() for part in (source.data, source.indices, source.indptr))
    mine = indptr[source.bounds[task.comm.rank] : source.bounds[task.comm.rank + 1] + 1]
    stored = slice(int(mine[0]), int(mine[-1]))
    return SparseRows.upload(task.device, data[stored], indices[stored], mine, source.n_features, sample_weight)


@_read.register
def _(source: ArrivedRows, task: Task, sample_weight: np.ndarray | None) -> Rows:
    _require_finite(task, source.rows, source, source.all_finite)
    return source.rows if sample_weight is None else weighted(source.rows, sample_weight)


@_read.register
def _(source: SharedRows, task: Task, sample_weight: np.ndarray | None) -> Rows:
    rank = task.comm.rank
    with SharedBlock.open(source.paths[rank], writable=True) as block:
        return Rows.adopt(task.device, block, source.shape_of(rank), source.dtype, sample_weight)


@_read.register
def _(source: BlockRows, task: Task, sample_weight: np.ndarray | None) -> Rows | StreamedRows:
    if source.kept is None:
        return _read_all(source, task, sample_weight)
    rows = streamed(task, source, sample_weight)
    _require_finite(task, rows, source, rows.look())
    return rows


@_read.register
def _read_all(source: ReadRows, task: Task, sample_weight: np.ndarray | None) -> Rows:
    rank = task.comm.rank
    with source.reading(rank) as fill:

        def read(first: int, part: np.ndarray) -> None:
            task.leave_if_cancelled()
            fill(first, part)

        rows, finite = Rows.read(
            task.device, source.shape_of(rank), source.dtype, read, sample_weight, by_columns=source.by_columns
        )
        _require_finite(task, rows, source, finite)
    return rows


def _look_through(task: Task, rows: Rows | StreamedRows, source: Source) -> None:
    """Raise the same error on all ranks if a row has infinity, or NaN that the source does not allow."""
    if source.nan:
        require_no_infinity(task, rows)
    elif isinstance(source, PassedRows):
        require_all_finite(task, rows, source.bounds, source.passed.argument, own=True)
    else:
        names, argument = (source.names, source.argument) if isinstance(source, BlockRows) else (None, "X")
        require_all_finite(task, rows, source.bounds, argument, names=names)


def _require_finite(task: Task, rows: Rows | StreamedRows, source: Source, finite: bool) -> None:
    """Raise the same error on all ranks if a row has NaN or infinity. `finite` is what `Rows.read` has found."""
    if not source.finite and not all(task.comm.allgather(finite)):
        _look_through(task, rows, source)


def write_block(
    task: Task, target: Target, bounds: list[int], parts: Iterable[np.ndarray], lasting: bool = False
) -> None:
    """Write this rank's rows of a result, a part at a time, into the shared block that the notebook has created.

    `lasting` says that the parts are the same at the end of the task. They are then sent to the notebook's host
    without being written here.
    """
    dtype, (first, last) = target.dtype, bounds[task.comm.rank : task.comm.rank + 2]
    row_bytes = int(np.prod(target.shape[1:])) * dtype.itemsize
    begin = at = target.offset + (first - target.first) * row_bytes
    if lasting and target.number is not None:
        made = (part.astype(dtype, copy=False) for part in parts)
        task.written.append(Written(target.number, begin, (last - first) * row_bytes, made))
        return
    with task.transferring(), SharedBlock.open(target.path, writable=True) as shared:
        for part in parts:
            shared.write(part.astype(dtype, copy=False), at)
            at += part.size * dtype.itemsize
    if target.number is not None:
        task.written.append(Written(target.number, begin, at - begin, None))


def pieces(n: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield bounds of parts of `n` rows. The parts are so small that a part of a result needs little host memory."""
    step = max(1, _PIECE // row_bytes)
    step -= step % BLOCK if step > BLOCK else 0
    return ((first, min(first + step, n)) for first in range(0, n, step))
