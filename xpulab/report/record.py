"""What ran where, and how long each phase took: plain data, which an estimator fills and every view reads."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal, TypeVar, get_args

from xpulab.rendering import counted, format_count, format_number, format_seconds, plain
from xpulab.sharing.board import PHASES

__all__ = [
    "DISPLAYS",
    "PHASES",
    "Display",
    "EngineReport",
    "FitRecord",
    "Iteration",
    "Pair",
    "Status",
    "TaskRecord",
    "Timed",
]

#: What an engine does itself; the rest of its time depends on the others.
_WORK = ("transfer", "compile", "kernel")

Status = Literal["running", "finished", "interrupted", "failed"]
#: How calls are shown while they run and at their end: a whole report, a line each, or not at all.
Display = Literal["full", "compact", "none"]
DISPLAYS: tuple[Display, ...] = get_args(Display)
Self = TypeVar("Self", bound="FitRecord")


@dataclass
class EngineReport:
    """One engine's part in a call.

    Parameters
    ----------
    rank : int
        The engine's MPI rank.
    host : str
        Name of its machine.
    pid : int
        Its process there.
    device : str
        The device's own name.
    rows : int
        Rows of the data that it held.
    cores : list of int, optional
        The cores it was pinned to; None for all of them.
    memory : int, optional
        Bytes in use on the device at the end; None where the device does not tell.
    tile : str, optional
        How the search for the nearest centre was cut for its device, and whether that was measured to be the fastest:
        ``"4x4x16, span 4096 (tuned)"``, which is rows of a work-item, centres at a time, work-items of a group, and
        rows of a group.
    seconds : dict of str to float
        Seconds by phase, under the names in `PHASES`; phases left out are 0.
    total : float
        Seconds from the call's arrival at the engine to its answer.
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

    def __post_init__(self) -> None:
        if unknown := set(self.seconds) - set(PHASES):
            raise ValueError(f"unknown phases {sorted(unknown)} in seconds; the phases are {', '.join(PHASES)}")
        # Every phase has its key from the start: a view may read the dict while the engine's next figures come in.
        self.seconds = {phase: float(self.seconds.get(phase, 0.0)) for phase in PHASES}

    @property
    def other(self) -> float:
        """Seconds that no phase accounts for; never negative, though the clocks of host and device differ."""
        return max(0.0, self.total - sum(self.seconds.values()))

    @property
    def work(self) -> float:
        """Seconds of `transfer`, `compile` and `kernel`: what this engine and its device took themselves."""
        return sum(self.seconds[phase] for phase in _WORK)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase, `other` included, in the order in which they are drawn."""
        return {**self.seconds, "other": self.other}


@dataclass
class Iteration:
    """One iteration of one run.

    Parameters
    ----------
    number : int
        Which iteration, from 1 on.
    metrics : dict of str to float
        What the algorithm measured, under the names of scikit-learn; the first is what it minimises. k-means has
        ``inertia`` and ``center_shift``.
    seconds : float
        Its wall time.
    init : int
        Which of the estimator's `n_init` runs, from 1 on.
    """

    number: int
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    init: int = 1


class Timed:
    """Status and clock, which a fit and any other task have in common."""

    status: Status
    message: str
    seconds: float
    #: How it is to be shown; this says nothing of what ran, and is not kept with it.
    display: Display = "full"
    _clock: float | None

    #: How to see the end of it, where its view no longer changes.
    later = "for now, type: %xpu_cluster status"

    @property
    def elapsed(self) -> float:
        """Seconds since the start while it runs, `seconds` afterwards."""
        if self.status != "running" or self._clock is None:
            return self.seconds
        return time.perf_counter() - self._clock

    def finish(self, status: Status = "finished", message: str = "") -> None:
        """Stop the clock.

        Parameters
        ----------
        status : {"finished", "interrupted", "failed"}
            How it ended.
        message : str
            Why it was interrupted or failed.
        """
        self.seconds = self.elapsed
        self.status, self.message = status, message


@dataclass(repr=False)
class FitRecord(Timed):
    """What one call of an estimator ran, on which engines, and how long each phase took.

    While the call runs, its lists only grow and its engines' figures only change in place or are replaced as one list,
    so that a view may read the report from another thread.

    Parameters
    ----------
    estimator : str
        The estimator's name, ``"KMeans"``.
    method : str
        The method called, ``"fit"``.
    parameters : dict
        The estimator's parameters. Kept as plain values: an array becomes a description of its shape, so that the
        report holds no data.
    n_samples, n_features : int
        Shape of the data.
    dtype : str
        Type that the engines computed in, ``"float32"``.
    status : {"running", "finished", "interrupted", "failed"}
        Where it stands.
    message : str
        What happens now, and at the end why it was interrupted or failed.
    started : str
        ISO 8601 in UTC; the time of construction unless given.
    seconds : float
        Wall time of the call, as its caller felt it.
    n_init : int
        Number of runs from different starts.
    engines : list of EngineReport
        One per rank, in their order.
    iterations : list of Iteration
        In the order they ran, all runs in one list.
    versions : dict of str to str
        Package or driver -> its version.
    notes : list of str
        What the plan had to say, ``"2 engines share the cores 0-1"``.
    sent : float
        Seconds in which the calling process copied the rows to where the engines read them.
    waited : float
        Seconds until the call of another client had ended.
    converged : bool, optional
        Whether it ended before its last iteration because it had converged; None if the algorithm does not say.
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
        self.parameters = {str(name): _summary(value) for name, value in self.parameters.items()}

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values that `json` takes; `from_dict` turns them back."""
        content = dataclasses.asdict(self)
        del content["_clock"]
        return content

    @classmethod
    def from_dict(cls: type[Self], content: Mapping[str, Any]) -> Self:
        """The report that `to_dict` turned into ``content``."""
        parts = {
            "engines": [EngineReport(**engine) for engine in content["engines"]],
            "iterations": [Iteration(**iteration) for iteration in content["iterations"]],
        }
        report = cls(**{**content, **parts})
        report._clock = None  # a report read back does not go on ageing
        return report

    @property
    def lasting(self) -> bool:
        """Whether the result is worth showing when the call was too quick for a live view: a fit's is."""
        return self.method.startswith("fit")

    @property
    def title(self) -> str:
        """``"KMeans.fit"``."""
        return f"{self.estimator}.{self.method}"

    @property
    def objective(self) -> tuple[str, float] | None:
        """Name and value of the first metric: the lowest last one of any run, which the estimator keeps."""
        last = {i.init: next(iter(i.metrics.items())) for i in self.iterations if i.metrics}
        return min(last.values(), key=lambda item: item[1], default=None)

    @property
    def slowest(self) -> EngineReport | None:
        """The engine with the most `EngineReport.work`; None where there is none to compare it with."""
        return max(self.engines, key=lambda engine: engine.work) if len(self.engines) > 1 else None

    @property
    def imbalance(self) -> float | None:
        """How far the slowest engine's work is above the mean, in per cent; None with fewer than two engines."""
        mean = sum(engine.work for engine in self.engines) / max(1, len(self.engines))
        if self.slowest is None or mean == 0:
            return None
        return 100 * (self.slowest.work / mean - 1)

    @property
    def longest(self) -> tuple[str, float] | None:
        """What took longest, and its seconds: a phase, as a mean over the engines, or "copy" (`sent`) or "queue"
        (`waited`); None before anything took time.
        """
        n = len(self.engines)
        parts = {name: sum(e.phases[name] for e in self.engines) / n for name in self.engines[0].phases} if n else {}
        parts |= {"copy": self.sent, "queue": self.waited}
        name = max(parts, key=parts.__getitem__)
        return (name, parts[name]) if parts[name] > 0 else None

    @property
    def state(self) -> str:
        """Where it stands, in words: the status, or "not converged" for a call that ended at ``max_iter``."""
        return "not converged" if self.status == "finished" and self.converged is False else self.status

    @property
    def tiles(self) -> str:
        """The tile of the engines, or of each where they differ; empty where there is none."""
        used = {engine.rank: engine.tile for engine in self.engines if engine.tile}
        if len(set(used.values())) <= 1:
            return next(iter(used.values()), "")
        return "; ".join(f"engine {rank}: {tile}" for rank, tile in used.items())

    @property
    def runs(self) -> int:
        """Number of runs from different starts, as far as it is known."""
        return max(self.n_init, self.iterations[-1].init if self.iterations else 1)

    @property
    def fraction(self) -> float | None:
        """Part of the most iterations possible that are done, in [0, 1]; None where no ``max_iter`` bounds them."""
        most = self.parameters.get("max_iter")
        if not isinstance(most, int) or most < 1:
            return None
        if not self.iterations:
            return 0.0
        last = self.iterations[-1]
        return min(1.0, ((last.init - 1) * most + last.number) / (self.runs * most))

    @property
    def remaining(self) -> str:
        """How long it will take at the pace of the latest iterations: ``"at most 8 s"``; empty if that is not known.

        Runs that have ended say how long the others will be. Before that only ``max_iter`` bounds the first.
        """
        most = self.parameters.get("max_iter")
        # The first iteration of a run waited for its start.
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
        """The headline, and what the call came to, on one line."""
        parts = [self.headline]
        if self.iterations:
            parts.append(counted(len(self.iterations), "iteration"))
        if self.objective is not None:
            parts.append(f"{self.objective[0].replace('_', ' ')} {format_number(self.objective[1])}")
        return ", ".join(parts)

    @property
    def scale(self) -> str:
        """``"2,000,000 × 14 float32 on 4 engines"``."""
        engines = f" on {counted(len(self.engines), 'engine')}" if self.engines else ""
        return f"{format_count(self.n_samples)} × {format_count(self.n_features)} {self.dtype}{engines}"


