"""joblib's backend "xpulab": ``with joblib.parallel_config("xpulab")`` has each job done by a group of engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import joblib
from joblib.parallel import ParallelBackendBase

from xpulab.deploy.side_by_side.job import Job
from xpulab.deploy.side_by_side.jobs import Cluster, Jobs
from xpulab.exceptions import ClusterError, UsageError

__all__ = ["register"]


class Backend(ParallelBackendBase):  # type: ignore[misc]
    """Has groups of the active cluster's engines do joblib's jobs. Each group does the next one.

    The jobs are sent when the first result is asked for, all at once. joblib then waits in the thread of the caller,
    so that Ctrl-C and the Stop button end them.
    """

    #: Returns the active cluster.
    find: Callable[[], Cluster]
    default_n_jobs = -1

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of groups of engines that work at the same time.

        Raises
        ------
        UsageError
            If `n_jobs` is 0.
        NoClusterError
            If no cluster is running.
        """
        if n_jobs == 0:
            raise UsageError(
                "n_jobs=0 was given; expected -1 for a job on each engine, a number of groups of engines, or 1 for one "
                "job after the other, each on all engines"
            )
        size = type(self).find().size
        n_jobs = -1 if n_jobs is None else n_jobs
        return max(1, min(n_jobs if n_jobs > 0 else size + 1 + n_jobs, size))

    def configure(self, n_jobs: int = 1, parallel: Any = None, **settings: Any) -> int:
        """Prepare for the jobs of a `joblib.Parallel`.

        Raises
        ------
        ClusterError
            If the engines are on several hosts.
        """
        n_groups: int = super().configure(n_jobs, parallel, **settings)
        cluster = type(self).find()
        if n_groups > 1 and len(hosts := {fact.host for fact in cluster.tasks.engines.facts}) > 1:
            raise ClusterError(
                f"the engines are on {len(hosts)} hosts ({', '.join(sorted(hosts))}), and jobs side by side need one; "
                "without joblib.parallel_config, all engines work on each fit"
            )
        if parallel is not None and n_groups > 1:
            parallel.pre_dispatch = "all"
        self._jobs = Jobs(cluster, n_groups)
        return n_groups

    def submit(self, func: Any, callback: Callable[[object], object]) -> Job:
        """Add a job."""
        return self._jobs.add(func.items, callback)

    def retrieve_result(self, out: Job, timeout: float | None = None) -> Any:
        """Return what a job has returned, after all jobs have ended, or raise its exception."""
        if out.outcome is None:
            self._jobs.run()
        return out.value

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Forget all jobs."""
        self._jobs.clear()

    def terminate(self) -> None:
        """Forget all jobs."""
        self._jobs.clear()


def register(find: Callable[[], Any]) -> None:
    """Register the backend. `find` returns the active cluster."""
    joblib.register_parallel_backend("xpulab", type("XPULabBackend", (Backend,), {"find": staticmethod(find)}))
