"""Reads a rank's rows, and writes its results: from and to shared memory of this host, a file, or a handle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from threading import Lock
from types import ModuleType
from typing import Any

import numpy as np

from xpulab.engine.engine import Task
from xpulab.engine.files import file_rows
from xpulab.exceptions import HandleError
from xpulab.kernels.kmeans import dense, sparse
from xpulab.kernels.kmeans.choice import AnyRows, kernels_for
from xpulab.kernels.kmeans.sparse import SparseRows
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.moments import column_facts
from xpulab.kernels.row_passes import consecutive, take
from xpulab.kernels.rows import Fill, Rows, copying, weighted
from xpulab.kernels.scaling import host_pieces
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.process_memory import ProcessMemory

__all__ = [
    "Data",
    "array_of",
    "data_of",
    "give_computed",
    "give_rows",
    "held_open",
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


def array_of(place: dict[str, Any]) -> np.ndarray:
    """Return an array that the notebook has sent whole. Its memory is the notebook's, and is valid during the task."""
    with SharedBlock.open(place["path"]) as block:
        return block.array(tuple(place["shape"]), place["dtype"], place["offset"])


def on_host(rows: Rows, dtype: Any) -> np.ndarray:
    """Return this rank's rows on the host in another dtype; infinity where a number is too large for it."""
    made, first = np.empty((rows.n_samples, rows.n_features), dtype), 0
    with np.errstate(over="ignore"):
        for piece in host_pieces(rows):
            made[first : first + len(piece)] = piece
            first += len(piece)
    return made


def weights_of(task: Task, weights: dict[str, Any] | None, bounds: list[int]) -> np.ndarray | None:
    """Return this rank's sample weights on the host; None if all are 1."""
    if weights is None:
        return None
    if "local" in weights:
        values: np.ndarray = weights["local"].values
        return values
    return array_of(weights)[bounds[task.comm.rank] : bounds[task.comm.rank + 1]]


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
        source: dict[str, Any],
        weights: dict[str, Any] | None = None,
        targets: dict[str, Any] | None = None,
    ) -> None:
        self._task, self._source = task, source
        kernels, self.dtype, self.n_features = kind_of(task, source)
        if kernels is sparse:
            raise HandleError(_SPARSE)
        self.bounds: list[int] = source["bounds"]
        self.n_own = self.bounds[task.comm.rank + 1] - self.bounds[task.comm.rank]
        self.n_samples = self.bounds[-1]
        self.sample_weight = weights_of(task, weights, self.bounds)
        self._targets = targets

    @cached_property
    def rows(self) -> Rows:
        """This rank's block on its device."""
        rows = rows_of(self._task, self._source, self.sample_weight)
        assert isinstance(rows, Rows)
        return rows

    @cached_property
    def targets(self) -> Rows | None:
        """The targets of this rank's block on its device."""
        if self._targets is None:
            return None
        targets = rows_of(self._task, self._targets)
        if not isinstance(targets, Rows):
            raise HandleError(_SPARSE)
        return targets

    @contextmanager
    def passing(self) -> Iterator[Fill | None]:
        """A context with a function that reads this rank's rows for one pass, after which they are not on the device.

        The function is None for rows that are on the device, or have to stay there.
        """
        source = self._source
        if "rows" in vars(self) or "hold" in source or not source.keys() & {"file", "block", "memory"}:
            yield None
            return
        self._task.show(doing="reading the rows")
        with self._task.transferring(), _readable(self._task, source) as (_, fill):
            yield fill

    def parts(self) -> Iterator[tuple[Rows, Rows | None]]:
        """Yield this rank's rows with their targets for one pass, in one part or more, on the device.

        On a CPU, each part replaces the one before it in the cores' caches, if the rows are not on the device anyway.
        They may have NaN and infinity: pass sums over all ranks' rows to `require_finite` afterwards.
        """
        task, targets = self._task, self.targets
        with self.passing() as fill:
            if fill is None or not task.device.is_cpu:
                yield self.rows, targets
                return
            task.show(rows=self.n_own, doing="computing")
            shape = self.n_own, self.n_features
            for part, first in Rows.passing(task.device, shape, self.dtype, fill, self.sample_weight):
                yield part, None if targets is None else targets.part(first, part.n_samples)

    def require_finite(self, sums: np.ndarray) -> None:
        """Raise the same error on all ranks if a row of `parts` has NaN or infinity.

        `sums` are over the rows of all ranks. If they are not finite, all rows are looked through: the sums of large
        numbers are infinite, too.
        """
        if not self._source.get("finite") and not np.isfinite(sums).all():
            self.rows  # noqa: B018 - reads all rows, and looks through them

    def some(self, places: np.ndarray) -> np.ndarray:
        """Return the rows of this rank at a few places, on the host."""
        with self.passing() as fill:
            if fill is None:
                return take(self.rows, places)
            picked = np.empty((len(places), self.n_features), self._task.device.check_dtype(self.dtype))
            for row, place in zip(picked, places, strict=True):
                fill(int(place), row[None])
        return picked


