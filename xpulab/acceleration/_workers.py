"""Lets the worker processes that joblib starts use the cluster of the process that started them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib.parallel
from joblib._parallel_backends import LokyBackend

from xpulab.deploy.cluster import XPUCluster, find_current
from xpulab.exceptions import XpulabError

__all__ = ["joined"]


def joined(strict: bool, least: int | None, file: Path) -> Callable[[], None]:
    """Make joblib's workers attach to the cluster that is active when they start.

    joblib passes an initialiser to its workers. The backend that this function registers under joblib's name adds one.

    Parameters
    ----------
    strict : bool
    least : int or None
        As for `xpulab.accel`.
    file : Path
        File to which workers write the entries of the log.

    Returns
    -------
    callable
        A function that registers joblib's own backend again, and ends the workers.
    """
    before = joblib.parallel.BACKENDS["loky"]
    started: weakref.WeakSet[Any] = weakref.WeakSet()

    class Backend(LokyBackend):
        def configure(self, *args: Any, **kwargs: Any) -> Any:
            cluster = find_current()
            given = {*kwargs, *getattr(self, "backend_kwargs", {})}
            if cluster is None or "initializer" in given:
                return super().configure(*args, **kwargs)
            about = (cluster.known_as, strict, least, str(file), os.getpid())
            found = super().configure(*args, initializer=_begin, initargs=about, **kwargs)
            started.add(self._workers)
            return found

    joblib.register_parallel_backend("loky", Backend)

    def leave() -> None:
        joblib.register_parallel_backend("loky", before)
        for workers in started:
            workers.terminate()  # also removes joblib's temporary folders

    return leave


def _begin(name: str, strict: bool, least: int | None, file: str, owner: int) -> None:
    """In a worker: attach to the cluster, and turn accel on. If the cluster cannot be used, the log says why.

    It raises nothing, because joblib ends all workers if one does not begin.
    """
    from xpulab.acceleration._log import Log
    from xpulab.acceleration._state import Acceleration

    excuse = ""
    try:
        XPUCluster.attach(name).display = "none"
    except (XpulabError, OSError) as error:
        first = str(error).partition("\n")[0]
        excuse = f"this worker could not attach to the cluster of process {owner}: {first}"
    Acceleration(strict, least, excuse, Log(Path(file), owner)).on()
