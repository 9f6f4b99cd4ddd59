"""Start and stop the processes of a cluster: ipyparallel's controller, and one engine per rank through mpiexec.

This module does not know what the engines compute. `xpulab.deploy.processes.settings` has what it tells ipyparallel.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import ipyparallel as ipp
import psutil
from ipyparallel.cluster.launcher import LocalControllerLauncher, MPIEngineSetLauncher

from xpulab._version import __version__
from xpulab.deploy.launchers.scheduler import JobEnded
from xpulab.deploy.mpi import choice
from xpulab.deploy.mpi.command import DEFAULT, LIBMPI, Command, ending
from xpulab.deploy.network.ports import Ports
from xpulab.deploy.plan.plan import Plan
from xpulab.deploy.processes.record import Record, identity, runs
from xpulab.deploy.processes.settings import controller_settings, engine_settings
from xpulab.deploy.remote import relay
from xpulab.deploy.watch.descendants import end_descendants, kill, running
from xpulab.deploy.watch.leftovers import remove_leftovers
from xpulab.deploy.watch.starting import Starting
from xpulab.exceptions import ClusterError, ClusterStartError
from xpulab.sharing.folder import ALONE, BOARD
from xpulab.sharing.owner import RECORD
from xpulab.sharing.program import program
from xpulab.sharing.transcript import RAISED

__all__ = ["JOB", "RELAY", "Launched", "Processes"]

#: Names of two processes among those that are watched: the relay connects the hosts of a cluster, and the keeper keeps
#: the job that xpulab has submitted for it.
RELAY, JOB = "relay", "job"

_RELAYED = 1.0  # seconds in which the relay notices that an engine has ended
_RELAY_GRACE = 6.0  # seconds that the relay and the agents have to end all processes of other hosts
_JOB_GRACE = 15.0  # seconds that a scheduler has to end a job
_MPIEXEC_GRACE = 2.0  # seconds that an mpiexec has to end the ranks by itself


# ipyparallel warns if a process ends with a status other than 0, as stopped engines do. `Processes.logs` shows users
# the relevant lines.
_SILENT = logging.getLogger("xpulab.deploy.processes.processes")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


_KNOCK = 1.0  # seconds to wait for the controller's first answer before asking again


class _Quiet:
    """Keeps the process's log file, which ipyparallel would log and remove, and prints no traceback when it ends."""

    def _log_output(self, stop_data: Any = None) -> None:
        pass

    def _wait(self) -> None:
        # ipyparallel's thread sees the end of the process, and then waits no time for it, once more.
        with contextlib.suppress(subprocess.TimeoutExpired):
            super()._wait()  # type: ignore[misc]


class _Controller(_Quiet, LocalControllerLauncher):
    pass


class _Engines(_Quiet, MPIEngineSetLauncher):
    pass


class _Client(ipp.Client):
    """A client that registers no magics, because ipyparallel's ``%px`` has other variables than ``%%xpu``."""

    def activate(self, *_: Any, **__: Any) -> None:
        pass


