"""Generalised linear models over the rows of all ranks: fits, predictions, and their score.

References
----------
.. [1] scikit-learn's ``sklearn/linear_model/_glm/glm.py``: objective, first coefficients and score.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xpulab.engine.algorithms.linear.loss_problem import parts_in_passes, problem_of
from xpulab.engine.algorithms.linear.losses import Deviance
from xpulab.engine.algorithms.linear.solving import minimised
from xpulab.engine.algorithms.passes import whole_rows
from xpulab.engine.dataset import PassedRows, on_host, rows_of, weights_of, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.project import project
from xpulab.kernels.rows import Rows
from xpulab.sharing.answers import OwnRows
from xpulab.sharing.linear_models import Deviances, Distribution, Minimisation, Minimised, State
from xpulab.sharing.sources import SharedArray, Source, Target

__all__: list[str] = []


def _targets(task: Task, targets: Source, loss: Deviance, distribution: Distribution) -> tuple[Rows, np.ndarray]:
    """Return this rank's targets, on the device and on the host; raise the same error on all ranks for wrong ones."""
    rows = rows_of(task, targets)
    assert isinstance(rows, Rows)
    numbers = on_host(rows, np.float64)[:, 0]
    lowest = task.comm.allreduce(np.array([numbers.min(initial=np.inf)]), np.minimum)[0]
    if not loss.takes(lowest):
        out = f"Some value(s) of y are out of the valid range of the loss {distribution.name!r}"
        raise ValueError(f"{out}: the lowest is {lowest:g}.")
    return rows, numbers


@task("GeneralizedLinear.fit", metrics=("loss", "gradient"))
def _fit(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    distribution: Distribution,
    solving: Minimisation,
    checkpoint: str,
    resume: State | None = None,
) -> Minimised:
    """Fit from given coefficients, or from zeros, and the intercept for the mean of all targets."""
    rows, loss = rows_of(task, source, weights_of(task, weights, source.bounds)), Deviance.of(distribution)
    right, numbers = _targets(task, targets, loss, distribution)
    problem = problem_of(task, rows, right, loss, solving.fit_intercept)
    total = task.comm.allreduce(np.array([rows.weights_on_cpu() @ numbers]))[0]
    if solving.start is None:
        start = np.zeros(rows.n_features + solving.fit_intercept)
        start[rows.n_features :] = loss.raw(total / problem.weight)
        solving = replace(solving, start=start)
    return minimised(task, problem, 1.0, solving, checkpoint, resume)


@task("GeneralizedLinear.predict")
def _predict(
    task: Task,
    source: Source,
    weights: None,
    target: Target,
    coef: np.ndarray,
    intercept: np.ndarray,
    distribution: Distribution,
) -> OwnRows:
    """Write the mean of each row."""
    rows, loss = whole_rows(task, source), Deviance.of(distribution)
    write_block(task, target, source.bounds, (loss.means(part) for part in project(rows, coef, None, intercept)))
    return {"rows": rows.n_samples}


@task("GeneralizedLinear.score")
def _score(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    coef: np.ndarray,
    intercept: np.ndarray,
    distribution: Distribution,
) -> Deviances:
    """Return half the mean deviances of the predictions, and of the mean of all targets in place of each."""
    loss = Deviance.of(distribution)
    _, numbers = _targets(task, targets, loss, distribution)
    weight = weights_of(task, weights, source.bounds)
    weight = np.ones(len(numbers)) if weight is None else weight.astype(np.float64)
    raw = [np.empty((0, 1))]
    for part in parts_in_passes(task, source):
        raw += [each.astype(np.float64) for each in project(part, coef, None, intercept)]
    of_rows = np.ones(len(numbers)), numbers, loss.losses(np.concatenate(raw), numbers), loss.constant(numbers)
    total, weighted, found, constant = task.comm.allreduce(np.array([weight @ each for each in of_rows]))
    with np.errstate(divide="ignore", invalid="ignore"):
        alike = np.full((len(numbers), 1), loss.raw(weighted / total))
    null = task.comm.allreduce(np.array([weight @ loss.losses(alike, numbers)]))[0]
    return {"rows": len(numbers), "weight": total, "own": found + constant, "null": null + constant}
