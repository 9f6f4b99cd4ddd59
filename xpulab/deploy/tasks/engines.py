"""The engines of a cluster as this process knows them, and how it notices that some of them are lost."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import replace
from datetime import datetime
from typing import Any, NoReturn, Protocol

from xpulab.advice import to_attach
from xpulab.deploy.options import StartOptions
from xpulab.deploy.processes.processes import Processes
from xpulab.deploy.processes.record import runs
from xpulab.deploy.tasks.between import Between
from xpulab.deploy.tasks.ways import Bell
from xpulab.deploy.watch.silence import SILENT, Signs, Silence, most_silence
from xpulab.exceptions import EngineLostError, NoClusterError
from xpulab.report.fit import FitReport
from xpulab.report.history import History
from xpulab.report.task import Display
from xpulab.sharing.board import Board
from xpulab.sharing.descriptions import EngineDescription, HelperDescription

__all__ = ["LOGS", "Engines", "Life", "Remembering", "not_running"]

_SAID_LATER = 1.0  # seconds in which other hosts say how their engines have ended

#: What an error without logs says about them.
LOGS = "; for the log of all processes, type: %xpu_cluster logs"


class Life(Protocol):
    """What starts and ends the engines."""

    def start(self) -> object:
        """Start the engines, if they are not running."""

    def logs(self, lines: int = 40) -> str:
        """Return the last log lines of the controller and the engines."""

    def close(self, on_purpose: bool, keep_job: bool = False) -> None:
        """End all processes of the cluster. `on_purpose` is False if another process has to learn of lost engines.

        With `keep_job`, a job that was submitted for the engines goes on, for new engines.
        """

    def abandon(self) -> None:
        """End a job that was kept for new engines which are not started. Does nothing if there is none."""

    def to_go_on(self, over: bool = False) -> str:
        """Return what to type after engines were lost for good; `over` says that their job has ended."""


class Engines:
    """The engines of a cluster as this process knows them.

    Parameters
    ----------
    options : StartOptions
        As for `XPUCluster`.

    Attributes
    ----------
    options : StartOptions
    life : Life
        Starts and ends the engines: it sets `processes` and `facts`.
    processes : Processes or None
        The processes of the cluster; None if it is not running.
    board : Board or None
        The board of this host, on which the engines write.
    facts : list of EngineDescription
        Description that each engine sent when it started, by rank.
    helper : HelperDescription or None
        Description of the helper rank, if no engine runs on this host.
    unheard : dict of int to float
        Rank -> seconds without a sign of life, for ranks that a running call has not heard for 5 s or longer.
    attached : bool
        Whether another process started the engines.
    owner : int
        The process that uses the cluster; one that is forked from it does not.
    left : str
        Name of the cluster that this process has left, and that goes on.
    job_over : bool
        Whether the job in which the engines ran has ended by itself. No call submits another one.
    interrupted : estimator or None
        The estimator whose fit was interrupted last, and can be resumed.
    said_of_interrupted : str
        The sentence about it, which says what to type.
    history : History
        The calls of this process on the cluster.
    last_report : FitReport or None
        Report of the last call of an estimator.
    replaces : bool
        Whether the engines that are being started replace engines, for a call that waits.
    sending : RLock
        Held while a task is sent, and while engines are replaced.
    """

    life: Life

    def __init__(self, options: StartOptions) -> None:
        self.options = options
        self.processes: Processes | None = None
        self.board: Board | None = None
        self.bell: Bell | None = None
        self.between: Between | None = None
        self.facts: list[EngineDescription] = []
        self.helper: HelperDescription | None = None
        self.unheard: dict[int, float] = {}
        self.attached = False
        self.owner = os.getpid()
        self.left = ""
        self.job_over = False
        self.interrupted: Any = None
        self.said_of_interrupted = ""
        self.history = History()
        self.last_report: FitReport | None = None
        self.replaces = False
        self.sending = threading.RLock()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a cluster consists of processes, and cannot be copied or pickled; use the object itself, and in another "
            f"process: xpulab.XPUCluster.attach({self.options.name or 'NAME'!r})"
        )

    def called(self, report: FitReport) -> None:
        """Note a call of an estimator that begins."""
        self.last_report = report
        self.history.add(report, datetime.now())

    @property
    def display(self) -> Display:
        """How calls are shown."""
        return self.options.display

    @display.setter
    def display(self, display: Display) -> None:
        self.options = replace(self.options, display=display)

    @property
    def running(self) -> bool:
        """Whether there are running engines."""
        return self.processes is not None

    @property
    def size(self) -> int:
        """Number of engines."""
        return len(self.facts) if self.running else 0

    @property
    def everyone(self) -> list[EngineDescription | HelperDescription]:
        """The descriptions of all engines, and of the helper rank."""
        return [*self.facts, *([] if self.helper is None else [self.helper])]

    @property
    def recovers(self) -> bool:
        """Whether calls continue after engines are lost. Only the process that started the cluster can do this."""
        return self.options.recover and not self.attached and not self.job_over

    @property
    def known_as(self) -> str:
        """The name under which other processes find the cluster; empty if it has none and is not running."""
        return (self.options.name if self.processes is None else self.processes.record.name) or ""

    def open_board(self, processes: Processes) -> None:
        """Open the board of this host, and find out about the helper rank."""
        path, self.helper = processes.board(self.facts)
        self.board = Board.open(path)
        with contextlib.suppress(FileNotFoundError):  # engines on several hosts have no bell
            self.bell = Bell(processes.folder, self.board)
        self.between = Between(processes.folder / "log", len(self.facts), not self.attached)

    def close_board(self) -> None:
        """Close the board: the engines have ended, or this process no longer uses them."""
        if self.between is not None:
            self.between.close()
            self.between = None
        if self.bell is not None:
            self.bell.close()
            self.bell = None
        if self.board is not None:
            self.board.close()
            self.board = None

    @property
    def is_forked(self) -> bool:
        """Whether this is the copy of a running cluster in a process that was forked from the one that uses it."""
        return self.processes is not None and self.owner != os.getpid()

    def require_not_forked(self) -> None:
        """Raise an error in a process that was forked from the one that uses the cluster."""
        if self.is_forked:
            raise self.forked()

    def forked(self) -> NoClusterError:
        """Return the error of a forked process that uses the cluster of its parent."""
        return NoClusterError(
            f"this process ({os.getpid()}) was forked from process {self.owner}, and only that one can use or end its "
            f"cluster {self.known_as}; to use the cluster here, too, type: xpulab.XPUCluster.attach({self.known_as!r})"
        )

    def require_running(self) -> Processes:
        """Return the processes, or raise an error if there are none, or if one of them has ended."""
        processes = self.processes
        if processes is None:
            raise not_running(self.left)
        self.require_not_forked()
        self.require_alive(processes)
        return processes

    def require_alive(self, processes: Processes) -> None:
        """Raise an error if these processes no longer belong to the cluster, or if one of them has ended."""
        if self.processes is not processes:
            if processes.lost:  # another thread has noticed that engines were lost
                raise EngineLostError(f"{processes.lost}.\ntype: {self.life.to_go_on()}", processes.lost)
            raise NoClusterError("the cluster was stopped while a task was running; type: %xpu_cluster start")
        ended = processes.ended()
        if not ended:
            return
        stopped = processes.record.stopped
        if self.processes is not processes:  # another thread has just stopped the cluster
            self.require_alive(processes)
        if stopped:
            self.life.close(on_purpose=True)
            if not runs(*processes.record.owner):
                raise NoClusterError(
                    f"the process {processes.record.owner[0]}, which had started the cluster, has ended, and the "
                    "cluster with it; type: %xpu_cluster start, with --detach for a cluster that goes on without you"
                )
            raise NoClusterError(
                "another process has stopped or restarted the cluster; type: %xpu_cluster start, or %xpu_cluster attach"
            )
        lost = processes.lost_on_hosts()
        if ended == "mpiexec" and any(fact.here for fact in self.everyone):
            processes.await_first_gone()
        gone = [fact for fact in self.everyone if fact.here and fact.pid in processes.first_gone]
        if lost is not None:
            if lost.why:
                self._give_up(processes, f"{lost.why}, so all engines were ended", lost.job)
            gone = [self.everyone[rank] for rank in lost.ranks]
        if left := self._left_by_exit(_SAID_LATER if gone and lost is None else 0.0):
            self._give_up(processes, ", ".join(left))
        if not gone:  # they are on other hosts, or had ended before this process looked
            gone = [fact for fact in self.everyone if processes.cause(fact)]
        if gone:
            processes.await_mpi()
            causes = [(fact, processes.cause(fact)) for fact in gone]
            if not any(cause for _, cause in causes):  # one that mpiexec names may have taken these along
                seen = all(fact.here for fact in self.everyone)  # no other one was killed before these
                others = [(fact, cause) for fact in self.everyone if (cause := processes.cause(fact, by_itself=seen))]
                causes = others or causes
                if processes.mpiexec_was_killed():
                    self._give_up(processes, "mpiexec ended, and so did the engines")
            self._give_up(processes, ", ".join(f"{_who(fact)} ended{cause}" for fact, cause in causes))
        self._give_up(processes, f"the {ended} ended, and so did the engines")

    def _left_by_exit(self, longest: float) -> list[str]:
        """Say of each engine that has left by `os._exit` how it has ended. The launcher has ended the others.

        If there are other hosts, wait for so many seconds: the launcher may be faster than what they say.
        """
        if self.board is None:
            return []
        until = time.monotonic() + longest * any(not fact.here for fact in self.everyone)
        while not (left := self.board.every["left"][: len(self.everyone)]).any() and time.monotonic() < until:
            time.sleep(0.02)
        ended = zip(self.everyone, left.tolist(), strict=True)
        return [f"{_who(fact)} ended: exited with status {status - 1}" for fact, status in ended if status]

    def signs(self) -> Signs:
        """Return what is read of the signs of life of the engines on this host, for one task."""
        return Signs([fact.pid if fact.here else 0 for fact in self.everyone], self.options.silence)

    def require_heard(self, processes: Processes, signs: Signs, silence: Silence, users: bool) -> None:
        """End the engines if one gives no sign of life, because it was stopped or hangs in a driver."""
        if self.board is None:  # the engines describe themselves, at the end of the start
            processes.require_started()
        ranks = self.board.every[: len(self.everyone)] if self.board is not None else None
        stuck = silence.stuck(signs(ranks["heartbeat"] + ranks["signs"])) if ranks is not None else []
        unheard = silence.unheard(min(SILENT, self.options.silence))
        self.unheard = {rank: seconds for rank, seconds in unheard.items() if rank < self.size}
        if stuck:
            where = ", ".join(_who(self.everyone[rank]) for rank in stuck)
            limit = most_silence(self.options.silence, len(stuck), len(self.everyone), users)
            self._give_up(processes, f"{where} gave no sign of life for {limit:g} s, so all engines were ended")

    def _give_up(self, processes: Processes, reason: str, job: bool = False) -> None:
        """Stop the remaining processes, and raise `EngineLostError`; the end of a job needs no logs to explain it."""
        words, noticed = "", time.perf_counter()
        with self.sending:
            if self.processes is processes:
                words, processes.lost = processes.logs(15), reason
                # The process that started the cluster must see that engines were lost, so that it can start new ones.
                self.life.close(on_purpose=not self.attached, keep_job=self.recovers)
            reason = processes.lost or reason
        cure = f"type: {self.life.to_go_on(job)}"
        raise EngineLostError(f"{reason}.\n{cure}{LOGS}" if job else f"{reason}.\n{words}\n{cure}", reason, noticed)


class Remembering:
    """A cluster that remembers the calls of this process."""

    engines: Engines

    @property
    def history(self) -> History:
        """The calls of this process on the cluster."""
        return self.engines.history

    @property
    def last_report(self) -> Any:
        """Report of the last call of an estimator."""
        return self.engines.last_report

    def called(self, report: FitReport) -> None:
        """Note a call of an estimator that begins."""
        self.engines.called(report)

    def keep_interrupted(self, estimator: Any, said: str = "") -> None:
        """Keep an estimator whose fit was interrupted, for `interrupted`, and what was said of it, for the status."""
        self.engines.interrupted, self.engines.said_of_interrupted = estimator, said


def not_running(left: str = "") -> NoClusterError:
    """Return the error of a call on an object without engines; `left` is the name of a cluster that it has left."""
    if left:
        return NoClusterError(f"this object has left the cluster {left}, which goes on; type: {to_attach(left)}")
    return NoClusterError("this cluster is not running; type: cluster.start(), or %xpu_cluster start")


def _who(fact: EngineDescription | HelperDescription) -> str:
    if isinstance(fact, HelperDescription):
        return f"the helper rank (pid {fact.pid} on {fact.host}), which carries rows to the engines,"
    return f"rank {fact.rank} (pid {fact.pid} on {fact.host}, {fact.device.name})"
