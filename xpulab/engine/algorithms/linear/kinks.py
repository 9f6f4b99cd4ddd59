"""Minimise losses of what products of rows miss, with penalties: solvers that only rank 0 runs, as those of `solving`.

The square of what is missed has second derivatives, which jump. Newton's method with a search along each step converges
in few iterations [1]_. What is missed itself has a kink: a square takes the place of the loss up to a limit, which
becomes smaller and smaller [2]_. The loss is then too small by half the limit at most.
While the same rows are within the limit, the coefficients are a linear function of it. The last two therefore tell
where to go on, and at the end, which coefficients belong to a limit of zero.

References
----------
.. [1] S. S. Keerthi, D. DeCoste, "A modified finite Newton method for fast solution of large scale linear SVMs",
   Journal of Machine Learning Research 6 (2005), 341-361.
.. [2] O. Chapelle, "Training a support vector machine in the primal", Neural Computation 19 (2007), 1155-1178.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.linear import l1
from xpulab.engine.algorithms.linear.objective import Objective
from xpulab.sharing.linear_models import Minimisation, Solution

__all__ = ["kinked", "newton"]

_Floats = npt.NDArray[np.float64]

_SUFFICIENT = 1e-4  # share of the decrease that the gradient promises, which a step must have
_SHORTEST = 2.0**-20  # share of a step
_LEAST_CUT = 1e-2  # the next share of a step, at least so many times the one before
_ROUNDING = 16.0  # times that of the loss: a decrease that the loss does not show, so that the gradient has to decrease
_MOST = 1500  # coefficients of which there are second derivatives
_FIRST, _LESS = 1.0, 8.0  # the first limit, as a share of the mean loss at the start, and by what it is divided
_SHARE = 1e-2  # of `tol` times the mean loss: the last limit
_NONE = 1e-18  # a limit that is no limit
_LEAST = 64.0  # the last limit, at least so many times the rounding of a product of the mean size


def newton(objective: Objective, how: Minimisation, start: _Floats) -> Solution:
    """Minimise by Newton's method, until no component of the gradient is larger than `tol` times those at the start.

    Of too many coefficients for second derivatives, L-BFGS-B takes its place.
    """
    if objective.l1:
        return l1.newton(objective, how, start)
    steepest = float(np.abs(objective.gradient(np.zeros_like(start))).max())
    return _descended(objective, how, start, how.tol * steepest)


def _descended(objective: Objective, how: Minimisation, start: _Floats, enough: float) -> Solution:
    if len(start) > _MOST:
        return _by_gradients(objective, how, start, enough)
    point, iteration, rounding = start.copy(), 0, float(np.finfo(objective.problem.rows.dtype).eps)
    while True:
        loss, gradient = objective.loss_gradient(point)
        objective.reached(iteration, point)
        converged = bool(np.abs(gradient).max() <= enough)
        if converged or iteration == how.max_iter or not np.isfinite(loss):
            break
        hessian, _ = objective.hessian(point)
        n = len(point)
        hessian[np.arange(n), np.arange(n)] += 4 * rounding * max(hessian.diagonal().max(), np.finfo(float).tiny)
        step = -_solved(hessian, gradient)
        share = _share(objective, point, step, loss, gradient)
        if not share:
            objective.loss(point)
            converged = True
            break
        point = point + share * step
        iteration += 1
    return {"coef": point, "n_iter": iteration, "converged": converged}


def _share(objective: Objective, point: _Floats, step: _Floats, loss: float, gradient: _Floats) -> float:
    """Return which share of a step decreases the loss enough, or 0 if what is left to gain is rounding."""
    promised, share = float(gradient @ step), 1.0
    if -promised <= _ROUNDING * float(np.finfo(objective.problem.rows.dtype).eps) * abs(loss):
        return float(np.abs(objective.gradient(point + step)).max() < np.abs(gradient).max())
    while share >= _SHORTEST:
        value, gradient = objective.loss_gradient(point + share * step)
        if value <= loss + _SUFFICIENT * share * promised:
            return share
        slope = float(gradient @ step)  # in between, it is zero about where a straight line would be
        share *= max(promised / (promised - slope), _LEAST_CUT) if slope > 0 else 0.5
    return 0.0


def _solved(hessian: _Floats, gradient: _Floats) -> _Floats:
    try:
        root = np.linalg.cholesky(hessian)
    except np.linalg.LinAlgError:  # columns that depend on each other
        return np.linalg.lstsq(hessian, gradient, rcond=None)[0]
    return np.linalg.solve(root.T, np.linalg.solve(root, gradient))


def _by_gradients(objective: Objective, how: Minimisation, start: _Floats, enough: float) -> Solution:
    from scipy.optimize import minimize

    iterations = itertools.count(1)
    found = minimize(
        objective.loss_gradient,
        start,
        method="L-BFGS-B",
        jac=True,
        callback=lambda point: objective.reached(next(iterations), point),
        options={"maxiter": how.max_iter, "maxls": 50, "gtol": enough, "ftol": 64 * np.finfo(float).eps},
    )
    return {"coef": found.x, "n_iter": min(found.nit, how.max_iter), "converged": found.status == 0}


def kinked(objective: Objective, how: Minimisation, start: _Floats) -> Solution:
    """Minimise what is missed itself, with smaller and smaller limits."""
    rounding = float(np.finfo(objective.problem.rows.dtype).eps)
    objective.smooth(_NONE, 0)
    size = max(objective.loss(np.zeros_like(start)), float(np.finfo(float).tiny))
    limit, last = _FIRST * size, max(_SHARE * how.tol * size, _LEAST * rounding * max(size, 1.0))
    point, n_iter, by = start, 0, _LESS
    found_at: list[tuple[float, _Floats]] = []  # the limits so far, and where their losses are least
    while True:
        objective.smooth(limit, n_iter)
        point = _better(objective, point, _ahead(found_at, limit))
        rest = replace(how, max_iter=how.max_iter - n_iter)
        if objective.l1:
            found = l1.newton(objective, rest, point)
        else:
            steepest = float(np.abs(objective.gradient(np.zeros_like(point))).max())
            found = _descended(objective, rest, point, how.tol * steepest)
        point, n_iter = found["coef"], n_iter + found["n_iter"]
        found_at.append((limit, point))
        if limit <= last or n_iter >= how.max_iter:
            break
        by = _LESS if found["n_iter"] else by**2
        limit = max(limit / by, last)
    objective.smooth(_NONE, 0)
    point = _better(objective, point, _ahead(found_at, 0.0))
    return {**found, "coef": point, "n_iter": n_iter, "converged": found["converged"] and limit <= last}


def _ahead(found_at: list[tuple[float, _Floats]], limit: float) -> _Floats | None:
    """Return where the least loss of a limit is on the line through the last two, once there are two.

    While the same rows are within the limit, the least losses of all limits are on one line.
    """
    if len(found_at) < 2:
        return None
    (before, there), (last, here) = found_at[-2:]
    return here + (here - there) * ((last - limit) / (before - last))


def _better(objective: Objective, point: _Floats, ahead: _Floats | None) -> _Floats:
    """Return which of two points has the smaller objective."""
    if ahead is None:
        return point
    value = objective.loss(point) + objective.norm(point)
    return ahead if objective.loss(ahead) + objective.norm(ahead) < value else point
