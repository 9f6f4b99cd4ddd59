"""Leave-one-out errors of ridge regression for several penalties, in two passes over the rows.

References
----------
.. [1] R. Rifkin, R. Lippert, "Notes on Regularized Least Squares", MIT-CSAIL-TR-2007-025 (2007): the error of a row
   that is left out is its residual divided by (1 - its leverage).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xpulab.engine.algorithms.folds import sharp_products
from xpulab.engine.dataset import Data, data_of, pieces, write_block
from xpulab.engine.engine import Task, task
from xpulab.kernels.project import project
from xpulab.kernels.rows import Rows, consecutive

__all__ = ["leave_one_out"]


def leave_one_out(
    task: Task, data: Data, centre: bool, penalties: np.ndarray, predictions: bool
) -> tuple[dict[str, np.ndarray], Iterator[np.ndarray]]:
    """Compute the coefficients for each penalty, and the leave-one-out errors of the rows [1]_.

    Parameters
    ----------
    task : Task
    data : Data
        Rows with targets.
    centre : bool
        Whether there is an intercept.
    penalties : numpy.ndarray of shape (n_penalties,)
        All positive.
    predictions : bool
        Whether `parts` has predictions for the rows that are left out, instead of weighted squared errors.

    Returns
    -------
    facts : dict of str to numpy.ndarray of float64
        ``coef`` of shape (n_penalties, n_features, n_targets), ``mean``, ``target_mean``, and ``squared`` of shape
        (n_targets, n_penalties). ``squared`` has the sums of this rank's squared errors after the iterator has ended.
    parts : iterator of numpy.ndarray of shape (m, n_targets * n_penalties)
        Errors or predictions of the next m rows.
    """
    found, _ = sharp_products(task, data, centre, always=True)  # scikit-learn computes in float64, too
    # One rank computes the decomposition for all, because other ranks may round differently.
    values, vectors = task.comm.bcast(tuple(np.linalg.eigh(found.gram)) if task.comm.rank == 0 else ())
    values = np.maximum(values, 0.0)
    inverse = 1 / (values[:, None] + penalties)
    rotated = inverse[:, None, :] * (vectors.T @ found.cross)[:, :, None]  # features, targets, penalties
    coef = np.einsum("ij,jtp->pit", vectors, rotated, optimize=True)
    squared = np.zeros(rotated.shape[1:])
    facts = {"coef": coef, "mean": found.mean, "target_mean": found.target_mean, "squared": squared}
    return facts, _parts(data, facts, vectors, inverse, rotated, found.weight if centre else np.inf, predictions)


def _parts(
    data: Data,
    facts: dict[str, np.ndarray],
    vectors: np.ndarray,
    inverse: np.ndarray,
    rotated: np.ndarray,
    weight: float,
    predictions: bool,
) -> Iterator[np.ndarray]:
    rows, targets = data.rows, data.targets
    assert targets is not None
    weights = rows.host_weights()
    n, t, p = rotated.shape
    first = 0
    for turned in _turned(rows, vectors, facts["mean"]):
        last = first + len(turned)
        right = consecutive(targets, first, last).astype(np.float64)
        mine = weights[first:last, None]
        leverage = mine * (np.square(turned) @ inverse + 1 / weight)
        residual = (right - facts["target_mean"])[:, :, None] - (turned @ rotated.reshape(n, t * p)).reshape(-1, t, p)
        left_out = residual / (1 - leverage)[:, None, :]
        errors = mine[:, :, None] * np.square(left_out)
        facts["squared"] += errors.sum(axis=0)
        yield (right[:, :, None] - left_out if predictions else errors).reshape(len(turned), t * p)
        first = last


def _turned(rows: Rows, vectors: np.ndarray, mean: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the centred rows times the eigenvectors, in float64, a part at a time."""
    if rows.dtype == np.float64:
        yield from project(rows, vectors, mean)
        return
    for piece in pieces(rows.n_samples, 8 * rows.n_features):
        yield (consecutive(rows, *piece).astype(np.float64) - mean) @ vectors


@task("leave_one_out")
def _leave_one_out(
    task: Task,
    source: dict[str, Any],
    weights: dict[str, Any] | None,
    targets: dict[str, Any],
    centre: bool,
    penalties: np.ndarray,
    predictions: bool = False,
    target: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the results of `leave_one_out` for all rows."""
    data = data_of(task, source, weights, targets)
    facts, parts = leave_one_out(task, data, centre, penalties, predictions)
    if target is None:
        for _ in parts:
            task.leave_if_cancelled()
    else:
        write_block(task, target, source["bounds"], parts)
    facts["squared"] = task.comm.allreduce(facts["squared"])
    return {"rows": data.rows.n_samples, **facts}
