"""Sends joblib's jobs to the engines, and follows them. Each group of engines takes the next job after its last."""

from __future__ import annotations

import pickle
import pkgutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xpulab._sklearn import is_search, without_results
from xpulab.calls import called
from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.side_by_side.job import Call, Job
from xpulab.deploy.side_by_side.kept import Keeper, end_known, interrupted
from xpulab.deploy.side_by_side.outcomes import claimed, found, run
from xpulab.deploy.side_by_side.progress import Progress
from xpulab.deploy.tasks.conversation import Conversation
from xpulab.deploy.tasks.pickling import by_value, packed
from xpulab.exceptions import CallInterrupted, EngineLostError, NotEnoughMemoryError, XpulabWarning
from xpulab.report import progress
from xpulab.report.rendering import counted, format_size
from xpulab.sharing import host_memory
from xpulab.tables import ShardedColumn, ShardedTable

__all__ = ["Cluster", "Jobs", "begin_with"]

_LARGE = 1 << 16  # bytes of an array that is shared, and not a part of the message
_LEAST = 1 << 26  # bytes of arrays for which memory is looked at
_LOSSES = 3  # largest number of restarts: a job that ends its engine must not be repeated for ever


#: Names of context managers, with their arguments, which ranks open around their jobs.
_around: list[tuple[str, tuple[object, ...]]] = []


def begin_with(name: str, *arguments: object) -> Callable[[], None]:
    """Have ranks open a context around the jobs that are sent from now on; return a function that ends this.

    Parameters
    ----------
    name : str
        That of a context manager, as ``"package.module:name"``.
    *arguments : object
        What it is called with.
    """
    context = name, arguments
    _around.append(context)
    return lambda: _around.remove(context)


class Cluster(Keeper, Protocol):
    """What jobs need of a cluster."""

    tasks: Conversation

    @property
    def size(self) -> int:
        """Number of engines."""

    def outgoing(self) -> Outgoing:
        """Return a context in which arrays are sent to the engines."""


def _on_engine(_: object, *arguments: object) -> None:
    """Work on jobs, on each engine. What a rank does is no part of the notebook's side, and is found by its name."""
    pkgutil.resolve_name("xpulab.spmd._rank.jobs:work")(*arguments)


