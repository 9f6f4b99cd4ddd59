"""One call of an estimator: it runs a task on the engines, and updates a report from the board meanwhile."""

from __future__ import annotations

import contextlib
import functools
import platform
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from xpulab.deploy.cluster import XPUCluster
from xpulab.deploy.plan.probe import core_ranges
from xpulab.deploy.tasks.answers import Answer
from xpulab.deploy.tasks.last import fill
from xpulab.deploy.watch.silence import most_silence
from xpulab.estimator.interrupted import sentence
from xpulab.exceptions import CallInterrupted, EngineLostError
from xpulab.report import progress
from xpulab.report.fit import EngineReport, FitReport, Iteration
from xpulab.sharing.board import PASSES, PHASES, RUNS, awaited, metrics_of
from xpulab.sharing.checkpoint import Checkpoint

__all__ = ["Call", "Functions", "Packing"]


class Packing(Protocol):
    """Sends the rows that a task needs."""

    #: Whether the rows can be sent again, because this process has them.
    again: bool

    def __call__(self) -> dict[str, Any]:
        """Send the rows, and return the arguments that tell the task where they are."""


class Functions:
    """Takes the place of an estimator in a `Call` of a function, so that the function has a report, too.

    Parameters
    ----------
    name : str
        Name of the function's module, such as ``"metrics"``.
    **parameters : Any
        Parameters of the function, for the report.
    """

    def __init__(self, name: str, **parameters: Any) -> None:
        self.name = name
        self._parameters = parameters

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the function."""
        return self._parameters


class Call:
    """The context of one call. Views can follow its report from entry to exit, and an interrupt says what it has ended.

    Parameters
    ----------
    estimator : sklearn.base.BaseEstimator
    method : str
        Name of the estimator's method, such as "fit".
    X : array-like or ShardedArray
        Only its shape and dtype are read.
    cluster : XPUCluster
    runs : int
        Number of runs from different starts.
    reached : callable, optional
        Called with the numbers of a run and an iteration, both counted from 1, after this iteration has ended.
    parameters : dict, optional
        Parameters for the report; those of the estimator by default.

    Attributes
    ----------
    report : FitReport
    """

    def __init__(
        self,
        estimator: Any,
        method: str,
        X: Any,
        cluster: XPUCluster,
        runs: int = 1,
        reached: Callable[[int, int], None] = lambda run, iteration: None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        self.cluster = cluster
        self._estimator = estimator
        self._answer: Answer | None = None  # of an interrupted task
        self._reached = reached
        self._told_run = 0
        self._recovers = False
        self.report = FitReport(
            estimator=estimator.name if isinstance(estimator, Functions) else type(estimator).__name__,
            method=method,
            parameters=estimator.get_params(deep=False) if parameters is None else parameters,
            n_samples=X.shape[0],
            n_features=X.shape[1] if X.ndim == 2 else 1,
            dtype=str(X.dtype),
            n_init=runs,
            versions=_versions(cluster),
            notes=list(cluster.warnings),
            engines=_engine_reports(cluster),
        )

        self.report.display = cluster.display

    def __enter__(self) -> Call:
        self.cluster.last_report = self.report
        self._handle = progress.open(self.report)
        self._seen = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._handle.__exit__(kind, error, trace)
            if isinstance(error, KeyboardInterrupt):
                raise error
        except KeyboardInterrupt:  # it may also come at the end of the call
            raise CallInterrupted(self.interrupted(), self._answer) from None

    def interrupted(self, at: str = "", resumes: bool = False) -> str:
        """Return the sentence about this call after an interrupt; see `sentence` for the arguments."""
        return sentence(self._estimator, self.report.estimator, self.report.method, at, resumes)

    def had_ended(self) -> str:
        """Return the sentence about this call, which fits, after an interrupt that came when the ranks were done."""
        return (
            f"{self.report.estimator}.{self.report.method} had ended when the interrupt came: the estimator is fitted"
        )

    @contextlib.contextmanager
    def transfer(self) -> Iterator[None]:
        """Add the time of the body, which copies rows into shared memory in this process, to the report."""
        started, self.report.message = time.perf_counter(), "copying the rows into shared memory"
        yield
        self.report.sent += time.perf_counter() - started
        self.report.message = ""

    def computed_here(self) -> None:
        """Note in the report that this process computed the result, without the engines."""
        self.report.engines.clear()
        self.report.notes.append("computed in the notebook's process: so few rows take less time than a message")

    def send(self, task: str, packing: Packing, checkpoint: Checkpoint | None = None, **payload: Any) -> Answer:
        """Run a task on all engines, and update the report while it runs.

        Parameters
        ----------
        task : str
            Name of the task.
        packing : Packing
            Sends the rows. It is called again if engines were lost and the cluster has started new ones.
        checkpoint : Checkpoint, optional
            Shared memory in which the task keeps its state. If engines are lost, the task starts again with this state
            as its argument ``resume``.
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
        payload |= packing() | {"report": self.report.to_dict()}
        if checkpoint is not None:
            payload["checkpoint"] = checkpoint.path
        self._kept: list[Iteration] = []
        self._recovers = packing.again and self.cluster.recovers
        self._looked = time.perf_counter()

        def again(lost: EngineLostError) -> dict[str, Any]:
            state = payload.get("resume")
            if checkpoint is not None:
                payload["resume"] = state = checkpoint.read() or state
            self._kept = _kept(self.report, state)
            on = f"went on from iteration {state['iteration']}" if state else "began again"
            self.report.notes.append(
                f"{lost.reason}; the cluster started new engines, and the {self.report.method} {on}"
            )
            self.report.engines = _engine_reports(self.cluster)
            return payload | packing() | {"report": self.report.to_dict()}

        try:
            answer = self.cluster.call(task, payload, self._follow, again if packing.again else None)
        except CallInterrupted as interrupt:
            self._answer = interrupt.answer
            if self._answer is not None:
                fill(self.report, self._answer, self._kept)
            raise
        fill(self.report, answer, self._kept)
        return answer

    def _follow(self, records: Any, number: int) -> None:
        """Update the report from the board. Until a rank begins this task, its record is that of an earlier task."""
        other = awaited(records, number)
        doing = records[0]["doing"].decode() if records[0]["task"] == number else ""
        self.report.message = self._about_silence() or (f"waits for {other}" if other else doing)
        now = time.perf_counter()
        self.report.waited += now - self._looked if other else 0.0
        self._looked = now
        mine = [record["task"] == number for record in records]
        for engine, record, begun in zip(self.report.engines, records, mine, strict=True):
            if begun:
                engine.rows = int(record["rows"])
                engine.total = float(record["total"])
                engine.seconds = dict(zip(PHASES, map(float, record["seconds"]), strict=True))
                if not np.isnan(record["passes"]).any():
                    engine.passes = dict(zip(PASSES, map(float, record["passes"]), strict=True))
        if mine[0] and records[0]["iteration"] > 0:
            self._follow_iteration(records[0])
        self._handle.update()

    def _about_silence(self) -> str:
        """Return a text for the view while engines do not respond; empty if all respond."""
        cluster, unheard = self.cluster, self.cluster.unheard
        if not unheard:
            return ""
        everyone = len(unheard) == cluster.size
        who = "any engine" if everyone else f"rank {core_ranges(sorted(unheard))}"
        limit = most_silence(cluster.silence, len(unheard), cluster.size)
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


