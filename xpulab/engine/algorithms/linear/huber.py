"""Minimise Huber's loss together with the scale by which it divides what products of rows miss; only rank 0 does.

For residuals r, coefficients w and the scale s, the objective is the mean of ``s + s * loss(r / s)`` plus the penalty,
where the loss of z is ``z**2`` up to epsilon, and from there on ``2 * epsilon * abs(z) - epsilon**2`` [1]_. It is
convex in w and s together. Its derivatives by s follow from the sums of this loss and of what outliers miss beyond
epsilon * s, so that the devices need no other kernel.

References
----------
.. [1] A. B. Owen, "A robust hybrid of lasso and ridge regression", Contemporary Mathematics 443 (2007), 59-71.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.linear import kinks
from xpulab.engine.algorithms.linear.losses import Robust
from xpulab.engine.algorithms.linear.objective import Objective
from xpulab.sharing.linear_models import Minimisation, Solution

__all__ = ["ScaledObjective", "scaled"]

_Floats = npt.NDArray[np.float64]

_LEAST = 10 * float(np.finfo(np.float64).eps)  # the smallest scale, as in scikit-learn
_MOST = 0.875  # of the way to it in a step
_WIDE = 8.0  # times the root of the mean squared residual: the first scale, at which there are few outliers
_ROUGH = 16.0  # times the rounding of its terms: how exact the derivative by the scale is
_SMALL = 1024.0  # times the rounding of residuals: the smallest scale that they are divided by
_VAST = 1e15  # a scale that is larger than all residuals


class ScaledObjective(kinks.KinkedObjective):
    """Huber's objective: the last number of a point is the scale, but while a limit gives it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._together = False
        self._near, self._far = np.empty(0), np.empty(0)

    @property
    def scale(self) -> float:
        """The scale of the limit."""
        return self.limit / self.epsilon

    @property
    def epsilon(self) -> float:
        """Rows within its product with the scale lose their square."""
        assert isinstance(self.problem.row_loss, Robust)
        return self.problem.row_loss.epsilon

    def smooth(self, limit: float, n_iter: int) -> None:
        """Change the limit."""
        super().smooth(limit, n_iter)
        self.change(self.scale, 0.0)

    def together(self, n_iter: int) -> None:
        """From now on, after so many iterations, points have the scale."""
        self.n_intercepts += not self._together
        self._together, self._steepest = True, 0.0
        self.count(n_iter)

    def lowest(self, n: int) -> _Floats | None:
        """Return the lower bounds of n numbers."""
        return np.append(np.full(n - 1, -np.inf), _LEAST) if self._together else None

    def longest(self, point: _Floats, step: _Floats) -> float:
        """Return the largest share of a step, after which the scale is still positive."""
        if not self._together or step[-1] >= 0:
            return 1.0
        return min(1.0, float(_MOST * (point[-1] - _LEAST) / -step[-1]))

    def loss_gradient(self, coef: np.ndarray, *_: Any, **__: Any) -> tuple[float, np.ndarray]:
        """Return the value and the gradient."""
        if not self._together:
            return super().loss_gradient(coef)
        if self._last is None or not np.array_equal(self._last[0], coef):
            scale, penalised = float(coef[-1]), self.without_intercept(coef)
            slope = self.slope(coef[:-1], scale)
            gradient = np.append(self._near[:-1], slope) + self.strength * penalised
            value = scale + self._near[-1] + 0.5 * self.strength * np.square(penalised).sum()
            self._last = coef.copy(), value, gradient
        return self._last[1], self._last[2].copy()

    def hessian(self, coef: np.ndarray, columns: np.ndarray | None = None) -> tuple[np.ndarray, float]:
        """Return second derivatives, and the share of outliers in the weight."""
        if not self._together:
            return super().hessian(coef, columns)
        _, gradient = self.loss_gradient(coef)
        scale, epsilon, n = float(coef[-1]), self.epsilon, len(coef)
        found = self.ask("hessian", coef[:-1]) / self.problem.weight
        inner, outliers = found[:-1].reshape(n - 1, n - 1), float(found[-1])
        hessian = np.diag(self.strength * self.without_intercept(np.ones(n)))
        hessian[:-1, :-1] += self._damped(inner, gradient, epsilon * scale, 1 - outliers)
        hessian[-1, :-1] = hessian[:-1, -1] = (2 * epsilon * self._far[:-1] - self._near[:-1]) / scale
        hessian[-1, -1] = 2 * ((1 - gradient[-1]) * scale - epsilon**2 * scale * outliers) / scale**2
        return hessian, outliers

    def slope(self, coef: np.ndarray, scale: float) -> float:
        """Return the derivative by the scale.

        It has the squares of residuals, of which outliers have those of the limit.
        """
        self._far, self._near = self._sums(coef, scale, True), self._sums(coef, scale, False)
        return float(1 - (self._near[-1] - 2 * self.epsilon * self._far[-1]) / scale)

    def too_small(self, coef: np.ndarray) -> bool:
        """Return whether the objective would be less with a larger scale than that of the limit, beyond rounding."""
        slope = self.slope(coef, self.scale)
        return bool(slope < -_ROUGH * self.rounding * max(1.0, self._near[-1] / self.scale))

    def spread(self, coef: np.ndarray) -> float:
        """Return the root of the mean of the squared residuals, or 1 if a scale cannot be so small or so large."""
        squares = float(self._sums(coef, _VAST, False)[-1]) * _VAST
        return float(np.sqrt(squares)) if np.isfinite(squares) and squares > _LEAST**2 else 1.0

    def _sums(self, coef: np.ndarray, scale: float, beyond: bool) -> _Floats:
        """Return the mean gradient by the coefficients, and the mean loss."""
        self.change(scale, float(beyond))
        return self.ask("loss", coef) / self.problem.weight


def scaled(objective: Objective, how: Minimisation, start: _Floats) -> Solution:
    """Minimise by Newton's method, until no component of the gradient of the sums of all rows is larger than `tol`.

    The scale becomes smaller and smaller, as a limit does, until the objective would be less with a larger one. Then it
    is a coefficient as others are. Of residuals that may all be outliers, it becomes as small as possible. The scale at
    the start may be 0: that of the residuals takes its place.
    """
    assert isinstance(objective, ScaledObjective)
    epsilon, scale = objective.epsilon, float(start[-1]) or _WIDE * objective.spread(start[:-1])
    last = epsilon * max(_LEAST, _SMALL * objective.rounding * scale)
    path = kinks.followed(objective, how, start[:-1], epsilon * scale, last, scale, objective.too_small)
    found, n_iter = path.solution, path.solution["n_iter"]
    if not objective.too_small(found["coef"]) and found["converged"]:
        objective.smooth(epsilon * _LEAST, 0)
        return {**found, "coef": np.append(kinks.better(objective, found["coef"], path.ahead(0.0)), _LEAST)}
    begin = np.append(found["coef"], objective.scale)
    if not found["converged"]:
        return {**found, "coef": begin}
    objective.together(n_iter)
    rest = replace(how, max_iter=how.max_iter - n_iter)
    enough = max(how.tol / objective.problem.weight, path.noise / path.found[-1][0])
    together = kinks.descended(objective, rest, begin, enough)
    objective.count(0)
    objective.loss(together["coef"])
    return {**together, "n_iter": n_iter + together["n_iter"]}
