"""Linear models of margins and of distances: support vector machines, and regression of quantiles."""

from __future__ import annotations

from dataclasses import replace

from xpulab.engine.algorithms.linear.logistic import classified
from xpulab.engine.algorithms.linear.loss_problem import problem_of
from xpulab.engine.algorithms.linear.losses import Distances, Margins
from xpulab.engine.algorithms.linear.solving import minimised
from xpulab.engine.dataset import PassedRows, rows_of, weights_of
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.rows import Rows
from xpulab.sharing.linear_models import Coding, DistanceLoss, MarginLoss, Minimisation, Minimised, State
from xpulab.sharing.sources import SharedArray, Source

__all__: list[str] = []


@task("LinearSVC.fit", metrics=("loss", "gradient"))
def _fit_margins(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    coding: Coding,
    loss: MarginLoss,
    solving: Minimisation,
    checkpoint: str,
    resume: State | None = None,
) -> Minimised:
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
    rows, values = rows_of(task, source, weights_of(task, weights, source.bounds)), rows_of(task, targets)
    assert isinstance(values, Rows)
    missed = Distances(loss.epsilon, loss.below, loss.above, None if loss.squared else 1.0)
    problem = problem_of(task, rows, values, missed, solving.fit_intercept, loss.constant)
    return minimised(task, problem, 1 / problem.weight, solving, checkpoint, resume)
