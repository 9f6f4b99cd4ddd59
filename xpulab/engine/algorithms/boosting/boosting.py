"""Histogram gradient boosting over the rows of all ranks: the tasks that fit and predict."""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from xpulab.engine.algorithms.boosting.binning import parts_of
from xpulab.engine.algorithms.boosting.categories import in_order
from xpulab.engine.algorithms.boosting.fitting import Fit, should_stop
from xpulab.engine.algorithms.boosting.scoring import Scoring
from xpulab.engine.comm import Interrupted
from xpulab.engine.dataset import data_of, on_host, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.on_cpu.boosting import add_by_rows
from xpulab.sharing.answers import Boosted, OwnRows
from xpulab.sharing.sources import CategoricalColumns, Growth, SharedArray, Source, Target

__all__ = ["predict"]

_KEEP = 0.05  # seconds between two checkpoints
_PIECE_BYTES = 1 << 18  # of rows that are followed through all trees together


@task("HistGradientBoosting.fit", metrics=("loss", "validation_loss"))
def _fit(
    task: Task,
    source: Source,
    weights: None,
    sent: dict[str, SharedArray | None],
    columns: CategoricalColumns | None,
    loss: str,
    quantile: float,
    baseline: np.ndarray,
    growth: Growth,
    max_iter: int,
    max_bins: int,
    stopping: tuple[int, float] | None,
    scoring: bytes | None,
    start: Boosted,
    checkpoint: str,
    resume: Boosted | None = None,
) -> dict[str, object]:
    """Grow trees.

    Parameters
    ----------
    task : Task
    source : Source
        The rows; they have no weights.
    sent : dict of str to SharedArray or None
        Of all rows: targets ``y`` or numbers of classes, ``weights``, ``held_out`` (1 for validation), and how many
        ``times`` each row counts for the thresholds. Rows for validation ``X_val``, with ``y_val`` and ``weights_val``;
        rows for training that a scorer scores, ``scored`` (1), None for all.
    columns : CategoricalColumns or None
    loss : str
        A name of `LOSSES`.
    baseline : numpy.ndarray of float64 of shape (n_outputs,)
        The raw prediction before the first tree.
    growth : Growth
    stopping : tuple of int and float, or None
        scikit-learn's ``n_iter_no_change`` and ``tol``, with early stopping.
    scoring : bytes or None
        The function of `Scoring`; None to look at the loss.
    start : dict
        ``trees`` of an earlier fit, its ``train_score`` and ``validation_score``, and the state ``rng``.
    resume : dict, optional
        A state of this fit, which has the same and the ``iteration``.
    """
    binned, train, validation = parts_of(task, source, sent, columns, max_bins, baseline)
    threads, rank = len(os.sched_getaffinity(0)), task.comm.rank
    scorer = None if scoring is None else Scoring(task, scoring, train, train.some, validation)
    run = _Run(task, resume or start, resume, scorer)
    with (
        ThreadPoolExecutor(threads) as pool,
        task.checkpoint(checkpoint) if rank == 0 else contextlib.nullcontext() as kept,
    ):
        fit = Fit(task, binned, train, validation, loss, quantile, growth, pool, threads)
        run.catch_up(fit, stopping is not None)
        ended = run.ended
        while len(run.trees) < max_iter and not ended:
            state = run.iterate(fit, stopping)
            ended = run.ended
            if kept is not None and time.perf_counter() - run.written > _KEEP:
                kept.write(state)
                run.written = time.perf_counter()
        found: dict[str, object] = {"rows": source.bounds[rank + 1] - source.bounds[rank]}
        if rank != 0:
            return found
        converged = ended if stopping is not None else None  # trees without early stopping do not say
        return {**found, **run.state(fit), "history": run.history, "converged": converged}


