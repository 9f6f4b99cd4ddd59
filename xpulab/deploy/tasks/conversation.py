"""Run tasks on all engines of a cluster, and notice when engines are lost."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from xpulab.advice import of_interrupt, to_attach
from xpulab.deploy.options import Attribute, StartOptions
from xpulab.deploy.processes.processes import Processes
from xpulab.deploy.processes.record import runs
from xpulab.deploy.tasks.answers import Answer, raise_errors
from xpulab.deploy.tasks.between import Between
from xpulab.deploy.tasks.exchange import Exchange
from xpulab.deploy.tasks.pickling import packed
from xpulab.deploy.tasks.users_code import GONE, CellOutput, Following, raise_for_users, results_of
from xpulab.deploy.tasks.waiting import told_of_waiting
from xpulab.deploy.watch.signals import interruptible, postponed
from xpulab.deploy.watch.silence import SILENT, Signs, Silence, most_silence
from xpulab.exceptions import (
    CallInterrupted,
    EngineLostError,
    EngineStuckError,
    NoClusterError,
    XpulabError,
)
from xpulab.report import usage
from xpulab.report.display import Display
from xpulab.sharing.board import USERS, Board

__all__ = ["Conversation", "not_running"]

#: What an error without logs says about them.
LOGS = "; for the log of all processes, type: %xpu_cluster logs"

_RECOVERIES = 3  # largest number of restarts in one call: a task that kills its engine must not be repeated for ever


class Conversation:
    """The part of `XPUCluster` that runs tasks on the engines.

    `XPUCluster` starts and ends the processes: it sets ``_processes``, ``_board`` and ``facts``, and implements `start`
    and ``_close``, which this class calls when engines are lost.

    Parameters
    ----------
    options : StartOptions
        As for `XPUCluster`.
    """

    recover = Attribute(lambda options: options.recover)
    silence = Attribute(lambda options: options.silence)

    def __init__(self, options: StartOptions) -> None:
        self.options = options
        self.attached = False
        self.facts: list[dict[str, Any]] = []
        self._helper: dict[str, Any] | None = None  # the helper rank, if no engine runs on this host
        self.unheard: dict[int, float] = {}
        self._processes: Processes | None = None
        self._between: Between | None = None
        self._owner = os.getpid()
        self.last_output: Any = None
        self._board: Board | None = None
        self._stuck = False
        self._left = ""  # name of the cluster that this object has left, and that goes on
        #: Whether the job in which the engines ran has ended by itself. No call submits another one.
        self._job_over = False
        self._replaces = False  # whether `start` replaces engines, for a call that waits
        self._words_before = ""  # last log lines of the lost engines, which the present engines replace
        self._sending = threading.RLock()

    def start(self) -> Any:
        """Start the engines, if they are not running."""
        raise NotImplementedError

    def logs(self, lines: int = 40) -> str:
        """Last log lines of the controller and the engines."""
        raise NotImplementedError

    def _close(self, on_purpose: bool, keep_job: bool = False) -> None:
        """End all processes of the cluster. `on_purpose` is False if another process has to learn of lost engines.

        With `keep_job`, a job that was submitted for the engines goes on, for new engines.
        """
        raise NotImplementedError

    def _abandon(self) -> None:
        """End a job that was kept for new engines which are not started. Does nothing if there is none."""

    @property
    def display(self) -> Display:
        """How calls are shown: "full", "compact" or "none"; it can be set at any time."""
        return self.options.display

    @display.setter
    def display(self, display: Display) -> None:
        self.options = replace(self.options, display=display)

    @property
    def running(self) -> bool:
        """Whether this object has running engines."""
        return self._processes is not None

    @property
    def size(self) -> int:
        """Number of engines."""
        return len(self.facts) if self.running else 0

    @property
    def _everyone(self) -> list[dict[str, Any]]:
        """The descriptions of all engines, and of the helper rank."""
        return self.facts if self._helper is None else [*self.facts, self._helper]

    def _open_board(self, processes: Processes) -> None:
        """Open the board of this host, and find out about the helper rank."""
        path, self._helper = processes.board(self.facts)
        self._board = Board.open(path)
        self._between = Between(processes.folder / "log", len(self.facts), not self.attached)

    @property
    def recovers(self) -> bool:
        """Whether calls continue after engines are lost. Only the process that started the cluster can do this."""
        return self.recover and not self.attached and not self._job_over

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call ``function(task, *args, **kwargs)`` on every engine.

        What the ranks print is printed here, each line with its ranks. Stop works as in a ``%%xpu`` cell.

        Parameters
        ----------
        function : callable
            Its first argument is an object with the variables of a ``%%xpu`` cell as attributes: ``comm`` (mpi4py's
            communicator), ``rank``, ``size``, ``queue`` (a `dpctl.SyclQueue`) and ``device`` (with ``queue`` and
            ``name``).
        *args, **kwargs : Any
            Further arguments of `function`. They must be picklable.

        Returns
        -------
        list
            The returned value of each rank.

        Raises
        ------
        TypeError
            If `function` is not callable, or if it or its arguments cannot be sent to the engines.
        EngineError
            If `function` raised an exception on a rank, or its value cannot be sent back; the message has the
            tracebacks.
        CellInterrupted
            If the user interrupted the call; the message says where each rank was.
        EngineStuckError
            If ranks did not end after an interrupt, and the user interrupted again. New engines have been started.
        EngineLostError
            If an engine ended, or gave no sign of life. Unless the cluster has ``recover=False``, new engines have been
            started.
        NoClusterError
            If the cluster is not running.
        """
        if not callable(function):
            raise TypeError(
                f"run: {function!r} was given; expected a function of the task, run(lambda task: task.comm.rank)"
            )
        payload = {"call": packed(function, args, kwargs), "profile": usage.wanted()}
        title = f"run({getattr(function, '__name__', 'function')})"
        with interruptible(title), self.following() as following:
            try:
                replies = self.replies("run", {**payload, "transcripts": following.paths}, following)
            finally:
                following.finish()
                self.last_output = CellOutput(following.printed(), {})
        results = results_of(replies, title)
        raise_for_users(replies, results, title)
        return [pickle.loads(result["value"]) for result in results]

    @contextlib.contextmanager
    def following(
        self, also: Callable[[int, str, str], None] | None = None, timestamps: bool = False
    ) -> Iterator[Following]:
        """A context that follows a user's code on the engines, and starts new engines if engines are lost.

        The parameters are those of `Following`.
        """
        following: Following | None = None
        recovers = self.recovers  # read first: after a loss this object no longer knows who started the engines
        try:
            processes = self._require_running()._processes
            if processes is None:
                raise not_running(self._left)
            following = Following(self, processes.folder / "log", also, timestamps)
            yield following
        except (EngineLostError, EngineStuckError) as error:
            raised = self._finished(following)
            recovers = recovers and not self._job_over
            if error.__cause__ is not None or (isinstance(error, EngineLostError) and not recovers):
                self._leave_job()
                error.args = (f"{error}\n{raised}".rstrip(),)
                raise
            self.start_again(error)
            reason = error.reason if isinstance(error, EngineLostError) else str(error)
            error.args = (f"{reason}.\n{raised}{GONE}",)
            raise
        finally:
            self._finished(following)

    def _leave_job(self) -> None:
        """End a job that was kept, unless another thread has started new engines in it."""
        if not self.running:
            self._abandon()

    @staticmethod
    def _finished(following: Following | None) -> str:
        if following is None:
            return ""
        following.finish()
        return following.raised()

    def start_again(self, lost: EngineLostError | EngineStuckError) -> None:
        """Start new engines to replace engines that were lost, or that do not end their task.

        Raises
        ------
        PlanError, ClusterStartError
            As `start`; the message begins with what was lost.
        """
        with self._sending:  # if several threads lost the engines, the first starts new ones
            if self.running and not self._stuck:
                return
            self._close(on_purpose=True, keep_job=True)
            self._words_before = ""
            words, self._replaces = self.logs(), True
            try:
                self.start()
            except XpulabError as error:
                reason = lost.reason if isinstance(lost, EngineLostError) else str(lost)
                error.args = (f"{reason}.\nNew engines could not be started: {error}",)
                raise
            finally:
                self._replaces = False
            self._words_before, self._stuck = words, False

    def call(
        self,
        name: str,
        payload: dict[str, Any],
        watch: Callable[[Any, int], None] | None = None,
        again: Callable[[EngineLostError], dict[str, Any]] | None = None,
    ) -> Answer:
        """Run one task on all engines; estimators use this.

        Parameters
        ----------
        name : str
            Name of the task.
        payload : dict
            Arguments of the task.
        watch : callable, optional
            Called with the board's records and the number of the task while the task waits and runs. By default a
            report tells the user which task this one waits for.
        again : callable, optional
            For tasks that can be sent again to new engines after engines were lost (see `recover`): takes the
            `EngineLostError`, and returns the new payload.

        Returns
        -------
        Answer
            The results of all ranks.

        Raises
        ------
        NoClusterError
            If the cluster is not running.
        EngineError
            If a rank raised an exception.
        EngineLostError
            If engines were lost, and the task cannot be sent again.
        EngineStuckError
            If ranks did not end the task after an interrupt.
        CallInterrupted
            If the user interrupted the call, after all ranks have stopped at the same point. Its `answer` has their
            results so far.
        """
        if watch is None:
            with told_of_waiting(f"xpulab: {name}", self.display) as watch:
                return self.call(name, payload, watch, again)
        with interruptible(name):
            replies = self._recovering(name, payload, watch, again)
        raise_errors(replies, users=False)
        answer = Answer(replies)
        if answer.interrupted:
            raise CallInterrupted(of_interrupt(name), answer)
        return answer

    def _recovering(
        self,
        name: str,
        payload: dict[str, Any],
        watch: Callable[[Any, int], None],
        again: Callable[[EngineLostError], dict[str, Any]] | None,
    ) -> list[dict[str, Any]]:
        """Send a task until it has ended, to new engines after a loss; return the reply of each rank."""
        recoveries = 0
        while True:
            try:
                return self.replies(name, payload, watch)
            except EngineLostError as lost:
                if again is None or not self.recovers or recoveries == _RECOVERIES:
                    self._leave_job()
                    raise
                self.start_again(lost)
                payload, recoveries = again(lost), recoveries + 1

    def replies(
        self, name: str, payload: dict[str, Any], watch: Callable[[Any, int], None] | None = None
    ) -> list[dict[str, Any]]:
        """Run one task on all engines, and return the reply of each rank, including errors and interrupts.

        The parameters are those of `call`.

        Returns
        -------
        list of dict
            The replies by rank.

        Raises
        ------
        NoClusterError, EngineLostError, EngineStuckError
            As `call`.
        """
        return self._require_running()._exchange(name, payload, watch)

    def _exchange(
        self, name: str, payload: dict[str, Any], watch: Callable[[Any, int], None] | None
    ) -> list[dict[str, Any]]:
        with self._sending, postponed() as pressed:
            processes = self._processes
            if processes is None:
                raise not_running(self._left)
            if self._between is not None:
                self._between.begin()
            exchange = Exchange(processes.client, self._board, name, payload)
        signs = Signs([fact["pid"] if fact["here"] else 0 for fact in self._everyone], self.silence)
        silence = Silence(self.silence, users=name in USERS)

        def require_well() -> None:
            self._require_alive(processes)
            self._require_heard(processes, signs, silence, name in USERS)

        try:
            return exchange.wait(require_well, watch, pressed)
        except EngineStuckError:
            self._stuck = self._processes is processes
            raise
        finally:
            if self._between is not None:
                self._between.show()

    @property
    def known_as(self) -> str:
        """The name under which other processes find the cluster."""
        raise NotImplementedError

    @property
    def _is_forked(self) -> bool:
        """Whether this is the copy of a running cluster in a process that was forked from the one that uses it."""
        return self._processes is not None and self._owner != os.getpid()

    def _require_not_forked(self) -> None:
        if self._is_forked:
            raise self.forked()

    def forked(self) -> NoClusterError:
        """The error of a forked process that uses the cluster of its parent."""
        return NoClusterError(
            f"this process ({os.getpid()}) was forked from process {self._owner}, and only that one can use or end its "
            f"cluster {self.known_as}; to use the cluster here, too, type: xpulab.XPUCluster.attach({self.known_as!r})"
        )

    def _require_running(self) -> Conversation:
        processes = self._processes
        if processes is None:
            raise not_running(self._left)
        self._require_not_forked()
        self._require_alive(processes)
        return self

    def _require_alive(self, processes: Processes) -> None:
        """Raise an error if these processes no longer belong to the cluster, or if one of them has ended."""
        if self._processes is not processes:
            if processes.lost:  # another thread has noticed that engines were lost
                raise EngineLostError(f"{processes.lost}.\ntype: {self._to_go_on()}", processes.lost)
            raise NoClusterError("the cluster was stopped while a task was running; type: %xpu_cluster start")
        ended = processes.ended()
        if not ended:
            return
        stopped = processes.record.stopped
        if self._processes is not processes:  # another thread has just stopped the cluster
            self._require_alive(processes)
        if stopped:
            self._close(on_purpose=True)
            if not runs(*processes.record.owner):
                raise NoClusterError(
                    f"the process {processes.record.owner[0]}, which had started the cluster, has ended, and the "
                    "cluster with it; type: %xpu_cluster start, with --detach for a cluster that goes on without you"
                )
            raise NoClusterError(
                "another process has stopped or restarted the cluster; type: %xpu_cluster start, or %xpu_cluster attach"
            )
        lost = processes.lost_on_hosts()
        gone = [fact for fact in self._everyone if fact["here"] and fact["pid"] in processes.first_gone]
        if lost is not None:
            if lost["why"]:
                self._give_up(processes, f"{lost['why']}, so all engines were ended", lost.get("job", False))
            gone = [self._everyone[rank] for rank in lost["ranks"]]
        if left := self._left_by_exit():
            self._give_up(processes, ", ".join(left))
        if gone:
            processes.await_mpi()
            causes = [(fact, processes.cause(fact)) for fact in gone]
            if not any(cause for _, cause in causes):  # those that mpiexec names have taken these along
                causes = [(fact, cause) for fact in self._everyone if (cause := processes.cause(fact))] or causes
                if processes.mpiexec_was_killed():
                    self._give_up(processes, "mpiexec ended, and so did the engines")
            self._give_up(processes, ", ".join(f"{_who(fact)} ended{cause}" for fact, cause in causes))
        self._give_up(processes, f"the {ended} ended, and so did the engines")

    def _left_by_exit(self) -> list[str]:
        """Say of each engine that has left by `os._exit` how it has ended. The launcher has ended the others."""
        if self._board is None:
            return []
        left = self._board.every["left"][: len(self._everyone)].tolist()
        ended = zip(self._everyone, left, strict=True)
        return [f"{_who(fact)} ended: exited with status {status - 1}" for fact, status in ended if status]

    def _require_heard(self, processes: Processes, signs: Signs, silence: Silence, users: bool) -> None:
        """End the engines if one gives no sign of life, because it was stopped or hangs in a driver."""
        if self._board is None:  # the engines describe themselves, at the end of the start
            processes.require_started()
        ranks = self._board.every[: len(self._everyone)] if self._board is not None else None
        stuck = silence.stuck(signs(ranks["heartbeat"] + ranks["signs"])) if ranks is not None else []
        unheard = silence.unheard(min(SILENT, self.silence))
        self.unheard = {rank: seconds for rank, seconds in unheard.items() if rank < self.size}
        if stuck:
            where = ", ".join(_who(self._everyone[rank]) for rank in stuck)
            limit = most_silence(self.silence, len(stuck), len(self._everyone), users)
            self._give_up(processes, f"{where} gave no sign of life for {limit:g} s, so all engines were ended")

    def _give_up(self, processes: Processes, reason: str, job: bool = False) -> None:
        """Stop the remaining processes, and raise `EngineLostError`; the end of a job needs no logs to explain it."""
        words = ""
        with self._sending:
            if self._processes is processes:
                words, processes.lost = processes.logs(15), reason
                # The process that started the cluster must see that engines were lost, so that it can start new ones.
                self._close(on_purpose=not self.attached, keep_job=self.recovers)
            reason = processes.lost or reason
        cure = f"type: {self._to_go_on(job)}"
        raise EngineLostError(f"{reason}.\n{cure}{LOGS}" if job else f"{reason}.\n{words}\n{cure}", reason)

    def _to_go_on(self, over: bool = False) -> str:
        """What to type after engines were lost for good; `over` says that the job in which they ran has ended."""
        return "%xpu_cluster start"


def not_running(left: str = "") -> NoClusterError:
    """The error of a call on an object without engines; `left` is the name of a cluster that it has left."""
    if left:
        return NoClusterError(f"this object has left the cluster {left}, which goes on; type: {to_attach(left)}")
    return NoClusterError("this cluster is not running; type: cluster.start(), or %xpu_cluster start")


def _who(fact: dict[str, Any]) -> str:
    if "device" not in fact:
        return f"the helper rank (pid {fact['pid']} on {fact['host']}), which carries rows to the engines,"
    return f"rank {fact['rank']} (pid {fact['pid']} on {fact['host']}, {fact['device']['name']})"
