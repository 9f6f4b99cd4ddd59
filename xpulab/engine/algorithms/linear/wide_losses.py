"""Newton's method for losses of fewer rows than columns: an equation for each row and column of coefficients.

For the rows ``X = U @ S @ V.T``, the second derivatives of the loss are those of the rows ``U @ S``, turned by V, and
the penalty adds its strength to all. The Newton step is therefore ``V @ step - rest / strength``, where `step` is that
of the rows ``U @ S`` with the gradient ``V.T @ gradient``, and `rest` is what the gradient has beside V [1]_: the
identity of Sherman, Morrison and Woodbury [2]_ in the basis V. Losses, gradients and the search along a step are those
of all columns, as in scikit-learn's solver, so that the iterations are the same.

References
----------
.. [1] T. Hastie, R. Tibshirani, "Efficient quadratic regularization for expression arrays", Biostatistics 5 (2004),
   329-340.
.. [2] W. W. Hager, "Updating the inverse of a matrix", SIAM Review 31 (1989), 221-239.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.linear.loss_problem import Problem
from xpulab.engine.algorithms.wide_rows import Spectrum, WideRows, few
from xpulab.engine.dataset import on_host
from xpulab.kernels.rows import Rows

__all__ = ["Reduced", "WideProblem", "solver_by_rows", "wide_problem"]

_LEAST = 1e-8  # singular values up to this share of the largest, whose squares are rounding
_BESIDE = 1e-12  # share of a squared gradient that its rounding may have beside the rows

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Reduced:
    """Gradient and second derivatives in the basis of the rows, in the layout of scikit-learn's solver.

    Attributes
    ----------
    gradient : numpy.ndarray of shape (n_columns * (k + fit_intercept),)
    hessian : numpy.ndarray of shape (len(gradient), len(gradient))
    flat : bool
        Whether rows with more than a quarter of the weight have no second derivatives.
    beside : float
        Squared length of the part of the gradient that is beside the rows; 0 if it is rounding.
    """

    gradient: _Floats
    hessian: _Floats
    flat: bool
    beside: float


class WideProblem(Problem):
    """A problem of few rows, of which each rank also has some columns of all rows.

    Parameters
    ----------
    problem : Problem
        The same problem.
    wide : WideRows
        The rows without weights, not centred.
    spectrum : Spectrum
        Their decomposition.
    weights, targets : numpy.ndarray of shape (n_samples,)
        Weights and targets of all rows, on rank 0.
    """

    def __init__(
        self, problem: Problem, wide: WideRows, spectrum: Spectrum, weights: _Floats, targets: _Floats
    ) -> None:
        assert isinstance(problem.rows, Rows)
        super().__init__(problem.task, problem.rows, problem.targets, problem.row_loss, problem.fit_intercept)
        kept = spectrum.values > _LEAST * spectrum.values.max(initial=0.0)
        self._wide, self._weights, self._every_target = wide, weights, targets
        if self.comm.rank == 0:
            self._vectors, self._values = spectrum.vectors[:, kept], spectrum.values[kept]

    def _mine(self, what: str, points: tuple[np.ndarray, ...]) -> np.ndarray:
        if what == "rows":  # times the coefficients of each point
            tables = np.concatenate([self.table(point)[0] for point in points])
            return (self._wide.rows @ tables[:, self._wide.own].T).ravel()
        if what == "columns":  # the rows, each times its numbers
            made = np.zeros((self.rows.n_features, self.n_columns))
            made[self._wide.own] = self._wide.rows.T @ points[0]
            return made.ravel()
        return super()._mine(what, points)

    def reduced(self, objective: Any, coef: np.ndarray, gradient: np.ndarray) -> Reduced:
        """Return gradient and second derivatives in the basis of the rows, on rank 0, which asks the others."""
        c, strength = self.n_columns, objective.strength
        along = objective.ask("rows", coef, gradient).reshape(-1, 2 * c)
        raw = along[:, :c] + self.table(coef)[1]
        table, constant = self.table(gradient)
        turned = along[:, c:].T @ (self._vectors / self._values)
        rows = np.column_stack([self._vectors * self._values, np.ones(len(along))])
        found = self.second_derivatives(
            raw, self._every_target, self._weights, lambda curvature: (rows.T * curvature) @ rows, rows.shape[1] - 1
        )
        flat = self._flat(np.column_stack([turned, constant]))
        hessian = found[:-1].reshape(len(flat), len(flat)) / self.weight
        hessian[np.diag_indices(len(flat))] += objective.without_intercept(np.full(len(flat), strength))
        squares = float(np.square(table).sum())
        beside = squares - float(np.square(turned).sum())
        return Reduced(
            flat, hessian, bool(found[-1] / self.weight > 0.25), beside if beside > _BESIDE * squares else 0.0
        )

    def expanded(self, objective: Any, reduced: Reduced, step: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the step of all columns for a step in the basis of the rows, on rank 0, which asks the others."""
        table, constant = self.table(step)
        if reduced.beside:
            table = table + self.table(reduced.gradient)[0] / objective.strength
        numbers = (self._vectors / self._values) @ table.T
        whole = objective.ask("columns", numbers).reshape(-1, self.n_columns).T
        if reduced.beside:
            whole = whole - self.table(gradient)[0] / objective.strength
        return self._flat(np.column_stack([whole, constant]))


