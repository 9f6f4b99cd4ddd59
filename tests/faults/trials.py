"""Faults at random moments of real calls on real engines; each trial ends with proof that nothing was lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import xpulab
from xpulab.cluster import KMeans

__all__ = ["FAULTS", "Bench", "Trial"]

SILENCE = 3.0  # seconds; 30 by default, which would make the trials long

_X = np.random.default_rng(0).normal(size=(120_000, 8)).astype(np.float32)
_PARAMETERS: dict[str, Any] = {"n_clusters": 64, "random_state": 0, "max_iter": 150, "tol": 0}


@dataclass
class Trial:
    """What happened in one trial.

    Attributes
    ----------
    fault, call : str
    moment : float
        Seconds from the start of the call to the fault.
    seconds : float
        From the fault to the end of the call.
    outcome : str
        "interrupted", "recovered", "done" (the call was over before) or what went wrong.
    good : bool
    """

    fault: str
    call: str
    moment: float
    seconds: float
    outcome: str
    good: bool


class Bench:
    """A cluster, the calls, and what they give undisturbed.

    Parameters
    ----------
    n : int
        Engines.
    """

    def __init__(self, n: int = 2) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", xpulab.exceptions.OversubscribedWarning)
            self.cluster = xpulab.XPUCluster(n, silence=SILENCE).start()
        self.reference = KMeans(**_PARAMETERS).fit(_X)
        self.calls: dict[str, Callable[[], Any]] = {
            "fit": self._fit,
            "predict": lambda: self.reference.predict(_X),
            "transform": lambda: self.reference.transform(_X),
            "scatter": lambda: self.cluster.scatter(_X).gather(),
        }
        self.right = {name: call() for name, call in self.calls.items()}
        self.usual = {name: _time_of(call) for name, call in self.calls.items()}

    def _fit(self) -> tuple[np.ndarray, np.ndarray]:
        self.fitted = KMeans(**_PARAMETERS)
        self.fitted.fit(_X)
        return self.fitted.cluster_centers_, self.fitted.labels_

    def trial(self, fault: str, chance: random.Random) -> Trial:
        """One call, one fault at a moment between its start and its usual end."""
        name = chance.choice([c for c in self.calls if c != "scatter" or fault == "interrupt"])
        moment = chance.uniform(0, self.usual[name])
        struck: list[float] = []
        victim = chance.choice(self.cluster.facts)["pid"]

        def strike() -> None:
            struck.append(time.monotonic())
            FAULTS[fault](self, victim)

        with _later(moment, strike):
            try:
                outcome, found = "done", self.calls[name]()
                if self.cluster.last_report is not None and any(
                    "started new engines" in note for note in self.cluster.last_report.notes
                ):
                    outcome = "recovered"
            except KeyboardInterrupt:
                outcome, found = "interrupted", None
            except Exception as error:
                outcome, found = f"{type(error).__name__}: {error}"[:200], None
            ended = time.monotonic()
        good = outcome in ("interrupted", "recovered", "done") and self._is_right(name, found)
        if outcome == "interrupted" and name == "fit" and self.fitted._stopped is not None:
            resumed = self.fitted.resume()
            good = good and self._is_right("fit", (resumed.cluster_centers_, resumed.labels_))
        good = good and self._is_right("predict", self.calls["predict"]())  # the next call is right
        return Trial(fault, name, moment, ended - struck[0] if struck else 0.0, outcome, good)

    def _is_right(self, name: str, found: Any) -> bool:
        if found is None:
            return True
        pairs = zip(found, self.right[name], strict=True) if isinstance(found, tuple) else [(found, self.right[name])]
        return all(np.allclose(ours, right, rtol=1e-4, atol=1e-4) for ours, right in pairs)

    @property
    def controller(self) -> int:
        """Its process."""
        assert self.cluster._processes is not None
        return self.cluster._processes._watched["controller"][0]

    def close(self) -> None:
        """Stop the cluster."""
        self.cluster.stop()


def _time_of(call: Callable[[], Any]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


@contextlib.contextmanager
def _later(seconds: float, act: Callable[[], Any]) -> Iterator[None]:
    """Do something in another thread after so many seconds, or not at all where the block is over by then."""
    timer = threading.Timer(seconds, act)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        while True:  # a Ctrl-C that comes just now belongs to the block that has ended
            try:
                timer.join()
                time.sleep(0.01)
                break
            except KeyboardInterrupt:
                continue


FAULTS: dict[str, Callable[[Bench, int], None]] = {
    "interrupt": lambda bench, victim: os.kill(os.getpid(), signal.SIGINT),
    "kill": lambda bench, victim: os.kill(victim, signal.SIGKILL),
    "abort": lambda bench, victim: os.kill(victim, signal.SIGABRT),
    "stuck": lambda bench, victim: os.kill(victim, signal.SIGSTOP),
    "controller": lambda bench, victim: os.kill(bench.controller, signal.SIGKILL),
}