class Jobs:
    """The jobs of one `joblib.Parallel`.

    Parameters
    ----------
    cluster : Cluster
    n_groups : int
        Number of groups of engines, each of which does a job at a time.
    """

    def __init__(self, cluster: Cluster, n_groups: int) -> None:
        self._cluster, self._n_groups = cluster, n_groups
        self._jobs: list[Job] = []

    def add(self, calls: Sequence[Call], told: Callable[[object], object]) -> Job:
        """Add a job."""
        self._jobs.append(Job(calls, told))
        return self._jobs[-1]

    def clear(self) -> None:
        """Forget all jobs."""
        self._jobs.clear()

    def run(self) -> None:
        """Have the engines do all jobs that have not ended. After an exception in one, they begin no further job.

        Raises
        ------
        EngineLostError
            If engines were lost repeatedly, or if the cluster does not start new ones.
        CallInterrupted
            If the user interrupted the jobs. What had ended is kept.
        """
        end_known(self._jobs)
        shown = Progress(self._jobs, self._cluster.size, self._n_groups)
        try:
            with progress.open(shown.report) as handle:
                self._run_all(shown, handle.update)
        except KeyboardInterrupt:
            if called():  # a call of xpulab that has made the jobs says that it was interrupted
                raise KeyboardInterrupt from None
            raise CallInterrupted(self._interrupted(shown)) from None

    def _interrupted(self, shown: Progress) -> str:
        return interrupted(self._cluster, shown.title, shown.names, self._jobs, self._n_groups)

    def _run_all(self, shown: Progress, update: Callable[[], None]) -> None:
        losses = 0
        while any(job.outcome is None for job in self._jobs):
            try:
                return self._run(shown, update)
            except EngineLostError as lost:
                losses += 1
                if losses > _LOSSES or not self._cluster.tasks.engines.recovers:
                    raise
                left = sum(job.outcome is None for job in self._jobs)
                said = f"{lost.reason}; new engines do the {counted(left, 'job')} that had not ended"
                warnings.warn(said, XpulabWarning, stacklevel=2)
        return None

    def _run(self, shown: Progress, update: Callable[[], None]) -> None:
        tasks = self._cluster.tasks
        jobs = {number: job for number, job in enumerate(self._jobs) if job.outcome is None}
        home = tasks.engines.require_running().folder
        with (
            tempfile.TemporaryDirectory(prefix="jobs-", dir=home, ignore_cleanup_errors=True) as name,
            self._cluster.outgoing() as outgoing,
        ):
            folder, known = Path(name), set[int]()

            def follow() -> None:
                if not folder.exists():  # it is removed with lost engines
                    return
                for number, outcome in found(folder, known):
                    jobs[number].end(outcome)
                shown.tell(claimed(folder) - known)
                update()

            content, arrays = _pickled([None if job.outcome else job.calls for job in self._jobs])
            self._require_room(sum(array.nbytes for array in arrays))
            sent = [outgoing.send(array) for array in arrays]
            arguments = content, sent, list(jobs), name, self._n_groups, list(_around)
            tasks.run_packed(shown.title, packed(_on_engine, arguments, {}), follow)

    def _require_room(self, nbytes: int) -> None:
        """Raise an error if the arrays, and a part of them twice on each group, do not fit into the host's memory."""
        needed, free = nbytes * (1 + 2 * self._n_groups), host_memory.available(swap=True)
        if nbytes >= _LEAST and needed > free:
            fewer = self._n_groups // 2
            groups = f"use fewer groups of engines, joblib.parallel_config('xpulab', n_jobs={fewer}), or none"
            raise NotEnoughMemoryError(
                f"{counted(self._n_groups, 'job')} at a time, with arrays of {format_size(nbytes)}, need up to "
                f"{format_size(needed)} of memory, and {format_size(free)} are free; "
                f"{groups if fewer > 1 else 'leave joblib.parallel_config away'}: all engines then work on each job"
            )


def _pickled(jobs: Sequence[Sequence[Call] | None]) -> tuple[bytes, list[npt.NDArray[np.uint8]]]:
    """Return the pickle of a list with a function for each job, and its large arrays.

    Raises
    ------
    TypeError
        If an argument cannot be pickled.
    """
    arrays: list[npt.NDArray[np.uint8]] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _LARGE:
            arrays.append(np.frombuffer(raw, np.uint8))
        return raw.nbytes < _LARGE

    gathered: dict[int, Any] = {}
    calls = [None if job is None else [_here(each, gathered) for each in job] for job in jobs]
    made = [None if each is None else (run, each) for each in calls]
    try:
        return by_value(made, None, protocol=5, buffer_callback=is_small), arrays
    except Exception as error:
        raise TypeError(f"the jobs cannot be sent to the engines: {error}") from error


def _rows_of(handle: ShardedArray) -> Any:
    """Return the rows of a handle: those of a table as a data frame, and a column of it as it was sent."""
    if isinstance(handle, ShardedTable):
        return handle.to_arrow().to_pandas()
    rows = handle.gather()
    return handle.labels(rows) if isinstance(handle, ShardedColumn) and handle.ndim == 1 else rows


def _here(thing: Any, gathered: dict[int, Any]) -> Any:
    """Return arguments with the rows of handles in place of the handles: each engine needs all rows of a job.

    What a search has found before is left out: it may have a handle, or many rows.
    """
    if isinstance(thing, ShardedArray) or is_search(thing):
        if id(thing) not in gathered:
            gathered[id(thing)] = _rows_of(thing) if isinstance(thing, ShardedArray) else without_results(thing)
        return gathered[id(thing)]
    if type(thing) in (tuple, list):
        return type(thing)(_here(each, gathered) for each in thing)
    if type(thing) is dict:
        return {name: _here(each, gathered) for name, each in thing.items()}
    return thing
