"""Gaussian naive Bayes: moments of the rows of each class, and the logarithms of the densities of all classes.

A class is a component of a mixture, whose responsibilities are the weights of the rows of the class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from xpulab.engine.algorithms.labels import codes_of
from xpulab.engine.algorithms.mixture import SHARES, Problem
from xpulab.engine.algorithms.naive_bayes.joint import KINDS
from xpulab.engine.algorithms.passes import moments, not_rounded_below_zero
from xpulab.engine.dataset import Data, PassedRows, data_of, weights_of, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.mixture import Densities, Sums, expectations
from xpulab.kernels.rows import Rows
from xpulab.sharing.answers import ClassMoments, OwnRows
from xpulab.sharing.sources import SharedArray, Source, Target

__all__: list[str] = []  # this module only registers tasks

_FAR = 16.0  # another pass is made if the subtracted mean is farther from the mean, in squared standard deviations


@task("GaussianNB.fit")
def _fit(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    known: np.ndarray | None,
    n_classes: int,
) -> ClassMoments:
    """Return weight, mean and squared differences from it of each class, and the largest variance of a column."""
    data, own = Data(task, source, targets=targets), weights_of(task, weights, source.bounds)
    assert data.targets is not None
    codes = codes_of(data.targets, known)

    def shares(sign: float) -> Iterator[np.ndarray]:
        for first in range(0, data.n_own, SHARES):
            some = (codes[first : first + SHARES, None] == np.arange(n_classes)).astype(data.dtype)
            if own is not None:
                some *= np.maximum(sign * own[first : first + SHARES, None], 0).astype(data.dtype)
            yield some

    negative = bool(task.comm.allreduce(np.array([own is not None and (own < 0).any()], np.float64))[0])
    every = moments(task, data.block)
    data.require_finite()
    problem, centers = Problem(task, data, "diag", 0.0), np.repeat(every.mean[None], n_classes, axis=0)
    for _ in range(2):
        sums = problem.of_shares(shares(1.0), centers)
        if negative:  # a component's responsibilities are not
            sums = _less(sums, problem.of_shares(shares(-1.0), centers))
        weight = sums.weight[:, None]
        away = np.divide(sums.first, weight, out=np.zeros_like(centers), where=weight != 0)
        mean, squares = sums.centers + away, not_rounded_below_zero(sums.second - sums.first * away, sums.second)
        if not (np.abs(weight) * np.square(away) > _FAR * np.abs(squares)).any():
            break
        centers = mean
    return {
        "rows": data.n_own,
        "weight": sums.weight,
        "mean": mean,
        "squares": squares,
        "variance": float((every.squares / every.count).max()),
    }


def _less(sums: Sums, others: Sums) -> Sums:
    """Subtract sums about the same centers."""
    return replace(
        sums,
        weight=sums.weight - others.weight,
        first=sums.first - others.first,
        second=sums.second - others.second,
    )


@task("GaussianNB.predict")
def _predict(
    task: Task,
    source: Source,
    weights: None,
    target: Target,
    constants: np.ndarray,
    means: np.ndarray,
    factors: np.ndarray,
    kind: str,
) -> OwnRows:
    """Write the "label", the "joint" logarithm, the "log_proba" or the "proba" of each row."""
    data = data_of(task, source)
    classes = [Densities(*each) for each in zip(constants[:, None], means[:, None], factors[:, None], strict=True)]
    parts = (data.rows.part(i, min(SHARES, data.n_own - i)) for i in range(0, data.n_own, SHARES))
    write_block(task, target, data.bounds, (KINDS[kind](_logarithms(part, classes)) for part in parts))
    return {"rows": data.n_own}


def _logarithms(rows: Rows, classes: list[Densities]) -> np.ndarray:
    """Return the logarithm of each class's density, (n_samples, n_classes). A mixture of one component has it alone."""
    return np.stack([np.concatenate([part[:, 1] for part in expectations(rows, one)]) for one in classes], axis=1)
