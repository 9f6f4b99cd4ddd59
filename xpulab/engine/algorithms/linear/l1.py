"""Minimise a loss plus the l1 norm of the coefficients: solvers that only rank 0 runs, as those of `solving`.

Newton's method: coordinate descent minimises the quadratic model of the loss plus the norm [1]_, and a search along the
way to this minimum makes sure that the objective decreases [2]_. Of many columns, the model has those whose
coefficients are not zero, and those in which the objective is steepest. If too many coefficients are not zero, L-BFGS-B
goes on: each coefficient is the difference of two parts that are not negative, whose sum is its absolute value [3]_.

References
----------
.. [1] J. Friedman, T. Hastie, R. Tibshirani, "Regularization paths for generalized linear models via coordinate
   descent", Journal of Statistical Software 33 (2010).
.. [2] J. D. Lee, Y. Sun, M. A. Saunders, "Proximal Newton-type methods for minimizing composite functions", SIAM
   Journal on Optimization 24 (2014), 1420-1443.
.. [3] M. Schmidt, G. Fung, R. Rosales, "Fast optimization methods for L1 regularization", ECML 2007, 286-297.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.linear.objective import Objective
from xpulab.sharing.linear_models import Minimisation, Solution

__all__ = ["bounded", "minimised", "newton", "warnings_of"]

_Floats = npt.NDArray[np.float64]

_SUFFICIENT = 1e-4  # share of the decrease that the model promises, which a step must have
_SHORTEST = 2.0**-6  # share of the way to a model's minimum, below which another model is made, with more curvature
_LEAST_DAMPING, _MOST_DAMPING = 1e-4, 1e4  # more curvature, as a share of the largest
_SWEEPS = 1000  # of coordinate descent over a model, at most; the next model starts where it ended
_TOL, _LEAST_TOL = 1e-4, 1e-13  # change of the coefficients of a model, at which its descent ends, far and near
_LONG = 10.0  # times the squared length that the target would have if the columns were orthogonal
_ALL = 1500  # coefficients up to which a model has all
_MOST = 3000  # coefficients of a model with some
_FIRST = 100  # columns of the first of these


def minimised(objective: Objective, how: Minimisation, start: _Floats) -> Solution:
    """Minimise by Newton's method, until no component of the subgradient is larger than a share of the penalty."""
    return newton(objective, how, start, how.tol * min(1.0, objective.l1 + objective.strength))


def newton(objective: Objective, how: Minimisation, start: _Floats, enough: float) -> Solution:
    """Minimise by Newton's method, until no component of the subgradient is larger than `enough`."""
    point = start.copy()
    n, iteration, damping = len(point) - objective.n_intercepts, 0, 0.0
    while True:
        _, gradient = objective.loss_gradient(point)
        slopes = np.abs(objective.slopes(point, gradient))
        objective.reached(iteration, point)
        converged = bool(slopes.max() <= enough)
        if converged or iteration == how.max_iter or not np.isfinite(slopes).all():
            break
        columns = None
        if n > _ALL:
            used = (point[:n].reshape(-1, objective.problem.n_columns) != 0).any(axis=1)
            if objective.problem.n_columns * used.sum() > _MOST:
                return bounded(objective, how, point, enough, iteration)
            columns = _columns(objective, used, slopes)
        hessian, _ = objective.hessian(point, columns)
        moved = None
        while moved is None and damping <= _MOST_DAMPING:
            model = _Model(objective, point, gradient, hessian, _places(objective, columns, len(point)), damping)
            moved, exact = _step(objective, point, slopes.max(), model)
            if exact:
                break
            if moved is None:
                damping = max(10 * damping, _LEAST_DAMPING)
        if moved is None:
            objective.loss(point)
            # What is left to gain is rounding, or no curvature has helped. There may be a slope without any, too.
            places = _places(objective, columns, len(point))
            converged = exact and not (slopes[places] > enough)[hessian.diagonal() <= 0].any()
            break
        damping = damping / 10 if damping > _LEAST_DAMPING else 0.0
        point = moved
        iteration += 1
    return {"coef": point, "n_iter": iteration, "converged": converged, "warnings": warnings_of(converged)}


