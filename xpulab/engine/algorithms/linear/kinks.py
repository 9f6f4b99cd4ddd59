"""Minimise losses of what products of rows miss, with penalties: solvers that only rank 0 runs, as those of `solving`.

The square of what is missed has second derivatives, which jump. Newton's method with a search along each step converges
in few iterations [1]_. What is missed itself has a kink: a square takes the place of the loss up to a limit, which
becomes smaller and smaller [2]_. The loss is then too small by half the limit at most. While the same rows are within
the limit, the coefficients are a linear function of it. The last two therefore tell where to go on, and at the end,
which coefficients belong to a limit of zero.

References
----------
.. [1] S. S. Keerthi, D. DeCoste, "A modified finite Newton method for fast solution of large scale linear SVMs",
   Journal of Machine Learning Research 6 (2005), 341-361.
.. [2] O. Chapelle, "Training a support vector machine in the primal", Neural Computation 19 (2007), 1155-1178.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.linear import l1
from xpulab.engine.algorithms.linear.losses import KINKED
from xpulab.engine.algorithms.linear.objective import Objective
from xpulab.sharing.linear_models import Minimisation, Solution

__all__ = ["KinkedObjective", "better", "descended", "followed", "kinked", "newton"]

_Floats = npt.NDArray[np.float64]

_SUFFICIENT = 1e-4  # share of the decrease that the gradient promises, which a step must have
_SHORTEST = 2.0**-40  # share of a step
_POOR = 0.1  # a share of a step, so small that the next one has more curvature
_LEAST_CUT = 1e-2  # the next share of a step, at least so many times the one before
_ROUNDING = 16.0  # times that of the loss: a decrease that the loss does not show, so that the gradient has to decrease
_MOST = 1500  # coefficients of which there are second derivatives
_DAMPED = 1e-2  # of the curvature of the rows within the limit, what there is in any direction
_FEW = 1e-4  # the least share of rows within the limit that counts
_LESS = 8.0  # by what a limit is divided
_HALF = 0.5 + 1e-6  # of the loss at the start, which that of the first limit does not exceed: most rows are within it
_SHARE = 1e-2  # of `tol` times the mean loss: the last limit
_NOISE = 8.0  # times the rounding of a product, as a share of the limit: how exact a gradient is
_LEAST = 1024.0  # the last limit, at least so many times the rounding of a product of the mean size


def newton(objective: Objective, how: Minimisation, start: _Floats) -> Solution:
    """Minimise by Newton's method, until no component of the gradient is larger than `tol` times those at the start.

    Of too many coefficients for second derivatives, L-BFGS-B takes its place.
    """
    if objective.l1:
        return l1.minimised(objective, how, start)
    steepest = float(np.abs(objective.gradient(np.zeros_like(start))).max())
    return descended(objective, how, start, how.tol * steepest)


def descended(objective: Objective, how: Minimisation, start: _Floats, enough: float) -> Solution:
    """Minimise until no component of the gradient is larger than `enough`."""
    if len(start) > _MOST:
        return _by_gradients(objective, how, start, enough)
    point, iteration = start.copy(), 0
    objective.damping = 0.0 if objective.strength else 1.0
    while True:
        loss, gradient = objective.loss_gradient(point)
        objective.reached(iteration, point)
        converged = bool(np.abs(gradient).max() <= enough)
        if converged or iteration == how.max_iter or not np.isfinite(loss):
            break
        hessian, _ = objective.hessian(point)
        largest = max(hessian.diagonal().max(), np.finfo(float).tiny)
        hessian[np.diag_indices(len(point))] += 4 * objective.rounding * largest
        step = -_solved(hessian, gradient)
        share = _share(objective, point, step, loss, gradient)
        if not share and objective.damping >= 1:
            objective.loss(point)
            converged = True
            break
        if share < _POOR:
            objective.damping = 1.0
        elif share == 1.0 and objective.strength:
            objective.damping /= 4
        if not share:
            continue
        point = point + share * step
        iteration += 1
    return {"coef": point, "n_iter": iteration, "converged": converged}


def _share(objective: Objective, point: _Floats, step: _Floats, loss: float, gradient: _Floats) -> float:
    """Return which share of a step decreases the loss enough, or 0 if what is left to gain is rounding."""
    promised, share = float(gradient @ step), objective.longest(point, step)
    least = share * _SHORTEST
    if -promised <= _ROUNDING * objective.rounding * abs(loss):
        return share * float(np.abs(objective.gradient(point + share * step)).max() < np.abs(gradient).max())
    while share >= least:
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
    from scipy.optimize import Bounds, minimize

    iterations, lowest = itertools.count(1), objective.lowest(len(start))
    found = minimize(
        objective.loss_gradient,
        start,
        method="L-BFGS-B",
        jac=True,
        bounds=None if lowest is None else Bounds(lowest, np.inf),
        callback=lambda point: objective.reached(next(iterations), point),
        options={"maxiter": how.max_iter, "maxls": 50, "gtol": enough, "ftol": 64 * np.finfo(float).eps},
    )
    return {"coef": found.x, "n_iter": min(found.nit, how.max_iter), "converged": found.status == 0}


class KinkedObjective(Objective):
    """An objective whose loss is a square up to a limit, which becomes smaller and smaller.

    Few rows are within a small limit, and there may be no curvature along some coefficients. Second derivatives
    therefore have a small share of what they would have if all rows were within the limit, the smaller, the smaller the
    gradient is.

    Attributes
    ----------
    limit : float
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.limit, self._steepest = 0.0, 0.0
        self._whole: _Floats | None = None

    def smooth(self, limit: float, n_iter: int) -> None:
        """Change the limit, after so many iterations."""
        self.limit, self._steepest = limit, 0.0
        self.change(limit)
        self.count(n_iter)

    def count(self, n_iter: int) -> None:
        """From now on, count iterations from this number, of another objective."""
        self._before, self._last = n_iter, None

    def hessian(self, coef: np.ndarray, columns: np.ndarray | None = None) -> tuple[np.ndarray, float]:
        """Return second derivatives, and the share of rows beyond the limit, or not missed, in the weight."""
        hessian, flat = super().hessian(coef, columns)
        if columns is None:
            hessian = self._damped(hessian, self.slopes(coef, self.gradient(coef)), self.limit, 1 - flat)
        return hessian, flat

    def _damped(self, hessian: _Floats, slopes: _Floats, limit: float, within: float) -> _Floats:
        """Return more second derivatives, for a limit within which there is a share of the rows."""
        steepest = float(np.abs(slopes).max())
        self._steepest = max(self._steepest, steepest)
        if self._whole is None:
            self._whole = hessian * (limit / max(within, _FEW))
        if not self._steepest:
            return hessian
        share = self.damping * _DAMPED * max(within, _FEW) * steepest / self._steepest
        damped: _Floats = hessian + share / limit * self._whole
        return damped

    def rounded(self, coef: _Floats) -> float:
        """Return the mean size of the terms of a row's product with coefficients, which is what it is rounded by."""
        if self._whole is None:
            return 0.0
        return float(np.sqrt(np.square(coef) @ np.maximum(self._whole.diagonal(), 0)))


