"""The rows of all ranks as one data set for k-means, and what it shows while it computes."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

import numpy as np

from xpulab.engine.algorithms.clustering.ranges import largest_of, ordinary, unit_of
from xpulab.engine.algorithms.clustering.tuning import tune
from xpulab.engine.comm import Interrupted
from xpulab.engine.engine import Task
from xpulab.engine.streaming import expect_passes
from xpulab.kernels.kmeans.choice import AnyRows, kernels_for
from xpulab.kernels.kmeans.launch_shapes import size_class
from xpulab.kernels.kmeans.sparse import SparseRows
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import PIECE_BYTES, StreamedRows, near_rows
from xpulab.sharing.board import RUNS

__all__ = ["Problem"]

_SOME = 32  # rows of a rank that are looked at
_SHOWN = 2e-3  # seconds between two updates of the board; no view reads it more often


class Problem:
    """The rows of all ranks as one data set.

    Parameters
    ----------
    task : Task
    rows : Rows, SparseRows or StreamedRows
        This rank's block of rows.
    bounds : list of int
        Rank r has the rows from bounds[r] up to, not including, bounds[r + 1].
    weights : numpy.ndarray or None
        This rank's sample weights on the host; None if all are 1.
    unit : float or None
        None to divide rows by the `unit` that squares of their differences need; otherwise that of these rows.

    Attributes
    ----------
    rows : Rows or SparseRows
        This rank's rows, divided by `unit`.
    unit : float
        A power of two; 1 for ordinary rows. Means, shift, centres and squares are those of the divided rows.
    kernels : module
        `xpulab.kernels.kmeans.dense` or `xpulab.kernels.kmeans.sparse`.
    mean : numpy.ndarray of float64 of shape (n_features,)
        Mean of all rows.
    shift : numpy.ndarray of shape (n_features,)
        Subtracted from each row. It is the mean, as in scikit-learn, for precision; for sparse rows it is zero.
    tuning : tuple of (int, float)
        Number of launch shapes measured in this fit, and the seconds that this took.
    in_passes : bool
        Whether a rank does not keep all of its rows.
    may_tune : bool
        Whether this rank has computed long enough to measure launch shapes.
    kept : float
        When the last checkpoint was written, or the fit began.
    """

    def __init__(
        self,
        task: Task,
        rows: AnyRows,
        bounds: list[int],
        weights: np.ndarray | None,
        unit: float | None = None,
    ) -> None:
        self.task = task
        self.comm = task.comm
        self.bounds = bounds
        self.weights = weights
        self.first = bounds[self.comm.rank]
        self.n_samples = bounds[-1]
        self.kernels = kernels_for(rows)
        self.rows, self.unit, self.mean = rows, unit or 1.0, np.zeros(rows.n_features)
        size = self._sum(rows)
        # Rows that are far larger than those that were looked at have a large mean.
        if unit is None and not (ordinary(size, rows.dtype) and np.abs(self.mean).max() < largest_of(rows.dtype)):
            self.unit = unit_of(task, rows)
            self.rows = self.kernels.divided(rows, self.unit)
            self._sum(self.rows)
        self.shift = self.kernels.shift_for(rows, self.mean)
        self.tuning = (0, 0.0)
        self.may_tune = False
        self._untuned = True  # whether launch shapes may be left to measure
        self._begin()

    def _sum(self, rows: AnyRows) -> float:
        """Compute the mean of all rows; return a number that is about as large as those in a few of them."""
        near = rows.n_samples if isinstance(rows, SparseRows) else near_rows(rows)
        some = np.linspace(0, near - 1, min(_SOME, near), dtype=np.int64)
        size = float(np.abs(self.kernels.take(rows, some)).max(initial=0.0))
        # This reduction also carries the request to stop, because the driver may have spent seconds on kernels before.
        facts = [isinstance(rows, StreamedRows), size, self.task.cancelled()]
        sums = self.comm.allreduce(np.append(self.kernels.column_sums(rows), facts))
        if sums[-1]:
            raise Interrupted
        self.mean, self.in_passes = sums[:-3] / self.n_samples, bool(sums[-3])
        return float(sums[-2])

    def outward(self, centers: np.ndarray) -> np.ndarray:
        """Return centres, from which nothing was subtracted, of the rows as they were given."""
        return centers if self.unit == 1 else centers * self.unit

    def resume(self, task: Task) -> None:
        """Continue in another task, which has the same rows, but another communicator and another clock."""
        self.task, self.comm = task, task.comm
        self._begin()

    def _begin(self) -> None:
        self.history: list[tuple[int, int, float, float, float]] = []
        self._lengths = self.task.engine.record["lengths"]
        self._started = time.perf_counter()
        self._shown, self.kept = 0.0, self._started

    @functools.cached_property
    def squares(self) -> np.ndarray:
        """Sums over all rows, without weights, of squared differences from the mean, by column: (n_features,)."""
        return self.comm.allreduce(self.kernels.column_sums(self.rows, self.mean, squared=True))

    @functools.cached_property
    def total_squares(self) -> float:
        """Weighted sum of the squared norms of the rows less the shift: the inertia of one centre at the shift."""
        if self.weights is None:
            away = np.square(self.mean - self.shift).sum()
            return float(self.squares.sum() + self.n_samples * away)
        labels = self.kernels.new_labels(self.task.device, self.rows.n_samples)
        origin = np.zeros((1, self.rows.n_features), self.rows.dtype)
        self.kernels.assign(self.rows, self.shift, origin, labels, again=False)
        return float(self.comm.allreduce(np.array([self.kernels.inertia(self.rows, self.shift, origin, labels)]))[0])

    def tolerance(self, tol: float) -> float:
        """Return the bound on the squared movement of the centres: `tol` times the mean variance of the columns."""
        return float(tol * np.mean(self.squares / self.n_samples)) if tol else 0.0

    def tune(self, centers: np.ndarray) -> None:
        """Measure launch shapes, on all ranks together."""
        self.task.show(doing="measuring which launch shape is the fastest")
        tried, seconds = tune(self.task, self.rows, self.shift, centers)
        self.tuning = (self.tuning[0] + tried, self.tuning[1] + seconds)
        self.may_tune = False

    def computed(self, n_clusters: int, seconds: float) -> None:
        """Count seconds of computing. A share of them may be spent on measuring launch shapes."""
        tuner, rows = self.task.engine.tuner, self.rows
        if isinstance(rows, Rows) and rows.n_samples >= BLOCK:
            enough = tuner.computed(size_class(rows.dtype, rows.n_features, n_clusters), seconds)
            if enough and self._untuned:
                self.may_tune = self._untuned = bool(tuner.missing(rows.dtype, rows.n_features, n_clusters))

    def few(self, n_clusters: int) -> Rows | None:
        """Return all rows, if this rank has them, and if they are so few that its CPU passes over them without kernels.

        Otherwise None.
        """
        rows = self.rows
        return rows if self.comm.size == 1 and isinstance(rows, Rows) and rows.are_few(n_clusters) else None

    def take(self, index: np.ndarray) -> np.ndarray:
        """Return, on every rank, the rows with these indices among all rows, less the shift: (n, n_features)."""
        mine = (index >= self.first) & (index < self.first + self.rows.n_samples)
        found = np.zeros((len(index), self.rows.n_features), self.rows.dtype)
        if mine.any():
            found[mine] = self.kernels.take(self.rows, index[mine] - self.first, self.shift)
        # Exactly one rank has each row, and the other ranks add zeros, so the sum is exact.
        return self.comm.allreduce(found)

    def subset(self, places: np.ndarray) -> Problem:
        """Return the problem of some of the rows, which continues the history of this one.

        `places` are the indices (n,), int64, of these rows in this rank's block, in ascending order.
        """
        counts = self.comm.allgather_arrays(np.array([len(places)]))[:, 0]
        weights = None if self.weights is None else np.ascontiguousarray(self.weights[places])
        rows: AnyRows = self.kernels.subset(self.rows, places)
        if isinstance(rows, StreamedRows):
            few = len(places) <= max(rows.reading.kept, PIECE_BYTES // (rows.n_features * rows.dtype.itemsize))
            if all(self.comm.allgather(few)):
                rows = rows.gathered()
        part = Problem(self.task, rows, [0, *np.cumsum(counts).tolist()], weights, self.unit)
        part.history, part._started, part._shown = self.history, self._started, self._shown
        return part

    def note(self, run: int, iteration: int, inertia: float, center_shift: float) -> None:
        """Add an iteration to the history, and show it on the board."""
        self.note_several(run, iteration - 1, [(inertia, center_shift)], time.perf_counter())

    def expect_passes(self, n: int) -> None:
        """Show that the fit reads the rows at most `n` more times, if it reads them in passes."""
        expect_passes(self.task, n)

    def note_several(self, run: int, done: int, course: Sequence[tuple[float, float]], began: float) -> None:
        """Add iterations to the history, and show the last one on the board.

        Parameters
        ----------
        run : int
        done : int
            Iterations of this run before them.
        course : sequence of (float, float)
            The inertia and the movement of the centres of each iteration; they took equally long.
        began : float
            When the first of them began.
        """
        now, square, n = time.perf_counter(), self.unit * self.unit, len(course)
        for number, (inertia, center_shift) in enumerate(course, 1):
            elapsed = now - (n - number) / n * (now - began) - self._started
            self.history.append((run, done + number, inertia * square, center_shift * square, elapsed))
        self._lengths[(run - 1) % RUNS] = done + n
        self.task.note_iterations(run, done, n, now - began)
        if done == 0 or now - self._shown > _SHOWN:
            self._shown = now
            self.task.show(run=run, iteration=done + n, metrics=self.history[-1][2:4])