def data_of(
    task: Task, source: dict[str, Any], weights: dict[str, Any] | None = None, targets: dict[str, Any] | None = None
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


def keep_rows(task: Task, rows: AnyRows, place: dict[str, Any]) -> None:
    """Keep rows on this rank for other tasks, under the id of a handle, with their description."""
    task.engine.handles[place["handle"]], task.engine.abouts[place["handle"]] = rows, place["about"]


def give_rows(
    task: Task,
    made: Rows,
    bounds: list[int],
    target: dict[str, Any] | None = None,
    kept: dict[str, Any] | None = None,
) -> None:
    """Send rows that were computed from the rows of X to the notebook, or keep them under a new handle."""
    if kept is not None:
        keep_rows(task, made, kept)
    if target is not None:
        write_block(task, target, bounds, host_pieces(made), lasting=True)


def give_computed(
    task: Task,
    rows: Rows,
    n_columns: int,
    compute: Callable[[np.ndarray], np.ndarray],
    bounds: list[int],
    target: dict[str, Any] | None = None,
    kept: dict[str, Any] | None = None,
) -> None:
    """Compute new rows of `n_columns` columns from this rank's rows on the host, in pieces; see `give_rows`.

    `compute` gets some rows, an array that it may change, and returns as many rows. Several threads may call it.
    """
    if target is not None:
        row_bytes = max(rows.n_features, n_columns) * max(rows.dtype.itemsize, np.dtype(target["dtype"]).itemsize)
        parts = pieces(rows.n_samples, row_bytes)
        write_block(task, target, bounds, (compute(consecutive(rows, *part)) for part in parts))
    if kept is not None:
        alone = Lock()  # the device is that of one thread at a time

        def fill(first: int, part: np.ndarray) -> None:
            with alone:
                given = consecutive(rows, first, first + len(part))
            part[...] = compute(given)

        made, _ = Rows.read(task.device, (rows.n_samples, n_columns), kept["about"]["dtype"], fill)
        keep_rows(task, made, kept)


def kind_of(task: Task, source: dict[str, Any]) -> tuple[ModuleType, np.dtype[Any], int]:
    """Return the module of kernels for the rows of a source, their dtype, and their number of features."""
    if "handle" in source:
        held = _held(task, source)
        return kernels_for(held), held.dtype, held.n_features
    if "local" in source:
        return dense, source["local"].dtype, source["local"].shape[1]
    if "csr" in source:
        return sparse, np.dtype(source["csr"][0]["dtype"]), source["shape"][1]
    return dense, np.dtype(source["dtype"]), source["shape"][1]


def _held(task: Task, source: dict[str, Any]) -> AnyRows:
    held = task.engine.handles.get(source["handle"])
    if held is None:
        raise HandleError("the rows of this handle are gone from the engines; send them again: cluster.scatter(X)")
    return held


def rows_of(task: Task, source: dict[str, Any], sample_weight: np.ndarray | None = None) -> AnyRows:
    """Return this rank's block of rows, on its device.

    Parameters
    ----------
    task : Task
        Its `transfer` is increased by the seconds that this takes, without the device's computations.
    source : dict
        ``bounds`` (rank r has the rows from bounds[r] up to, not including, bounds[r + 1]) and one of: ``memory``, the
        process and address where the rows are in C order, with ``shape``, ``dtype`` and ``finite`` (whether they were
        checked); ``parts``, the path of a shared block for each rank, with ``shape`` and ``dtype``; ``csr``, blocks for
        data, indices and indptr, with ``shape``; ``file``, with ``state``, ``shape``, ``dtype``, ``offset`` and
        ``order``; ``block``, the path of a shared block with a result, with ``shape``, ``dtype`` and ``offset``;
        ``arrived``, this rank's rows, which have come from another host, and whether all are finite;
        ``local``, the rows that this rank's own code passes; ``handle``, the id of rows that the ranks keep. Rows from
        a file, a result or a rank's own code are checked here for infinity, and for NaN unless ``nan`` allows it. With
        ``hold``, the id and description of a handle, the rank keeps the rows for other tasks.
    sample_weight : numpy.ndarray or None
        This rank's weights, as `weights_of` returns them.

    Returns
    -------
    Rows or SparseRows

    Raises
    ------
    HandleError
        If the rows of the handle were freed.
    ValueError
        If the file has changed, or if a row has NaN or infinity.
    """
    device, rank, bounds = task.device, task.comm.rank, source["bounds"]
    task.show(doing="reading the rows")
    with task.transferring():
        if "handle" in source:
            held = _held(task, source)
            rows: AnyRows = held if sample_weight is None else kernels_for(held).weighted(held, sample_weight)
        elif "local" in source:
            rows = source["local"].on_device(device, sample_weight)
            assert isinstance(rows, Rows)
            _look_through(task, rows, source)
        elif "csr" in source:
            rows = _sparse(task, source, sample_weight)
        elif "arrived" in source:
            read, finite = source["arrived"]
            rows = read if sample_weight is None else weighted(read, sample_weight)
            _require_finite(task, rows, source, finite)
        elif "parts" not in source:
            with _readable(task, source) as (shape, fill):
                rows = _read(task, source, shape, _leaving(task, fill), sample_weight)
        else:
            with SharedBlock.open(source["parts"][rank], writable=True) as block:
                shape = bounds[rank + 1] - bounds[rank], source["shape"][1]
                rows = Rows.adopt(device, block, shape, source["dtype"], sample_weight)
    if "hold" in source:
        keep_rows(task, replace(rows, sample_weight=None), source["hold"])
    task.show(rows=rows.n_samples, doing="computing")
    return rows


def _look_through(task: Task, rows: Rows, source: dict[str, Any]) -> None:
    """Raise the same error on all ranks if a row has infinity, or NaN that the source does not allow."""
    if source.get("nan"):
        _no_infinity(task, rows)
    else:
        own = source.get("local")
        _all_finite(task, rows, source["bounds"], "X" if own is None else own.argument, own is not None)


def _all_finite(task: Task, rows: Rows, bounds: list[int], name: str = "X", own: bool = False) -> None:
    """Raise the same error on all ranks if a row has NaN or infinity."""
    local = dense.find_nonfinite(rows)
    places = task.comm.allgather(local)
    rank = next((rank for rank, place in enumerate(places) if place >= 0), None)
    if rank is None:
        return
    where = f"row {places[rank]} of rank {rank}" if own else f"row {bounds[rank] + places[rank]}"
    raise ValueError(f"Input {name} contains NaN or infinity; the first such row is {where}.")


def _no_infinity(task: Task, rows: Rows) -> None:
    """Raise scikit-learn's error on all ranks if a row has infinity."""
    facts = column_facts(rows)
    infinite = bool((facts.minimum == -np.inf).any() or (facts.maximum == np.inf).any())
    if any(task.comm.allgather(infinite)):
        raise ValueError(f"Input X contains infinity or a value too large for {rows.dtype!r}.")


def _sparse(task: Task, source: dict[str, Any], sample_weight: np.ndarray | None) -> SparseRows:
    with ExitStack() as stack:
        opened = [stack.enter_context(SharedBlock.open(part["path"])) for part in source["csr"]]
        data, indices, indptr = (
            block.array(tuple(part["shape"]), part["dtype"], part["offset"])
            for block, part in zip(opened, source["csr"], strict=True)
        )
        mine = indptr[source["bounds"][task.comm.rank] : source["bounds"][task.comm.rank + 1] + 1]
        stored = slice(int(mine[0]), int(mine[-1]))
        return SparseRows.upload(task.device, data[stored], indices[stored], mine, source["shape"][1], sample_weight)


def _read(task: Task, source: dict[str, Any], shape: Any, fill: Fill, sample_weight: np.ndarray | None) -> Rows:
    """Read this rank's rows, and raise the same error on all ranks if a row has NaN or infinity."""
    rows, finite = Rows.read(task.device, shape, source["dtype"], fill, sample_weight)
    _require_finite(task, rows, source, finite)
    return rows


def _leaving(task: Task, fill: Fill) -> Fill:
    """Return a reader of pieces of rows that ends the task on this rank before a piece, if the user wants it to end."""

    def read(first: int, part: np.ndarray) -> None:
        task.leave_if_cancelled()
        fill(first, part)

    return read


def _require_finite(task: Task, rows: Rows, source: dict[str, Any], finite: bool) -> None:
    """Raise the same error on all ranks if a row has NaN or infinity. `finite` is what `Rows.read` has found."""
    if not source.get("finite") and not all(task.comm.allgather(finite)):
        _look_through(task, rows, source)


@contextmanager
def _readable(task: Task, source: dict[str, Any]) -> Iterator[tuple[tuple[int, int], Fill]]:
    """The shape of this rank's rows in a file, a result or the memory of the process that sent them; and a reader."""
    first, last = source["bounds"][task.comm.rank : task.comm.rank + 2]
    shape, dtype = (last - first, int(source["shape"][1])), np.dtype(source["dtype"])
    row_bytes = shape[1] * dtype.itemsize
    if "file" in source:
        yield shape, copying(file_rows(source)[first:last])
    elif "block" in source:
        with SharedBlock.open(source["block"]) as block:
            yield shape, copying(block.array(shape, dtype, source["offset"] + first * row_bytes))
    else:
        place = dict(source["memory"])
        address, memory = place.pop("address"), ProcessMemory(**place)
        yield shape, lambda start, part: memory.read(address + (first + start) * row_bytes, part)
        memory.require_running()


def write_block(
    task: Task, target: dict[str, Any], bounds: list[int], parts: Iterable[np.ndarray], lasting: bool = False
) -> None:
    """Write this rank's rows of a result, a part at a time, into the shared block that the notebook has created.

    If the target is for this rank's rows only, ``first`` in it is the number of its first row. `lasting` says that the
    parts are the same at the end of the task. They are then sent to the notebook's host without being written here.
    """
    dtype, (first, last) = np.dtype(target["dtype"]), bounds[task.comm.rank : task.comm.rank + 2]
    row_bytes = int(np.prod(target["shape"][1:])) * dtype.itemsize
    begin = place = target["offset"] + (first - target.get("first", 0)) * row_bytes
    if lasting and "number" in target:
        made = (part.astype(dtype, copy=False) for part in parts)
        task.written.append((target["number"], begin, (last - first) * row_bytes, made))
        return
    with task.transferring(), SharedBlock.open(target["path"], writable=True) as shared:
        for part in parts:
            shared.write(part.astype(dtype, copy=False), place)
            place += part.size * dtype.itemsize
    if "number" in target:  # the memory is that of another host than the notebook's, see `travel`
        task.written.append((target["number"], begin, place - begin, None))


@contextmanager
def held_open(target: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Keep the shared block of a result open, also if the process that created it ends."""
    with SharedBlock.open(target["path"], writable=True) as block:
        yield {**target, "path": block.path}


def pieces(n: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield bounds of parts of `n` rows. The parts are so small that a part of a result needs little host memory."""
    step = max(1, _PIECE // row_bytes)
    step -= step % BLOCK if step > BLOCK else 0
    return ((first, min(first + step, n)) for first in range(0, n, step))
