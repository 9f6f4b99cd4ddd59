"""The rows of the batches of k-means, drawn as scikit-learn draws them.

References
----------
.. [1] scikit-learn's ``sklearn/cluster/_kmeans.py``: the order of random draws follows it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from xpulab.engine.algorithms.clustering.problem import Problem
from xpulab.kernels.kmeans.choice import kernels_for
from xpulab.kernels.kmeans.sparse import SparseRows
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import StreamedRows

__all__ = ["DrawnBatches", "Draws"]

#: Bytes of the rows of the next batches, which one pass gathers.
GATHERED = 64 << 20


class Draws:
    """Draws rows with replacement, as ``RandomState.choice(n, size, p=weights / total)`` draws them.

    NumPy adds the probabilities one after the other, and compares uniform numbers with the sums. Each rank keeps the
    sums of its own rows, 8 bytes for each row, and continues the addition of the ranks before it, so that every number
    of ranks has the same sums to the last bit.

    Parameters
    ----------
    problem : Problem
    total : float or None
        The sum of all weights in the dtype of the rows, as NumPy computes it; None to have the ranks add the weights.
    """

    def __init__(self, problem: Problem, total: float | None) -> None:
        comm, number = problem.comm, problem.rows.dtype.type
        if total is None:
            own = 0.0 if problem.weights is None else float(problem.weights.sum(dtype=np.float64))
            total = float(comm.allreduce(np.array([own]))[0])
        n = problem.rows.n_samples
        weights = np.full(n, number(1)) if problem.weights is None else problem.weights.astype(number, copy=False)
        shares = np.empty(n + 1)
        shares[1:] = weights / number(total)
        begin = end = 0.0
        for rank in range(comm.size):
            if rank == comm.rank:
                shares[0] = begin = end
                np.cumsum(shares, out=shares)
                end = float(shares[-1])
            end = comm.bcast(end, rank)
        self._sums = shares[1:]
        self._sums /= end
        self._begin = begin / end if problem.first else -1.0
        self._even = problem.weights is None
        self._first, self._share = problem.first, problem.n_samples

    def places(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which of the uniform numbers draw rows of this rank, and the indices of these rows in its block."""
        if not len(self._sums):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        mine = np.flatnonzero((uniforms >= self._begin) & (uniforms < self._sums[-1]))
        drawn = uniforms[mine]
        if not self._even:
            return mine, self._sums.searchsorted(drawn, side="right")
        # With equal weights the place is known up to rounding, which takes a fraction of the time of a search.
        found = (drawn * self._share).astype(np.int64) - self._first
        np.clip(found, 0, len(self._sums) - 1, out=found)
        while (late := self._sums[found] <= drawn).any():
            found += late
        while (early := (found > 0) & (self._sums[found - 1] > drawn)).any():
            found -= early
        return mine, found


class DrawnBatches:
    """The batches of a fit, of which this rank has its own rows.

    If the device does not keep all rows, one pass over them gathers those of the next batches, which are drawn ahead
    from a copy of the generator: they are the rows that would be drawn one batch after the other.

    Parameters
    ----------
    problem : Problem
    draws : Draws
    size : int
        Number of rows of a batch.

    Attributes
    ----------
    rows : Rows or SparseRows
        Rows on the device, among which the batches are.
    """

    rows: Rows | SparseRows

    def __init__(self, problem: Problem, draws: Draws, size: int) -> None:
        self._problem, self._draws, self._size = problem, draws, size
        self._ahead: deque[tuple[np.ndarray, np.ndarray]] = deque()
        self._batches: Any = None
        if not isinstance(problem.rows, StreamedRows):
            self._from(problem.rows)

    def _from(self, rows: Rows | SparseRows) -> None:
        self.rows, self._batches = rows, kernels_for(rows).Batches(rows, self._size)

    def draw(self, random: np.random.RandomState, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw the next batch, of at most `steps` that follow.

        Returns
        -------
        numbers : numpy.ndarray of int64
            The numbers of this rank's rows among those of the batch.
        places : numpy.ndarray of int64
            Where they are in `rows`.
        """
        problem = self._problem
        if not isinstance(problem.rows, StreamedRows):
            return self._draws.places(random.random_sample(self._size))
        if not self._ahead:
            row_bytes = problem.rows.n_features * problem.rows.dtype.itemsize
            self._gather(problem.rows, random, max(1, min(steps, GATHERED // (row_bytes * self._size))))
        random.random_sample(self._size)
        return self._ahead.popleft()

    def _gather(self, rows: StreamedRows, random: np.random.RandomState, steps: int) -> None:
        self._problem.task.show(doing=f"gathering the rows of {steps} batches")
        copy = np.random.RandomState()
        copy.set_state(random.get_state())
        drawn = [self._draws.places(copy.random_sample(self._size)) for _ in range(steps)]
        found = rows.take(np.concatenate([places for _, places in drawn]))
        self._problem.task.show(doing="computing")
        self._from(Rows.upload(rows.device, found))
        ends = np.cumsum([len(places) for _, places in drawn])
        self._ahead.extend(
            (numbers, np.arange(end - len(numbers), end)) for (numbers, _), end in zip(drawn, ends, strict=True)
        )

    def take(self, places: np.ndarray) -> tuple[Rows | SparseRows, Any]:
        """Return the rows at these places, of which there is at least one, and labels for them."""
        found: tuple[Rows | SparseRows, Any] = self._batches.take(places)
        return found

    def generator(self, random: np.random.RandomState) -> np.random.RandomState:
        """Return the generator for draws of a step beside those of its rows.

        It is `random`, or, if rows are drawn ahead, another one that follows from the state of `random`.
        """
        if not isinstance(self._problem.rows, StreamedRows):
            return random
        copy = np.random.RandomState()
        copy.set_state(random.get_state())
        return np.random.RandomState(copy.randint(np.iinfo(np.int32).max, size=4))