class _Run:
    """The trees of a fit so far, and their scores.

    Parameters
    ----------
    task : Task
    state : dict
        The trees from which the fit goes on; see `_fit`.
    reached : dict or None
        The state to which Stop goes back before an iteration has ended.
    scorer : Scoring or None
        What early stopping looks at; None for the loss.
    """

    def __init__(self, task: Task, state: Boosted, reached: Boosted | None, scorer: Scoring | None) -> None:
        self.task, self.reached, self.scorer = task, reached, scorer
        self.trees, self.rng = list(state["trees"]), np.random.default_rng()
        self.rng.bit_generator.state = state["rng"]
        self.train_score, self.validation_score = list(state["train_score"]), list(state["validation_score"])
        self.history: list[tuple[int, int, float, float, float]] = []
        self.ended = False
        self.began = self.written = time.perf_counter()

    def catch_up(self, fit: Fit, scores: bool) -> None:
        """Add the values of the trees that are there; without any, note the scores if early stopping needs them."""
        for number, of_iteration in enumerate(self.trees):
            if number % 10 == 0:
                self.task.check()
            for k, nodes in enumerate(of_iteration):
                for part in fit.parts:
                    fit.follow(part, nodes, k)
        if not self.trees and scores:
            self.append(fit, fit.scores())

    def append(self, fit: Fit, losses: tuple[float, float]) -> None:
        """Append the scores of an iteration: those of the scorer, or losses with the other sign."""
        scores = (-losses[0], -losses[1]) if self.scorer is None else self.scorer.scores()
        self.train_score.append(scores[0])
        if fit.validation is not None:
            self.validation_score.append(scores[1])

    def iterate(self, fit: Fit, stopping: tuple[int, float] | None) -> Boosted:
        """Grow the trees of an iteration, and return the state after it."""
        task = self.task
        try:
            exponents = fit.derive()
        except Interrupted as interrupted:
            if task.comm.rank == 0:
                interrupted.result["history"] = self.history
                if self.reached is not None:
                    interrupted.result["state"] = self.reached
            raise
        self.trees.append([fit.tree(k, exponents, self.rng) for k in range(len(fit.train.raw))])
        losses, iteration = fit.scores(), len(self.trees)
        if stopping is not None:
            self.append(fit, losses)
            self.ended = should_stop(self.validation_score or self.train_score, *stopping)
        self.history.append((1, iteration, *losses, time.perf_counter() - self.began))
        task.engine.record["lengths"][0] = iteration
        task.note_iteration(1, iteration)
        task.show(run=1, iteration=iteration, metrics=losses)
        self.reached = self.state(fit)
        return self.reached

    def state(self, fit: Fit) -> Boosted:
        """Return the state after the last iteration."""
        return {
            "run": 0,
            "iteration": len(self.trees),
            "trees": list(self.trees),
            "train_score": list(self.train_score),
            "validation_score": list(self.validation_score),
            "rng": self.rng.bit_generator.state,
            "thresholds": fit.binned.thresholds.columns,
            "categories": fit.binned.categories,
        }


@task("HistGradientBoosting.predict")
def predict(
    task: Task, source: Source, weights: None, target: Target, forest: dict[str, SharedArray], baseline: np.ndarray,
    columns: CategoricalColumns | None = None, stages: tuple[int, int] = (1, 0),
) -> OwnRows:  # fmt: skip
    """Write the raw predictions of each row.

    Parameters
    ----------
    task : Task
    source : Source
        The rows; they have no weights.
    target : Target
        Where the result goes: float64 of shape (n_samples, stages * n_outputs).
    forest : dict of str to SharedArray
        ``nodes``, ``sets``, ``thresholds``, ``values`` and ``roots``, as `add_by_rows` takes them; a tree for each
        output, in turn.
    baseline : numpy.ndarray of float64 of shape (n_outputs,)
    columns : CategoricalColumns, optional
    stages : tuple of int
        Number of equal parts of the trees after which predictions are written, and number of trees before them.
    """
    data = data_of(task, source)
    n_stages, skipped = stages
    names = "nodes", "sets", "thresholds", "values", "roots"
    nodes, sets, thresholds, values, roots = (forest[name].open() for name in names)
    rows, k = on_host(data.rows, data.dtype), len(baseline)
    made = np.empty((len(rows), n_stages * k))
    step = max(64, _PIECE_BYTES // (rows.itemsize * max(1, rows.shape[1])))
    cuts = range(skipped, len(roots) + 1, max(1, (len(roots) - skipped) // n_stages))

    def follow(first: int) -> None:
        part = rows[first : first + step]
        if columns is not None and columns.values is not None:
            part = in_order(columns, columns.values, part)
        sums = np.repeat(baseline[None], len(part), axis=0)
        add_by_rows(part, nodes, sets, thresholds, values, roots[:skipped], sums)
        for stage, (begin, end) in enumerate(pairwise(cuts)):
            add_by_rows(part, nodes, sets, thresholds, values, roots[begin:end], sums)
            made[first : first + step, stage * k : (stage + 1) * k] = sums

    with task.on_host(), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for first, future in [(first, pool.submit(follow, first)) for first in range(0, len(rows), step)]:
            if first % (step * 64) == 0:
                task.leave_if_cancelled()
            future.result()
    write_block(task, target, data.bounds, [made])
    return {"rows": len(rows)}


@task("HistGradientBoosting.targets")
def _targets(task: Task, source: Source, weights: None, target: Target) -> OwnRows:
    """Write targets that this rank reads, for the notebook."""
    data = data_of(task, source)
    rows = on_host(data.rows, np.float64)
    write_block(task, target, data.bounds, [rows])
    return {"rows": len(rows)}