class Processes:
    """The processes of a cluster that this or another process started.

    Parameters
    ----------
    record : Record
        Record of the cluster.

    Attributes
    ----------
    folder : pathlib.Path
        Private (0700) folder with connection files and logs; removed by `stop`.
    client : ipyparallel.Client
        The connection to the engines.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.folder = Path(record.folder)
        self.client: Any = None
        #: The module of the MPI that has started the engines.
        self._mpi: ModuleType = choice.module(record.settings.get("mpi", DEFAULT))
        self._watched: dict[str, tuple[int, int]] = {}  # name -> pid, pidfd
        #: Pids of the engines that ended first. These were lost; mpiexec then ends the other engines.
        self.first_gone: list[int] = []
        #: Why the processes were ended, if engines were lost; for calls that wait in other threads.
        self.lost = ""
        self._last_words = ""

    def attach(self, timeout: float) -> None:
        """Connect to processes that another process started.

        Parameters
        ----------
        timeout : float
            Seconds to wait for an answer.

        Raises
        ------
        ClusterError
            If the processes do not answer.
        """
        deadline = time.monotonic() + timeout
        try:
            for name, (pid, started) in self.record.processes.items():
                self._watched[name] = (pid, os.pidfd_open(pid))
                if not runs(pid, started):
                    raise ProcessLookupError(f"the {name} has ended")
            self.watch([fact["pid"] for fact in self.record.facts if fact["here"]])
            self._connect(deadline)
            while len(self.client.ids) < len(self.record.facts):
                self._still_starting(deadline)
                time.sleep(0.02)
        except BaseException as error:
            words = self.logs()
            self.leave()
            if isinstance(error, (_Ended, OSError, TimeoutError)):
                raise ClusterError(
                    f"the cluster {self.record.name} does not answer ({error}); type: {self.record.to_start}\n{words}"
                ) from None
            raise

    def find(self) -> None:
        """Watch the running processes, so that `stop` can end them even if they no longer answer."""
        for name, (pid, started) in self.record.processes.items():
            if runs(pid, started):
                with contextlib.suppress(ProcessLookupError):
                    self._watched[name] = (pid, os.pidfd_open(pid))

    def _connect(self, deadline: float) -> None:
        connection = self.folder / "security" / "ipcontroller-client.json"
        while not connection.exists() or not connection.read_text().endswith("}"):  # the file may be half written
            self._still_starting(deadline)
            time.sleep(0.02)
        while self.client is None:
            try:
                self.client = _Client(str(connection), timeout=_KNOCK, ipython_dir=str(self.folder))
            except (
                TimeoutError
            ):  # a busy controller answers the next time; if it has ended, _still_starting raises an error
                self._still_starting(deadline)
        self.client.session.digest_history_size = 0  # as on the engines

    def _still_starting(self, deadline: float) -> None:
        ended = self.ended()
        if ended:
            ranks = self._ends_of_ranks() if ended == "mpiexec" else ""
            raise _Ended(f"{ended} ended while the cluster was starting{ranks and f' ({ranks})'}; its log:")
        if time.monotonic() > deadline:
            raise _Ended("the engines were not ready in time; their log so far:")

    def require_started(self) -> None:
        """End the start if ranks that have not described themselves yet were lost or stopped, or take too long."""

    @property
    def launcher(self) -> int:
        """The pid of mpiexec, which is an ancestor of the engines."""
        return self._watched["mpiexec"][0]

    def watch(self, pids: list[int]) -> None:
        """Note which of the engines' processes ends first. mpiexec then ends the others within milliseconds.

        Nothing but this process ends what users' code has started on them.
        """
        descriptors = {}
        for pid in pids:
            try:
                descriptors[os.pidfd_open(pid)] = pid
            except ProcessLookupError:
                self.first_gone.append(pid)

        def wait() -> None:
            poll = select.poll()
            for descriptor in descriptors:
                poll.register(descriptor, select.POLLIN)
            ended = [descriptors[descriptor] for descriptor, _ in poll.poll()]
            self.first_gone += ended
            for descriptor in descriptors:
                os.close(descriptor)
            end_descendants(self.folder, pids)

        threading.Thread(target=wait, name="xpulab-watch", daemon=True).start()

    def board(self, facts: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any] | None]:
        """The board of this host, and the helper rank: ``rank``, ``pid``, ``host``, ``here``; None if there is none."""
        if RELAY not in self._watched:
            return facts[0]["board"], None
        about = json.loads((self.folder / BOARD).read_text())
        return about["path"], about["helper"] and {**about["helper"], "here": True}

    def lost_on_hosts(self) -> dict[str, Any] | None:
        """What relay or keeper say that was lost: ``ranks`` that ended first, or ``why``; None if they say nothing."""
        tellers = [self._watched[name][1] for name in (RELAY, JOB) if name in self._watched]
        if not tellers:
            return None
        poll = select.poll()
        for descriptor in tellers:
            poll.register(descriptor, select.POLLIN)
        # One engine's end takes all others along, and the relay sees which was first.
        ended = {descriptor for descriptor, _ in poll.poll(1000 * _RELAYED)}
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.folder / relay.LOST).read_text())
            return found
        if RELAY in self._watched and self._watched[RELAY][1] in ended:  # it was killed: it writes before it ends
            return {"why": "the relay, which connects the hosts, ended", "ranks": []}
        return None

    def await_mpi(self) -> None:
        """Wait for the end of mpiexec, which ends the other engines after one has ended, and logs the cause."""
        poll = select.poll()
        for name, (_, descriptor) in list(self._watched.items()):
            if name == "mpiexec":
                poll.register(descriptor, select.POLLIN)
        poll.poll(2000)

    def cause(self, fact: Mapping[str, Any]) -> str:
        """Why an engine ended, from mpiexec's log: ``": killed by signal: 9 (Killed)"``, or ""."""
        found = self._mpi.cause(self.logs(200), fact.get("mpi_rank", fact["rank"]), fact["pid"])
        return f": {found}" if found else ""

    def _ends_of_ranks(self) -> str:
        """How ranks have ended, from mpiexec's log: only those that it has not killed, if there are any; or ""."""
        every = {rank: status for rank, status in self._mpi.statuses(self.logs(200))[0].items() if status}
        found = {rank: status for rank, status in every.items() if status != signal.SIGKILL} or every
        return ", ".join(f"rank {rank} {ending(status)}" for rank, status in found.items())

    def mpiexec_was_killed(self) -> bool:
        """Whether a signal has ended mpiexec, and with it the ranks.

        A process that has not started mpiexec goes by the log: mpiexec logs how ranks ended.
        """
        if "mpiexec" not in self._watched:
            return False
        if (status := self._status_of_mpiexec()) is not None:
            return status < 0
        poll = select.poll()
        poll.register(self._watched["mpiexec"][1], select.POLLIN)
        return bool(poll.poll(0)) and not self._ends_of_ranks()

    def _status_of_mpiexec(self) -> int | None:
        """The exit status of mpiexec, negative for a signal; None if it runs, or another process has started it."""
        return None

    def ended(self) -> str:
        """Name of a process of the cluster that has ended; "" if all run."""
        if self.first_gone:
            return "an engine"
        poll = select.poll()
        for _, descriptor in self._watched.values():
            poll.register(descriptor, select.POLLIN)
        gone = {descriptor for descriptor, _ in poll.poll(0)}
        return next((name for name, (_, descriptor) in self._watched.items() if descriptor in gone), "")

    def pids(self) -> list[int]:
        """Pids of all running processes of the cluster."""
        return [pid for name in self._watched for pid in self._pids_of(name)]

    def _pids_of(self, name: str) -> list[int]:
        """Pids of the process watched under this name and of its children."""
        if name not in self._watched:
            return []
        try:
            process = psutil.Process(self._watched[name][0])
            return [process.pid, *(child.pid for child in process.children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def logs(self, lines: int = 40) -> str:
        """Last log lines of the controller, mpiexec and the engines, and what the ranks printed in the last cell.

        After `stop`, these are the last lines before it.
        """
        if not self.folder.exists():
            return self._last_words
        parts = []
        for path in sorted((self.folder / "log").glob("*.log")):
            last = path.read_text(errors="replace").replace(RAISED, "\n").splitlines()[-lines:]
            if last or not path.name.startswith("rank-"):
                parts.append(f"--- {path.name.partition('.')[0]}\n" + "\n".join(last))
        return "\n".join(parts)

    def leave(self) -> None:
        """Disconnect from the processes, which keep running. May be called twice."""
        if self.client is not None:
            with contextlib.suppress(Exception):
                self.client.close(linger=0)
            self.client = None
        for _, descriptor in self._watched.values():
            os.close(descriptor)
        self._watched.clear()

    def stop(self, on_purpose: bool = True, keep_job: bool = False) -> None:
        """End every process within seconds, and remove the folder. May be called twice.

        Parameters
        ----------
        on_purpose : bool
            If False, the folder is kept, so that other processes learn that the cluster was lost and not stopped.
        keep_job : bool
            Whether a job that xpulab has submitted for the cluster goes on.
        """
        if on_purpose:  # first, so that no process attaches any more
            (self.folder / RECORD).unlink(missing_ok=True)
        self._end_mpiexec()
        if RELAY in self._watched:  # it has the processes of other hosts ended
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._watched[RELAY][0], signal.SIGTERM)
        # The processes have no state to save. Killing them takes 0.1 s; asking them to end would take 2 s.
        pids = [pid for name in self._watched if name not in (RELAY, JOB) for pid in self._pids_of(name)]
        kill(running(pids))
        end_descendants(self.folder)
        self._await(RELAY, _RELAY_GRACE)
        if JOB in self._watched and not keep_job:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._watched[JOB][0], signal.SIGTERM)
            self._await(JOB, _JOB_GRACE)
        self.leave()
        if on_purpose:
            self._last_words = self.logs()
            shutil.rmtree(self.folder, ignore_errors=True)
        remove_leftovers()

    def _end_mpiexec(self) -> None:
        """Have an mpiexec end the ranks that would leave files behind if it were killed."""
        if "mpiexec" not in self._watched or not self._mpi.LEAVES_FILES:
            return
        pid, descriptor = self._watched["mpiexec"]
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            for process in psutil.Process(pid).children(recursive=True):
                if "xpulab.engine" in process.cmdline():  # mpiexec would give it a second to end
                    process.kill()
            os.kill(pid, signal.SIGTERM)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(1000 * _MPIEXEC_GRACE)

    def _await(self, name: str, seconds: float) -> None:
        """Wait until relay or keeper have ended what they have started, and kill them if they do not."""
        if name not in self._watched:
            return
        poll = select.poll()
        poll.register(self._watched[name][1], select.POLLIN)
        if not poll.poll(1000 * seconds):
            for each in self._pids_of(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)


