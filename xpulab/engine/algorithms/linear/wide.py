"""Least squares with a penalty for more columns than rows: an equation for each row in place of one for each column.

With the centred rows A, times the square roots of their weights, and the targets b, which were treated in the same way,
the coefficients are ``A.T @ z``, where ``(A @ A.T + penalty * I) @ z = b`` [1]_. For the products of all rows each rank
gets some columns of all rows. Everything is computed on the hosts in float64, and the solution is corrected once by the
residuals of the rows.

References
----------
.. [1] C. Saunders, A. Gammerman, V. Vovk, "Ridge Regression Learning Algorithm in Dual Variables", ICML 1998, 515-521.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.passes import rough_mean
from xpulab.engine.algorithms.qr import columns_of
from xpulab.engine.comm import Communicator
from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task

__all__ = ["ByRows", "by_rows", "few_enough"]

_MOST = 4096  # rows; the time grows as their number cubed
_ENOUGH = 1e-5  # relative error of z before its correction, which squares it

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ByRows:
    """Coefficients (n_features, n_targets), and the weighted means of columns and targets."""

    coef: _Floats
    mean: _Floats
    target_mean: _Floats


def few_enough(data: Data, penalties: np.ndarray) -> bool:
    """Return whether `by_rows` may be used: for fewer rows than columns, in memory, each target with a penalty."""
    return data.n_samples < data.n_features and data.n_samples <= _MOST and penalties.min() > 0 and not data.in_passes


def by_rows(task: Task, data: Data, centre: bool, penalties: np.ndarray) -> ByRows | None:
    """Return the coefficients, or None, on all ranks, if the equations are too ill-conditioned.

    Parameters
    ----------
    task : Task
    data : Data
        Rows with targets, for which `few_enough` is true.
    centre : bool
        Whether there is an intercept.
    penalties : numpy.ndarray of shape (n_targets,)
    """
    comm, n, rows, targets = task.comm, data.n_features, data.block, data.targets
    assert targets is not None
    shift = [rough_mean(task, each).astype(float) if centre else np.zeros(each.n_features) for each in (rows, targets)]
    roots, own = columns_of(rows, shift[0], targets, shift[1])
    data.require_finite()
    sums = comm.allreduce(np.append(own @ roots, roots @ roots))
    mean, weight = np.concatenate(shift), float(sums[-1])
    if not weight > 0:
        return None
    if centre:
        away = sums[:-1] / weight
        own -= np.outer(away, roots)
        mean += away
    task.check()
    columns, right = own[:n], own[n:].T
    counts = comm.allgather(len(roots))
    gram, every, unit = _products(comm, columns, counts), _joined(comm, right, counts), _joined(comm, roots, counts)
    solve = None
    if comm.rank == 0:
        if centre:  # the weights' roots are a direction in which centred rows and targets have nothing
            gram += np.outer(unit, unit) * (np.trace(gram) / len(unit) / weight)
        solve = _solver(gram, penalties)
    if not comm.bcast(solve is not None):
        return None
    z = solve(every) if solve else np.empty((sum(counts), right.shape[1]))
    first = sum(counts[: comm.rank])
    mine = slice(first, first + len(roots))
    z = comm.bcast_array(z)
    coef = comm.allreduce(columns @ z[mine])
    rest = _joined(comm, right - columns.T @ coef - penalties * z[mine], counts)
    z = comm.bcast_array(z + solve(rest) if solve else z)
    return ByRows(comm.allreduce(columns @ z[mine]), mean[:n], mean[n:])


def _products(comm: Communicator, columns: _Floats, counts: list[int]) -> _Floats:
    """Return the products of all rows with each other: (n_samples, n_samples), which are right on rank 0 only."""
    n, most = len(columns), max(counts)
    padded = np.zeros((n, most))
    padded[:, : columns.shape[1]] = columns
    of_ranks = np.diff(np.arange(comm.size + 1) * n // comm.size)
    found = comm.exchange_rows(padded, of_ranks).reshape(comm.size, of_ranks[comm.rank], most)
    block = found.swapaxes(0, 1).reshape(of_ranks[comm.rank], comm.size * most)
    total = comm.reduce(block.T @ block)
    real = np.concatenate([rank * most + np.arange(count) for rank, count in enumerate(counts)])
    return np.empty((0, 0)) if total is None else total[np.ix_(real, real)]


def _joined(comm: Communicator, mine: _Floats, counts: list[int]) -> _Floats:
    """Return the entries of all rows on rank 0, with one entry or row for each."""
    joined = comm.gather_blocks(mine.ravel())
    return np.empty(0) if joined is None else joined.reshape(sum(counts), *mine.shape[1:])


def _solver(gram: _Floats, penalties: np.ndarray) -> Callable[[_Floats], _Floats] | None:
    """Return a function that solves the equations of all targets; None if they are too ill-conditioned.

    Eigenvectors, which take longer than one inverse, serve all penalties.
    """
    eps, least = np.finfo(np.float64).eps, float(penalties.min())
    if len(np.unique(penalties)) > 1:
        values, vectors = np.linalg.eigh(gram)
        if not eps * (values[-1] + least) <= _ENOUGH * (values[0] + least):
            return None
        return lambda right: vectors @ (vectors.T @ right / (values[:, np.newaxis] + penalties))
    matrix = gram + least * np.eye(len(gram))
    try:
        inverse = np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        return None
    condition = np.linalg.norm(matrix, 1) * np.linalg.norm(inverse, 1)
    return inverse.__matmul__ if condition * eps <= _ENOUGH else None
