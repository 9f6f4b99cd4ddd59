"""The explorer's mixtures on the ranks: the EM algorithm one iteration at a time, and a picture of the components.

The notebook has the parameters; the ranks keep the chosen rows, and the most probable component of each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.engine.algorithms.clustering.explore import Held, held_for, picture, selected
from xpulab.engine.algorithms.gaussians import Parameters, densities_of
from xpulab.engine.algorithms.mixture import Given, Problem, first_parameters
from xpulab.engine.comm import Interrupted
from xpulab.engine.dataset import write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.explorer.counting import View
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.mixture import expectations
from xpulab.kernels.rows import Rows
from xpulab.sharing.answers import ExploredMixture
from xpulab.sharing.sources import HandleRows, Target

__all__ = ["label"]


@dataclass(eq=False)
class _Chosen:
    """The chosen rows of all ranks, of which this rank has its own."""

    block: Rows
    bounds: list[int]
    n_samples: int


def label(held: Held, parameters: Parameters, covariance_type: str) -> float:
    """Give each row the label of its most probable component, and return the mean logarithm of the density of a row."""
    rows, labels = held.problem.rows, held.labels
    assert isinstance(rows, Rows)
    found, begin, total = np.full(rows.n_blocks * BLOCK, -1, np.int32), 0, 0.0
    for table in expectations(rows, densities_of(parameters, covariance_type)):
        found[begin : begin + len(table)] = table[:, :-1].argmax(axis=1)
        total += float(table[:, -1].sum(dtype=np.float64))
        begin += len(table)
    if rows.n_samples:
        rows.device.store(found, labels.current)
    held.centers = parameters.means
    return float(held.problem.comm.allreduce(np.array([total]))[0]) / held.problem.n_samples


@task("explore.mixture")
def _explore_mixture(
    task: Task,
    explorer: str,
    source: HandleRows,
    points: int,
    begin: dict[str, Any] | None,
    present: dict[str, np.ndarray] | None,
    iterate: bool,
    covariance_type: str,
    reg_covar: float,
    view: View,
    target: Target,
) -> ExploredMixture:
    """Choose first parameters if `begin` is given, or run an iteration from the present ones; count the picture."""
    held = held_for(task, explorer, source, points)
    rows = held.problem.rows
    assert isinstance(rows, Rows)
    problem = Problem(task, _Chosen(rows, held.problem.bounds, held.problem.n_samples), covariance_type, reg_covar)
    result: ExploredMixture = {"parameters": present, "lower_bound": None, "selected": None}
    if begin is not None or iterate:
        parameters = _next(problem, begin, present)
        result["parameters"], result["lower_bound"] = vars(parameters), label(held, parameters, covariance_type)
    counts = picture(held, view)
    write_block(task, target, [0, *[target.shape[0]] * task.comm.size], [counts])
    return {**result, "selected": selected(held)}


def _next(problem: Problem, begin: dict[str, Any] | None, present: dict[str, np.ndarray] | None) -> Parameters:
    """Return first parameters, or those after one more iteration."""
    if begin is not None:
        random = np.random.RandomState(begin["random_state"])
        return first_parameters(problem, begin["init_params"], begin["n_components"], Given(**begin["given"]), random)
    assert present is not None
    parameters, _, cancelled = problem.step(Parameters(**present))
    if cancelled:
        raise Interrupted
    return parameters
