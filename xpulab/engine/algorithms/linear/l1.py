"""Minimise a loss plus the l1 norm of the coefficients: solvers that only rank 0 runs, as those of `solving`.

For few coefficients, Newton's method: coordinate descent minimises the quadratic model of the loss plus the norm [1]_,
and a search along the way to this minimum makes sure that the objective decreases [2]_. For many coefficients,
L-BFGS-B: each coefficient is the difference of two parts that are not negative, whose sum is its absolute value [3]_.

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

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.linear.objective import Objective
from xpulab.sharing.linear_models import Minimisation, Solution

__all__ = ["bounded", "newton", "warnings_of"]

_Floats = npt.NDArray[np.float64]

_SUFFICIENT = 1e-4  # share of the decrease that the model promises, which a step must have
_SHORTEST = 2.0**-30  # share of the way to the model's minimum, below which no decrease is looked for
_SWEEPS = 1000  # of coordinate descent over a model; the next model starts where it ended
_GAP = 1e-12  # duality gap of a model, as a share of the squared length of its target


def newton(objective: Objective, how: Minimisation, start: _Floats) -> Solution:
    """Minimise by Newton's method, until no component of the subgradient is larger than `how.tol`."""
    point, norm = start.copy(), objective.norm
    resolution = 16 * float(np.finfo(objective.problem.rows.dtype).eps)
    converged, iteration = False, 0
    while True:
        value, gradient = objective.loss_gradient(point)
        steepest = np.abs(objective.slopes(point, gradient)).max()
        converged = bool(steepest <= how.tol)
        if converged or iteration == how.max_iter or not np.isfinite(steepest):
            break
        gradient, hessian = np.empty(len(point)), np.empty((len(point), len(point)))
        objective.gradient_hessian(point, gradient_out=gradient, hessian_out=hessian)
        step = _minimum(objective, point, gradient, hessian) - point
        promised = gradient @ step + norm(point + step) - norm(point)
        rounded = bool(-promised <= resolution * abs(value))  # whether the loss is too coarse to show the decrease
        share, before, moved = 1.0, value + norm(point), False
        while not moved and share >= (1.0 if rounded else _SHORTEST):
            there = point + share * step
            loss, slope = objective.loss_gradient(there)
            if rounded:
                moved = bool(np.abs(objective.slopes(there, slope)).max() < steepest)
            else:
                moved = bool(loss + norm(there) <= before + _SUFFICIENT * share * promised)
            share /= 2
        if not moved:
            objective.loss(point)
            converged = rounded
            break
        point = there
        iteration += 1
    return {"coef": point, "n_iter": iteration, "converged": converged, "warnings": warnings_of(converged)}


def warnings_of(converged: bool) -> list[tuple[type[Warning], str]]:
    """Return the warning of scikit-learn's "saga" if the solver has not converged."""
    from sklearn.exceptions import ConvergenceWarning

    said = "The max_iter was reached which means the coef_ did not converge"
    return [] if converged else [(ConvergenceWarning, said)]


def _minimum(objective: Objective, point: _Floats, gradient: _Floats, hessian: _Floats) -> _Floats:
    """Return where the quadratic model of the loss at a point, plus the norm, is smallest."""
    n = len(point) - objective.n_intercepts
    curvature = hessian.diagonal()[:n]
    # The model may be flat, or rounded to one that bends down. More curvature changes the way, not where it ends.
    for share in (np.finfo(objective.problem.rows.dtype).eps, 1e-6, 1e-4, 1e-2, 1.0):
        curved = hessian.copy()
        curved[np.arange(n), np.arange(n)] += share * max(curvature.max(), np.finfo(float).tiny)
        aim = curved @ point - gradient
        # For given coefficients, the best intercepts are known. Equal ones for all classes change nothing.
        side = curved[:n, n:]
        inverse = np.linalg.pinv(curved[n:, n:], rcond=1e-9, hermitian=True)
        gram = curved[:n, :n] - side @ inverse @ side.T
        cross = aim[:n] - side @ inverse @ aim[n:]
        try:
            root = np.linalg.cholesky(gram)
        except np.linalg.LinAlgError:
            continue
        coef = _descended(gram, cross, float(np.linalg.norm(np.linalg.solve(root, cross))), objective.l1, point[:n])
        return np.concatenate([coef, inverse @ (aim[n:] - side.T @ coef)])
    return point


def _descended(gram: _Floats, cross: _Floats, length: float, l1: float, start: _Floats) -> _Floats:
    """Minimise ``coef @ gram @ coef / 2 - cross @ coef`` plus `l1` times the norm, by scikit-learn's `enet_path`.

    These are the products of a table of rows and a target of a length, with which `enet_path` measures how near it is.
    """
    from sklearn.linear_model import enet_path

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
            tol=_GAP,
        )
    found: _Floats = coef[:, 0]
    return found


def bounded(objective: Objective, how: Minimisation, start: _Floats) -> Solution:
    """Minimise by L-BFGS-B, with positive and negative parts of the coefficients as its variables."""
    from scipy.optimize import Bounds, minimize

    n = len(start) - objective.n_intercepts
    iterations = itertools.count(1)

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
        if steepest(joined(parts)) <= how.tol:
            raise StopIteration

    if steepest(start) <= how.tol:
        return {"coef": start, "n_iter": 0, "converged": True}
    found = minimize(
        value,
        np.concatenate([np.maximum(start[:n], 0), np.maximum(-start[:n], 0), start[n:]]),
        method="L-BFGS-B",
        jac=True,
        bounds=Bounds(least, np.inf),
        callback=iterated,
        options={"maxiter": how.max_iter, "maxls": 50, "gtol": 0.0, "ftol": 64 * np.finfo(float).eps},
    )
    coef = joined(found.x)
    converged = steepest(coef) <= how.tol or found.status == 0  # the latter if what is left to gain is rounding
    return {"coef": coef, "n_iter": found.nit, "converged": converged, "warnings": warnings_of(converged)}
