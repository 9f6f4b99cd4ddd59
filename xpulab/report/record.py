"""The data of reports: what each engine did, and how long each phase took. Estimators write it, and views read it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypeVar

from xpulab.report.rendering import counted, format_count, format_number, format_seconds, plain, summaries
from xpulab.report.task import Status, Timed
from xpulab.sharing.board import PASSES, PHASES

__all__ = [
    "PHASES",
    "WAITING",
    "WORK",
    "EngineReport",
    "FitRecord",
    "Iteration",
    "Pair",
]

#: Phases of an engine's own work. The other phases also depend on the other engines.
WORK = ("transfer", "compile", "kernel", "host")
#: How the message of a call begins while it waits until another one has ended.
WAITING = "waiting for "

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
    launch_shape : str, optional
        How the engine cuts the search for the nearest centre, such as ``"4x4x16, span 4096 (tuned)"``: rows of a
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
    launch_shape: str | None = None
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
        """Seconds of `transfer`, `compile`, `kernel` and `host`: the work of this engine and its device alone."""
        return sum(self.seconds[phase] for phase in WORK)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase, `other` included, in the order in which they are drawn.

        A network has the import of PyTorch and the passes in place of "compile" and "kernel": nothing is compiled. The
        phase "host" is left out if it took no time: few estimators compute on the host's processor.
        """
        if not (passes := self.passes):
            seconds = {name: value for name, value in self.seconds.items() if value or name != "host"}
            return {**seconds, "other": self.other}
        rest = {phase: self.seconds[phase] for phase in PHASES if phase not in ("compile", "kernel", "host")}
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


_PLAIN = frozenset([str, int, float, bool, type(None)])


def _contents(record: Any) -> dict[str, Any]:
    """Return the public fields of a record, in an eighth of the time of `dataclasses.asdict`, which copies numbers."""
    return {name: _copied(getattr(record, name)) for name in _names(type(record))}  # type: ignore[arg-type]  # a class is hashable


@functools.cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(kind) if not each.name.startswith("_"))


def _copied(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, dict):
        return {key: each if type(each) in _PLAIN else _copied(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_copied, value))
    return _contents(value) if isinstance(value, (EngineReport, Iteration)) else value