@dataclass
class Path:
    """Where the losses of smaller and smaller limits are least.

    Attributes
    ----------
    solution : Solution
        The last point, with the iterations of all.
    found : list of (float, numpy.ndarray)
        The limits, and the points.
    noise : float
        How exact a gradient is, times the limit.
    """

    solution: Solution
    found: list[tuple[float, _Floats]]
    noise: float = 0.0

    def ahead(self, limit: float) -> _Floats | None:
        """Return the point of another limit on the line through the last two, once there are two.

        While the same rows are within the limit, the points of all limits are on one line.
        """
        if len(self.found) < 2:
            return None
        (before, there), (last, here) = self.found[-2:]
        return here + (here - there) * ((last - limit) / (before - last))


def kinked(objective: Objective, how: Minimisation, start: _Floats) -> Solution:
    """Minimise what is missed itself, with smaller and smaller limits."""
    assert isinstance(objective, KinkedObjective)
    rounding, zeros = objective.rounding, np.zeros_like(start)
    objective.smooth(KINKED, 0)
    size = max(objective.loss(zeros), float(np.finfo(float).tiny))
    limit = size
    objective.smooth(limit, 0)
    while objective.loss(zeros) > _HALF * size:
        limit *= _LESS
        objective.smooth(limit, 0)
    path = followed(objective, how, start, limit, max(_SHARE * how.tol, _LEAST * rounding) * size, size)
    objective.smooth(KINKED, 0)
    return {**path.solution, "coef": better(objective, path.solution["coef"], path.ahead(0.0))}


def followed(
    objective: KinkedObjective, how: Minimisation, start: _Floats, limit: float, last: float, size: float,
    ended: Callable[[_Floats], bool] = lambda point: False,
) -> Path:  # fmt: skip
    """Minimise with smaller and smaller limits, from one to the last, or until a point is one at which it has ended.

    What rows miss has a mean of about `size`, of which it is rounded, or of the terms of products that are larger.
    """
    rounding, zeros = objective.rounding, np.zeros_like(start)
    point, n_iter, path = start, 0, Path({}, [])
    while True:
        objective.smooth(limit, n_iter)
        point = better(objective, point, path.ahead(limit))
        rest, steepest = replace(how, max_iter=how.max_iter - n_iter), float(np.abs(objective.gradient(zeros)).max())
        enough = how.tol * (min(1.0, objective.l1) if objective.l1 else steepest)
        path.noise = _NOISE * rounding * size * steepest
        enough = max(enough, path.noise / limit)
        found = (l1.newton if objective.l1 else descended)(objective, rest, point, enough)
        point, n_iter = found["coef"], n_iter + found["n_iter"]
        path.found.append((limit, point))
        size = max(size, objective.rounded(point))
        last = max(last, _LEAST * rounding * size)
        over = limit <= last or ended(point)
        path.solution = {**found, "n_iter": n_iter, "converged": found["converged"] and over}
        steepest = float(np.abs(objective.slopes(point, objective.gradient(point))).max())
        if over or n_iter >= how.max_iter:
            objective.smooth(limit, 0)
            objective.loss(point)
            return path
        by = _LESS**2 if not found["n_iter"] and steepest <= enough else _LESS
        limit = max(limit / by, last)


def better(objective: Objective, point: _Floats, ahead: _Floats | None) -> _Floats:
    """Return which of two points has the smaller objective."""
    if ahead is None:
        return point
    value = objective.loss(point) + objective.norm(point)
    return ahead if objective.loss(ahead) + objective.norm(ahead) < value else point
