"""Fits linear models by steps for batches of rows, one column of coefficients after the other.

A step has one reduction, of the gradients of all ranks and of the requests to stop. All ranks then take the same step,
because the reduction gives the same bits to all. The order of the batches does not depend on the ranks either, so that
the result does not, but for the order in which numbers are added up.

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

from xpulab.engine.algorithms.descent.batches import Batches, DenseBatches, HostBatches, StepLoss, are_few
from xpulab.engine.algorithms.descent.dealing import Deal, rows_in_order
from xpulab.engine.algorithms.descent.steps import Steps
from xpulab.engine.algorithms.labels import codes_of
from xpulab.engine.comm import Interrupted
from xpulab.engine.dataset import Data, PassedRows, kind_of, on_host, rows_of, weights_of
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans import sparse as sparse_kernels
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.rows import Rows
from xpulab.kernels.sparse_products import HostMatrix
from xpulab.sharing.board import RUNS
from xpulab.sharing.linear_models import Descended, Descent, DescentState
from xpulab.sharing.sources import SharedArray, Source

if TYPE_CHECKING:
    from scipy import sparse

__all__: list[str] = []

_Floats = npt.NDArray[np.float64]

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
    points: _Floats,
    averages: _Floats,
    checkpoint: str,
    resume: DescentState | None = None,
) -> Descended:
    how, points, averages = task.comm.bcast((descent, points, averages))
    rank = task.comm.rank
    deal = Deal.of(source.bounds, rank, how.seed if how.shuffle else None, how.held_out)
    loss = StepLoss(how.loss, how.epsilon)
    batches, held_out = _batches(task, source, deal, loss)
    beside = _Beside(task, source, weights, targets, how)
    n_own = len(beside.targets)
    state: DescentState = resume or {
        "run": 0, "iteration": 0, "points": points, "averages": averages, "n_iter": [], "random": None,
        "eta": how.eta0, "best": np.inf, "stale": 0,
    }  # fmt: skip
    with task.checkpoint(checkpoint) if rank == 0 else nullcontext() as kept:
        fit = _Fit(task, batches, how, state, (lambda state: None) if kept is None else kept.write)
        try:
            for run in range(state["run"], len(points)):
                weights_of_run, targets_of_run = beside.of_run(run, loss.of_classes)
                some = None if weights_of_run is None else weights_of_run[deal.places]
                batches.aim(targets_of_run[deal.places], some)
                score = None
                if how.early_stopping:
                    own = None if weights_of_run is None else weights_of_run[deal.held_out]
                    score = _Score(task, held_out, targets_of_run[deal.held_out], own, bool(how.columns))
                fit.column(run, score)
        except Interrupted as interrupted:
            if fit.has_any:
                interrupted.result["state"] = fit.state
            interrupted.result["history"] = fit.history
            raise
        except BaseException:  # another rank left the task at another point, for an interrupt or because it was lost
            if kept is not None and fit.has_any:
                kept.write(fit.state)
            raise
    found: Descended = {"rows": n_own}
    if rank == 0:
        found |= {"state": fit.state, "converged": fit.converged, "said": fit.said, "history": fit.history}
    return found


def _batches(
    task: Task, source: Source, deal: Deal, loss: StepLoss
) -> tuple[Batches, npt.NDArray[np.floating] | sparse.csr_matrix]:
    """Return the batches, and the rows for validation."""
    if kind_of(task, source)[0] is sparse_kernels:
        held = rows_of(task, source)
        assert isinstance(held, SparseRows)
        matrix = HostMatrix(held).as_given
        return HostBatches(deal, loss, matrix[deal.places]), matrix[deal.held_out]
    rows = rows_in_order(task, Data(task, source))
    task.show(rows=len(rows), doing="computing")
    held_out = rows[deal.held_out]
    if are_few(deal, rows.shape[1]):
        return HostBatches(deal, loss, rows[deal.places].astype(np.float64)), held_out
    return DenseBatches(deal, loss, task.device, rows), held_out


class _Beside:
    """The targets and the weights of this rank's rows."""

    def __init__(
        self,
        task: Task,
        source: Source,
        weights: SharedArray | PassedRows | None,
        targets: Source,
        how: Descent,
    ) -> None:
        held = rows_of(task, targets)
        assert isinstance(held, Rows)
        self.targets: _Floats = codes_of(held, how.known) if how.columns else on_host(held, np.float64)[:, 0]
        own = weights_of(task, weights, source.bounds)
        self._weights: _Floats | None = None if own is None else own.astype(np.float64)
        self._columns = how.columns

    def of_run(self, run: int, of_classes: bool) -> tuple[_Floats | None, _Floats]:
        """Return weights and targets of a column."""
        if not self._columns:
            return self._weights, self.targets
        place, inside, outside = self._columns[run]
        own = self.targets == place
        weights = self._weights
        if (inside, outside) != (1.0, 1.0):
            weights = np.where(own, inside, outside) * (1.0 if weights is None else weights)
        return weights, np.where(own, 1.0, 0.0 if of_classes else -1.0)


