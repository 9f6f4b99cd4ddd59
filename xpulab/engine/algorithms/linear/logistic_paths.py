"""Logistic regression of the training rows of folds, with one penalty after the other, and the score of the others.

The rows are on the devices once. A fold is the same rows with other weights: those of its test rows are 0.

References
----------
.. [1] scikit-learn's ``sklearn/linear_model/_logistic.py``: the order of the fits, and their starts, follow it.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

import numpy as np

from xpulab.engine.algorithms.labels import codes_of
from xpulab.engine.algorithms.linear.logistic import classified, labels_of
from xpulab.engine.algorithms.linear.loss_problem import Problem, problem_of
from xpulab.engine.algorithms.linear.losses import Classes
from xpulab.engine.algorithms.linear.objective import Objective
from xpulab.engine.algorithms.linear.solving import solve
from xpulab.engine.algorithms.linear.wide_losses import wide_problem
from xpulab.engine.comm import Interrupted
from xpulab.engine.dataset import PassedRows
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans.choice import AnyRows, kernels_for
from xpulab.kernels.project import project
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import StreamedRows
from xpulab.sharing.board import RUNS
from xpulab.sharing.linear_models import Minimisation, Paths, PathsFound, PathsState, Solution
from xpulab.sharing.sources import SharedArray, Source

__all__: list[str] = []

_KEEP = 0.05  # seconds between two checkpoints
_NO_WEIGHT = "the rows of which a fold is fitted have no weight; choose other folds (cv)"


class _Quiet(Objective):
    """The objective of one of many fits, whose iterations nobody follows."""

    def reached(self, iteration: int, coef: np.ndarray) -> None:
        """Do nothing."""


@task("LogisticRegression.paths", metrics=("accuracy",))
def _paths(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    classes: np.ndarray | None,
    class_weight: np.ndarray | None,
    n_classes: int,
    paths: Paths,
    checkpoint: str,
    resume: PathsState | None = None,
) -> PathsFound:
    """Fit each path of each fold, which is a run, and score the test rows of the fold after each fit, an iteration."""
    rows, codes, own = classified(task, source, weights, targets, classes, class_weight)
    numbers = codes_of(codes, None).astype(np.intp)
    weighty, own = rows.weights_on_cpu(), np.ones(rows.n_samples) if own is None else own
    n_paths, n_fits = len(paths.fits), len(paths.fits[0])
    done = len(resume["scores"]) if resume else 0
    first = source.bounds[task.comm.rank]
    with contextlib.ExitStack() as stack:
        kept: Any = stack.enter_context(task.checkpoint(checkpoint)) if task.comm.rank == 0 else None
        record = _Record(resume, n_fits)
        try:
            for fold in range(done // (n_paths * n_fits), len(paths.places)):
                train, test = paths.weights_of(fold, slice(first, first + rows.n_samples))
                some = kernels_for(rows).weighted(rows, weighty * train)
                problem = problem_of(task, some, codes, Classes(n_classes), paths.fits[0][0].fit_intercept)
                if not problem.weight > 0:
                    raise ValueError(_NO_WEIGHT)
                by_rows = paths.fits[0][0].solver == "newton-cholesky" and isinstance(some, Rows)
                wide = wide_problem(problem) if by_rows else None
                for number in range(n_paths * n_fits):
                    if fold * n_paths * n_fits + number < done:
                        continue
                    how = paths.fits[number // n_fits][number % n_fits]
                    if number % n_fits:
                        how = replace(how, start=record.coefs[-1] if record.coefs else None)
                    found = _minimised(wide if how.penalty and wide is not None else problem, how)
                    coef: Any = found.get("coef")
                    table = problem.table(task.comm.bcast(coef))
                    score = task.comm.allreduce(_agreement(rows, numbers, own * test, *table))
                    if kept is not None:
                        record.add(task, found, score, kept)
        except Interrupted as interrupted:
            interrupted.result |= {"history": record.history} | ({"state": record.state} if record.coefs else {})
            raise
        except BaseException:  # another rank left the task at another point, for an interrupt or because it was lost
            if kept is not None and record.coefs:
                kept.write(record.state)
            raise
    if task.comm.rank != 0:
        return {"rows": rows.n_samples}
    return {"rows": rows.n_samples, "state": record.state, "history": record.history}


class _Record:
    """What the fits have found, on rank 0, where a fit that was interrupted goes on.

    Attributes
    ----------
    coefs : list of numpy.ndarray
        The coefficients of each fit, in the layout of scikit-learn's solvers.
    history : list of tuple
        Run, iteration, accuracy, and seconds since the start, of each fit that the state did not have.
    """

    def __init__(self, state: PathsState | None, n_fits: int) -> None:
        self.coefs = list(state["coefs"]) if state else []
        self.history: list[tuple[int, int, float, float]] = []
        self._told = list(state["told"]) if state else []
        self._scores = list(state["scores"]) if state else []
        self._n_fits = n_fits
        self._started = self._kept = time.perf_counter()

    @property
    def state(self) -> PathsState:
        """The state after the latest fit."""
        run, before = divmod(len(self.coefs) - 1, self._n_fits)
        return {
            "run": run,
            "iteration": before + 1,
            "coefs": np.array(self.coefs),
            "scores": np.array(self._scores),
            "told": self._told,
        }

    def add(self, task: Task, found: Solution, score: np.ndarray, kept: Any) -> None:
        """Add a fit, and the weights of its test rows that are classified correctly, and of all."""
        self.coefs.append(found.pop("coef"))
        self._told.append(found)
        self._scores.append(score)
        run, before = divmod(len(self.coefs) - 1, self._n_fits)
        with np.errstate(invalid="ignore"):
            accuracy = float(score[0] / score[1])
        now = time.perf_counter()
        self.history.append((run + 1, before + 1, accuracy, now - self._started))
        task.engine.record["lengths"][run % RUNS] = before + 1
        task.note_iteration(run + 1, before + 1)
        task.show(run=run + 1, iteration=before + 1, metrics=(accuracy,))
        if now - self._kept > _KEEP:
            kept.write(self.state)
            self._kept = now


def _minimised(problem: Problem, how: Minimisation) -> Solution:
    """Return the solution; of other ranks than rank 0, nothing. Its penalties are beside the sum of the losses."""
    if problem.comm.rank != 0:
        problem.follow()
        return {}
    share = 1 / problem.weight
    assert how.start is not None
    found = solve(_Quiet(problem, share * how.penalty, share * how.l1, None, lambda state: None), how, how.start)
    problem.end()
    return found


def _agreement(
    rows: AnyRows, numbers: np.ndarray, weights: np.ndarray, coef: np.ndarray, intercept: np.ndarray
) -> np.ndarray:
    """Return the weight of this rank's rows that are classified as their numbers say, and of all of its rows."""
    parts = (part for _, part in rows.parts()) if isinstance(rows, StreamedRows) else [rows]
    labels = [np.empty(0, np.intp)]
    for part in parts:
        labels += map(labels_of, project(part, coef.T, None, intercept))
    return np.array([weights[np.concatenate(labels) == numbers].sum(), weights.sum()])
