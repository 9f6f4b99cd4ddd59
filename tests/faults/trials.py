"""Faults at random moments of real calls on real engines. Each trial ends with a check that nothing was lost."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from leftovers import processes_of, shared_memory

import xpulab
from xpulab.cluster import KMeans
from xpulab.exceptions import XpulabError
from xpulab.libraries import oneapi
from xpulab.sharing.program import program

__all__ = ["FAULTS", "PHASES", "Bench", "Trial", "Watched", "forget", "later", "remember", "same"]

PHASES = ("start", "transfer", "compile", "tune", "init", "iteration", "predict", "gather")
SILENCE = 3.0  # seconds; 30 by default, which would make the trials long

#: The limits of docs/guide/failures.md in seconds from a fault to the end of the cell (interrupts), to the moment when
#: the cluster sees it (lost engines), or to the end of the last process (killed notebooks).
LIMITS = {"interrupt": 1.0, "stuck": SILENCE + 2, "memory": 15.0, "notebook": 15.0}
SEEN = 5.0
COLD = ("compile", "tune")  # phases of which a compilation may end first
COMPILE = 2.0

_X = np.random.default_rng(0).normal(size=(120_000, 8)).astype(np.float32)
_FIT: dict[str, Any] = {"n_clusters": 64, "random_state": 0, "max_iter": 60, "tol": 0}
_INIT: dict[str, Any] = {"n_clusters": 400, "random_state": 0, "max_iter": 1}
_TUNED: dict[str, Any] = {"n_clusters": 20, "random_state": 0, "max_iter": 5, "tol": 0}
_SMALL: dict[str, Any] = {"n_clusters": 5, "random_state": 0}


@dataclass
class Trial:
    """The course of one trial.

    Attributes
    ----------
    fault, phase : str
    moment : float
        Seconds from the start of the call to the fault.
    seconds : float
        Seconds from the fault to the event in `LIMITS`; 0 if the call had ended before.
    outcome : str
        "interrupted", "recovered", "told" (an error of the package), "done", or a description of what went wrong.
    wrong : str
        Description of a wrong result; "" if the trial is good.
    """

    fault: str
    phase: str
    moment: float
    seconds: float
    outcome: str
    wrong: str


class Watched(xpulab.XPUCluster):
    """A cluster that records when it saw that something was lost."""

    seen: float | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        give_up = self.engines._give_up

        def given_up(*given: Any) -> None:
            self.seen = self.seen or time.monotonic()
            give_up(*given)

        self.engines._give_up = given_up  # type: ignore[method-assign, assignment]


class Bench:
    """A cluster, a call for each phase, and the result of the call without a fault.

    Parameters
    ----------
    n : int
        Number of engines.
    phases : sequence of str
        Phases of the trials to come.
    """

    def __init__(self, n: int = 2, phases: Sequence[str] = PHASES) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
        os.environ.setdefault("XPULAB_TUNE", "0")  # what was tuned before, and a search in the middle, are not the same
        self._others = set(processes_of(os.getpid()))  # of another cluster of this process
        self.cluster = Watched(n, silence=SILENCE)
        self._start()
        self.fitted = reference = KMeans(**_FIT).fit(_X)
        self.handle = self.cluster.scatter(_X)
        self._warm: set[tuple[str | int, ...]] = set()
        self._folders: list[tempfile.TemporaryDirectory[str]] = []
        self.calls: dict[str, Callable[[], Any]] = {
            "start": self._restart,
            "transfer": lambda: np.array(self.cluster.scatter(_X).counts),
            "compile": lambda: self._fit(_SMALL),
            "tune": lambda: self._fit(_TUNED),
            "init": lambda: self._fit(_INIT),
            "iteration": lambda: self._fit(_FIT),
            "predict": lambda: reference.predict(_X),
            "gather": lambda: self.handle.gather(),
        }
        self.right: dict[str, Any] = {}
        self.usual: dict[str, float] = {}
        for phase in dict.fromkeys([*phases, "compile"]):  # that one is made after each trial, too
            for _ in range(2):  # the first took longer, perhaps; a fault that comes after the end tries nothing
                self._prepare(phase if phase in phases else "predict")
                started = time.monotonic()
                self.right[phase] = self.calls[phase]()
                self.usual[phase] = min(self.usual.get(phase, np.inf), time.monotonic() - started)
            if phase in COLD and phase in phases:
                self.cluster.run(remember)
        self.shared = shared_memory()
        self.missed = ""  # what a fault has not found

    # -- the calls ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", xpulab.exceptions.OversubscribedWarning)
            self.cluster.start()

    def _restart(self) -> np.ndarray:
        self._start()
        return np.array(self.cluster.size)

    def _fit(self, parameters: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        self.fitted = KMeans(**parameters)
        self.fitted.fit(_X)
        return self.fitted.cluster_centers_, self.fitted.labels_

    def _prepare(self, phase: str) -> None:
        """Prepare a call. The preparation is not a part of the trial."""
        if phase == "start":
            self.cluster.stop()
            return
        self._start()
        if phase in COLD:
            self._folders.append(tempfile.TemporaryDirectory(prefix="xpulab-"))
            self.cluster.run(forget, self._folders[-1].name, "all" if phase == "tune" else "0")
            return
        if self.handle.id not in self.cluster.rows.handles_here:
            self.handle = self.cluster.scatter(_X)
        engines: tuple[str | int, ...] = (phase, *(fact.pid for fact in self.cluster.facts))
        if engines not in self._warm:
            self._warm.add(engines)
            self.calls[phase]()  # the kernels of new engines come from the disk, which is not what is tried here

    # -- a trial ------------------------------------------------------------------------------------------------------

    def trial(self, fault: str, phase: str, chance: random.Random) -> Trial:
        """Make one call, with one fault between its start and its usual end."""
        moment = chance.uniform(0, self.usual[phase])
        if fault == "notebook":
            return self._of_a_notebook(phase, moment)
        self._prepare(phase)
        self.cluster.seen, self.missed = None, ""
        struck: list[float] = []

        def strike() -> None:
            struck.append(time.monotonic())
            FAULTS[fault](self, chance)

        def call() -> Any:
            with later(moment, strike):
                return self.calls[phase]()

        outcome, found = self._outcome(call)
        ended = self.cluster.seen or time.monotonic()
        seconds = max(0.0, ended - struck[0]) if struck and outcome != "done" else 0.0
        self.unlimit()
        wrong = self.missed or self._wrong(fault, phase, outcome, found, seconds)
        wrong = wrong or self._wrong_afterwards(fault, phase, outcome)
        return Trial(fault, phase, moment, seconds, outcome, wrong)

    def _outcome(self, call: Callable[[], Any]) -> tuple[str, Any]:
        try:
            found = call()
        except KeyboardInterrupt:
            return "interrupted", None
        except (XpulabError, MemoryError) as error:
            return "told", error
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:300], None
        notes = self.cluster.last_report.notes if self.cluster.last_report is not None else []
        recovered = self.cluster.seen is not None and any("started new engines" in note for note in notes)
        return "recovered" if recovered else "done", found

    def _wrong(self, fault: str, phase: str, outcome: str, found: Any, seconds: float) -> str:
        limit = COMPILE if fault == "interrupt" and phase in COLD else LIMITS.get(fault, SEEN)
        if seconds > limit:
            return f"{seconds:.1f} s, and {limit:g} were promised; {found if outcome == 'told' else ''}"
        if outcome == "interrupted":
            return "" if fault == "interrupt" else "nobody pressed Ctrl-C"
        if outcome == "told":  # nothing can be sent again that is not here, and nothing is there before the start
            allowed = fault == "memory" or (fault != "interrupt" and phase in ("start", "gather"))
            return "" if allowed else f"{type(found).__name__}: {found}"
        if outcome not in ("recovered", "done"):
            return "not an error of xpulab"
        return "" if same(found, self.right[phase]) else "the result is another"

    def _wrong_afterwards(self, fault: str, phase: str, outcome: str) -> str:
        """Check that the next calls are right, and that nothing is left."""
        self._start()
        if outcome == "interrupted" and phase in ("init", "iteration", *COLD) and self.fitted._stopped is not None:
            resumed = self.fitted.resume()
            if not same((resumed.cluster_centers_, resumed.labels_), self.right[phase]):
                return "the resumed fit is another"
        if phase == "tune":  # or the next fit, with other sizes, would tune as well
            self.cluster.run(remember)
        if not same(self._fit(_SMALL), self.right["compile"]):
            return "the next fit is another"
        if phase == "compile":
            self.cluster.run(remember)
        while self._folders:
            self._folders.pop().cleanup()
        deadline = time.monotonic() + 5
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return f"left: {left}" if left else ""

    def _processes(self) -> dict[int, str]:
        return {pid: line for pid, line in processes_of(os.getpid()).items() if pid not in self._others}

    def _left(self) -> list[str]:
        """List processes that do not belong to the cluster, and shared memory with a name."""
        assert self.cluster.engines.processes is not None
        mine = set(self.cluster.engines.processes.pids())
        others = [f"{pid} {line}" for pid, line in self._processes().items() if pid not in mine]
        return others + sorted(shared_memory() - self.shared)

    def _of_a_notebook(self, phase: str, moment: float) -> Trial:
        """Kill another process that makes the call again and again."""
        self.cluster.stop()
        code = f"import sys; sys.path[:0] = {sys.path!r}; import trials; trials.notebook({phase!r})"
        notebook = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert notebook.stdout is not None
        notebook.stdout.readline()
        time.sleep(moment)
        notebook.kill()
        notebook.wait()
        notebook.stdout.close()
        killed = time.monotonic()
        while (left := processes_of(notebook.pid)) and time.monotonic() < killed + 2 * LIMITS["notebook"]:
            time.sleep(0.05)
        seconds = time.monotonic() - killed
        left_memory = shared_memory() - self.shared
        wrong = f"left: {left} {left_memory}" if left or left_memory else ""
        late = f"{seconds:.1f} s" if seconds > LIMITS["notebook"] else ""
        return Trial("notebook", phase, moment, seconds, "ended", wrong or late)

    # -- victims ------------------------------------------------------------------------------------------------------

    def processes(self, command: str) -> list[int]:
        """Find processes whose command line begins with `command`; while a cluster starts, wait for the first one."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if found := [pid for pid, line in self._processes().items() if line.startswith(command)]:
                return sorted(found)
            time.sleep(0.01)
        self.missed = f"there was no {command}"
        return []

    def signal(self, chance: random.Random, command: str, number: signal.Signals) -> None:
        """Send a signal to one of these processes."""
        if pids := self.processes(command):
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(pids), number)

    def limit(self, chance: random.Random) -> None:
        """Limit the memory of an engine to a little more than it has now."""
        if pids := self.processes(ENGINE):
            with contextlib.suppress(psutil.Error):
                engine = psutil.Process(chance.choice(pids))
                engine.rlimit(resource.RLIMIT_AS, (engine.memory_info().vms + chance.randrange(8 << 20), _hard()))

    def unlimit(self) -> None:
        """Remove the limits of all engines."""
        for pid, line in self._processes().items():
            if line.startswith(ENGINE):
                with contextlib.suppress(psutil.Error):
                    psutil.Process(pid).rlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, _hard()))

    def close(self) -> None:
        """Stop the cluster."""
        self.cluster.stop()


