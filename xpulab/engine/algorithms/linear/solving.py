"""Minimise a loss over the rows of all ranks, by the solvers of SciPy and scikit-learn.

Rank 0 runs the solver. For each evaluation, it sends the coefficients to the other ranks; all ranks compute the sums of
their rows, and add them up in one reduction, which also carries the request to stop. Only rank 0 decides about steps
and the end of the fit. Ranks that round differently therefore cannot come to different decisions.

The solvers are deterministic. The state of a fit is therefore the list of its evaluations. A fit that is resumed takes
the answers from this list, until its solver has the same state as before the interrupt.

References
----------
.. [1] scikit-learn's ``sklearn/linear_model/_logistic.py``, ``_glm/glm.py`` and ``_linear_loss.py``: objective, layout
   of the coefficients, and options of the solvers follow them.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import time
import warnings
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from xpulab.engine.algorithms.linear.loss_problem import Problem
from xpulab.engine.algorithms.linear.wide_losses import WideProblem, solver_by_rows, wide_problem
from xpulab.engine.comm import Interrupted
from xpulab.engine.engine import Engine, Task, warms_up
from xpulab.kernels.rows import Rows
from xpulab.sharing.linear_models import Minimisation, Minimised, Solution, State

__all__ = ["Objective", "minimised", "solve"]

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
    strength : float
        Factor of half the squared norm of the coefficients.
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
    """

    def __init__(self, problem: Problem, strength: float, state: State | None, keep: Callable[[State], None]) -> None:
        self.problem, self.strength = problem, strength
        self.fit_intercept = problem.fit_intercept
        self.base_loss = SimpleNamespace(is_multiclass=problem.n_columns > 1, n_classes=problem.n_columns)
        self.history: list[tuple[int, int, float, float, float]] = []
        self.state = state
        self._keep = keep
        self._known = deque(state["record"] if state else ())
        self._noted = state["iteration"] if state else 0
        self._record: list[tuple[str, tuple[np.ndarray, ...], np.ndarray]] = []
        self._nbytes = 0
        self._last: tuple[np.ndarray, float, np.ndarray] | None = None
        self._iteration = 0
        self._started = self._kept = time.perf_counter()
        self._shown = 0.0

    def ask(self, what: str, *points: np.ndarray) -> np.ndarray:
        """Return an answer of the ranks, or the recorded answer in the state of a resumed fit."""
        answer = None
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
            penalised = self.problem.table(exact)[0]
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
        found = self.ask("hessian", coef) / self.problem.weight
        hessian_out[:] = found[:-1].reshape(hessian_out.shape)
        hessian_out[np.diag_indices(len(coef))] += self.without_intercept(np.full(len(coef), self.strength))
        return gradient_out, hessian_out, bool(found[-1] > 0.25)

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

    def without_intercept(self, point: np.ndarray) -> np.ndarray:
        """Return the point with zeros in place of the intercepts, which have no penalty."""
        point = point.astype(np.float64)
        if self.fit_intercept:
            point[-self.problem.n_columns :] = 0
        return point

    def reached(self, iteration: int, coef: np.ndarray) -> None:
        """Note the end of an iteration, which counts from 1, on the board and in the state."""
        if iteration <= self._noted:
            return
        self._noted = iteration
        assert self._last is not None  # the evaluation at the end of the line search
        _, loss, gradient = self._last
        now = time.perf_counter()
        steepest = float(np.abs(gradient).max())
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


def solve(objective: Objective, how: Minimisation, start: np.ndarray) -> Solution:
    """Minimise the objective, with scikit-learn's options and stopping rule. Only rank 0 calls this function.

    Parameters
    ----------
    objective : Objective
    how : Minimisation
    start : numpy.ndarray of shape (n_columns * n_dof,)
        First coefficients, in the layout of scikit-learn.
    """
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()) as said:
        warnings.simplefilter("always")
        found = _SOLVERS[how.solver](objective, how, start)
    objective.reached(found["n_iter"], found["coef"])
    told = [(w.category, str(w.message)) for w in caught if issubclass(w.category, (UserWarning, RuntimeWarning))]
    return {**found, "warnings": told, "said": said.getvalue()}