@dataclass(repr=False)
class FitRecord(Timed):
    """One call of an estimator: its engines, its iterations, and the seconds of each phase.

    A view may read the record from another thread while the call runs: lists only grow, and numbers of engines change
    in place, or the whole list of engines is replaced.

    The parameters are the attributes of `xpulab.report.fit.FitReport`.
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
    lost: float = 0.0
    restart: float = 0.0
    converged: bool | None = None
    part: str = ""
    final: dict[str, float] = field(default_factory=dict)
    chosen_run: int = 0
    every_run: bool = False
    stays: bool = False
    files: bool = False
    spooled: bool = False
    reading: float = 0.0
    _clock: float | None = field(default_factory=time.perf_counter, init=False, compare=False)
    _steps: tuple[int, int, float] = field(default=(0, 0, 0.0), init=False, compare=False)

    later = "for its end, type: %xpu_cluster last"

    def __post_init__(self) -> None:
        self.parameters = summaries(self.parameters)
        self.status = self._seen_as(self.status)  # in a report that an earlier release kept, it is "finished"

    def _seen_as(self, status: Status) -> Status:
        return "not converged" if status == "finished" and self.converged is False else status

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-serialisable values, from which `from_dict` makes the report again."""
        return _contents(self)

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
    def span(self) -> tuple[float, float] | None:
        """The moments of `time.perf_counter` between which the call has run; None for a report from `from_dict`."""
        return None if self._clock is None else (self._clock, self._clock + self.elapsed)

    @property
    def lasting(self) -> bool:
        """Whether a call that was too quick for a live view shows its result: a fit does."""
        return self.method.startswith("fit")

    @property
    def title(self) -> str:
        """Estimator and method, ``"KMeans.fit"``."""
        return f"{self.estimator}.{self.method}"

    @property
    def metric(self) -> str:
        """Name of the first metric of the iterations; empty if there is none."""
        return "" if (best := self._best) is None else best[1]

    @property
    def objective(self) -> tuple[str, float] | None:
        """Name and value of what the fit improves: the estimator's own value, or the first metric of the best run."""
        if self.final:
            return next(iter(self.final.items()))
        return None if (best := self._best) is None else best[1:]

    @property
    def reached(self) -> Iteration | None:
        """The iteration of which views show the numbers: the latest one, or the last one of the best run at the end."""
        seen = tuple(self.iterations)
        if not self.finished:
            return seen[-1] if seen else None
        best = self.best_run
        return next((i for i in reversed(seen) if i.init == best), seen[-1] if seen else None)

    @property
    def best_run(self) -> int:
        """Number of the run whose result the estimator keeps; 0 if there are no metrics."""
        if self.chosen_run:
            return self.chosen_run
        return 0 if (best := self._best) is None else best[0]

    @property
    def _best(self) -> tuple[int, str, float] | None:
        """The best run, and name and value of the first metric at its end.

        The fit minimises the metric, or maximises it: then it rises within each run.
        """
        every = [(i.init, next(iter(i.metrics.items()))) for i in self.iterations if i.metrics]
        last, first = dict(every), dict(reversed(every))
        rises = sum(last[run][1] - first[run][1] for run in last) > 0
        ends = ((run, name, value) for run, (name, value) in last.items())
        return (max if rises else min)(ends, key=lambda end: end[2], default=None)

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
    def phases(self) -> list[str]:
        """Names of the phases of all engines, in the order in which they are drawn."""
        return max((list(engine.phases) for engine in self.engines), key=len, default=[])

    @property
    def mean_phases(self) -> dict[str, float]:
        """`EngineReport.phases`, the mean of all engines; empty without engines."""
        engines = [engine.phases for engine in self.engines]
        return {name: sum(phases.get(name, 0.0) for phases in engines) / len(engines) for name in self.phases}

    @property
    def longest(self) -> tuple[str, float] | None:
        """The longest part of the call and its seconds; None before anything took time.

        The part is a phase, with its mean over the engines, "copy" (`sent`), "queue" (`waited`), "lost" or "restart".
        """
        beside = {"copy": self.sent, "queue": self.waited, "lost": self.lost, "restart": self.restart}
        parts = {**self.mean_phases, **beside}
        name = max(parts, key=parts.__getitem__)
        return (name, parts[name]) if parts[name] > 0 else None

    @property
    def launch_shapes(self) -> str:
        """`EngineReport.launch_shape` of the engines, for each engine if they differ; empty if there is none."""
        used = {engine.rank: engine.launch_shape for engine in self.engines if engine.launch_shape}
        if len(set(used.values())) <= 1:
            return next(iter(used.values()), "")
        return "; ".join(f"engine {rank}: {shape}" for rank, shape in used.items())

    @property
    def runs(self) -> int:
        """Number of runs from different starts, as far as known."""
        return max(self.n_init, self.iterations[-1].init if self.iterations else 1)

    def replaced(self, seconds: float) -> None:
        """Note that new engines were ready so long after a loss. Other times are then those of the new ones."""
        self.lost = self.elapsed - seconds - self.restart
        self.restart += seconds
        self.sent = self.waited = 0.0

    def step(self, what: str, done: int, steps: int) -> None:
        """Say in `message` at which step the call is, such as ``"tree 11 of 100"``, if it has counted steps.

        Parameters
        ----------
        what : str
            What the steps are; the whole message if there are none.
        done, steps : int
            Number of steps that have ended, and of all.
        """
        before, of, since = self._steps
        if steps:
            self.message = f"{what} {min(done + 1, steps):,} of {steps:,}"
            self._steps = done, steps, since if (of == steps and done >= before) else self.elapsed
        else:
            self.message, self._steps = what, (0, 0, 0.0)

    @property
    def fraction(self) -> float | None:
        """Iterations, or the steps before them, as a fraction in [0, 1] of the largest number; None if unknown."""
        done, steps, _ = self._steps
        if steps and not self.iterations:
            return done / steps
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
        ``max_iter`` bounds this number. Nothing is known while steps before the iterations are counted.
        """
        done, steps, since = self._steps
        most = self.parameters.get("max_iter")
        if steps and most is None:
            left = (self.elapsed - since) / done * (steps - done) if done else 0.0
            return f"about {format_seconds(math.ceil(left))}" if left else ""
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
        status, limit = ("finished", ", not converged") if self.status == "not converged" else (self.status, "")
        joint = {"running": "for", "finished": "in"}.get(status, "after")
        return plain(f"{self.title}: {status} {joint} {format_seconds(self.elapsed)}{limit}, {self.scale}")

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
