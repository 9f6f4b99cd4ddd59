"""The steps of a descent: how long they are, and what the penalty does to the coefficients.

A step for a batch of m rows is as long as the m steps that scikit-learn takes for one row after the other, but not so
long that the loss of the batch may rise: its length is at most the inverse of the largest curvature of the loss. Far
from the minimum, this is what limits steps, and near to it the learning rate. So the first iterations end nearer to the
minimum than steps for single rows, whose size depends on the largest row.

References
----------
.. [1] scikit-learn's ``sklearn/linear_model/_sgd_fast.pyx.tp``: learning rates, averages, and the end of a fit.
.. [2] S. Shalev-Shwartz, Y. Singer, N. Srebro, A. Cotter, "Pegasos: primal estimated sub-gradient solver for SVM",
   Mathematical Programming 127 (2011), 3-30: steps for batches.
.. [3] P. Jain, S. M. Kakade, R. Kidambi, P. Netrapalli, A. Sidford, "Parallelizing stochastic gradient descent for
   least squares regression: mini-batching, averaging, and model misspecification", Journal of Machine Learning
   Research 18 (2018), 1-42: the mean of the last points.
.. [4] N. Parikh, S. Boyd, "Proximal algorithms", Foundations and Trends in Optimization 1 (2014), 127-239: steps of the
   penalty.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from xpulab.sharing.linear_models import Descent

__all__ = ["Plan", "Steps"]

_Floats = npt.NDArray[np.float64]

#: The length of each step of an iteration, and the share of the way to the point after it that the mean goes.
Plan: TypeAlias = tuple[_Floats, _Floats]


class Steps:
    """Changes coefficients and intercept of one column, a point (n_features + 1,), and their average.

    Parameters
    ----------
    how : Descent
    curvature : float
        Largest curvature of the loss of a batch, divided by its number of rows.

    Attributes
    ----------
    eta : float
        The learning rate of "adaptive".
    """

    def __init__(self, how: Descent, curvature: float, eta: float) -> None:
        self._how, self.eta = how, eta
        self._squares = how.alpha * (1 - how.l1_ratio) if how.penalty else 0.0
        self._norm = how.alpha * how.l1_ratio if how.penalty else 0.0
        bend = curvature + self._squares
        self._longest = 1 / bend if bend else math.inf
        self._before = 0.0
        if how.learning_rate == "optimal":
            typical = math.sqrt(1 / math.sqrt(how.alpha))  # a coefficient, with which the rate begins
            self._before = 1 / (typical * how.alpha)

    @property
    def penalties(self) -> tuple[float, float, bool]:
        """Factors of half the sum of squares and of the l1 norm, and whether there is an intercept."""
        return self._squares, self._norm, self._how.fit_intercept

    @property
    def makes_zeros(self) -> bool:
        """Whether coefficients become zero, because the penalty has an l1 norm."""
        return self._norm > 0

    def penalty(self, point: _Floats) -> float:
        """Return the penalty."""
        coef = point[:-1]
        squares = self._squares / 2 * float(coef @ coef) if self._squares else 0.0
        return squares + (self._norm * float(np.abs(coef).sum()) if self._norm else 0.0)

    def rates(self, t: _Floats) -> _Floats:
        """Return the learning rates of rows with these numbers, which count from 1."""
        how = self._how
        if how.learning_rate == "optimal":
            return 1 / (how.alpha * (self._before + t - 1))
        return how.eta0 / t**how.power_t if how.learning_rate == "invscaling" else np.full(len(t), self.eta)

    def plan(self, sizes: npt.NDArray[np.int64], t: float) -> Plan:
        """Return the plan of an iteration with batches of so many rows, of which the first has number t.

        Without an average since an earlier row, the mean is that of the points after the second half of the steps.
        """
        firsts = t + np.cumsum(sizes) - sizes
        lengths = np.minimum(sizes * self.rates(firsts + (sizes - 1) / 2), self._longest)
        if self._how.average:
            since = firsts + sizes - self._how.average
            return lengths, np.where(since > 0, np.minimum(sizes, since) / np.maximum(since, 1), 0.0)
        number = np.arange(len(sizes)) - len(sizes) // 2
        return lengths, np.where(number < 0, 0.0, 1 / np.maximum(number + 1, 1))

    def take(self, point: _Floats, gradient: _Floats, n: int, length: float) -> None:
        """Take a step for a batch of n rows, with the sum of their gradients."""
        coef = point[:-1]
        coef -= length / n * gradient[:-1]
        if self._squares:
            coef /= 1 + length * self._squares
        if self._norm:
            np.copyto(coef, np.sign(coef) * np.maximum(np.abs(coef) - length * self._norm, 0))
        if self._how.fit_intercept:
            point[-1] -= length / n * gradient[-1]

    def has_ended(self, stale: int) -> bool:
        """Return whether a fit ends after so many iterations without an improvement; if not, "adaptive" is slower."""
        if stale < self._how.n_iter_no_change:
            return False
        if self._how.learning_rate == "adaptive" and self.eta > 1e-6:
            self.eta /= 5
            return False
        return True
