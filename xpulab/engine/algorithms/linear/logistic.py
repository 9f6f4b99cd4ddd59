"""Logistic regression over the rows of all ranks: fits, predictions, and their score.

References
----------
.. [1] scikit-learn's ``sklearn/linear_model/_logistic.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xpulab.engine.algorithms.labels import codes_of
from xpulab.engine.algorithms.linear.loss_problem import parts_in_passes, problem_of
from xpulab.engine.algorithms.linear.losses import Classes, probabilities
from xpulab.engine.algorithms.linear.solving import minimised
from xpulab.engine.algorithms.passes import whole_rows
from xpulab.engine.dataset import PassedRows, rows_of, weights_of, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans.choice import AnyRows, kernels_for
from xpulab.kernels.project import project
from xpulab.kernels.rows import Rows
from xpulab.sharing.answers import Agreement, OwnRows
from xpulab.sharing.linear_models import Coding, Minimisation, Minimised, State
from xpulab.sharing.sources import SharedArray, Source, Target

__all__ = ["classified", "labels_of"]


@task("LogisticRegression.fit", metrics=("loss", "gradient"))
def _fit(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    coding: Coding,
    solving: Minimisation,
    checkpoint: str,
    resume: State | None = None,
) -> Minimised:
    rows, codes, _ = classified(task, source, weights, targets, coding)
    problem = problem_of(task, rows, codes, Classes(coding.n_classes), solving.fit_intercept)
    return minimised(task, problem, 1 / problem.weight, solving, checkpoint, resume)


def classified(
    task: Task, source: Source, weights: SharedArray | PassedRows | None, targets: Source, coding: Coding
) -> tuple[AnyRows, Rows, np.ndarray | None]:
    """Return this rank's rows, with the weights of samples and classes, and the numbers of their classes.

    The last array is the weights (n_samples,) without those of the classes; None if there are none.
    """
    own = weights_of(task, weights, source.bounds)
    rows, codes = rows_of(task, source, own), rows_of(task, targets)
    assert isinstance(codes, Rows)
    if coding.known is not None or coding.class_weight is not None:
        numbers = codes_of(codes, coding.known)
        if coding.class_weight is not None:
            of_classes = coding.class_weight[numbers.astype(np.intp)]
            rows = kernels_for(rows).weighted(rows, of_classes * rows.weights_on_cpu())
        codes = Rows.upload(task.device, numbers.astype(rows.dtype)[:, None])
    return rows, codes, own


@task("LogisticRegression.predict")
def _predict(
    task: Task, source: Source, weights: None, target: Target, coef: np.ndarray, intercept: np.ndarray, kind: str
) -> OwnRows:
    """Write the "decision", the "label" (the number of the class), the "proba" or the "log_proba" of each row."""
    rows = whole_rows(task, source)
    made = (_KINDS[kind](part) for part in project(rows, coef.T, None, intercept))
    write_block(task, target, source.bounds, made)
    return {"rows": rows.n_samples}


def labels_of(decision: np.ndarray) -> np.ndarray:
    """Return the numbers of the classes of decisions (n, n_columns)."""
    return decision[:, 0] > 0 if decision.shape[1] == 1 else decision.argmax(axis=1)


def _logarithms(decision: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(probabilities(decision))


_KINDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "decision": lambda decision: decision,
    "label": labels_of,
    "proba": probabilities,
    "log_proba": _logarithms,
}


@task("LogisticRegression.score")
def _score(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    classes: np.ndarray | None,
    coef: np.ndarray,
    intercept: np.ndarray,
) -> Agreement:
    """Sum of the weights of rows that are classified as their targets say, and of all rows."""
    weight, codes = weights_of(task, weights, source.bounds), rows_of(task, targets)
    assert isinstance(codes, Rows)
    labels = [np.empty(0, np.intp)]
    for part in parts_in_passes(task, source):
        labels += map(labels_of, project(part, coef.T, None, intercept))
    right = np.concatenate(labels) == codes_of(codes, classes)
    weight = np.ones(len(right)) if weight is None else weight
    equal, every = task.comm.allreduce(np.array([weight[right].sum(), weight.sum()], np.float64))
    return {"rows": len(right), "equal": equal, "weight": every}
