"""The data of reports: what each engine did, and how long each phase took. Estimators write it, and views read it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal, TypeVar

from xpulab.report.display import Display
from xpulab.report.rendering import counted, format_count, format_number, format_seconds, plain
from xpulab.sharing.board import PASSES, PHASES

__all__ = [
    "PHASES",
    "EngineReport",
    "FitRecord",
    "Iteration",
    "Pair",
    "Status",
    "TaskRecord",
    "Timed",
]

#: Phases of an engine's own work. The other phases also depend on the other engines.
_WORK = ("transfer", "compile", "kernel")

Status = Literal["running", "finished", "interrupted", "failed"]
Self = TypeVar("Self", bound="FitRecord")


@dataclass
class EngineReport:
    """One engine's part in a call.

    Parameters
    ----------
    rank : int
        The engine's MPI rank.
    host : str
        Name of the engine's machine.
    pid : int
        Process ID of the engine on its host.
    device : str
        Name of the device.
    rows : int
        Number of rows of the data that the engine had.
    cores : list of int, optional
        The cores that the engine was bound to; None if it could use all cores.
    memory : int, optional
        Bytes in use on the device at the end; None if the device does not report this.
    tile : str, optional
        Launch parameters of the search for the nearest centre, such as ``"4x4x16, span 4096 (tuned)"``: rows of a
        work-item, centres at a time, work-items of a work-group, and rows of a work-group. "(tuned)" means that they
        were measured to be the fastest.
    seconds : dict of str to float
        Seconds by phase, under the names in `PHASES`; missing phases count as 0.
    total : float
        Seconds from the call's arrival at the engine to its answer.
    passes : dict of str to float
        Seconds of the import of PyTorch, and of the forward and the backward passes, if the call uses a network, under
        the names in `PASSES`. The phase "kernel" is the sum of the passes. Empty for other calls.

    Raises
    ------
    ValueError
        If `seconds` has a phase that is not in `PHASES`, or `passes` a name that is not in `PASSES`.
    """

    rank: int
    host: str
    pid: int
    device: str
    rows: int
    cores: list[int] | None = None
    memory: int | None = None
    tile: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    passes: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := set(self.seconds) - set(PHASES):
            raise ValueError(f"unknown phases {sorted(unknown)} in seconds; the phases are {', '.join(PHASES)}")
        if unknown := set(self.passes) - set(PASSES):
            raise ValueError(f"unknown names {sorted(unknown)} in passes; the names are {', '.join(PASSES)}")
        # The dict has all phases from the start, because a view may read it while another thread updates it.
        self.seconds = {phase: float(self.seconds.get(phase, 0.0)) for phase in PHASES}

    @property
    def other(self) -> float:
        """Seconds that are in no phase. Never negative, although the clocks of host and device differ."""
        return max(0.0, self.total - sum(self.seconds.values()) - self.passes.get("import", 0.0))

    @property
    def work(self) -> float:
        """Seconds of `transfer`, `compile` and `kernel`: the work of this engine and its device alone."""
        return sum(self.seconds[phase] for phase in _WORK)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase, `other` included, in the order in which they are drawn.

        A network has the import of PyTorch and the passes in place of "compile" and "kernel": nothing is compiled.
        """
        if not (passes := self.passes):
            return {**self.seconds, "other": self.other}
        rest = {phase: self.seconds[phase] for phase in PHASES if phase not in ("compile", "kernel")}
        return {"transfer": rest.pop("transfer"), **passes, **rest, "other": self.other}


@dataclass
class Iteration:
    """One iteration of one run.

    Parameters
    ----------
    number : int
        Number of the iteration in its run, counted from 1.
    metrics : dict of str to float
        Values that the algorithm computed, under scikit-learn's names. The algorithm minimises the first one. k-means
        has ``inertia`` and ``center_shift``.
    seconds : float
        Wall time of the iteration.
    init : int
        Number of the run, counted from 1, of the estimator's `n_init` runs.
    """

    number: int
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    init: int = 1