# The solvers are imported when they are needed: SciPy's takes half a second, and scikit-learn's take two.


def _lbfgs(objective: Objective, how: Minimisation, start: np.ndarray) -> Solution:
    from scipy.optimize import minimize

    iterations = itertools.count(1)
    found = minimize(
        objective.loss_gradient,
        start,
        method="L-BFGS-B",
        jac=True,
        callback=lambda point: objective.reached(next(iterations), point),
        options={"maxiter": how.max_iter, "maxls": 50, "gtol": how.tol, "ftol": 64 * np.finfo(float).eps},
    )
    ending = {"status": int(found.status), "message": str(found.message), "nit": int(found.nit)}
    return {"coef": found.x, "n_iter": min(found.nit, how.max_iter), "converged": found.status == 0, "ending": ending}


def _newton_cg(objective: Objective, how: Minimisation, start: np.ndarray) -> Solution:
    from xpulab._sklearn import _newton_cg

    coef, n_iter = _newton_cg(
        grad_hess=objective.gradient_hessian_product,
        func=objective.loss,
        grad=objective.gradient,
        x0=start.astype(objective.problem.rows.dtype),  # its tolerances depend on this dtype
        maxiter=how.max_iter,
        tol=how.tol,
        verbose=how.verbose,
    )
    return {"coef": coef, "n_iter": n_iter, "converged": n_iter < how.max_iter}


def _newton_cholesky(objective: Objective, how: Minimisation, start: np.ndarray) -> Solution:
    from xpulab._sklearn import NewtonCholeskySolver

    made = solver_by_rows() if isinstance(objective.problem, WideProblem) else NewtonCholeskySolver
    solver = made(
        coef=start.copy(),  # the solver writes to it
        linear_loss=objective,
        l2_reg_strength=objective.strength,
        tol=how.tol,
        max_iter=how.max_iter,
        verbose=how.verbose,
    )
    like = np.empty((0, objective.problem.rows.n_features), objective.problem.rows.dtype)
    coef = solver.solve(X=like, y=None, sample_weight=None)
    return {"coef": coef.ravel(order="F"), "n_iter": solver.iteration, "converged": bool(solver.converged)}


@warms_up
def _warm_up(engine: Engine) -> None:
    """Import the default solver."""
    if engine.rank == 0:
        import scipy.optimize  # noqa: F401


_SOLVERS: dict[str, Callable[[Objective, Minimisation, np.ndarray], Solution]] = {
    "lbfgs": _lbfgs,
    "newton-cg": _newton_cg,
    "newton-cholesky": _newton_cholesky,
}


def minimised(
    task: Task, problem: Problem, strength: float, how: Minimisation, checkpoint: str, resume: State | None = None
) -> Minimised:
    """Minimise the mean loss of a problem plus half the squared norm of the coefficients times `strength`.

    All ranks call this function.

    Raises
    ------
    Interrupted
        On all ranks together, if the task was asked to stop; on rank 0 with the state of the fit.
    """
    rows = problem.rows
    if how.solver == "newton-cholesky" and strength and isinstance(rows, Rows):
        problem = wide_problem(problem) or problem
    if task.comm.rank != 0:
        problem.follow()
        return {"rows": rows.n_samples}
    with task.checkpoint(checkpoint) as kept:
        objective = Objective(problem, strength, resume, kept.write)
        try:
            assert how.start is not None
            found = solve(objective, how, how.start)
        except Interrupted as interrupted:
            state = objective.state
            if state is not None:
                interrupted.result |= {"state": state, "coef": state["coef"], "n_iter": state["iteration"]}
            interrupted.result["history"] = objective.history
            raise
        except BaseException:  # another rank left the task at another point, for an interrupt or because it was lost
            if objective.state is not None:
                kept.write(objective.state)
            raise
    problem.end()
    return {**found, "rows": rows.n_samples, "history": objective.history}
