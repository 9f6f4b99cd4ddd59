"""One call of an estimator: it runs a task on the engines, and updates a report from the board meanwhile."""

from __future__ import annotations

import contextlib
import functools
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.plan.probe import core_ranges
from xpulab.deploy.ranks import Ranks
from xpulab.deploy.side_by_side.kept import search_interrupted
from xpulab.deploy.side_by_side.searches import search_progress
from xpulab.deploy.tasks.answers import Answer
from xpulab.deploy.tasks.last import fill
from xpulab.deploy.tasks.waiting import Waits, told_by
from xpulab.deploy.watch.silence import most_silence
from xpulab.estimator.config import require_target
from xpulab.estimator.interrupted import sentence
from xpulab.estimator.sending import Packing, Result
from xpulab.estimator.sent_once import SentOnce
from xpulab.exceptions import CallInterrupted, EngineLostError
from xpulab.report import progress
from xpulab.report.fit import EngineReport, FitReport, Iteration
from xpulab.report.record import WAITING
from xpulab.report.rendering import format_size
from xpulab.scanning import Scan
from xpulab.sharing.board import PASSES, PHASES, RUNS, awaited, metrics_of
from xpulab.sharing.checkpoint import Checkpoint

__all__ = ["Call", "Functions", "Sender"]

#: Messages of the report until the engines have the rows.
_SENDS = "copying the rows into shared memory"
_SPOOLS = "the rows do not fit into memory, and are written to a file: part"


class Sender(Protocol):
    """Sends the rows that a task needs."""

    #: Whether the rows can be sent again, because this process has them.
    again: bool

    def require_room(self) -> None:
        """Raise an error if there is no room for the rows."""

    def __call__(self, outgoing: Outgoing) -> dict[str, Any]:
        """Send the rows, and return the arguments that tell the task where they are."""


class Functions:
    """Takes the place of an estimator in a `Call` of a function, so that the function has a report, too.

    Parameters
    ----------
    name : str
        Name of the function's module, such as ``"metrics"``.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters for the report, which are none."""
        return {}


