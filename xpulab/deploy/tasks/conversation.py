"""Run tasks on all engines of a cluster, and start new engines in place of lost ones."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from xpulab.calls import interruptible
from xpulab.deploy.tasks.answers import Answer, answer_of
from xpulab.deploy.tasks.engines import Engines, not_running
from xpulab.deploy.tasks.exchange import Exchange
from xpulab.deploy.tasks.pickling import packed
from xpulab.deploy.tasks.users_code import GONE, CellOutput, Following, figures_of, raise_for_users, results_of
from xpulab.deploy.tasks.waiting import told_of_waiting
from xpulab.deploy.tasks.ways import Controller
from xpulab.deploy.watch.silence import Silence
from xpulab.exceptions import EngineLostError, EngineStuckError, XpulabError
from xpulab.report import usage
from xpulab.sharing.answers import Reply
from xpulab.sharing.board import USERS
from xpulab.sharing.signals import postponed

__all__ = ["Conversation"]

_RECOVERIES = 3  # largest number of restarts in one call: a task that kills its engine must not be repeated for ever


class Conversation:
    """Runs tasks on the engines of a cluster, one after the other.

    Parameters
    ----------
    engines : Engines

    Attributes
    ----------
    engines : Engines
    last_output : CellOutput or None
        Output of the last cell, or function of `run`, on the engines.
    words_before : str
        Last log lines of the lost engines, which the present engines replace.
    """

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self.last_output: CellOutput | None = None
        self.words_before = ""
        self._stuck = False

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
        return self.run_packed(f"run({getattr(function, '__name__', 'function')})", packed(function, args, kwargs))

    def run_packed(self, title: str, call: bytes, watch: Callable[[], None] = lambda: None) -> list[Any]:
        """Call a function that `packed` has pickled, as `run`.

        Errors and the history name the call as `title`. `watch` is called while it runs, and at its end, before new
        engines take the place of lost ones.
        """
        payload = {"call": call, "profile": usage.wanted()}
        with interruptible(title), self.following() as following:

            def follow(records: Any, number: int) -> None:
                following(records, number)
                watch()

            try:
                replies = self.replies("run", {**payload, "transcripts": following.paths}, follow)
            finally:
                following.finish()
                self.last_output = CellOutput(following.printed(), {})
                watch()
        results = results_of(replies, title, self.engines)
        self.last_output.figures = figures_of(results)
        raise_for_users(replies, results, title)
        return [pickle.loads(result["value"]) for result in results]

    @contextlib.contextmanager
    def following(
        self,
        also: Callable[[int, str, str], None] | None = None,
        timestamps: bool = False,
        notes: list[str] | None = None,
    ) -> Iterator[Following]:
        """Open a context that follows a user's code on the engines, and starts new engines if engines are lost.

        The parameters are those of `Following`.
        """
        following: Following | None = None
        recovers = self.engines.recovers  # read first: after a loss this object no longer knows who started the engines
        try:
            processes = self.engines.require_running()
            following = Following(self.engines, processes.folder / "log", also, timestamps, notes)
            yield following
        except (EngineLostError, EngineStuckError) as error:
            raised = self._finished(following)
            recovers = recovers and not self.engines.job_over
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
        if not self.engines.running:
            self.engines.life.abandon()

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
        life = self.engines.life
        with self.engines.sending:  # if several threads lost the engines, the first starts new ones
            if self.engines.running and not self._stuck:
                return
            life.close(on_purpose=True, keep_job=True)
            self.words_before = ""
            words, self.engines.replaces = life.logs(), True
            try:
                life.start()
            except XpulabError as error:
                reason = lost.reason if isinstance(lost, EngineLostError) else str(lost)
                error.args = (f"{reason}.\nNew engines could not be started: {error}",)
                raise
            finally:
                self.engines.replaces = False
            self.words_before, self._stuck = words, False

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
            with told_of_waiting(f"xpulab: {name}", self.engines.display) as watch:
                return self.call(name, payload, watch, again)
        with interruptible(name):
            replies = self._recovering(name, payload, watch, again)
        return answer_of(name, replies)

    def _recovering(
        self,
        name: str,
        payload: dict[str, Any],
        watch: Callable[[Any, int], None],
        again: Callable[[EngineLostError], dict[str, Any]] | None,
    ) -> list[Reply]:
        """Send a task until it has ended, to new engines after a loss; return the reply of each rank."""
        recoveries = 0
        while True:
            try:
                return self.replies(name, payload, watch)
            except EngineLostError as lost:
                if again is None or not self.engines.recovers or recoveries == _RECOVERIES:
                    self._leave_job()
                    raise
                self.start_again(lost)
                payload, recoveries = again(lost), recoveries + 1

    def replies(
        self, name: str, payload: dict[str, Any], watch: Callable[[Any, int], None] | None = None
    ) -> list[Reply]:
        """Run one task on all engines, and return the reply of each rank, including errors and interrupts.

        The parameters are those of `call`.

        Returns
        -------
        list of Reply
            The replies by rank.

        Raises
        ------
        NoClusterError, EngineLostError, EngineStuckError
            As `call`.
        """
        self.engines.require_running()
        return self.exchange(name, payload, watch)

    def exchange(
        self, name: str, payload: dict[str, Any], watch: Callable[[Any, int], None] | None = None
    ) -> list[Reply]:
        """Run one task as `replies`, also while the engines are being started."""
        engines = self.engines
        with contextlib.ExitStack() as quiet:
            with engines.sending:
                pressed = quiet.enter_context(postponed())
                processes = engines.processes
                if processes is None:
                    raise not_running(engines.left)
                if engines.between is not None:
                    engines.between.begin()
                exchange = Exchange(engines.bell or Controller(processes.client), engines.board, name, payload)
            signs, silence = engines.signs(), Silence(engines.options.silence, users=name in USERS)

            def require_well() -> None:
                engines.require_alive(processes)
                engines.require_heard(processes, signs, silence, name in USERS)

            try:
                replies = exchange.wait(require_well, watch, pressed)
            except EngineStuckError:
                self._stuck = engines.processes is processes
                raise
            finally:
                if engines.between is not None:
                    engines.between.show()
        if pressed:
            raise KeyboardInterrupt
        return replies
