"""The cluster that this process uses: the active one, or in code that runs on ranks, these ranks themselves."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from xpulab.advice import to_start
from xpulab.deploy.cluster import XPUCluster, clusters
from xpulab.deploy.ranks import Ranks
from xpulab.deploy.side_by_side import backend
from xpulab.deploy.tasks.engines import not_running
from xpulab.exceptions import NoClusterError

__all__ = [
    "at_the_last_end",
    "current_cluster",
    "current_ranks",
    "find_current",
    "find_ranks",
    "in_place_of_cluster",
    "latest_cluster",
    "latest_start",
]

#: The ranks that take the place of a cluster; only `xpulab.spmd` sets it.
_ranks: ContextVar[Ranks | None] = ContextVar("xpulab_ranks", default=None)

_ONE_JOB = (
    "instead, type n_jobs=1 or leave n_jobs away: all engines of the cluster work on each fit anyway. For fits side by "
    "side, each on one engine, type: with joblib.parallel_config('xpulab')"
)
_WORKER = (
    "worker processes, as n_jobs=2 starts them, have no cluster: only the process that started it can use it, and "
    f"processes that call xpulab.XPUCluster.attach().\n{_ONE_JOB}"
)


class _InWorker(BaseException):
    """Ends the work of a joblib worker process. The process that waits for the worker gets a `NoClusterError`.

    It does not derive from `Exception`, because scikit-learn takes an `Exception` for the failure of one fit, and goes
    on with the others.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return NoClusterError, self.args


def find_current() -> XPUCluster | None:
    """Return the active cluster, or None. A forked process has none at first: its parent owns the sockets."""
    return clusters.running[-1] if clusters.running else None


@contextlib.contextmanager
def in_place_of_cluster(ranks: Ranks) -> Iterator[None]:
    """Open a context in which estimators compute on these ranks, of which this process is one, not on a cluster."""
    token = _ranks.set(ranks)
    try:
        yield
    finally:
        _ranks.reset(token)


def find_ranks() -> Ranks | None:
    """Return the ranks that estimators use, as `current_ranks`; None if no cluster is running."""
    return _ranks.get() or find_current()


def current_ranks() -> Ranks:
    """Return the ranks that estimators use: those of the active cluster, or those of which this process is one.

    Raises
    ------
    NoClusterError
        If no cluster is running.
    """
    return _ranks.get() or current_cluster()


def current_cluster() -> XPUCluster:
    """Return the active cluster: the running cluster that was started or activated last.

    Raises
    ------
    NoClusterError
        If no cluster is running.
    """
    if (cluster := find_current()) is not None:
        return cluster
    forked = clusters.of_parent[-1].engines.forked() if clusters.of_parent else None
    if multiprocessing.parent_process() is not None:
        kind = _InWorker if "loky" in type(multiprocessing.current_process()).__module__ else NoClusterError
        raise kind(f"{forked}\nif n_jobs=2 has started it: {_ONE_JOB}" if forked else _WORKER)
    if forked is not None:
        raise forked
    if clusters.latest and (left := clusters.latest[0].engines.left):
        raise not_running(left)
    raise NoClusterError(f"no cluster is running; type: {to_start()}")


def latest_cluster() -> XPUCluster:
    """Return the active cluster, or the one that was active last and has ended.

    Raises
    ------
    NoClusterError
        If this process has had no cluster.
    """
    return find_current() or next((each for each in clusters.latest if each.life.has_run), None) or current_cluster()


def latest_start() -> XPUCluster:
    """Return the active cluster, or the one whose start was tried last: it has ended, or has not started.

    Raises
    ------
    NoClusterError
        If this process has had no cluster.
    """
    return find_current() or next(reversed(clusters.latest), None) or current_cluster()


def at_the_last_end(call: Callable[[], None]) -> Callable[[], None]:
    """Call a function when this process no longer has a cluster: the last one has ended, or was detached.

    New engines that replace lost ones, and `XPUCluster.restart`, are no end.

    Returns
    -------
    callable
        A function that takes back the request. Repeated calls do nothing.
    """
    return clusters.at_the_last_end(call)


backend.register(current_cluster)