def wide_problem(problem: Problem) -> WideProblem | None:
    """Return the problem with columns of all rows.

    It is None, on all ranks, if there are too many rows for it, or if their numbers are out of the range of squares.
    """
    rows, comm = problem.rows, problem.comm
    assert isinstance(rows, Rows)
    n_samples = sum(comm.allgather(rows.n_samples))
    if not few(n_samples, rows.n_features):
        return None
    none = np.empty((rows.n_samples, 0), rows.dtype)
    wide = WideRows.exchanged(problem.task, on_host(rows, rows.dtype), None, none, False, n_samples)
    spectrum = wide.spectrum()
    if spectrum is None:
        return None
    each = (comm.gather_blocks(part) for part in (rows.weights_on_cpu(), problem.targets_on_host()))
    weights, targets = (np.empty(0) if whole is None else whole for whole in each)
    return WideProblem(problem, wide, spectrum, weights, targets)


@cache
def solver_by_rows() -> type[Any]:
    """Return scikit-learn's solver, with Newton steps that are computed in the basis of the rows."""
    from xpulab._sklearn import NewtonCholeskySolver

    class Solver(NewtonCholeskySolver):
        coef: Any
        coef_newton: Any

        def setup(self, X: Any, y: Any, sample_weight: Any) -> None:
            super(NewtonCholeskySolver, self).setup(X=X, y=y, sample_weight=sample_weight)  # that makes no large matrix
            problem = self.linear_loss.problem
            self.coef = self.coef.ravel(order="F")
            self.is_multinomial_with_intercept = problem.n_columns > 1 and problem.fit_intercept
            self.is_multinomial_no_penalty = False
            if self.is_multinomial_with_intercept:
                self.coef[-problem.n_columns :] -= self.coef[-1]

        def update_gradient_hessian(self, X: Any, y: Any, sample_weight: Any) -> None:
            self.gradient = self.linear_loss.iterated(self.coef)
            self.reduced = self.linear_loss.problem.reduced(self.linear_loss, self.coef, self.gradient)
            self.hessian, self.hessian_warning = self.reduced.hessian, self.reduced.flat

        def inner_solve(self, X: Any, y: Any, sample_weight: Any) -> None:
            whole, self.gradient = self.gradient, self.reduced.gradient
            super().inner_solve(X=X, y=y, sample_weight=sample_weight)
            self.gradient = whole
            if self.is_multinomial_with_intercept:
                whole[-1] = 0
            if not self.use_fallback_lbfgs_solve:
                loss, self.step = self.linear_loss, self.coef_newton
                self.coef_newton = loss.problem.expanded(loss, self.reduced, self.step, whole)
                self.gradient_times_newton -= self.reduced.beside / loss.strength

        def check_convergence(self, X: Any, y: Any, sample_weight: Any) -> None:
            whole, self.coef_newton = self.coef_newton, self.step
            super().check_convergence(X=X, y=y, sample_weight=sample_weight)
            self.coef_newton = whole

    Solver.__name__ = NewtonCholeskySolver.__name__  # which its warnings have
    return Solver
