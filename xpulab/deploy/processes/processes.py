"""The processes of a cluster, whichever process has started them: connect to them, watch them, end them.

This module does not know what the engines compute.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from xpulab.deploy.mpi import choice
from xpulab.deploy.mpi.command import DEFAULT, ending
from xpulab.deploy.processes.record import Record, runs
from xpulab.deploy.remote.messages import Lost
from xpulab.deploy.watch.descendants import end_descendants, kill, running
from xpulab.deploy.watch.leftovers import remove_leftovers
from xpulab.exceptions import ClusterError
from xpulab.sharing.descriptions import EngineDescription, HelperDescription
from xpulab.sharing.folder import BOARD
from xpulab.sharing.owner import RECORD
from xpulab.sharing.transcript import mark_of

__all__ = ["JOB", "RELAY", "Ended", "Processes"]

#: Names of two processes among those that are watched: the relay connects the hosts of a cluster, and the keeper keeps
#: the job that xpulab has submitted for it.
RELAY, JOB = "relay", "job"

_RELAYED = 3.0  # seconds in which the relay notices that an engine has ended, and which was the first
_RELAY_GRACE = 6.0  # seconds that the relay and the agents have to end all processes of other hosts
_JOB_GRACE = 15.0  # seconds that a scheduler has to end a job
_MPIEXEC_GRACE = 2.0  # seconds that an mpiexec has to end the ranks by itself


_KNOCK = 1.0  # seconds to wait for the controller's first answer before asking again


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
        self._seen_first = threading.Event()
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
            self.watch([fact.pid for fact in self.record.facts if fact.here])
            self._connect(deadline)
            while len(self.client.ids) < len(self.record.facts):
                self._still_starting(deadline)
                time.sleep(0.02)
        except BaseException as error:
            words = self.logs()
            self.leave()
            if isinstance(error, (Ended, OSError, TimeoutError)):
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
        from xpulab.deploy.processes.parallel import Client

        connection = self.folder / "security" / "ipcontroller-client.json"
        while self.client is None:
            try:
                if connection.read_text().endswith("}"):  # the file may be half written
                    self.client = Client(str(connection), timeout=_KNOCK, ipython_dir=str(self.folder))
                    break
            except OSError as error:  # no file, in ipyparallel's words, too, or a busy controller, which answers later
                if error.errno and not isinstance(error, FileNotFoundError | TimeoutError):
                    raise
            self._still_starting(deadline)  # raises an error if the controller has ended, which takes its file along
            time.sleep(0.02)
        self.client.session.digest_history_size = 0  # as on the engines

    def _still_starting(self, deadline: float) -> None:
        ended = self.ended()
        if ended:
            ranks = self._ends_of_ranks() if ended == "mpiexec" else ""
            raise Ended(f"{ended} ended while the cluster was starting{ranks and f' ({ranks})'}; its log:")
        if time.monotonic() > deadline:
            raise Ended("the engines were not ready in time; their log so far:")

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
                self._seen_first.set()

        def wait() -> None:
            poll = select.poll()
            for descriptor in descriptors:
                poll.register(descriptor, select.POLLIN)
            ended = [descriptors[descriptor] for descriptor, _ in poll.poll()]
            self.first_gone += ended
            self._seen_first.set()
            for descriptor in descriptors:
                os.close(descriptor)
            end_descendants(self.folder, pids)

        threading.Thread(target=wait, name="xpulab-watch", daemon=True).start()

    def board(self, facts: Sequence[EngineDescription]) -> tuple[str, HelperDescription | None]:
        """Return `Board.path` of this host, and the helper rank; None if there is none."""
        if RELAY not in self._watched:
            return facts[0].board, None
        about = json.loads((self.folder / BOARD).read_text())
        return about["path"], about["helper"] and HelperDescription(**about["helper"])

    def lost_on_hosts(self) -> Lost | None:
        """Return what relay or keeper say that was lost; None if they say nothing."""
        tellers = [self._watched[name][1] for name in (RELAY, JOB) if name in self._watched]
        if not tellers:
            return None
        poll = select.poll()
        for descriptor in tellers:
            poll.register(descriptor, select.POLLIN)
        # One engine's end takes all others along, and the relay sees which was first.
        ended = {descriptor for descriptor, _ in poll.poll(1000 * _RELAYED)}
        if lost := Lost.read(self.folder):
            return lost
        if RELAY in self._watched and self._watched[RELAY][1] in ended:  # it was killed: it writes before it ends
            return Lost("the relay, which connects the hosts, ended")
        return None

    def await_first_gone(self) -> None:
        """Wait until it is seen which of the engines on this host ended first, after mpiexec, and so all, ended."""
        self._seen_first.wait(2)

    def await_mpi(self) -> None:
        """Wait for the end of mpiexec, which ends the other engines after one has ended, and logs the cause."""
        if (mpiexec := self._watched.get("mpiexec")) is not None:
            poll = select.poll()
            poll.register(mpiexec[1], select.POLLIN)
            poll.poll(2000)

    def cause(self, fact: EngineDescription | HelperDescription, by_itself: bool = False) -> str:
        """Return why an engine ended, from mpiexec's log: ``": killed by signal: 9 (killed)"``, or "".

        If it must have ended `by_itself`, "" if it was killed: mpiexec kills the engines that are left after one has
        ended, and may name these.
        """
        found = self._mpi.cause(self.logs(200), fact.mpi_rank, fact.pid)
        return f": {found}" if found and not (by_itself and found == ending(signal.SIGKILL)) else ""

    def _ends_of_ranks(self) -> str:
        """Return how ranks have ended, from mpiexec's log: those that it has not killed, if there are any; or ""."""
        every = {rank: status for rank, status in self._mpi.statuses(self.logs(200))[0].items() if status}
        found = {rank: status for rank, status in every.items() if status != signal.SIGKILL} or every
        return ", ".join(f"rank {rank} {ending(status)}" for rank, status in found.items())

    def mpiexec_was_killed(self) -> bool:
        """Return whether a signal has ended mpiexec, and with it the ranks.

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
        """Return mpiexec's exit status, negative for a signal; None if it runs, or another process has started it."""
        return None

    def ended(self) -> str:
        """Return the name of a process of the cluster that has ended; "" if all run."""
        if self.first_gone:
            return "an engine"
        poll = select.poll()
        for _, descriptor in self._watched.values():
            poll.register(descriptor, select.POLLIN)
        gone = {descriptor for descriptor, _ in poll.poll(0)}
        return next((name for name, (_, descriptor) in self._watched.items() if descriptor in gone), "")

    def pids(self) -> list[int]:
        """Return the pids of all running processes of the cluster."""
        return [pid for name in self._watched for pid in self._pids_of(name)]

    def _pids_of(self, name: str) -> list[int]:
        """Return the pids of the process watched under this name and of its children."""
        if name not in self._watched:
            return []
        try:
            process = psutil.Process(self._watched[name][0])
            return [process.pid, *(child.pid for child in process.children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def logs(self, lines: int = 40) -> str:
        """Return the last log lines of controller, mpiexec and engines, and what the ranks printed in the last cell.

        After `stop`, these are the last lines before it.
        """
        parts = []
        with contextlib.suppress(FileNotFoundError):  # another thread has just stopped them, and removes the folder
            for path in sorted((self.folder / "log").glob("*.log")):
                last = path.read_text(errors="replace").replace(mark_of(path), "\n").splitlines()[-lines:]
                if last or not path.name.startswith("rank-"):
                    parts.append(f"--- {path.name.partition('.')[0]}\n" + "\n".join(last))
        return "\n".join(parts) if self.folder.exists() else self._last_words

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


class Ended(Exception):
    """A process ended, or was not ready in time."""
