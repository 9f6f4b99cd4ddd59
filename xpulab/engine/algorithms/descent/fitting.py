"""Fits linear models by steps for batches of rows, one column of coefficients after the other.

A step has one reduction, of the gradients of all ranks and of the requests to stop. All ranks then take the same step,
because the reduction gives the same bits to all. The order of the batches does not depend on the ranks either, so that
the result does not, but for the order in which numbers are added up. Few rows are fitted by rank 0 alone, which takes
less time than the ranks need to meet after each step.

References
----------
.. [1] scikit-learn's ``sklearn/linear_model/_stochastic_gradient.py`` and ``_sgd_fast.pyx.tp``: the end of a fit, and
   what it prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.descent.batches import Batches, DenseBatches, SparseBatches, StepLoss
from xpulab.engine.algorithms.descent.dealing import Deal
from xpulab.engine.algorithms.descent.given import Given
from xpulab.engine.algorithms.descent.steps import Steps
from xpulab.engine.comm import Interrupted
from xpulab.engine.dataset import PassedRows
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.sharing.board import RUNS
from xpulab.sharing.linear_models import Descended, Descent, DescentState
from xpulab.sharing.sources import SharedArray, Source

if TYPE_CHECKING:
    from scipy import sparse

__all__: list[str] = []

_Floats = npt.NDArray[np.float64]
_Reduced = Callable[[_Floats], _Floats]

_KEEP = 0.05  # seconds between two checkpoints
_SHOWN = 2e-3  # seconds between two updates of the board
_SOME = 4  # batches whose curvature is measured
_POWERS = 8  # products with rows, after which the length of the vector is the largest eigenvalue, nearly


@task("SGD.fit", metrics=("objective", "score"))
def _fit(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    descent: Descent,
    start: _Floats,
    checkpoint: str,
    resume: DescentState | None = None,
) -> Descended:
    comm = task.comm
    how, (points, averages) = comm.bcast((descent, start))
    given = Given.of(task, source, weights, targets, how)
    n_own = len(given.targets)
    state: DescentState = resume or {
        "run": 0, "iteration": 0, "points": points, "averages": averages, "n_iter": [], "random": None,
        "eta": how.eta0, "best": np.inf, "stale": 0,
    }  # fmt: skip
    if not given.are_few(comm):
        fit = _Fit(task, given, how, state, comm.allreduce)
        fit.run(checkpoint if comm.rank == 0 else "")
        return fit.found(n_own) if comm.rank == 0 else {"rows": n_own}
    every = given.joined(comm)
    if every is None:
        if comm.bcast(False):
            raise Interrupted
        return {"rows": n_own}
    fit = _Fit(task, every, how, state)
    try:
        fit.run(checkpoint)
    except Interrupted:
        comm.bcast(True)
        raise
    comm.bcast(False)
    return fit.found(n_own)


def _require_finite(numbers: _Floats, epoch: int) -> None:
    if not np.isfinite(numbers).all():
        raise ValueError(
            f"Floating-point under-/overflow occurred at epoch #{epoch}. Scaling input data with StandardScaler or "
            "MinMaxScaler might help."
        )


def _stored(rows: npt.NDArray[np.floating] | sparse.csr_matrix) -> sparse.csr_matrix:
    """Return rows as sparse ones, of which zeros are stored, too."""
    from scipy import sparse

    if not isinstance(rows, np.ndarray):
        return rows
    (n, d), columns = rows.shape, np.arange(rows.shape[1], dtype=np.int32)
    return sparse.csr_matrix((rows.ravel(), np.tile(columns, n), np.arange(n + 1) * d), rows.shape)


class _Score:
    """The score of rows for validation: the share of them that is on the right side, or R²; all ranks ask together."""

    def __init__(
        self,
        reduced: _Reduced,
        rows: npt.NDArray[np.floating] | sparse.csr_matrix,
        targets: _Floats,
        weights: _Floats | None,
        of_classes: bool,
    ) -> None:
        self._reduced, self._rows, self._targets, self._of_classes = reduced, rows, targets, of_classes
        self._weights = np.ones(len(targets)) if weights is None else weights
        w, y = self._weights, targets
        total, first, second = reduced(np.array([w.sum(), w @ y, w @ (y * y)]))
        if total == 0:
            raise ValueError(
                "The sample weights for validation set are all zero, consider using a different random state."
            )
        self._all = float(total if of_classes else second - first * first / total)

    def __call__(self, point: _Floats) -> float:
        """Return the score of coefficients and intercept; more is better."""
        raw = self._rows @ point[:-1] + point[-1]
        if self._of_classes:
            mine = self._weights @ ((raw > 0) == (self._targets > 0))
        else:
            mine = self._weights @ (self._targets - raw) ** 2
        found = float(self._reduced(np.array([mine]))[0]) / self._all
        return found if self._of_classes else 1 - found


class _Fit:
    """A fit of the rows that some ranks have, with the same numbers on all of them.

    Parameters
    ----------
    task : Task
    given : Given
    how : Descent
    state : DescentState
    reduced : callable, optional
        Adds up arrays of these ranks; None for few rows, all of which are on this one.
    """

    def __init__(
        self, task: Task, given: Given, how: Descent, state: DescentState, reduced: _Reduced | None = None
    ) -> None:
        self._task, self._given, self._how, self._state = task, given, how, state
        self._reduced: _Reduced = reduced or (lambda sums: sums)
        self._deal = Deal.of(given.bounds, given.rank, how.seed if how.shuffle else None, how.held_out)
        self._n = int(self._deal.sizes.sum())
        loss, rows = StepLoss(how.loss, how.epsilon), given.rows
        self._held_out = rows[self._deal.held_out]
        self._alone: SparseBatches | None = None
        self._batches: Batches
        if reduced is None:
            dealt = rows[self._deal.places]
            self._batches = self._alone = SparseBatches(self._deal, loss, _stored(dealt))
        elif isinstance(rows, np.ndarray):
            self._batches = DenseBatches(self._deal, loss, task.device, rows)
        else:
            self._batches = SparseBatches(self._deal, loss, rows[self._deal.places])
        self._has_any = bool(state["iteration"] or state["run"])
        self._converged = all(n < how.max_iter for n in state["n_iter"])
        self._history: list[tuple[int, int, float, float, float]] = []
        self._said, self._curvatures = "", dict[tuple[float, ...], float]()
        self._started = self._kept = time.perf_counter()
        self._shown = 0.0
        self._keep: Callable[[Mapping[str, Any]], None] = lambda state: None

    def found(self, n_own: int) -> Descended:
        """Return the answer of a rank that has so many rows."""
        return {
            "rows": n_own, "state": self._state, "converged": self._converged, "said": self._said,
            "history": self._history, "every_run": True,
        }  # fmt: skip

    def run(self, checkpoint: str) -> None:
        """Fit all columns, from the state on; `checkpoint` is empty where no state is kept.

        Raises
        ------
        Interrupted
            On all ranks together, if the task was asked to stop.
        """
        with self._task.checkpoint(checkpoint) if checkpoint else nullcontext() as kept:
            if kept is not None:
                self._keep = kept.write
            try:
                for run in range(self._state["run"], len(self._state["points"])):
                    self._column(run)
            except Interrupted as interrupted:
                if self._has_any:
                    interrupted.result["state"] = self._state
                interrupted.result["history"] = self._history
                raise
            except BaseException:  # another rank left the task elsewhere, for an interrupt or because it was lost
                if self._has_any:
                    self._keep(self._state)
                raise

    def _aim(self, run: int) -> _Score | None:
        """Set the targets and the weights of a column; return the score of rows that are held out, if there are any."""
        deal, loss = self._deal, self._batches.loss
        weights, targets = self._given.of_column(self._how, run, loss.of_classes)
        self._batches.aim(targets[deal.places], None if weights is None else weights[deal.places])
        if not self._how.early_stopping:
            return None
        held_out = None if weights is None else weights[deal.held_out]
        return _Score(self._reduced, self._held_out, targets[deal.held_out], held_out, bool(self._how.columns))

    def _column(self, run: int) -> None:
        """Fit a column, from the state on."""
        how, state, random, score = self._how, self._state, np.random.RandomState(self._how.seeds[run]), self._aim(run)
        if state["iteration"]:
            random.set_state(state["random"])
        curvature = self._batches.loss.bend * self._curvature(run)
        _require_finite(np.array([curvature]), state["iteration"] + 1)
        steps = Steps(how, curvature, state["eta"])
        point, average = state["points"][run].copy(), state["averages"][run].copy()
        iteration, best, stale, ended = state["iteration"], state["best"], state["stale"], False
        while iteration < how.max_iter and not ended:
            n_batches = len(self._deal.sizes)
            order = random.permutation(n_batches) if how.shuffle else np.arange(n_batches)
            loss, objective = self._iteration(steps, order, point, average, how.t + iteration * self._n)
            iteration += 1
            ends = point if how.average else average
            _require_finite(ends, iteration)
            found = np.nan if score is None else score(ends)
            less = objective if score is None else -found
            stale = stale + 1 if less > best - how.tol else 0
            best = min(best, less)
            self._say(iteration, ends, loss, objective, found)
            ended = steps.has_ended(stale)
            if stale >= how.n_iter_no_change:
                stale = 0
            state["points"][run], state["averages"][run] = point, average
            self._state = {
                **state, "iteration": iteration, "random": random.get_state(), "eta": steps.eta, "best": best,
                "stale": stale,
            }  # fmt: skip
            self._note(run + 1, iteration, objective, found)
        if ended and how.verbose:
            took = time.perf_counter() - self._started
            self._said += f"Convergence after {iteration} epochs took {took:.2f} seconds\n"
        self._converged = self._converged and iteration < how.max_iter
        self._state = {
            **self._state, "run": run + 1, "iteration": 0, "n_iter": [*state["n_iter"], iteration], "random": None,
            "eta": how.eta0, "best": np.inf, "stale": 0,
        }  # fmt: skip

    def _iteration(
        self, steps: Steps, order: npt.NDArray[np.intp], point: _Floats, mean: _Floats, t: float
    ) -> tuple[float, float]:
        """Take a step for each batch, and return the means of the loss and of the objective before each step.

        Without an average since an earlier row, `mean` becomes that of the second half of the points, which is nearer
        to the minimum than the last one. Coefficients that an l1 norm has made zero at last are zero.

        Raises
        ------
        Interrupted
            On all ranks together, if the task was asked to stop.
        """
        sizes = self._deal.sizes[order]
        plan = steps.plan(sizes, t)
        if self._alone is not None:
            if self._task.cancelled():
                raise Interrupted
            losses, penalties = self._alone.take(order, plan, steps, point, mean)
        else:
            losses = penalties = 0.0
            for batch, n, length, share in zip(order, sizes.tolist(), *plan, strict=True):
                loss, gradient = self._batches.sums(batch, point)
                every = self._reduced(np.concatenate([gradient, [loss, self._task.cancelled()]]))
                if every[-1]:
                    raise Interrupted
                losses += float(every[-2])
                penalties += n * steps.penalty(point)
                steps.take(point, every[:-2], n, length)
                if share:
                    mean += (point - mean) * share
        if not self._how.average and steps.makes_zeros:
            mean[:-1][point[:-1] == 0] = 0
        return losses / self._n, (losses + penalties) / self._n

    def _curvature(self, run: int) -> float:
        """Return the largest eigenvalue of the products of columns, and of a column of ones, over some batches.

        It depends on the weights; columns without weights of classes share one.
        """
        deal, largest = self._deal, 0.0
        weights = self._how.columns[run][1:] if self._how.columns else ()
        if weights in self._curvatures:
            return self._curvatures[weights]
        for batch in range(min(_SOME, len(deal.sizes))):
            vector, length = np.random.RandomState(0).normal(size=self._batches.n_features + 1), 0.0
            for _ in range(_POWERS):
                vector[-1] *= self._how.fit_intercept
                vector /= float(np.linalg.norm(vector)) or 1.0
                vector = self._reduced(self._batches.products(batch, vector)) / deal.sizes[batch]
                length = float(np.linalg.norm(vector))
                if not np.isfinite(length):
                    return length
            largest = max(largest, length)
        self._curvatures = {weights: largest} if weights in ((), (1.0, 1.0)) else {}
        return largest

    def _say(self, iteration: int, point: _Floats, loss: float, objective: float, score: float) -> None:
        if not self._how.verbose:
            return
        coef, n_seen = point[:-1], iteration * self._n
        scored = "" if np.isnan(score) else f", Validation score: {score:f}"
        self._said += (
            f"-- Epoch {iteration}\nNorm: {np.linalg.norm(coef):.2f}, NNZs: {np.count_nonzero(coef)}, "
            f"Bias: {point[-1]:.6f}, T: {n_seen}, Avg. loss: {loss:f}, Objective: {objective:f}{scored}\n"
            f"Total training time: {time.perf_counter() - self._started:.2f} seconds.\n"
        )

    def _note(self, run: int, iteration: int, objective: float, score: float) -> None:
        """Note the end of an iteration on the board, in the history and, from time to time, in the checkpoint."""
        now, task = time.perf_counter(), self._task
        self._has_any = True
        self._history.append((run, iteration, objective, score, now - self._started))
        task.engine.record["lengths"][(run - 1) % RUNS] = iteration
        task.note_iteration(run, iteration)
        if iteration == 1 or now - self._shown > _SHOWN:
            self._shown = now
            task.show(run=run, iteration=iteration, metrics=(objective, score))
        if now - self._kept > _KEEP:
            self._keep(self._state)
            self._kept = now