def _step(objective: Objective, point: _Floats, steepest: float, model: _Model) -> tuple[_Floats | None, bool]:
    """Go towards the minimum of a model until the objective has decreased enough.

    Returns
    -------
    there : numpy.ndarray or None
        None if it has not.
    exact : bool
        Whether the decrease that the model promises is too small for the loss to show it. Then slopes must decrease.
    """
    norm, value = objective.norm, objective.loss(point)
    step = model.minimum(steepest) - point
    promised = model.gradient @ step + norm(point + step) - norm(point)
    if -promised <= 16 * objective.rounding * abs(value):
        there = point + step
        slopes = objective.slopes(there, objective.gradient(there))
        return (there if np.abs(slopes).max() < steepest else None), True
    share, before = 1.0, value + norm(point)
    while share >= _SHORTEST:
        there = point + share * step
        if objective.loss(there) + norm(there) <= before + _SUFFICIENT * share * promised:
            return there, False
        share /= 2
    return None, False


@dataclass(frozen=True)
class _Model:
    """The quadratic model of the loss at a point in some of its places, plus the norm.

    Attributes
    ----------
    gradient : numpy.ndarray of shape (len(point),)
    hessian : numpy.ndarray of shape (len(places), len(places))
    places : numpy.ndarray of int
    damping : float
        What is added to the curvature along each coefficient, as a share of the largest.
    """

    objective: Objective
    point: _Floats
    gradient: _Floats
    hessian: _Floats
    places: npt.NDArray[np.intp]
    damping: float

    def minimum(self, steepest: float) -> _Floats:
        """Return about where the model is smallest."""
        point, n = self.point[self.places], len(self.places) - self.objective.n_intercepts
        # Rounding may have the model bend down. A little more curvature changes the way, and not where it ends.
        least = 16 * self.objective.rounding
        hessian = self.hessian.copy()
        largest = hessian.diagonal().max()
        hessian[np.diag_indices(len(hessian))] += self.damping * largest
        hessian[np.arange(n), np.arange(n)] += max(least * largest, np.finfo(float).tiny)
        aim = hessian @ point - self.gradient[self.places]
        # For given coefficients, the best intercepts are known. Equal ones for all classes change nothing.
        side = hessian[:n, n:]
        inverse = np.linalg.pinv(hessian[n:, n:], rcond=1e-9, hermitian=True)
        gram = hessian[:n, :n] - side @ inverse @ side.T
        cross = aim[:n] - side @ inverse @ aim[n:]
        near = min(1.0, steepest / (self.objective.l1 + self.objective.strength))
        diagonal = np.maximum(gram.diagonal(), np.finfo(float).tiny)
        longest = max(np.abs(point[:n]).max(), (np.abs(cross) / diagonal).max())
        change = min(near**2, steepest / max(diagonal.max() * longest, steepest))
        coef = _descended(gram, cross, self.objective.l1, point[:n], max(_TOL * change, _LEAST_TOL))
        found = self.point.copy()
        found[self.places] = np.concatenate([coef, inverse @ (aim[n:] - side.T @ coef)])
        return found