class Launched(Processes):
    """The processes of a cluster that this process starts.

    Parameters
    ----------
    owner : int
        Pid of the process with which all of them end unless it detaches the cluster; 0 for none.
    name : str, optional
        Name under which other processes find the cluster.
    silence : float
        Seconds that an engine may stand still while it starts.
    hosts : bool
        Whether engines may run on other hosts.
    """

    def __init__(self, owner: int, name: str | None = None, *, silence: float, hosts: bool = False) -> None:
        super().__init__(Record.create(name, owner, __version__, hosts))
        self._owner = owner
        self._silence = silence
        self._relay: subprocess.Popen[bytes] | None = None
        self._starting = Starting(silence)
        self._deadline = float("inf")  # of the start
        self._cluster = ipp.Cluster(
            engines=_Engines,
            controller=_Controller,
            profile_dir=str(self.folder),
            load_profile=False,
            log=_SILENT,
            cluster_id="",
            cluster_file="",  # attaching processes read the connection files; no cluster file is needed
            shutdown_atexit=False,
        )

    def keep_job(self, pid: int) -> None:
        """Watch the keeper of the job in which the engines run; `stop` then has the job ended.

        Parameters
        ----------
        pid : int
            Pid of the keeper.
        """
        self._watched[JOB] = (pid, os.pidfd_open(pid))

    def start_relay(self, plan: Plan, ssh_config: str | None, mpi: str) -> None:
        """Start the relay, which starts the agents of the other hosts. Does nothing without other hosts.

        Parameters
        ----------
        plan : Plan
        ssh_config : str or None
            File with ssh's configuration.
        mpi : str
            Name of the MPI.
        """
        if not plan.interface:
            return
        options = {
            "hosts": list(dict.fromkeys(rank.address for rank in plan.ranks if rank.address)),
            "ssh_config": ssh_config,
            "job": asdict(plan.job) if plan.job else None,
            "owner": self._owner,
            "interface": plan.interface,
            "mpi": mpi,
            "helped": bool(plan.helper),
            "limit": relay.LIMIT,
            "silence": self._silence,
        }
        (self.folder / relay.OPTIONS).write_text(json.dumps(options))
        (self.folder / "log").mkdir(exist_ok=True)
        with open(self.folder / "log" / "relay.log", "wb") as log:
            self._relay = subprocess.Popen(
                program("xpulab.deploy.remote.relay", str(self.folder)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C must not reach it
            )
        self._watched[RELAY] = (self._relay.pid, os.pidfd_open(self._relay.pid))

    def start_controller(self, address: str, ports: Ports | None = None) -> None:
        """Start the controller without waiting for it. `start` waits until it is ready.

        Parameters
        ----------
        address : str
            Address of this host at which engines of other hosts reach it; empty if there are none.
        ports : Ports, optional
            Ports on which it listens there; by default any.
        """
        self._cluster.update_config(controller_settings(self.folder, self._owner, address, ports))
        self._cluster.start_controller_sync()
        pid = self._cluster.controller.process.pid
        self._watched["controller"] = (pid, os.pidfd_open(pid))

    def start_engines(self, n: int, variables: Mapping[str, str], command: Command, helped: bool = False) -> None:
        """Start mpiexec and the engines without waiting for them, before their devices are chosen.

        The engines import the modules that do not depend on the device, and wait until `start` tells them their device.

        Parameters
        ----------
        n : int
            Number of engines, with the helper rank.
        variables : mapping of str to str
            The user's environment variables for all engines.
        command : Command
            MPI's command line.
        helped : bool
            Whether one of the ranks is the helper rank.
        """
        self._mpi = choice.module(command.mpi)
        self._cluster.update_config(
            engine_settings(self.folder, self._owner, variables, command, n, self._relay is not None, helped)
        )
        self._cluster.start_engines_sync(n)
        pid = self._cluster.engine_set.process.pid
        self._watched["mpiexec"] = (pid, os.pidfd_open(pid))

    @contextlib.contextmanager
    def start(self, plan: Plan, command: Command, timeout: float, progress: Callable[[str], None]) -> Iterator[None]:
        """Start the engines if they were not started before, tell each its device, and wait until every rank is ready.

        The start ends with the context, in which the ranks describe themselves; `require_started` is for this wait.

        Parameters
        ----------
        plan : Plan
        command : Command
            MPI's command line.
        timeout : float
            Seconds after which the start fails.
        progress : callable
            Called with a text for each step.

        Raises
        ------
        ClusterStartError
            If an engine does not start; the message has the logs, and no process is left running.
        JobEnded
            If the job has ended in which engines were to run.
        """
        self._deadline = time.monotonic() + timeout
        n = len(plan.ranks)
        try:
            progress("starting mpiexec and the engines")
            self._place(plan)
            if "mpiexec" not in self._watched:
                self.start_engines(plan.n_processes, plan.environment_of_all, command, bool(plan.helper))
            self._connect(self._deadline)
            known = -1
            while len(self.client.ids) < n:
                if len(self.client.ids) != known:
                    known = len(self.client.ids)
                    progress(f"{known} of {n} engines are ready")
                self._still_starting(self._deadline)
                time.sleep(0.02)
            yield
        except BaseException as error:
            words, alone = self.logs(), self._alone()
            lost = self.lost_on_hosts() if isinstance(error, _Ended) else None
            self.stop()
            if isinstance(error, _Ended) and alone:
                raise ClusterStartError(alone) from None
            if lost and lost.get("job"):
                raise JobEnded(lost["why"]) from None
            if isinstance(error, _Ended):
                what = f"{lost['why']}; the log of all processes:" if lost and lost["why"] else str(error)
                cure = "to look for a cause, type: %xpu_cluster doctor"
                if command.own_library:
                    named = f"{LIBMPI} names {command.environment[LIBMPI]}"
                    cure = f"{named}, which may not go with {command.words[0]}; {cure}"
                raise ClusterStartError(f"{what}\n{words}\n{cure}") from None
            raise

    def _place(self, plan: Plan) -> None:
        """Write the file that the engines wait for, with the variables, cores and device of each rank."""
        ranks = [
            {"environment": plan.environment(p.rank), "cores": list(p.cores), "selector": p.selector}
            for p in plan.ranks
        ]
        whole = self.folder / "placements.json"
        part = whole.with_suffix(".part")
        part.write_text(json.dumps(ranks))
        part.rename(whole)

    def require_started(self) -> None:
        self._still_starting(self._deadline)

    def _status_of_mpiexec(self) -> int | None:
        with contextlib.suppress(psutil.Error):
            status: int | None = self._cluster.engine_set.process.wait(0)
            return status
        return None

    def _alone(self) -> str:
        """What a rank has written if mpiexec and the library of MPI do not belong together; otherwise ""."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / ALONE).read_text()
        return ""

    def _still_starting(self, deadline: float) -> None:
        super()._still_starting(deadline)
        if self._alone():
            raise _Ended
        if what := self._starting.lost(lambda: self._pids_of("mpiexec")):
            raise _Ended(f"{what} while the cluster was starting; the log of all processes:")

    def publish(self, **about: Any) -> None:
        """Complete the record with which other processes of this user find the cluster, after it has started.

        Parameters
        ----------
        **about : Any
            Further attributes of the record.
        """
        pids = {name: identity(pid) for name, (pid, _) in self._watched.items()}
        self.record = self.record.write(processes=pids, **about)

    def leave(self) -> None:
        """Disconnect from the processes, which keep running or have been stopped."""
        super().leave()
        launchers = (self._cluster.controller, self._cluster.engine_set)
        processes = [getattr(launcher, "_popen_process", None) for launcher in launchers]
        _let_go.extend(each for each in (self._relay, *processes) if each is not None and each.poll() is None)


class _Ended(Exception):
    """A process ended, or was not ready in time."""


#: Detached processes, which keep running after this one. The list keeps the Popen objects, because Python warns if it
#: deletes the Popen of a running process.
_let_go: list[Any] = []
