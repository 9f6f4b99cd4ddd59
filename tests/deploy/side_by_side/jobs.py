"""What joblib's jobs do on the engines in tests."""

from __future__ import annotations

import os
import signal
import threading
import uuid
import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from waiting import until

from xpulab.cluster import KMeans
from xpulab.ensemble import HistGradientBoostingRegressor
from xpulab.linear_model import Ridge

__all__ = ["Gated", "die_once", "fail_on_the_engine", "meet", "nested", "raise_at", "thread", "who"]


def who(number: int) -> tuple[int, int]:
    """Return the number, and the process."""
    return number, os.getpid()


def meet(number: int, folder: Path, others: int) -> int:
    """Wait until so many jobs have come here."""
    (folder / str(number)).touch()
    until(lambda: len(os.listdir(folder)) >= others)
    return number


def raise_at(number: int, bad: int) -> int:
    """Raise an error in one job."""
    if number == bad:
        raise KeyError(f"job {number}")
    warnings.warn(f"job {number} is odd", FutureWarning, stacklevel=1)
    print(f"job {number} prints")
    return number


def die_once(number: int, bad: int, folder: Path) -> int:
    """End the engine's process in one job, once, when the notebook knows of others that have ended."""
    if number == bad and not (folder / "died").exists():
        until((folder / "known").exists)
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / f"{number}-{uuid.uuid4().hex}").touch()
    return number


def nested(number: int) -> list[tuple[int, int]]:
    """Begin jobs in a job."""
    return list(joblib.Parallel(n_jobs=2)(joblib.delayed(who)(each) for each in range(number)))


def thread(number: int) -> Any:
    """Return what no pickle can hold."""
    return threading.Lock() if number else number


def refuse(estimator: Any, X: Any, y: Any) -> float:
    """Raise an error as a scorer, which an engine calls in a task."""
    raise ValueError("a scorer refuses")


def fail_on_the_engine(number: int, X: Any, y: Any) -> None:
    """Fit so that the task fails on the engines."""
    HistGradientBoostingRegressor(max_iter=2, early_stopping=True, scoring=refuse).fit(X, y)


class Gated(RegressorMixin, BaseEstimator):
    """A ridge regression whose fit notes that it was made, and waits for a file if its `alpha` says so."""

    def __init__(self, alpha: float = 1.0, folder: str = "", waits: float = 0.0) -> None:
        self.alpha, self.folder, self.waits = alpha, folder, waits

    def fit(self, X: Any, y: Any) -> Gated:
        """Fit."""
        here = Path(self.folder)
        if self.alpha == self.waits and not (here / "open").exists():
            (here / f"waits-{uuid.uuid4().hex}").touch()
            noise = np.random.default_rng(0).normal(size=(100_000, 8))
            while True:  # until the user interrupts
                KMeans(300, n_init=1, max_iter=1_000_000, tol=0, random_state=0).fit(noise)
        (here / f"fit-{self.alpha:g}-{uuid.uuid4().hex}").touch()
        self.model_ = Ridge(self.alpha).fit(X, y)
        return self

    def predict(self, X: Any) -> Any:
        """Predict."""
        check_is_fitted(self)
        return self.model_.predict(X)