class Timed:
    """The status and the clock that calls of estimators and other tasks have in common."""

    status: Status
    message: str
    seconds: float
    #: How views show the report. `to_dict` does not include it.
    display: Display = "full"
    _clock: float | None

    #: The command that shows the present state. A view that no longer changes displays it.
    later = "for now, type: %xpu_cluster status"

    @property
    def elapsed(self) -> float:
        """Seconds since the start while the task runs, and `seconds` after its end."""
        if self.status != "running" or self._clock is None:
            return self.seconds
        return time.perf_counter() - self._clock

    def finish(self, status: Status = "finished", message: str = "") -> None:
        """Stop the clock, and set the status and the message.

        Parameters
        ----------
        status : {"finished", "interrupted", "failed"}
            How the task ended.
        message : str
            Why the task was interrupted or failed.
        """
        self.seconds = self.elapsed
        self.status, self.message = status, message


@dataclass(repr=False)
class FitRecord(Timed):
    """One call of an estimator: its engines, its iterations, and the seconds of each phase.

    A view may read the record from another thread while the call runs: lists only grow, and numbers of engines change
    in place, or the whole list of engines is replaced.

    Parameters
    ----------
    estimator : str
        The estimator's name, ``"KMeans"``.
    method : str
        The method called, ``"fit"``.
    parameters : dict
        The estimator's parameters as plain values, as far as they can be described. An array is replaced by a
        description of its shape, so the report contains no data.
    n_samples, n_features : int
        Shape of the data.
    dtype : str
        Type in which the engines computed, ``"float32"``.
    status : {"running", "finished", "interrupted", "failed"}
        State of the call.
    message : str
        While the call runs, its present step. At the end, why it was interrupted or failed.
    started : str
        Start of the call in UTC, in ISO 8601; by default the time of construction.
    seconds : float
        Wall time of the call in the calling process.
    n_init : int
        Number of runs from different starts.
    engines : list of EngineReport
        One per rank, in the order of the ranks.
    iterations : list of Iteration
        The iterations of all runs, in the order in which they ran.
    versions : dict of str to str
        Package or driver -> its version.
    notes : list of str
        Remarks on the call and on the placement of the engines, such as ``"2 engines share the cores 0-1"``.
    sent : float
        Seconds in which the calling process copied the rows to where the engines read them.
    waited : float
        Seconds until the call of another client had ended.
    converged : bool, optional
        Whether the call ended because the algorithm had converged; None if the algorithm does not say.
    """

    estimator: str
    method: str
    parameters: dict[str, Any]
    n_samples: int
    n_features: int
    dtype: str
    status: Status = "running"
    message: str = ""
    started: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    seconds: float = 0.0
    n_init: int = 1
    engines: list[EngineReport] = field(default_factory=list)
    iterations: list[Iteration] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    sent: float = 0.0
    waited: float = 0.0
    converged: bool | None = None
    _clock: float | None = field(default_factory=time.perf_counter, init=False, compare=False)

    later = "for its end, type: %xpu_cluster last"

    def __post_init__(self) -> None:
        self.parameters = _summaries(self.parameters)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-serialisable values, from which `from_dict` makes the report again."""
        content = dataclasses.asdict(self)
        del content["_clock"]
        return content

    @classmethod
    def from_dict(cls: type[Self], content: Mapping[str, Any]) -> Self:
        """Return the report that `to_dict` has described.

        Parameters
        ----------
        content : mapping
            What `to_dict` returned.
        """
        parts = {
            "engines": [EngineReport(**engine) for engine in content["engines"]],
            "iterations": [Iteration(**iteration) for iteration in content["iterations"]],
        }
        report = cls(**{**content, **parts})
        report._clock = None  # the clock of a report from `to_dict` stands still
        return report

    @property
    def lasting(self) -> bool:
        """Whether a call that was too quick for a live view shows its result: a fit does."""
        return self.method.startswith("fit")

    @property
    def title(self) -> str:
        """Estimator and method, ``"KMeans.fit"``."""
        return f"{self.estimator}.{self.method}"

    @property
    def objective(self) -> tuple[str, float] | None:
        """Name and value of the first metric at the end of the best run, whose result the estimator keeps.

        None if there are no metrics. The fit minimises the metric, or maximises it: then it rises within each run.
        """
        every = [(i.init, next(iter(i.metrics.items()))) for i in self.iterations if i.metrics]
        last, first = dict(every), dict(reversed(every))
        rises = sum(last[run][1] - first[run][1] for run in last) > 0
        return (max if rises else min)(last.values(), key=lambda item: item[1], default=None)

    @property
    def slowest(self) -> EngineReport | None:
        """The engine with the most `EngineReport.work`; None with fewer than two engines."""
        return max(self.engines, key=lambda engine: engine.work) if len(self.engines) > 1 else None

    @property
    def imbalance(self) -> float | None:
        """Per cent by which the slowest engine's work is above the mean; None with fewer than two engines."""
        mean = sum(engine.work for engine in self.engines) / max(1, len(self.engines))
        if self.slowest is None or mean == 0:
            return None
        return 100 * (self.slowest.work / mean - 1)

    @property
    def mean_phases(self) -> dict[str, float]:
        """`EngineReport.phases`, the mean of all engines; empty without engines."""
        engines = [engine.phases for engine in self.engines]
        names = dict.fromkeys(name for phases in engines for name in phases)
        return {name: sum(phases.get(name, 0.0) for phases in engines) / len(engines) for name in names}

    @property
    def longest(self) -> tuple[str, float] | None:
        """The longest part of the call and its seconds; None before anything took time.

        The part is a phase, with its mean over the engines, or "copy" (`sent`), or "queue" (`waited`).
        """
        parts = {**self.mean_phases, "copy": self.sent, "queue": self.waited}
        name = max(parts, key=parts.__getitem__)
        return (name, parts[name]) if parts[name] > 0 else None

    @property
    def state(self) -> str:
        """The status, or "not converged" for a call that ended at ``max_iter``."""
        return "not converged" if self.status == "finished" and self.converged is False else self.status

    @property
    def tiles(self) -> str:
        """`EngineReport.tile` of the engines, for each engine if they differ; empty if there is none."""
        used = {engine.rank: engine.tile for engine in self.engines if engine.tile}
        if len(set(used.values())) <= 1:
            return next(iter(used.values()), "")
        return "; ".join(f"engine {rank}: {tile}" for rank, tile in used.items())

    @property
    def runs(self) -> int:
        """Number of runs from different starts, as far as known."""
        return max(self.n_init, self.iterations[-1].init if self.iterations else 1)

    @property
    def fraction(self) -> float | None:
        """Iterations done, as a fraction in [0, 1] of the largest possible number; None without ``max_iter``."""
        most = self.parameters.get("max_iter")
        if not isinstance(most, int) or most < 1:
            return None
        if not self.iterations:
            return 0.0
        last = self.iterations[-1]
        return min(1.0, ((last.init - 1) * most + last.number) / (self.runs * most))

    @property
    def remaining(self) -> str:
        """The remaining time at the pace of the latest iterations, such as ``"at most 8 s"``; empty if unknown.

        The runs that have ended give the expected number of iterations of the others. During the first run only
        ``max_iter`` bounds this number.
        """
        most = self.parameters.get("max_iter")
        # The time of a run's first iteration includes the drawing of its initial centres.
        paces = [i.seconds for i in self.iterations[-10:] if i.number > 1 and i.seconds > 0]
        if not isinstance(most, int) or len(paces) < 3:
            return ""
        last = self.iterations[-1]
        ended = [earlier.number for earlier, i in itertools.pairwise(self.iterations) if i.init != earlier.init]
        length = max(ended, default=most)
        left = max(0, length - last.number) + length * (self.runs - last.init)
        said = "about" if ended else "at most"
        return f"{said} {format_seconds(math.ceil(left * statistics.median(paces)))}" if left else ""

    @property
    def headline(self) -> str:
        """Estimator, status, time, data and engines, on one line."""
        joint = {"running": "for", "finished": "in"}.get(self.status, "after")
        limit = ", not converged" if self.state == "not converged" else ""
        return plain(f"{self.title}: {self.status} {joint} {format_seconds(self.elapsed)}{limit}, {self.scale}")

    @property
    def summary(self) -> str:
        """The headline and the result of the call, on one line."""
        parts = [self.headline]
        if self.iterations:
            parts.append(counted(len(self.iterations), "iteration"))
        if self.objective is not None:
            parts.append(f"{self.objective[0].replace('_', ' ')} {format_number(self.objective[1])}")
        return ", ".join(parts)

    @property
    def scale(self) -> str:
        """Data and engines, such as ``"2,000,000 × 14 float32 on 4 engines"``."""
        engines = f" on {counted(len(self.engines), 'engine')}" if self.engines else ""
        return f"{format_count(self.n_samples)} × {format_count(self.n_features)} {self.dtype}{engines}"


