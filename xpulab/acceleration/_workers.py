"""Has groups of engines do joblib's jobs, or lets the workers that joblib starts use the cluster of this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import joblib.parallel
from joblib._parallel_backends import FallbackToBackend, LokyBackend

from xpulab.deploy.current import find_current

__all__ = ["joined"]


def joined(begin: Callable[..., None], *arguments: object) -> Callable[[], None]:
    """Have groups of engines do joblib's jobs, or let its workers call a function when they start.

    Either happens while a cluster is active here, the first for 2 jobs at a time up to one for each engine. joblib
    passes an initialiser to its workers. The backend that this function registers under joblib's name adds one.

    Parameters
    ----------
    begin : callable
        The function, of a module. It must not raise an exception, because joblib then ends all workers.
    *arguments : Any
        Its arguments, after the name of the cluster.

    Returns
    -------
    callable
        A function that registers joblib's own backend again, and ends the workers.
    """
    before = joblib.parallel.BACKENDS["loky"]
    started: weakref.WeakSet[Any] = weakref.WeakSet()

    class Backend(LokyBackend):
        def configure(self, n_jobs: int = 1, *args: object, **kwargs: object) -> Any:
            cluster = find_current()
            given = {*kwargs, *getattr(self, "backend_kwargs", {})}
            if cluster is None or "initializer" in given:
                return super().configure(n_jobs, *args, **kwargs)
            if 1 < n_jobs <= cluster.size and len({fact.host for fact in cluster.engines.facts}) == 1:
                raise FallbackToBackend(joblib.parallel.BACKENDS["xpulab"](nesting_level=self.nesting_level))
            about = (cluster.known_as, *arguments)
            found = super().configure(n_jobs, *args, initializer=begin, initargs=about, **kwargs)
            started.add(self._workers)
            return found

    joblib.register_parallel_backend("loky", Backend)

    def leave() -> None:
        joblib.register_parallel_backend("loky", before)
        for workers in started:
            workers.terminate()  # also removes joblib's temporary folders

    return leave