def _columns(objective: Objective, used: npt.NDArray[np.bool_], slopes: _Floats) -> npt.NDArray[np.intp]:
    """Return the columns whose coefficients the next step changes: those in use, and the steepest of the others."""
    classes, n_used = objective.problem.n_columns, int(used.sum())
    steep = np.where(used, 0.0, slopes[: len(used) * classes].reshape(-1, classes).max(axis=1))
    room = min(_MOST // classes, max(_FIRST, 2 * n_used)) - n_used
    order = np.argsort(-steep, kind="stable")[:room]
    return np.sort(np.concatenate([np.flatnonzero(used), order[steep[order] > 0]]))


def _places(objective: Objective, columns: npt.NDArray[np.intp] | None, n: int) -> npt.NDArray[np.intp]:
    """Return the places of the coefficients of columns, and of the intercepts, in a point of n numbers."""
    if columns is None:
        return np.arange(n)
    classes = objective.problem.n_columns
    coefficients = (columns[:, None] * classes + np.arange(classes)).ravel()
    return np.concatenate([coefficients, np.arange(n - objective.n_intercepts, n)])


def warnings_of(converged: bool) -> list[tuple[type[Warning], str]]:
    """Return the warning of scikit-learn's "saga" if the solver has not converged."""
    from sklearn.exceptions import ConvergenceWarning

    said = "The max_iter was reached which means the coef_ did not converge"
    return [] if converged else [(ConvergenceWarning, said)]


def _descended(gram: _Floats, cross: _Floats, l1: float, start: _Floats, tol: float) -> _Floats:
    """Minimise ``coef @ gram @ coef / 2 - cross @ coef`` plus `l1` times the norm, by scikit-learn's `enet_path`.

    It ends when the coefficients change by less than `tol`, and the duality gap is less than this share of the squared
    length of the target. `gram` and `cross` are the products of a table of rows and a target, which may not exist.
    """
    from sklearn.linear_model import enet_path

    length = np.sqrt(_LONG * (np.square(cross) / np.maximum(gram.diagonal(), np.finfo(float).tiny)).sum())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, coef, _ = enet_path(
            np.zeros((1, len(cross))),
            np.array([length]),
            l1_ratio=1.0,
            alphas=[l1],
            precompute=np.ascontiguousarray(gram),
            Xy=np.ascontiguousarray(cross),
            coef_init=start.copy(),
            check_input=False,
            max_iter=_SWEEPS,
            tol=tol,
        )
    found: _Floats = coef[:, 0]
    return found


def bounded(objective: Objective, how: Minimisation, start: _Floats, enough: float, first: int = 0) -> Solution:
    """Minimise by L-BFGS-B, with positive and negative parts of the coefficients as its variables.

    It ends when no component of the subgradient is larger than `enough`. `first` is the number of iterations before.
    """
    from scipy.optimize import Bounds, minimize

    n = len(start) - objective.n_intercepts
    iterations = itertools.count(first + 1)

    def joined(parts: _Floats) -> _Floats:
        return np.concatenate([parts[:n] - parts[n : 2 * n], parts[2 * n :]])

    def value(parts: _Floats) -> tuple[float, _Floats]:
        loss, gradient = objective.loss_gradient(joined(parts))
        up, down = gradient[:n] + objective.l1, -gradient[:n] + objective.l1
        return loss + objective.l1 * parts[: 2 * n].sum(), np.concatenate([up, down, gradient[n:]])

    least = np.zeros(len(start) + n)
    least[2 * n :] = -np.inf

    def steepest(point: _Floats) -> float:
        return float(np.abs(objective.slopes(point, objective.gradient(point))).max())

    def iterated(parts: _Floats) -> None:
        objective.reached(next(iterations), joined(parts))
        if steepest(joined(parts)) <= enough:
            raise StopIteration

    if steepest(start) <= enough:
        return {"coef": start, "n_iter": first, "converged": True}
    found = minimize(
        value,
        np.concatenate([np.maximum(start[:n], 0), np.maximum(-start[:n], 0), start[n:]]),
        method="L-BFGS-B",
        jac=True,
        bounds=Bounds(least, np.inf),
        callback=iterated,
        options={"maxiter": how.max_iter - first, "maxls": 50, "gtol": 0.0, "ftol": 64 * np.finfo(float).eps},
    )
    coef = joined(found.x)
    converged = steepest(coef) <= enough or found.status == 0  # the latter if what is left to gain is rounding
    return {"coef": coef, "n_iter": first + found.nit, "converged": converged, "warnings": warnings_of(converged)}