def _kept(report: FitReport, state: dict[str, Any] | None) -> list[Iteration]:
    """Return the iterations that the state of a resumed fit already includes."""
    last = (state["run"] + 1, state["iteration"]) if state else (0, 0)
    return [iteration for iteration in report.iterations if (iteration.init, iteration.number) <= last]


def _engine_reports(cluster: XPUCluster) -> list[EngineReport]:
    return [
        EngineReport(
            rank=fact["rank"],
            host=fact["host"],
            pid=fact["pid"],
            device=fact["device"]["name"],
            rows=0,
            cores=fact["cores"],
        )
        for fact in cluster.facts
    ]


def _versions(cluster: XPUCluster) -> dict[str, str]:
    """Versions of the packages here and on the engines, and of the drivers of the devices."""
    drivers = {f"driver of {fact['device']['name']}": fact["device"]["driver"] for fact in cluster.facts}
    return {**_packages(), **drivers, "mpi": cluster.facts[0]["mpi"]}


@functools.cache
def _packages() -> dict[str, str]:
    # Cached, because reading the versions takes 25 ms, more than a fit of small data.
    names = ("xpulab", "scikit-learn", "numpy", "dpctl", "dpnp", "intel-opencl-rt", "mpi4py", "ipyparallel")
    versions = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):  # a fit must not fail for this
            versions[name] = metadata.version(name)
    return versions