@dataclass(repr=False)
class Pair:
    """Two records to compare."""

    first: FitRecord
    second: FitRecord


@dataclass(repr=False)
class TaskRecord(Timed):
    """A task other than a call of an estimator, such as the start of a cluster.

    Parameters
    ----------
    title : str
        Name of the task, such as ``"start 4 engines"``.
    total : int
        Number of steps.
    done : int
        Number of steps done.
    message : str
        While the task runs, its present step, such as ``"waiting for engine 2 of 4"``. At the end, why it failed.
    status : {"running", "finished", "interrupted", "failed"}
        State of the task.
    seconds : float
        Wall time of the whole task, after its end.
    """

    title: str
    total: int = 1
    done: int = 0
    message: str = ""
    status: Status = "running"
    seconds: float = 0.0
    _clock: float | None = field(default_factory=time.perf_counter, init=False, compare=False)

    #: A task too quick for a live view leaves nothing behind.
    lasting = False

    @property
    def headline(self) -> str:
        """Title, status and seconds of the task, on one line."""
        joint = "in" if self.status == "finished" else "after"
        return f"{plain(self.title)}: {self.status} {joint} {format_seconds(self.seconds)}"

    @property
    def summary(self) -> str:
        """How the task ended, on one line."""
        return "; ".join([self.headline, *map(plain, self.message.splitlines()[:1])])

    def line(self) -> str:
        """Return the progress of the task, on one line."""
        steps = f"{self.done}/{self.total}" if self.total > 1 else ""
        parts = [self.title, steps, self.message, format_seconds(self.elapsed)]
        return "  ".join(plain(part) for part in parts if part)


def _summaries(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values that describe the parameters, without those that cannot be described.

    A parameter may be any object of the user, whose attributes and texts may raise any exception. A call must not fail
    because of its report.
    """
    found = {}
    for name, value in parameters.items():
        with contextlib.suppress(Exception):
            found[str(name)] = _summary(value)
    return found


def _summary(value: Any) -> Any:
    """Return a plain value that describes ``value``, without a reference to it or to its class.

    The engines get the report. They cannot import the class of a user's string or number, such as an enumeration.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    for number in (int, float):
        if isinstance(value, number):
            return number(value)
    if isinstance(value, type):
        return value.__name__
    shape = getattr(value, "shape", ())
    if shape != ():
        return f"{type(value).__name__} of shape {tuple(shape)}"
    if hasattr(value, "item"):
        scalar = value.item()
        return _summary(scalar) if type(scalar) is not type(value) else _text(scalar)
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return _text(value)


def _text(value: Any) -> str:
    text = str.__str__(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."