@dataclass(repr=False)
class Pair:
    """Two records to be held side by side."""

    first: FitRecord
    second: FitRecord


@dataclass(repr=False)
class TaskRecord(Timed):
    """Something other than a fit that a user waits for: a cluster that starts, say.

    Parameters
    ----------
    title : str
        What is being done, ``"start 4 engines"``.
    total : int
        Number of steps.
    done : int
        Steps behind us.
    message : str
        What happens now, ``"waiting for engine 2 of 4"``; at the end, why it failed.
    status : {"running", "finished", "interrupted", "failed"}
        Where it stands.
    seconds : float
        Wall time in all, once it has ended.
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
        """How it ended, and when."""
        joint = "in" if self.status == "finished" else "after"
        return f"{plain(self.title)}: {self.status} {joint} {format_seconds(self.seconds)}"

    @property
    def summary(self) -> str:
        """How it ended, on one line."""
        return "; ".join([self.headline, *map(plain, self.message.splitlines()[:1])])

    def line(self) -> str:
        """Where it stands, on one line."""
        steps = f"{self.done}/{self.total}" if self.total > 1 else ""
        parts = [self.title, steps, self.message, format_seconds(self.elapsed)]
        return "  ".join(plain(part) for part in parts if part)


def _summary(value: Any) -> Any:
    """A plain value that says what ``value`` is, without keeping it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if getattr(value, "shape", None) == ():
        return value.item()
    if hasattr(value, "shape"):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
