"""ipyparallel's classes as a cluster uses them. Only what starts engines or connects to them waits for its import."""

from __future__ import annotations

import contextlib
import logging
import subprocess
from pathlib import Path
from typing import Any

import ipyparallel as ipp
from ipyparallel.cluster.launcher import LocalControllerLauncher, MPIEngineSetLauncher

__all__ = ["Client", "controls"]

# ipyparallel warns if a process ends with a status other than 0, as stopped engines do. `Processes.logs` shows users
# the relevant lines.
_SILENT = logging.getLogger("xpulab.deploy.processes.parallel")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class Client(ipp.Client):  # type: ignore[misc]
    """A client that registers no magics, because ipyparallel's ``%px`` has other variables than ``%%xpu``."""

    def activate(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


class _Quiet:
    """Keeps the process's log file, which ipyparallel would log and remove, and prints no traceback when it ends."""

    def _log_output(self, stop_data: Any = None) -> None:
        pass

    def _wait(self) -> None:
        # ipyparallel's thread sees the end of the process, and then waits no time for it, once more.
        with contextlib.suppress(subprocess.TimeoutExpired):
            super()._wait()  # type: ignore[misc]


class _Controller(_Quiet, LocalControllerLauncher):  # type: ignore[misc]
    pass


class _Engines(_Quiet, MPIEngineSetLauncher):  # type: ignore[misc]
    pass


def controls(folder: Path) -> Any:
    """Return the `ipyparallel.Cluster` that starts the controller and the engines of the cluster with this folder."""
    return ipp.Cluster(
        engines=_Engines,
        controller=_Controller,
        profile_dir=str(folder),
        load_profile=False,
        log=_SILENT,
        cluster_id="",
        cluster_file="",  # attaching processes read the connection files; no cluster file is needed
        shutdown_atexit=False,
    )