def notebook(phase: str) -> None:
    """Make a call again and again, in the process that will be killed."""
    if phase == "start":
        print("begun", flush=True)
    bench = Bench(phases=[phase])
    if phase != "start":
        print("begun", flush=True)
    while True:
        bench._prepare(phase)
        bench.calls[phase]()


def forget(task: Any, folder: str, tune: str) -> None:
    """On an engine: compile all kernels again, store them in `folder`, and try launch shapes if `tune` says so."""
    import os
    from pathlib import Path

    engine, device, tuner = task.engine, task.device, task.engine.tuner
    engine.remembered = device.programs.copy(), os.environ.get("XPULAB_CACHE", ""), tuner.mode, tuner.path
    device.programs.clear()
    os.environ["XPULAB_CACHE"] = folder
    tuner.mode, tuner.path = tune, Path(folder) / "launch_shapes.json"


def remember(task: Any) -> None:
    """On an engine: undo `forget`; do nothing on a new engine."""
    import os

    device, tuner = task.device, task.engine.tuner
    if hasattr(task.engine, "remembered"):
        kernels, os.environ["XPULAB_CACHE"], tuner.mode, tuner.path = task.engine.remembered
        device.programs.update(kernels)
        tuner.speeds.clear()
        device.launch_shapes.clear()


