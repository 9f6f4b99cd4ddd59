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
from xpulab.sharing.linear_models import Coding, Minimisation, Paths, PathsFound, PathsState, Solution
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
    coding: Coding,
    paths: Paths,
    checkpoint: str,
    resume: PathsState | None = None,
) -> PathsFound:
    """Fit each path of each fold, which is a run, and score the test rows of the fold after each fit, an iteration.

    Then all rows are fitted with the penalty that is best, or that is chosen already.
    """
    rows, codes, own = classified(task, source, weights, targets, coding)
    ours = _Rows(task, rows, codes, np.ones(rows.n_samples) if own is None else own, Classes(coding.n_classes), paths)
    n_paths, n_fits = len(paths.fits), len(paths.fits[0])
    done = len(resume["scores"]) if resume else 0
    with contextlib.ExitStack() as stack:
        kept: Any = stack.enter_context(task.checkpoint(checkpoint)) if task.comm.rank == 0 else None
        record = _Record(resume, n_fits)
        try:
            for fold in range(done // (n_paths * n_fits), len(paths.places)):
                test = ours.begin(fold, source.bounds[task.comm.rank])
                for number in range(max(0, done - fold * n_paths * n_fits), n_paths * n_fits):
                    how = paths.fits[number // n_fits][number % n_fits]
                    if number % n_fits and kept is not None:
                        how = replace(how, start=record.coefs[-1])
                    found = ours.minimised(how)
                    score = task.comm.allreduce(ours.agreement(found.get("coef"), test))
                    if kept is not None:
                        record.add(task, found, score, kept)
            chosen = task.comm.bcast(np.array(record.chosen(paths) if kept is not None else (-1, -1)))
            refitted: Solution = {}
            if chosen[0] >= 0:
                task.show(doing="fitting all rows")
                ours.begin(None)
                how = paths.fits[chosen[0]][chosen[1]]
                if kept is not None:
                    starts = np.array(record.coefs).reshape(-1, n_paths, n_fits, len(record.coefs[0]))
                    how = replace(how, start=starts[:, chosen[0], chosen[1]].mean(axis=0))
                refitted = ours.minimised(replace(how, verbose=max(0, how.verbose - 1)))
        except Interrupted as interrupted:
            interrupted.result |= {"history": record.history} | ({"state": record.state} if record.coefs else {})
            raise
        except BaseException:  # another rank left the task at another point, for an interrupt or because it was lost
            if kept is not None and record.coefs:
                kept.write(record.state)
            raise
    if task.comm.rank != 0:
        return {"rows": rows.n_samples}
    answer: PathsFound = {"rows": rows.n_samples, "state": record.state, "history": record.history}
    if paths.refit is not None:
        answer["converged"] = all(each["converged"] for each in [*record.state["told"], refitted] if each)
        answer |= {"refitted": refitted, "chosen": (int(chosen[0]), int(chosen[1]))}
    return answer


class _Rows:
    """This rank's rows, and the fold whose training rows the fits see."""

    def __init__(self, task: Task, rows: AnyRows, codes: Rows, own: np.ndarray, loss: Classes, paths: Paths) -> None:
        self._task, self._rows, self._codes, self._loss, self._paths = task, rows, codes, loss, paths
        self._numbers = codes_of(codes, None).astype(np.intp)
        self._weights, self._own = rows.weights_on_cpu(), own
        self._problem: Problem | None = None
        self._wide: Problem | None = None

    def begin(self, fold: int | None, first: int = 0) -> np.ndarray:
        """Begin with a fold, or with all rows; return the weights of the test rows, of those from row `first` on."""
        rows, test = self._rows, self._own
        if fold is not None:
            train, tested = self._paths.weights_of(fold, slice(first, first + rows.n_samples))
            rows, test = kernels_for(rows).weighted(rows, self._weights * train), self._own * tested
        how = self._paths.fits[0][0]
        self._problem = problem_of(self._task, rows, self._codes, self._loss, how.fit_intercept)
        if fold is not None and not self._problem.weight > 0:
            raise ValueError(_NO_WEIGHT)
        by_rows = how.solver == "newton-cholesky" and isinstance(rows, Rows)
        self._wide = wide_problem(self._problem) if by_rows else None
        return test

    def minimised(self, how: Minimisation) -> Solution:
        """Return the solution; of other ranks than rank 0, nothing. Its penalties are beside the sum of the losses."""
        problem = self._problem if self._wide is None or not how.penalty else self._wide
        assert problem is not None
        if problem.comm.rank != 0:
            problem.follow()
            return {}
        share = 1 / problem.weight
        assert how.start is not None
        found = solve(_Quiet(problem, share * how.penalty, share * how.l1, None, lambda state: None), how, how.start)
        problem.end()
        return found

    def agreement(self, coef: Any, weights: np.ndarray) -> np.ndarray:
        """Return the weight of this rank's rows that are classified correctly by rank 0's coefficients, and of all."""
        assert self._problem is not None
        coef, intercept = self._problem.table(self._task.comm.bcast(coef))
        rows, labels = self._rows, [np.empty(0, np.intp)]
        for part in (part for _, part in rows.parts()) if isinstance(rows, StreamedRows) else [rows]:
            labels += map(labels_of, project(part, coef.T, None, intercept))
        return np.array([weights[np.concatenate(labels) == self._numbers].sum(), weights.sum()])


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

    def chosen(self, paths: Paths) -> tuple[int, int]:
        """Return path and number of the fit whose penalty all rows are fitted with; (-1, -1) for none."""
        if not paths.refit:
            return -1, -1
        if isinstance(paths.refit, tuple):
            return paths.refit
        scores = np.array(self._scores)
        with np.errstate(invalid="ignore"):
            accuracies = (scores[:, 0] / scores[:, 1]).reshape(-1, len(paths.fits), self._n_fits)
        return paths.best_of(accuracies)
