"""Minimise a loss over the rows of all ranks, by the solvers of SciPy and scikit-learn.

Rank 0 runs the solver. For each evaluation, it sends the coefficients to the other ranks; all ranks compute the sums of
their rows, and add them up in one reduction, which also carries the request to stop. Only rank 0 decides about steps
and the end of the fit. Ranks that round differently therefore cannot come to different decisions.

References
----------
.. [1] scikit-learn's ``sklearn/linear_model/_logistic.py``, ``_glm/glm.py`` and ``_linear_loss.py``: objective, layout
   of the coefficients, and options of the solvers follow them.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import warnings
from collections.abc import Callable

import numpy as np

from xpulab.engine.algorithms.linear import huber, kinks, l1
from xpulab.engine.algorithms.linear.loss_problem import Problem
from xpulab.engine.algorithms.linear.objective import Objective
from xpulab.engine.algorithms.linear.wide_losses import WideProblem, solver_by_rows, wide_problem
from xpulab.engine.comm import Interrupted
from xpulab.engine.engine import Engine, Task, warms_up
from xpulab.kernels.rows import Rows
from xpulab.sharing.linear_models import Minimisation, Minimised, Solution, State

__all__ = ["minimised", "solve"]


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
    return {**found, "warnings": [*found.get("warnings", ()), *told], "said": said.getvalue()}


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


def _as_sag(objective: Objective, how: Minimisation, start: np.ndarray) -> Solution:
    """Minimise by L-BFGS-B, and tell what scikit-learn's "sag" and "saga" tell."""
    if not how.max_iter:  # L-BFGS-B would begin an iteration
        return {"coef": start, "n_iter": 0, "converged": False, "warnings": l1.warnings_of(False)}
    found = _lbfgs(objective, how, start)
    del found["ending"]
    return {**found, "warnings": l1.warnings_of(found["converged"])}


@warms_up
def _warm_up(engine: Engine) -> None:
    """Import the default solver."""
    if engine.rank == 0:
        import scipy.optimize  # noqa: F401


_OBJECTIVES = {"kinks": kinks.KinkedObjective, "scaled": huber.ScaledObjective}
_SOLVERS: dict[str, Callable[[Objective, Minimisation, np.ndarray], Solution]] = {
    "lbfgs": _lbfgs,
    "newton-cg": _newton_cg,
    "newton-cholesky": _newton_cholesky,
    "sag": _as_sag,
    "l1": l1.minimised,
    "squares": kinks.newton,
    "kinks": kinks.kinked,
    "scaled": huber.scaled,
}


def minimised(
    task: Task, problem: Problem, share: float, how: Minimisation, checkpoint: str, resume: State | None = None
) -> Minimised:
    """Minimise the mean loss of a problem plus `share` times the penalties; all ranks call this function.

    Raises
    ------
    Interrupted
        On all ranks together, if the task was asked to stop; on rank 0 with the state of the fit.
    """
    rows = problem.rows
    if how.solver == "newton-cholesky" and how.penalty and isinstance(rows, Rows):
        problem = wide_problem(problem) or problem
    if task.comm.rank != 0:
        problem.follow()
        return {"rows": rows.n_samples}
    with task.checkpoint(checkpoint) as kept:
        objective = _OBJECTIVES.get(how.solver, Objective)(
            problem, share * how.penalty, share * how.l1, resume, kept.write
        )
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