def _hard() -> int:
    return resource.getrlimit(resource.RLIMIT_AS)[1]


def same(found: Any, right: Any) -> bool:
    pairs = zip(found, right, strict=True) if isinstance(found, tuple) else [(found, right)]
    return all(np.allclose(ours, theirs, rtol=1e-4, atol=1e-4) for ours, theirs in pairs)


@contextlib.contextmanager
def later(seconds: float, act: Callable[[], Any]) -> Iterator[None]:
    """Call a function in another thread after this number of seconds, unless the block has ended by then."""
    timer = threading.Timer(seconds, act)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        while True:  # a Ctrl-C that comes in this moment belongs to the block that has ended
            try:
                timer.join()
                time.sleep(0.01)
                break
            except KeyboardInterrupt:
                continue


# How their command lines begin; mpiexec's goes on with the engines', and the engines' with options.
ENGINE = " ".join([*program("xpulab.engine"), ""])
CONTROLLER = " ".join(program("xpulab.deploy.processes.controller"))
MPIEXEC = str(oneapi.mpiexec())

FAULTS: dict[str, Callable[[Bench, random.Random], None]] = {
    "interrupt": lambda bench, chance: os.kill(os.getpid(), signal.SIGINT),
    "kill": lambda bench, chance: bench.signal(chance, ENGINE, signal.SIGKILL),
    "abort": lambda bench, chance: bench.signal(chance, ENGINE, signal.SIGABRT),
    "memory": lambda bench, chance: bench.limit(chance),
    "stuck": lambda bench, chance: bench.signal(chance, ENGINE, signal.SIGSTOP),
    "controller": lambda bench, chance: bench.signal(chance, CONTROLLER, signal.SIGKILL),
    "mpiexec": lambda bench, chance: bench.signal(chance, MPIEXEC, signal.SIGKILL),
    "notebook": lambda bench, chance: None,  # a process of its own: `Bench._of_a_notebook`
}