class _Score:
    """The score of rows for validation: the share of them that is on the right side, or R²; all ranks ask together."""

    def __init__(
        self,
        task: Task,
        rows: npt.NDArray[np.floating] | sparse.csr_matrix,
        targets: _Floats,
        weights: _Floats | None,
        of_classes: bool,
    ) -> None:
        self._comm, self._rows, self._targets, self._of_classes = task.comm, rows, targets, of_classes
        self._weights = np.ones(len(targets)) if weights is None else weights
        w, y = self._weights, targets
        total, first, second = self._comm.allreduce(np.array([w.sum(), w @ y, w @ (y * y)]))
        self._all = float(total if of_classes else second - first * first / total)

    def __call__(self, point: _Floats) -> float:
        """Return the score of coefficients and intercept; more is better."""
        raw = self._rows @ point[:-1] + point[-1]
        if self._of_classes:
            mine = self._weights @ ((raw > 0) == (self._targets > 0))
        else:
            mine = self._weights @ (self._targets - raw) ** 2
        found = float(self._comm.allreduce(np.array([mine]))[0]) / self._all
        return found if self._of_classes else 1 - found


class _Fit:
    """A fit, with the same numbers on all ranks.

    Attributes
    ----------
    state : DescentState
        After the last iteration.
    has_any : bool
        Whether an iteration has ended.
    converged : bool
        Whether all columns ended before the largest number of iterations.
    history : list of tuple
        Run, iteration, objective, score, and seconds.
    said : str
        What scikit-learn prints.
    """

    def __init__(
        self,
        task: Task,
        batches: Batches,
        how: Descent,
        state: DescentState,
        keep: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._task, self._batches, self._how, self.state, self._keep = task, batches, how, state, keep
        self._n = int(batches.deal.sizes.sum())
        self.has_any = bool(state["iteration"] or state["run"])
        self.converged = all(n < how.max_iter for n in state["n_iter"])
        self.history: list[tuple[int, int, float, float, float]] = []
        self.said = ""
        self._started = self._kept = time.perf_counter()
        self._shown = 0.0

    def column(self, run: int, score: _Score | None) -> None:
        """Fit a column, from the state on."""
        how, state, random = self._how, self.state, np.random.RandomState(self._how.seeds[run])
        if state["iteration"]:
            random.set_state(state["random"])
        steps = Steps(how, self._batches.loss.bend * self._curvature(), state["eta"])
        points, averages = state["points"].copy(), state["averages"].copy()
        iteration, best, stale, ended = state["iteration"], state["best"], state["stale"], False
        while iteration < how.max_iter and not ended:
            n_batches = len(self._batches.deal.sizes)
            order = random.permutation(n_batches) if how.shuffle else np.arange(n_batches)
            loss, objective = self._iteration(steps, order, points[run], averages[run], how.t + iteration * self._n)
            iteration += 1
            ends = points[run] if how.average else averages[run]
            if not np.isfinite(ends).all():
                raise ValueError(
                    f"Floating-point under-/overflow occurred at epoch #{iteration}. Scaling input data with "
                    "StandardScaler or MinMaxScaler might help."
                )
            found = np.nan if score is None else score(ends)
            less = objective if score is None else -found
            stale = stale + 1 if less > best - how.tol else 0
            best = min(best, less)
            self._say(iteration, ends, loss, objective, found)
            ended = steps.has_ended(stale)
            if stale >= how.n_iter_no_change:
                stale = 0
            self.state = {
                "run": run, "iteration": iteration, "points": points.copy(), "averages": averages.copy(),
                "n_iter": state["n_iter"], "random": random.get_state(), "eta": steps.eta, "best": best,
                "stale": stale,
            }  # fmt: skip
            self._note(run + 1, iteration, objective, found)
        if ended and how.verbose:
            took = time.perf_counter() - self._started
            self.said += f"Convergence after {iteration} epochs took {took:.2f} seconds\n"
        self.converged = self.converged and iteration < how.max_iter
        self.state = {
            **self.state, "run": run + 1, "iteration": 0, "n_iter": [*state["n_iter"], iteration], "random": None,
            "eta": how.eta0, "best": np.inf, "stale": 0,
        }  # fmt: skip

    def _iteration(
        self, steps: Steps, order: npt.NDArray[np.intp], point: _Floats, mean: _Floats, t: float
    ) -> tuple[float, float]:
        """Take a step for each batch, and return the means of the loss and of the objective before each step.

        Without an average since an earlier row, `mean` becomes that of the second half of the points, which is nearer
        to the minimum than the last one; this itself with an l1 norm, which makes zeros.

        Raises
        ------
        Interrupted
            On all ranks together, if the task was asked to stop.
        """
        losses = penalties = 0.0
        reduced, sizes = self._task.comm.allreduce, self._batches.deal.sizes
        middle, total = len(order) // 2, np.zeros(len(point))
        for number, batch in enumerate(order):
            loss, gradient = self._batches.sums(batch, point)
            every = reduced(np.concatenate([gradient, [loss, self._task.cancelled()]]))
            if every[-1]:
                raise Interrupted
            n = int(sizes[batch])
            losses += float(every[-2])
            penalties += n * steps.penalty(point)
            steps.take(point, every[:-2], n, t)
            t += n
            if self._how.average:
                steps.average(mean, point, n, t)
            elif number >= middle:
                total += point
        if not self._how.average:
            mean[:] = point if steps.makes_zeros else total / (len(order) - middle)
        return losses / self._n, (losses + penalties) / self._n

    def _curvature(self) -> float:
        """Return the largest eigenvalue of the products of columns, and of a column of ones, over some batches."""
        deal, largest = self._batches.deal, 0.0
        for batch in range(min(_SOME, len(deal.sizes))):
            vector, length = np.random.RandomState(0).normal(size=self._batches.n_features + 1), 0.0
            for _ in range(_POWERS):
                vector[-1] *= self._how.fit_intercept
                vector /= float(np.linalg.norm(vector)) or 1.0
                vector = self._task.comm.allreduce(self._batches.products(batch, vector)) / deal.sizes[batch]
                length = float(np.linalg.norm(vector))
            largest = max(largest, length)
        return largest

    def _say(self, iteration: int, point: _Floats, loss: float, objective: float, score: float) -> None:
        if not self._how.verbose:
            return
        coef, n_seen = point[:-1], iteration * self._n
        scored = "" if np.isnan(score) else f", Validation score: {score:f}"
        self.said += (
            f"-- Epoch {iteration}\nNorm: {np.linalg.norm(coef):.2f}, NNZs: {np.count_nonzero(coef)}, "
            f"Bias: {point[-1]:.6f}, T: {n_seen}, Avg. loss: {loss:f}, Objective: {objective:f}{scored}\n"
            f"Total training time: {time.perf_counter() - self._started:.2f} seconds.\n"
        )

    def _note(self, run: int, iteration: int, objective: float, score: float) -> None:
        """Note the end of an iteration on the board, in the history and, from time to time, in the checkpoint."""
        now, task = time.perf_counter(), self._task
        self.has_any = True
        self.history.append((run, iteration, objective, score, now - self._started))
        task.engine.record["lengths"][(run - 1) % RUNS] = iteration
        task.note_iteration(run, iteration)
        if iteration == 1 or now - self._shown > _SHOWN:
            self._shown = now
            task.show(run=run, iteration=iteration, metrics=(objective, score))
        if now - self._kept > _KEEP:
            self._keep(self.state)
            self._kept = now
