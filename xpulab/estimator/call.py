"""One call of an estimator: sent to the engines, followed on the board while it runs, and kept as a report."""

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

from xpulab.deploy.answers import Answer
from xpulab.deploy.cluster import XPUCluster
from xpulab.deploy.probe import core_ranges
from xpulab.deploy.silence import most_silence
from xpulab.deploy.waiting import told_of_waiting
from xpulab.exceptions import EngineLostError
from xpulab.rendering import format_seconds
from xpulab.report import progress
from xpulab.report.fit import EngineReport, FitReport, Iteration, Status
from xpulab.sharing.board import PHASES, RUNS, awaited, metrics_of
from xpulab.sharing.checkpoint import Checkpoint

__all__ = ["Call", "Functions", "Packing", "last_report"]


class Packing(Protocol):
    """Sends the rows that a task needs."""

    #: Whether they can be sent again, because this process has them.
    again: bool

    def __call__(self) -> dict[str, Any]:
        """The arguments of the task that say where they are."""


class Functions:
    """Stands for an estimator in the call of a function, so that it has a report too.

    Parameters
    ----------
    name : str
        The module's, ``"metrics"``.
    **parameters : Any
        Of the function, for the report.
    """

    def __init__(self, name: str, **parameters: Any) -> None:
        self.name = name
        self._parameters = parameters

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters of the function."""
        return self._parameters


class Call:
    """Context of one call; its report is open for views from entry to exit.

    Parameters
    ----------
    estimator : sklearn.base.BaseEstimator
    method : str
        "fit", "predict", ...
    X : array-like or ShardedArray
        Only its shape and dtype are read.
    cluster : XPUCluster
    runs : int
        Runs from different starts.
    reached : callable, optional
        Called with run and iteration, both from 1, when they are seen to have ended.
    parameters : dict, optional
        For the report, where they are not those that the estimator has now.

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
        self._handle.__exit__(kind, error, trace)

    @contextlib.contextmanager
    def transfer(self) -> Iterator[None]:
        """Account for copying rows into shared memory, which happens in this process."""
        started, self.report.message = time.perf_counter(), "copying the rows into shared memory"
        yield
        self.report.sent += time.perf_counter() - started
        self.report.message = ""

    def computed_here(self) -> None:
        """Say in the report that this process computed the call, without the engines."""
        self.report.engines.clear()
        self.report.notes.append("computed in the notebook's process: so few rows take less time than a message")

    def send(self, task: str, packing: Packing, checkpoint: Checkpoint | None = None, **payload: Any) -> Answer:
        """Run the task on all engines; the report follows it.

        Parameters
        ----------
        task : str
        packing : Packing
            Sends the rows; again, where engines were lost and the cluster has started new ones.
        checkpoint : Checkpoint, optional
            Where the task keeps its state. After a loss it goes on from there, by its argument ``resume``.
        **payload : Any
            Other arguments of the task.

        Raises
        ------
        EngineError, EngineLostError, KeyboardInterrupt
            As `XPUCluster.call`.
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
            on = f"went on from iteration {state['iteration']}" if state else "began anew"
            self.report.notes.append(
                f"{lost.reason}; the cluster started new engines, and the {self.report.method} {on}"
            )
            self.report.engines = _engine_reports(self.cluster)
            return payload | packing() | {"report": self.report.to_dict()}

        try:
            answer = self.cluster.call(task, payload, self._follow, again if packing.again else None)
        except KeyboardInterrupt as interrupt:
            if interrupt.args and isinstance(interrupt.args[0], Answer):
                _fill(self.report, interrupt.args[0], self._kept)
            raise
        _fill(self.report, answer, self._kept)
        return answer

    def _follow(self, records: Any, number: int) -> None:
        """What the board says, into the report. A rank's record is another task's until it has begun this one."""
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
        if mine[0] and records[0]["iteration"] > 0:
            self._follow_iteration(records[0])
        self._handle.update()

    def _about_silence(self) -> str:
        """What the view says while engines give no sign; "" while all do."""
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
            # Some pass between two looks: each took its share of the time.
            passed = now.number - before[1] if now.init == before[0] else now.number
            now.seconds = (time.perf_counter() - self._seen) / passed
            self._seen = time.perf_counter()
            seen.append(now)
        self._tell(record)

    def _tell(self, record: Any) -> None:
        """Every iteration that has ended since the last look, also those of runs that have come and gone."""
        run = int(record["run"])  # first: what the lengths of this run and of those before say from now on is true
        lengths = record["lengths"]
        if run - self._told_run >= RUNS:
            return  # some are lost: the answer will have them
        for each in range(max(1, self._told_run), run + 1):
            self._reached(each, int(lengths[(each - 1) % RUNS]))
        self._told_run = run


def last_report(cluster: XPUCluster) -> FitReport | None:
    """The report of the latest call of an estimator on this cluster.

    Of this process, or else what the engines remember: of any process, also of one that has ended since. A call that
    still runs is waited for, and shown meanwhile; an interrupt ends the wait, not the call.
    """
    if cluster.last_report is not None or not cluster.attached:
        report: FitReport | None = cluster.last_report
        return report
    with told_of_waiting("xpulab: the last call") as watch:
        held = [reply["result"]["last"] for reply in cluster.replies("last", {}, watch)]
    if held[0] is None:
        return None
    replies = [each["reply"] for each in held]
    report = FitReport.from_dict(held[0]["report"])
    _fill(report, Answer(replies), [])
    report.seconds = max(reply["total"] for reply in replies)
    failed = [reply["error"] for reply in replies if reply["status"] == "error"]
    message = f"{failed[0]['type']}: {failed[0]['message']}".partition("\n")[0] if failed else ""
    ended: dict[str, Status] = {"ok": "finished", "interrupted": "interrupted"}
    report.finish(ended.get(replies[0]["status"], "failed"), message)
    return report


def _fill(report: FitReport, answer: Answer, kept: list[Iteration]) -> None:
    """What the ranks said at the end, into the report, after the iterations of which it goes on."""
    for engine, seconds, total, result in zip(
        report.engines, answer.seconds, answer.totals, answer.results, strict=True
    ):
        engine.seconds, engine.total = dict(seconds), total
        engine.rows = result.get("rows", engine.rows)
        engine.tile = result.get("tile")
    tried, took = answer.results[0].get("tuning", (0, 0.0))
    if tried:
        report.notes.append(f"the engines tried {tried} tiles in between, in {format_seconds(took)}")
    report.converged = answer.results[0].get("converged")
    history = answer.results[0].get("history")
    if history:
        names = answer.results[0]["metrics"]
        times = np.diff([0.0, *(elapsed for *_, elapsed in history)])
        report.iterations = kept + [
            Iteration(iteration, dict(zip(names, metrics, strict=True)), float(took), run)
            for (run, iteration, *metrics, _), took in zip(history, times, strict=True)
        ]


def _kept(report: FitReport, state: dict[str, Any] | None) -> list[Iteration]:
    """The iterations of which a fit that goes on has the outcome."""
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
    """Packages on both sides, and the drivers of the devices."""
    drivers = {f"driver of {fact['device']['name']}": fact["device"]["driver"] for fact in cluster.facts}
    return {**_packages(), **drivers, "mpi": cluster.facts[0]["mpi"]}


@functools.cache
def _packages() -> dict[str, str]:
    # Kept: reading them takes 25 ms, a fit of small data less.
    names = ("xpulab", "scikit-learn", "numpy", "dpctl", "dpnp", "intel-opencl-rt", "mpi4py", "ipyparallel")
    versions = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):  # no reason for a fit to fail
            versions[name] = metadata.version(name)
    return versions
