"""Ctrl-C at random moments of calls whose rows take long: while they are checked, sent, computed with, and answered."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from trials import later

import xpulab
from xpulab import metrics
from xpulab.cluster import KMeans
from xpulab.decomposition import PCA, IncrementalPCA
from xpulab.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from xpulab.exceptions import CallInterrupted
from xpulab.linear_model import LassoCV, LogisticRegression, RidgeCV
from xpulab.model_selection import train_test_split
from xpulab.naive_bayes import GaussianNB
from xpulab.neighbors import KNeighborsClassifier
from xpulab.preprocessing import QuantileTransformer, StandardScaler

__all__ = ["PressedCall", "pressed_calls"]


@dataclass
class PressedCall:
    """A call in which Ctrl-C was pressed.

    Attributes
    ----------
    name : str
        As the message of an interrupt names it.
    moment : float
        Seconds from the beginning of the call to the press.
    seconds : float
        Seconds from the press to the end of the call; 0 if it had ended before.
    said : str
        What the interrupt says; "" if the call had ended before.
    wrong : str
        What is wrong with it; "" if nothing is.
    """

    name: str
    moment: float
    seconds: float
    said: str
    wrong: str


def calls_with(n: int) -> dict[str, Callable[[], Any]]:
    """Return calls with `n` rows of 16 numbers, by the names by which an interrupt tells of them."""
    drawn = np.random.default_rng(0)
    X = drawn.normal(size=(n, 16))
    labels = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
    numbers, chances = X @ np.arange(16.0) + drawn.normal(size=n), drawn.dirichlet([1, 1, 1], n)
    others = np.roll(labels, 1)
    fits: list[tuple[Any, Any]] = [
        (KMeans(8, n_init=1, max_iter=20, random_state=0), None),
        (StandardScaler(), None),
        (PCA(4), None),
        (IncrementalPCA(4), None),
        (QuantileTransformer(n_quantiles=100), None),
        (RidgeCV(cv=5), numbers),
        (LassoCV(alphas=5, cv=3), numbers),
        (LogisticRegression(max_iter=20), labels),
        (GaussianNB(), labels),
        (KNeighborsClassifier(), labels),
        (RandomForestClassifier(4, max_depth=6), labels),
        (HistGradientBoostingClassifier(max_iter=3), labels),
    ]
    calls: dict[str, Callable[[], Any]] = {
        f"{type(model).__name__}.fit": functools.partial(model.fit, X, y) for model, y in fits
    }
    for score, *given in (
        (metrics.davies_bouldin_score, X, labels),
        (metrics.calinski_harabasz_score, X, labels),
        (metrics.confusion_matrix, labels, others),
        (metrics.classification_report, labels, others),
        (metrics.log_loss, labels, chances),
        (metrics.roc_auc_score, labels > 0, chances[:, 1]),
        (metrics.adjusted_rand_score, labels, others),
        (metrics.r2_score, numbers, numbers + 1),
    ):
        calls[f"metrics.{score.__name__}"] = functools.partial(score, *given)
    calls["model_selection.train_test_split"] = functools.partial(train_test_split, X, labels, random_state=0)
    return calls


def pressed_calls(cluster: xpulab.XPUCluster, n: int, trials: int, chance: random.Random) -> Iterator[PressedCall]:
    """Press Ctrl-C once in each of so many calls with `n` rows, at any moment of the time that the call usually takes.

    Parameters
    ----------
    cluster : XPUCluster
    n : int
        Number of rows.
    trials : int
    chance : random.Random
    """
    calls, usual = calls_with(n), {}
    names = chance.sample(list(calls), len(calls))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for number in range(trials):
            name = names[number % len(names)]
            if name not in usual:
                calls[name]()  # compiles and imports
                begun = time.monotonic()
                calls[name]()
                usual[name] = time.monotonic() - begun
            yield _pressed(cluster, name, calls[name], chance.uniform(0, usual[name]))


def _pressed(cluster: xpulab.XPUCluster, name: str, call: Callable[[], Any], moment: float) -> PressedCall:
    pressed: list[float] = []
    said, wrong, ended = "", "", 0.0

    def press() -> None:
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    with contextlib.suppress(KeyboardInterrupt), later(moment, press):  # one that comes before the call has begun
        try:
            call()
        except CallInterrupted as interrupt:
            said = str(interrupt)
        except KeyboardInterrupt as interrupt:
            frames = [frame for frame, _ in traceback.walk_tb(interrupt.__traceback__)]
            if any(frame.f_globals["__name__"].startswith("xpulab.") for frame in frames):
                wrong = f"a bare KeyboardInterrupt in {' '.join(frame.f_code.co_name for frame in frames)}"
        ended = time.monotonic()
    method = name.removesuffix(".fit")
    if said and not re.match(rf"{re.escape(method)}(\.fit)? (was interrupted|had ended)", said):
        wrong = f"it says: {said}"
    if cluster.run(_rank) != list(range(cluster.size)):
        wrong = wrong or "the ranks do not answer"
    return PressedCall(name, moment, max(0.0, ended - pressed[0]) if pressed and said else 0.0, said, wrong)


def _rank(task: Any) -> int:
    return int(task.rank)
