"""Start and stop the processes of a cluster: ipyparallel's controller, and one engine a rank through mpiexec.

Nothing here knows what the engines compute. The settings that make a start quick are gathered in `settings`, a pure
function, so that a test reads them without starting anything.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipyparallel as ipp
import psutil
from traitlets.config import Config

from xpulab import oneapi
from xpulab.deploy.plan import Plan
from xpulab.exceptions import ClusterStartError

__all__ = ["Processes", "settings"]

_STOP_GRACE = 1.5  # seconds between asking a process to end and ending it


def settings(plan: Plan, folder: Path, owner: int) -> Config:
    """ipyparallel's settings for a local cluster.

    Parameters
    ----------
    plan : Plan
        One placement a rank.
    folder : pathlib.Path
        Private folder of the cluster: connection files and logs.
    owner : int
        Process with which the cluster ends; 0 for none.
    """
    ranks = [
        {"environment": plan.environment(p.rank), "cores": list(p.cores), "selector": p.selector} for p in plan.ranks
    ]
    config = Config()
    config.Cluster.load_profile = False
    # The engines import their packages while the controller starts, and then wait for its connection file.
    config.Cluster.send_engines_connection_env = False
    config.Cluster.delay = 0
    config.LocalControllerLauncher.controller_cmd = [sys.executable, "-m", "xpulab.deploy.controller"]
    config.LocalControllerLauncher.controller_args = [
        "--ip=127.0.0.1",
        # One process and its threads instead of seven processes.
        "--IPController.use_threads=True",
        "--TaskScheduler.scheme_name=none",
        # One scheduler hands every SPMD task to all engines: one order everywhere, whoever sends.
        "--IPController.broadcast_scheduler_depth=0",
        # An engine counts as registered after two beats (3 s each by default). A stopped process is not a lost one:
        # the board and mpiexec tell about the engines, so that the controller never drops any by itself.
        "--HeartMonitor.period=250",
        "--HeartMonitor.max_heartmonitor_misses=1000000",
        # Results are not stored: nothing stays in the controller.
        "--IPController.db_class=NoDB",
    ]
    config.LocalControllerLauncher.environment = {"XPULAB_OWNER": str(owner)}
    config.MPIEngineSetLauncher.mpi_cmd = [str(oneapi.mpiexec())]
    config.MPIEngineSetLauncher.mpi_args = list(oneapi.MPIEXEC_ARGUMENTS)
    config.MPIEngineSetLauncher.engine_cmd = [sys.executable, "-m", "xpulab.engine"]
    config.MPIEngineSetLauncher.engine_args = [
        "--IPEngine.enable_nanny=False",  # a process an engine, for signals that the board makes unnecessary
        "--IPEngine.init_mpi=",
    ]
    config.MPIEngineSetLauncher.environment = {
        **oneapi.MPIEXEC_ENVIRONMENT,
        "XPULAB_ENGINE": json.dumps(
            {"owner": owner, "ranks": ranks, "connection": str(folder / "security" / "ipcontroller-engine.json")}
        ),
    }
    return config


# ipyparallel logs all that a process said when it ends with a status other than 0, as engines that are stopped do;
# what a user should see of it, `Processes.logs` has.
_SILENT = logging.getLogger("xpulab.deploy.launch")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class Processes:
    """The processes of one cluster.

    Parameters
    ----------
    plan : Plan
    owner : int
        Process with which all of them end; 0 for none.

    Attributes
    ----------
    folder : pathlib.Path
        Private (0700) folder with connection files and logs; removed by `stop`.
    client : ipyparallel.Client
    """

    def __init__(self, plan: Plan, owner: int) -> None:
        self.plan = plan
        self.folder = Path(tempfile.mkdtemp(prefix="xpulab-", dir=_runtime_folder()))
        self._cluster = ipp.Cluster(
            n=len(plan.ranks),
            engines="mpi",
            config=settings(plan, self.folder, owner),
            profile_dir=str(self.folder),
            load_profile=False,
            log=_SILENT,
            cluster_id="",
            cluster_file="",  # who attaches finds the connection files; nothing else needs to know of this cluster
            shutdown_atexit=False,
        )
        self.client: Any = None
        self._watched: dict[str, tuple[int, int]] = {}  # name -> pid, pidfd
        #: Engines in the order in which they ended, as long as the others had not: the first is the one that was lost.
        self.first_gone: list[int] = []
        #: Why the cluster gave them up, if it did: for those who wait in other threads.
        self.lost = ""

    def start(self, timeout: float, progress: Callable[[str], None]) -> None:
        """Start everything and wait until every rank answers.

        Raises
        ------
        ClusterStartError
            With the words of mpiexec and of the engines; nothing is left running.
        """
        deadline = time.monotonic() + timeout
        n = len(self.plan.ranks)
        try:
            progress("starting the controller and mpiexec")
            self._cluster.start_controller_sync()
            self._cluster.start_engines_sync(n)
            for name, launcher in (("controller", self._cluster.controller), ("mpiexec", self._cluster.engine_set)):
                self._watched[name] = (launcher.process.pid, os.pidfd_open(launcher.process.pid))
            self._connect(deadline)
            known = -1
            while len(self.client.ids) < n:
                if len(self.client.ids) != known:
                    known = len(self.client.ids)
                    progress(f"{known} of {n} engines are ready")
                self._still_starting(deadline)
                time.sleep(0.02)
        except BaseException as error:
            words = self.logs()
            self.stop()
            if isinstance(error, _Ended):
                raise ClusterStartError(f"{error}\n{words}") from None
            raise

    def _connect(self, deadline: float) -> None:
        connection = self.folder / "security" / "ipcontroller-client.json"
        while not connection.exists() or not connection.read_text().endswith("}"):  # it may be half written
            self._still_starting(deadline)
            time.sleep(0.02)
        self.client = ipp.Client(str(connection), timeout=max(1.0, deadline - time.monotonic()))

    def _still_starting(self, deadline: float) -> None:
        ended = self.ended()
        if ended:
            raise _Ended(f"{ended} ended while the cluster was starting; its words:")
        if time.monotonic() > deadline:
            raise _Ended("the engines were not ready in time; their words so far:")

    def watch(self, pids: list[int]) -> None:
        """Note which of the engines' processes ends first: mpiexec then ends the others within milliseconds."""
        descriptors = {os.pidfd_open(pid): pid for pid in pids}

        def wait() -> None:
            poll = select.poll()
            for descriptor in descriptors:
                poll.register(descriptor, select.POLLIN)
            self.first_gone += [descriptors[descriptor] for descriptor, _ in poll.poll()]
            for descriptor in descriptors:
                os.close(descriptor)

        threading.Thread(target=wait, name="xpulab-watch", daemon=True).start()

    def cause(self, pid: int) -> str:
        """What mpiexec says of the end of the engine with this process: ``": killed by signal: 9 (Killed)"``, or ""."""
        poll = select.poll()
        for name, (_, descriptor) in list(self._watched.items()):
            if name == "mpiexec":
                poll.register(descriptor, select.POLLIN)
        poll.poll(2000)  # it ends the other engines, says why, and ends
        found = re.search(rf"PID {pid} .*\n=\s+(.*)", self.logs(200))
        return f": {found[1].lower()}" if found else ""

    def ended(self) -> str:
        """Name of a process that is gone though it should run, or ""."""
        if self.first_gone:
            return "an engine"
        poll = select.poll()
        for _, descriptor in self._watched.values():
            poll.register(descriptor, select.POLLIN)
        gone = {descriptor for descriptor, _ in poll.poll(0)}
        return next((name for name, (_, descriptor) in self._watched.items() if descriptor in gone), "")

    def pids(self) -> list[int]:
        """Every process of the cluster that runs now."""
        return [pid for name in self._watched for pid in self._pids_of(name)]

    def _pids_of(self, name: str) -> list[int]:
        """The process watched under this name, and those it started."""
        if name not in self._watched:
            return []
        try:
            process = psutil.Process(self._watched[name][0])
            return [process.pid, *(child.pid for child in process.children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def logs(self, lines: int = 40) -> str:
        """Last lines of what the controller, mpiexec and the engines have said."""
        parts = []
        for path in sorted((self.folder / "log").glob("*.log")):
            last = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"--- {path.stem}\n" + "\n".join(last))
        return "\n".join(parts)

    def stop(self) -> None:
        """End every process, within seconds, and remove the folder. Harmless when repeated."""
        if self.client is not None:
            with contextlib.suppress(Exception):
                self.client.close(linger=0)
            self.client = None
        # The engines hold nothing that must be saved: ending them at once takes 0.1 s, asking them to end 2 s.
        abrupt = set(self._pids_of("mpiexec"))
        processes = [psutil.Process(pid) for pid in self.pids() if psutil.pid_exists(pid)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL if process.pid in abrupt else signal.SIGTERM)
        _, alive = psutil.wait_procs(processes, timeout=_STOP_GRACE)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=_STOP_GRACE)
        for launcher in (self._cluster.controller, self._cluster.engine_set):
            started = getattr(launcher, "_popen_process", None)
            if started is not None:
                started.poll()  # reaped above, which the object must learn, or it warns when it is collected
        for _, descriptor in self._watched.values():
            os.close(descriptor)
        self._watched.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Ended(Exception):
    """A process ended, or did not come up in time."""


def _runtime_folder() -> str | None:
    """XDG_RUNTIME_DIR where it can be used: it is private to the user, and in memory."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    return folder if folder and os.access(folder, os.W_OK) else None
