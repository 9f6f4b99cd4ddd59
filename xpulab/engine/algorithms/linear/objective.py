"""The objective of a linear model on rank 0, as the solvers of SciPy and scikit-learn ask for it, and its state.

The solvers are deterministic. The state of a fit is therefore the list of its evaluations. A fit that is resumed takes
the answers from this list, until its solver has the same state as before the interrupt.

References
----------
.. [1] scikit-learn's ``sklearn/linear_model/_linear_loss.py``, whose methods and layout of coefficients these are.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from xpulab.engine.algorithms.linear.loss_problem import Problem
from xpulab.sharing.linear_models import State

__all__ = ["Objective"]

_SHOWN = 2e-3  # seconds between two updates of the board; no view reads it more often
_KEEP = 0.05  # seconds between two checkpoints
_MOST_KEPT = 4 << 20  # bytes of evaluations in a state; a longer fit is resumed from its first evaluations


class Objective:
    """The mean loss plus the penalty, on rank 0, with the methods that scikit-learn's solvers call.

    It takes the place of scikit-learn's `LinearModelLoss`. The rows are on the devices, so `X`, `y` and
    `sample_weight` are ignored, and the coefficients stand for the `raw_prediction`, which depends on them linearly.

    Parameters
    ----------
    problem : Problem
    strength, l1 : float
        Factors of half the squared norm of the coefficients, and of the l1 norm, which `loss` and `gradient` leave out.
    state : State, optional
        A state that `keep` got in a fit of the same rows with the same parameters.
    keep : callable
        Called from time to time with the state of the fit.

    Attributes
    ----------
    history : list of tuple
        Run, iteration, loss, largest component of the gradient, and seconds since the start, for each iteration that
        `state` does not include.
    state : State or None
        The state after the last iteration.
    damping : float
        How much curvature is added where there is none, of losses with limits.
    """

    def __init__(
        self, problem: Problem, strength: float, l1: float, state: State | None, keep: Callable[[State], None]
    ) -> None:
        self.problem, self.strength, self.l1 = problem, strength, l1
        self.fit_intercept = problem.fit_intercept
        self.n_intercepts = problem.n_columns if problem.fit_intercept and not problem.constant else 0
        self.base_loss = SimpleNamespace(is_multiclass=problem.n_columns > 1, n_classes=problem.n_columns)
        self.history: list[tuple[int, int, float, float, float]] = []
        self.state = state
        self._keep = keep
        self._known = deque(state["record"] if state else ())
        self._noted = state["iteration"] if state else 0
        self._record: list[tuple[str, tuple[np.ndarray, ...], np.ndarray]] = []
        self._nbytes = 0
        self._last: tuple[np.ndarray, float, np.ndarray] | None = None
        self._iteration = self._before = 0
        self._changed: tuple[np.ndarray, ...] = ()
        self.damping = 1.0
        self._started = self._kept = time.perf_counter()
        self._shown = 0.0

    def change(self, *settings: float) -> None:
        """Change what the `changed` of a loss takes."""
        self._changed = (np.array(settings),)

    @property
    def rounding(self) -> float:
        """Of the dtype of the rows: by what share a number is rounded."""
        return float(np.finfo(self.problem.rows.dtype).eps)

    def ask(self, what: str, *points: np.ndarray) -> np.ndarray:
        """Return an answer of the ranks, or the recorded answer in the state of a resumed fit."""
        answer, points = None, points + self._changed
        if self._known:
            asked, given, found = self._known.popleft()
            if asked == what and all(map(np.array_equal, given, points)):
                answer = found
            else:  # the record does not fit, because another machine may round differently
                self._known.clear()
        if answer is None:
            answer = self.problem.ask(what, *points)
        points = tuple(point.copy() for point in points)
        self._record.append((what, points, answer))
        self._nbytes += answer.nbytes + sum(point.nbytes for point in points)
        return answer

    def loss_gradient(self, coef: np.ndarray, *_: Any, **__: Any) -> tuple[float, np.ndarray]:
        """Return the value and the gradient, in the layout and the dtype of `coef`."""
        if np.isnan(coef).all():  # after rows with NaN; line searches ask a hundred times for each iteration
            nothing: Any = np.float64(np.nan)
            self._last = coef.copy(), nothing, coef.copy()
        elif self._last is None or not np.array_equal(self._last[0], coef):
            sums = self.ask("loss", coef) / self.problem.weight
            exact = coef.astype(np.float64)
            penalised = self.without_intercept(exact)
            # Not a float, because the Newton solver of scikit-learn 1.6 asks for its dtype.
            loss: Any = np.float64(sums[-1] + 0.5 * self.strength * np.square(penalised).sum())
            gradient = sums[:-1] + self.strength * self.without_intercept(exact)
            self._last = coef.copy(), loss, gradient.astype(coef.dtype)
        return self._last[1], self._last[2].copy()

    def loss(self, coef: np.ndarray, *_: Any, **__: Any) -> float:
        """Return the value."""
        return self.loss_gradient(coef)[0]

    def gradient(self, coef: np.ndarray, *_: Any, **__: Any) -> np.ndarray:
        """Return the gradient."""
        return self.loss_gradient(coef)[1]

    def weight_intercept_raw(self, coef: np.ndarray, X: Any) -> tuple[None, None, np.ndarray]:
        """Return the coefficients instead of the raw prediction."""
        return None, None, coef

    def iterated(self, coef: np.ndarray) -> np.ndarray:
        """Note that an iteration has ended at these coefficients, and return the gradient."""
        gradient = self.gradient(coef)
        self.reached(self._iteration, coef)
        self._iteration += 1
        return gradient

    def gradient_hessian(
        self, coef: np.ndarray, *_: Any, gradient_out: np.ndarray, hessian_out: np.ndarray, **__: Any
    ) -> tuple[np.ndarray, np.ndarray, bool]:
        """Return gradient, second derivatives, and whether rows with more than a quarter of the weight have none."""
        gradient_out[:] = self.iterated(coef)
        hessian_out[:], flat = self.hessian(coef)
        return gradient_out, hessian_out, flat > 0.25

    def hessian(self, coef: np.ndarray, columns: np.ndarray | None = None) -> tuple[np.ndarray, float]:
        """Return second derivatives by all coefficients or those of some columns, and the weight of rows without any.

        The weight is a share of all.
        """
        found = self.ask("hessian", coef, *(() if columns is None else (columns,))) / self.problem.weight
        n = math.isqrt(len(found) - 1)
        hessian = found[:-1].reshape(n, n)
        hessian[np.diag_indices(n)] += self.without_intercept(np.full(n, self.strength))
        return hessian, float(found[-1])

    def gradient_hessian_product(
        self, coef: np.ndarray, *_: Any, **__: Any
    ) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """Return the gradient, and a function that multiplies the second derivatives by a step."""
        gradient = self.iterated(coef)

        def product(step: np.ndarray) -> np.ndarray:
            if np.isnan(step).all():
                return np.full_like(coef, np.nan)
            sums = self.ask("product", coef, step) / self.problem.weight
            return (sums + self.strength * self.without_intercept(step)).astype(coef.dtype)

        return gradient, product

    def lowest(self, n: int) -> np.ndarray | None:
        """Return the lower bounds of the n numbers of a point; None if there are none."""
        return None

    def longest(self, point: np.ndarray, step: np.ndarray) -> float:
        """Return the largest share of a step that a search may try."""
        return 1.0

    def norm(self, point: np.ndarray) -> float:
        """Return the l1 norm of the coefficients times its factor."""
        return self.l1 * float(np.abs(point[: len(point) - self.n_intercepts]).sum())

    def slopes(self, point: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the subgradient of smallest length for a gradient without the l1 norm."""
        if not self.l1:
            return gradient
        n, found = len(point) - self.n_intercepts, gradient.copy()
        least = np.sign(gradient) * np.maximum(np.abs(gradient) - self.l1, 0)
        found[:n] = np.where(point == 0, least, gradient + self.l1 * np.sign(point))[:n]
        return found

    def without_intercept(self, point: np.ndarray) -> np.ndarray:
        """Return the point with zeros in place of the intercepts, which have no penalty."""
        point = point.astype(np.float64)
        point[len(point) - self.n_intercepts :] = 0
        return point

    def reached(self, iteration: int, coef: np.ndarray) -> None:
        """Note the end of an iteration, which counts from 1, on the board and in the state."""
        iteration += self._before
        if iteration <= self._noted:
            return
        self._noted = iteration
        assert self._last is not None  # the evaluation at the end of the line search
        _, loss, gradient = self._last
        now = time.perf_counter()
        loss, steepest = float(loss) + self.norm(coef), float(np.abs(self.slopes(coef, gradient)).max())
        self.history.append((1, iteration, loss, steepest, now - self._started))
        task = self.problem.task
        task.engine.record["lengths"][0] = iteration
        task.note_iteration(1, iteration)
        if iteration == 1 or now - self._shown > _SHOWN:
            self._shown = now
            task.show(run=1, iteration=iteration, metrics=(loss, steepest))
        if self._nbytes <= _MOST_KEPT:
            self.state = {"run": 0, "iteration": iteration, "coef": coef.copy(), "record": list(self._record)}
            if now - self._kept > _KEEP:
                self._keep(self.state)
                self._kept = now