class Call:
    """The context of one call. Views can follow its report from entry to exit, and an interrupt says what it has ended.

    At its end, the memory of what was sent is free for the next call. After an error or an interrupt, the results that
    were to stay on the engines are freed, too.

    Parameters
    ----------
    estimator : sklearn.base.BaseEstimator
    method : str
        Name of the estimator's method, such as "fit".
    X : array-like or ShardedArray
        The rows that `ask` sends. Of others only shape and dtype are read.
    ranks : Ranks
    runs : int
        Number of runs from different starts.
    reached : callable, optional
        Called with the numbers of a run and an iteration, both counted from 1, after this iteration has ended.
    parameters : dict, optional
        Parameters for the report; those of the estimator by default.

    Attributes
    ----------
    report : FitReport
    outgoing : Outgoing
        What the call sends, and its results in this process.
    kept : dict or None
        The last state that a task has written to its checkpoint.
    """

    outgoing: Outgoing

    def __init__(
        self,
        estimator: Any,
        method: str,
        X: Any,
        ranks: Ranks,
        runs: int = 1,
        reached: Callable[[int, int], None] = lambda run, iteration: None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        require_target(ranks)
        self.ranks = ranks
        self.kept: dict[str, Any] | None = None
        self._estimator = estimator
        self._X = X
        self._answer: Answer | None = None  # of an interrupted task
        self._reached = reached
        self._told_run = 0
        self._recovers = False
        self._of_search = ""  # the sentence about the search of which this call is a part, if it was interrupted
        part, search = search_progress()
        from_files = isinstance(X, Scan) and bool(X.files)
        self.report = FitReport(
            estimator=estimator.name if isinstance(estimator, Functions) else type(estimator).__name__,
            method=method,
            parameters=estimator.get_params(deep=False) if parameters is None else parameters,
            n_samples=X.shape[0],
            n_features=X.shape[1] if X.ndim == 2 else 1,
            dtype=str(X.dtype),
            n_init=runs,
            versions=_versions(ranks),
            notes=list(ranks.warnings),
            engines=_engine_reports(ranks),
            part=part,
            stays=isinstance(X, ShardedArray) or from_files,
            files=from_files,
        )
        self.report.display = ranks.display
        self.report.search = search

    def __enter__(self) -> Call:
        self._context = self._opened()
        self._context.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.__exit__(kind, error, trace)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        try:
            self.ranks.called(self.report)
            with progress.open(self.report) as self._handle, self.ranks.outgoing() as self.outgoing:
                self._seen = time.perf_counter()
                yield
        except KeyboardInterrupt:  # it may also come at the end of the call
            raise CallInterrupted(self.interrupted(), self._answer) from None

    def interrupted(self, at: str = "", resumes: bool = False) -> str:
        """Return the sentence about this call after an interrupt; see `sentence` for the arguments.

        If a search calls, of which some fits have ended, the cluster keeps the search, and the sentence is about it.
        """
        self._of_search = self._of_search or search_interrupted(self.ranks)
        return self._of_search or sentence(self._estimator, self.report.estimator, self.report.method, at, resumes)

    def keep_interrupted(self, estimator: Any, said: str) -> None:
        """Have the cluster keep an estimator whose fit was interrupted, unless it keeps the search of this fit."""
        if not self._of_search:
            self.ranks.keep_interrupted(estimator, said)

    def had_ended(self) -> str:
        """Return the sentence about this call, which fits, after an interrupt that came when the ranks were done."""
        self._of_search = self._of_search or search_interrupted(self.ranks)
        return self._of_search or (
            f"{self.report.estimator}.{self.report.method} had ended when the interrupt came: the estimator is fitted"
        )

    def _sent_by(self, sender: Sender) -> dict[str, Any]:
        """Send the rows, add the time in which this process copies them to the report, and return the arguments."""
        self.outgoing.drop()  # what was sent before, to engines that were lost
        sender.require_room()
        started, waited = time.perf_counter(), self.report.waited
        self._looked, self._saw = started, ""
        self.report.message = self._doing = _SENDS
        with told_by(self._follow_sending, lambda: self.report.status == "running"):
            sent = sender(self.outgoing)
        self.report.sent += time.perf_counter() - started - (self.report.waited - waited)
        self.report.step("", 0, 0)
        return sent | {"report": self.report.to_dict()}

    def tell(self, done: int, parts: int, nbytes: int) -> None:
        """Say in the report that this process writes the rows to a file, because they do not fit into memory."""
        if not self.report.spooled:
            self.report.spooled = True
            self.report.notes.append(
                f"{format_size(nbytes)} of rows were written to a file without a name, which the engines read, "
                "because the rows do not fit into memory"
            )
        self.report.step(_SPOOLS, done, parts)
        self._doing = self.report.message
        self._handle.update()

    def _follow_sending(self, records: Any, number: int) -> None:
        """Say in the report that this process copies rows, or waits for another task before it can."""
        other = awaited(records, number)
        self.report.message = f"{WAITING}{other}" if other else self._doing
        self._add_wait(other)
        self._say_for_whom(records, number)

    def _say_for_whom(self, records: Any, number: int) -> None:
        if news := self._waits.news(records, number):
            self._handle.say(f"{self.report.title}: {WAITING}{news}")

    def _add_wait(self, other: str) -> None:
        """Add the time since the last look at the board to the wait, if another task ran then and runs now."""
        now = time.perf_counter()
        self.report.waited += now - self._looked if other and self._saw else 0.0
        self._looked, self._saw = now, other

    def computed_here(self) -> None:
        """Note in the report that this process computed the result, without the engines."""
        self.report.engines.clear()
        self.report.notes.append("computed in the notebook's process: so few rows take less time than a message")

    def ask(
        self,
        task: str,
        *,
        y: Any = None,
        sample_weight: Any = None,
        rules: Mapping[str, Any] | None = None,
        held: SentOnce | None = None,
        send_more: Callable[[Outgoing], dict[str, Any]] | None = None,
        result: Result | None = None,
        room: int | None = None,
        at_once: bool = False,
        **payload: Any,
    ) -> Answer:
        """Send X and the columns aligned with it to the engines, and run a task on them; see `send`.

        Parameters
        ----------
        task : str
            Name of the task.
        y, sample_weight, rules, held, send_more
            As `Packing` takes them.
        result : Result, optional
            The result with one entry per row; its `value` is set.
        room : int, optional
        at_once : bool
            Whether the task needs all rows at once, and not in passes; they are refused if they do not fit.
        **payload : Any
            As for `send`.
        """
        fits = at_once or "fit" in self.report.method
        packing = Packing(
            self._estimator, self.ranks, self._X, sample_weight, y, rules, held, send_more,
            task="" if at_once else task, fits=fits, tell=self.tell,
        )  # fmt: skip
        if result is not None:
            if not result.stays_with(self._X):
                packing.require_room(result.nbytes(self._X))
            if packing.on_disk:
                self.report.notes.append(
                    f"the result, {format_size(result.nbytes(self._X))}, is in a file without a name, because it takes "
                    "more than a quarter of the memory that is free"
                )
            payload |= result.place(self.ranks, self.outgoing, self._X, packing.on_disk)
        answer = self.send(task, packing, room, **payload)
        if packing.spool is not None:
            self._X = packing.spool  # which the next task of this call takes, too
        return answer

    def send(self, task: str, sender: Sender, room: int | None = None, **payload: Any) -> Answer:
        """Run a task on all engines, and update the report while it runs.

        Parameters
        ----------
        task : str
            Name of the task.
        sender : Sender
            Sends the rows. It is called again if engines were lost and the cluster has started new ones.
        room : int, optional
            The bytes of a state, for a task that keeps its state in a checkpoint. If engines are lost, the task starts
            again with the state as its argument ``resume``. The last one is in `kept`.
        **payload : Any
            Other arguments of the task.

        Returns
        -------
        Answer
            The results of the ranks.

        Raises
        ------
        EngineError
            If a rank raised an exception.
        EngineLostError
            If an engine was lost, and the cluster or the rows do not allow to repeat the task.
        CallInterrupted
            If the user interrupted the call.
        """
        if room is None:
            return self._send(task, sender, None, payload)
        with Checkpoint.create(room) as checkpoint:
            payload["checkpoint"] = checkpoint.path
            try:
                return self._send(task, sender, checkpoint, payload)
            except CallInterrupted as interrupt:
                found = {} if interrupt.answer is None else interrupt.answer.results[0]
                state = found.get("state", checkpoint.read())
                if state is not None and "converged" not in found:  # what came after it, the estimator does not have
                    self.report.iterations = _iterations_before(self.report, state)
                raise
            finally:
                self.kept = checkpoint.read()

    def _send(self, task: str, sender: Sender, checkpoint: Checkpoint | None, payload: dict[str, Any]) -> Answer:
        self._waits = Waits()
        payload |= self._sent_by(sender)
        self._before: list[Iteration] = []
        self._recovers = sender.again and self.ranks.recovers
        self._looked, self._saw = time.perf_counter(), ""

        def again(lost: EngineLostError) -> dict[str, Any]:
            state = payload.get("resume")
            if checkpoint is not None:
                payload["resume"] = state = checkpoint.read() or state
            self._before = _iterations_before(self.report, state)
            on = "began again"
            if state:
                on = f"went on from iteration {state['iteration']}" if state["iteration"] else "went on with its start"
            self.report.notes.append(
                f"{lost.reason}; the cluster started new engines, and the {self.report.method} {on}"
            )
            self.report.engines = _engine_reports(self.ranks)
            self.report.replaced(time.perf_counter() - lost.moment)
            return payload | self._sent_by(sender)

        try:
            answer = self.ranks.call(task, payload, self._follow, again if sender.again else None)
        except CallInterrupted as interrupt:
            self._answer = interrupt.answer
            if self._answer is not None:
                fill(self.report, self._answer, self._before)
            raise
        fill(self.report, answer, self._before)
        return answer

    def _follow(self, records: Any, number: int) -> None:
        """Update the report from the board. Until a rank begins this task, its record is that of an earlier task."""
        other = awaited(records, number)
        # Read before `doing`: a rank forgets what it did before it writes its first iteration.
        iterates = records[0]["task"] == number and records[0]["iteration"] > 0
        mine = records[records["task"] == number]
        doing = records[0]["doing"].decode() if records[0]["task"] == number else ""
        self.report.step(doing, int(mine["done"].sum()), int(mine["steps"].sum()))
        if said := self._about_silence() or (f"{WAITING}{other}" if other else ""):
            self.report.message = said
        self._add_wait(other)
        self._say_for_whom(records, number)
        for engine, record in zip(self.report.engines, records, strict=True):
            if record["task"] == number:
                engine.rows = int(record["rows"])
                engine.total = float(record["total"])
                engine.seconds = dict(zip(PHASES, map(float, record["seconds"]), strict=True))
                if not np.isnan(record["passes"]).any():
                    engine.passes = dict(zip(PASSES, map(float, record["passes"]), strict=True))
        if iterates:
            self._follow_iteration(records[0])
        self._handle.update()

    def _about_silence(self) -> str:
        """Return a text for the view while engines do not respond; empty if all respond."""
        ranks, unheard = self.ranks, self.ranks.unheard
        if not unheard:
            return ""
        everyone = len(unheard) == ranks.size
        who = "any engine" if everyone else f"rank {core_ranges(sorted(unheard))}"
        limit = most_silence(ranks.silence, len(unheard), ranks.size)
        again = "the cluster starts new engines, and sends the rows again" if self._recovers else "the call ends"
        return (
            f"nothing was heard of {who} for {max(unheard.values()):.0f} s: stopped, asleep, or stuck in a driver? "
            f"After {limit:g} s {again}; interrupt the kernel to end it now"
        )

    def _follow_iteration(self, record: Any) -> None:
        now = Iteration(
            number=int(record["iteration"]),
            metrics=metrics_of(record),
            init=int(record["run"]),
        )
        seen = self.report.iterations
        before = (seen[-1].init, seen[-1].number) if seen else (now.init, 0)
        if (now.init, now.number) > before:
            # Several iterations may end between two reads of the board; each is given an equal share of the time.
            passed = now.number - before[1] if now.init == before[0] else now.number
            now.seconds = (time.perf_counter() - self._seen) / passed
            self._seen = time.perf_counter()
            seen.append(now)
        self._tell(record)

    def _tell(self, record: Any) -> None:
        """Call `reached` for every iteration that has ended since the last read of the board, in all runs."""
        run = int(record["run"])  # read before the lengths: these are then valid for all runs up to this one
        lengths = record["lengths"]
        if run - self._told_run >= RUNS:
            return  # the board no longer has all lengths; the answer will have them
        for each in range(max(1, self._told_run), run + 1):
            self._reached(each, int(lengths[(each - 1) % RUNS]))
        self._told_run = run


def _iterations_before(report: FitReport, state: Mapping[str, Any] | None) -> list[Iteration]:
    """Return the iterations that the state of a resumed fit already includes.

    Of quick iterations the board shows some. If it has not shown the last one, this one has no metrics.
    """
    last = (state["run"] + 1, state["iteration"]) if state else (0, 0)
    found = [iteration for iteration in report.iterations if (iteration.init, iteration.number) <= last]
    if last[1] and found and (found[-1].init, found[-1].number) < last:
        found.append(Iteration(last[1], init=last[0]))
    return found


def _engine_reports(ranks: Ranks) -> list[EngineReport]:
    return [
        EngineReport(
            rank=fact.rank,
            host=fact.host,
            pid=fact.pid,
            device=fact.device.name,
            rows=0,
            cores=list(fact.cores),
        )
        for fact in ranks.facts
    ]


def _versions(ranks: Ranks) -> dict[str, str]:
    """Versions of the packages here and on the engines, and of the drivers of the devices."""
    drivers = {f"driver of {fact.device.name}": fact.device.driver for fact in ranks.facts}
    return {**_packages(), **drivers, "mpi": ranks.facts[0].mpi}


@functools.cache
def _packages() -> dict[str, str]:
    # Cached, because reading the versions takes 25 ms, more than a fit of small data.
    names = ("xpulab", "scikit-learn", "numpy", "dpctl", "dpnp", "intel-opencl-rt", "mpi4py", "ipyparallel")
    versions = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):  # a fit must not fail for this
            versions[name] = metadata.version(name)
    return versions
