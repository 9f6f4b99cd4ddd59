"""Linear models of margins and of distances: support vector machines, regression of quantiles, and Huber's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from xpulab.engine.algorithms.linear.logistic import classified
from xpulab.engine.algorithms.linear.loss_problem import Problem, parts_in_passes, problem_of
from xpulab.engine.algorithms.linear.losses import Distances, Margins, Robust
from xpulab.engine.algorithms.linear.solving import minimised
from xpulab.engine.dataset import PassedRows, on_host, rows_of, weights_of, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans.choice import AnyRows
from xpulab.kernels.project import project
from xpulab.kernels.rows import Rows
from xpulab.sharing.linear_models import DistanceLoss, MarginLoss, Minimisation, Minimised, State
from xpulab.sharing.sources import SharedArray, Source, Target

__all__: list[str] = []


@task("LinearSVC.fit", metrics=("loss", "gradient"))
def _fit_margins(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    loss: MarginLoss,
    solving: Minimisation,
    checkpoint: str,
    resume: State | None = None,
) -> Minimised:
    coding = loss.coding
    several = coding.n_classes > 2
    # As in liblinear, only a class's own rows have its weight in its column.
    of_rows = replace(coding, class_weight=None) if several else coding
    rows, codes, _ = classified(task, source, weights, targets, of_rows)
    missed = Margins(coding.n_classes, None if loss.squared else 1.0, coding.class_weight if several else None)
    problem = problem_of(task, rows, codes, missed, solving.fit_intercept, loss.constant)
    return minimised(task, problem, 1 / problem.weight, solving, checkpoint, resume)


@task("LinearSVR.fit", metrics=("loss", "gradient"))
def _fit_distances(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    loss: DistanceLoss,
    solving: Minimisation,
    checkpoint: str,
    resume: State | None = None,
) -> Minimised:
    problem = _of_distances(task, source, weights, targets, loss, solving)
    return minimised(task, problem, 1 / problem.weight, solving, checkpoint, resume)


@task("QuantileRegressor.fit", metrics=("loss", "gradient"))
def _fit_quantile(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    loss: DistanceLoss,
    solving: Minimisation,
    checkpoint: str,
    resume: State | None = None,
) -> Minimised:
    problem = _of_distances(task, source, weights, targets, loss, solving)
    return minimised(task, problem, 1.0, solving, checkpoint, resume)


def _of_distances(
    task: Task, source: Source, weights: SharedArray | PassedRows | None, targets: Source, loss: DistanceLoss,
    solving: Minimisation,
) -> Problem:  # fmt: skip
    missed = Distances(loss.epsilon, loss.below, loss.above, None if loss.squared else 1.0)
    return problem_of(task, *_rows(task, source, weights, targets), missed, solving.fit_intercept, loss.constant)


def _rows(
    task: Task, source: Source, weights: SharedArray | PassedRows | None, targets: Source
) -> tuple[AnyRows, Rows]:
    rows, values = rows_of(task, source, weights_of(task, weights, source.bounds)), rows_of(task, targets)
    assert isinstance(values, Rows)
    return rows, values


@task("HuberRegressor.fit", metrics=("loss", "gradient"))
def _fit_huber(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    epsilon: float,
    solving: Minimisation,
    target: Target,
    checkpoint: str,
    resume: State | None = None,
) -> Minimised:
    """Fit, and write which rows are outliers."""
    rows, values = _rows(task, source, weights, targets)
    problem = problem_of(task, rows, values, Robust(epsilon), solving.fit_intercept)
    found = minimised(task, problem, 1 / problem.weight, solving, checkpoint, resume)
    point: Any = task.comm.bcast(found["coef"] if task.comm.rank == 0 else None)
    (coef, intercept), first = problem.table(point[:-1]), 0
    targets_of_rows, outliers = on_host(values, np.float64)[:, 0], []
    for part in parts_in_passes(task, source):
        for raw in project(part, coef.T, None, intercept):
            missed = np.abs(targets_of_rows[first : first + len(raw)] - raw[:, 0])
            outliers.append(missed > epsilon * point[-1])
            first += len(raw)
    write_block(task, target, source.bounds, outliers)
    return found
