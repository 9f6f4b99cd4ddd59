"""The rows and targets of all ranks as the sums of which the solvers of a linear model ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from xpulab.engine.algorithms.linear.losses import Missed, RowLoss
from xpulab.engine.algorithms.passes import whole_rows
from xpulab.engine.comm import Interrupted
from xpulab.engine.dataset import Data, kind_of, on_host
from xpulab.engine.engine import Task
from xpulab.kernels.kmeans import sparse
from xpulab.kernels.kmeans.choice import AnyRows
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.linear.linear_losses import Repeated, second_products
from xpulab.kernels.products import gram
from xpulab.kernels.project import project
from xpulab.kernels.rows import Rows, weighted
from xpulab.kernels.sparse_products import HostMatrix
from xpulab.kernels.streamed import StreamedRows, on_cpu, parts_of
from xpulab.sharing.sources import Source

__all__ = ["Problem", "parts_in_passes", "problem_of"]


class Problem:
    """The rows of all ranks as one data set, with sums over them.

    Parameters
    ----------
    task : Task
    rows : Rows, SparseRows or StreamedRows
        This rank's rows, with the weights of samples and classes.
    targets : Rows
        The number of each row's class, or its target, in the dtype of the rows.
    loss : RowLoss
    fit_intercept : bool
    constant : float
        If it is not 0, the intercept is the product of this number and a coefficient, which has the penalty of others.

    Attributes
    ----------
    n_columns : int
        Columns of coefficients.
    weight : float
        Sum of all weights.
    """

    def __init__(
        self, task: Task, rows: AnyRows, targets: Rows, loss: RowLoss, fit_intercept: bool, constant: float = 0.0
    ) -> None:
        self.task, self.comm = task, task.comm
        self.rows, self.targets, self.row_loss = rows, targets, loss
        self.fit_intercept, self.constant = fit_intercept, constant if fit_intercept else 0.0
        self.n_columns = loss.n_columns
        self._repeated: tuple[tuple[Rows, Rows, RowLoss], Repeated] | None = None
        mine = rows.n_samples if rows.sample_weight is None else rows.weights_on_cpu().sum()
        self.weight = float(self.comm.allreduce(np.array([mine], np.float64))[0])

    def ask(self, what: str, *points: np.ndarray) -> np.ndarray:
        """Return the ``"loss"``, ``"hessian"`` or ``"product"`` at `points`, summed over all ranks; on rank 0 only.

        Raises
        ------
        Interrupted
            On all ranks together, if the task was asked to stop.
        """
        self.comm.bcast((what, points))
        return self._sums(what, points)

    def follow(self) -> None:
        """Compute the sums that rank 0 asks for, until rank 0 calls `end`; on the other ranks."""
        while (asked := self.comm.bcast(None)) is not None:
            self._sums(*asked)

    def end(self) -> None:
        """Make `follow` return on the other ranks; on rank 0."""
        self.comm.bcast(None)

    def table(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients (n_columns, n_features), intercepts (n_columns,) of a point in scikit-learn's layout."""
        columns = point.reshape(self.n_columns, -1, order="F")
        if not self.fit_intercept:
            return columns, np.zeros(self.n_columns)
        return columns[:, :-1], columns[:, -1] * (self.constant or 1.0)

    def _flat(self, table: np.ndarray) -> np.ndarray:
        """Return derivatives (n_columns, n_features + 1) in the layout of a point."""
        table[:, -1] *= self.constant or 1.0
        return (table if self.fit_intercept else table[:, :-1]).ravel(order="F")

    def _sums(self, what: str, points: tuple[np.ndarray, ...]) -> np.ndarray:
        every = self.comm.allreduce(np.append(self._mine(what, points), self.task.cancelled()))
        if every[-1]:
            raise Interrupted
        return every[:-1]

    def _mine(self, what: str, points: tuple[np.ndarray, ...]) -> np.ndarray:
        """Compute the sums over this rank's rows. Of a loss with a limit, the last point is what `changed` takes."""
        if isinstance(self.row_loss, Missed) and self.row_loss.limited:
            self.row_loss = self.row_loss.changed(*map(float, points[-1]))
            points = points[:-1]
        computations: dict[str, Callable[..., np.ndarray]] = {
            "loss": self._loss_and_gradient,
            "hessian": self._hessian,
            "product": self._product,
        }
        return computations[what](*points)

    def _loss_and_gradient(self, point: np.ndarray) -> np.ndarray:
        """Return the gradient, and then the loss."""
        assert isinstance(self.rows, Rows)
        if not self.rows.n_samples:
            return np.zeros(point.size + 1)
        which = self.rows, self.targets, self.row_loss
        if self._repeated is None or any(a is not b for a, b in zip(self._repeated[0], which, strict=True)):
            self._repeated = which, Repeated(self.rows, self.targets, self.row_loss.kernel)
        found = self._repeated[1](*self.table(point))
        return np.append(self._flat(found.gradient), found.loss)

    def _product(self, point: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Compute the second derivatives times a step."""
        assert isinstance(self.rows, Rows)
        loss = self.row_loss.kernel
        return self._flat(second_products(self.rows, self.targets, loss, *self.table(point), *self.table(step)))

    def _hessian(self, point: np.ndarray, columns: np.ndarray | None = None) -> np.ndarray:
        """Compute second derivatives, and then (not for several classes) the weight of rows without any.

        The derivatives are those by all coefficients, or by those of some columns of the rows, and by the intercepts.
        """
        rows = self.rows
        assert not isinstance(rows, StreamedRows)
        coef, intercept = self.table(point)
        none = [np.empty((0, self.n_columns), rows.dtype)]
        raw = np.concatenate([*none, *project(rows, coef.T, None, intercept)])
        targets, weights = self.targets_on_host(), rows.weights_on_cpu()
        if columns is None:
            return self.second_derivatives(raw, targets, weights, self._sandwich)
        return self.second_derivatives(raw, targets, weights, self._sandwich_of(columns), len(columns))

    def targets_on_host(self) -> np.ndarray:
        """Return the targets of this rank's rows: float64 of shape (n_samples,)."""
        return on_host(self.targets, np.float64)[:, 0]

    def second_derivatives(
        self, raw: np.ndarray, targets: np.ndarray, weight: np.ndarray, sandwich: Callable[[np.ndarray], np.ndarray],
        d: int | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Return second derivatives by d columns (by default, those of the rows), and then the weight without any."""
        whole, flat = self.row_loss.second_derivatives(
            raw, targets, weight, self.rows.n_features if d is None else d, sandwich
        )
        whole[:, -1] *= self.constant or 1.0
        whole[..., -1] *= self.constant or 1.0
        kept = whole if self.fit_intercept else whole[:, :-1, :, :-1]
        return np.append(kept.transpose(1, 0, 3, 2).ravel(), flat)

    def _sandwich(self, curvature: np.ndarray) -> np.ndarray:
        """Compute products (n_features + 1, n_features + 1) of the columns and a column of ones, with these weights."""
        assert isinstance(self.rows, Rows)
        return _bordered(*gram(weighted(self.rows, curvature)), curvature)

    def _sandwich_of(self, columns: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function as `_sandwich`, for some columns."""
        assert isinstance(self.rows, Rows)
        none = [np.empty((0, len(columns)), self.rows.dtype)]
        some = np.concatenate([*none, *(part[:, columns] for _, part in on_cpu(self.rows))])
        rows = Rows.upload(self.rows.device, some)
        return lambda curvature: _bordered(*gram(weighted(rows, curvature)), curvature)


class StreamedProblem(Problem):
    """A problem whose rows come in parts: each evaluation is a pass over them."""

    def __init__(
        self, task: Task, rows: StreamedRows, targets: Rows, loss: RowLoss, fit_intercept: bool, constant: float = 0.0
    ) -> None:
        super().__init__(task, rows, targets, loss, fit_intercept, constant)
        self._streamed, self._every_target = rows, targets

    def _mine(self, what: str, points: tuple[np.ndarray, ...]) -> np.ndarray:
        found = np.zeros(1)
        for first, part in self._streamed.parts():
            self.rows, self.targets = part, self._every_target.part(first, part.n_samples)
            found = found + super()._mine(what, points)
        return found


class SparseProblem(Problem):
    """A problem whose rows are sparse: the host computes their sums."""

    def __init__(
        self, task: Task, rows: SparseRows, targets: Rows, loss: RowLoss, fit_intercept: bool, constant: float = 0.0
    ) -> None:
        super().__init__(task, rows, targets, loss, fit_intercept, constant)
        self._matrix = HostMatrix(rows)
        self._weights = rows.weights_on_cpu()
        self._on_host = self.targets_on_host()

    def _loss_and_gradient(self, point: np.ndarray) -> np.ndarray:
        raw = self._raw(point)
        residuals = self.row_loss.residuals(raw, self._on_host)
        return np.append(self._times_rows(residuals), self._weights @ self.row_loss.losses(raw, self._on_host))

    def _product(self, point: np.ndarray, step: np.ndarray) -> np.ndarray:
        return self._times_rows(self.row_loss.along(self._raw(point), self._on_host, self._raw(step)))

    def _raw(self, point: np.ndarray) -> np.ndarray:
        """Return the linear functions of all rows: float64 of shape (n_samples, n_columns)."""
        coef, intercept = self.table(point)
        return self._matrix.times(coef.T).astype(np.float64) + intercept

    def _times_rows(self, residuals: np.ndarray) -> np.ndarray:
        """Sum the rows, and ones, times their weights and residuals, in the layout of a point."""
        weighty = residuals * self._weights[:, None]
        return self._flat(np.hstack([self._matrix.transposed_times(weighty).T, weighty.sum(axis=0)[:, None]]))

    def _sandwich(self, curvature: np.ndarray) -> np.ndarray:
        return _bordered(self._matrix.weighted_gram(curvature), self._matrix.transposed_times(curvature), curvature)

    def _sandwich_of(self, columns: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        some = self._matrix.some_columns(columns)
        return lambda curvature: _bordered(some.weighted_gram(curvature), some.transposed_times(curvature), curvature)


def _bordered(products: np.ndarray, totals: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return products and totals of columns as the products of these columns and a column of ones."""
    return np.block([[products, totals[:, None]], [totals[None], np.full((1, 1), weights.sum())]])


def problem_of(
    task: Task, rows: AnyRows, targets: Rows, loss: RowLoss, fit_intercept: bool, constant: float = 0.0
) -> Problem:
    """Return the problem for dense or sparse rows, or for rows that come in parts."""
    if isinstance(rows, StreamedRows):
        return StreamedProblem(task, rows, targets, loss, fit_intercept, constant)
    if isinstance(rows, SparseRows):
        return SparseProblem(task, rows, targets, loss, fit_intercept, constant)
    return Problem(task, rows, targets, loss, fit_intercept, constant)


def parts_in_passes(task: Task, source: Source) -> Iterator[Rows | SparseRows]:
    """Yield dense or sparse rows in one pass."""
    if kind_of(task, source)[0] is sparse:
        yield whole_rows(task, source)
        return
    data = Data(task, source)
    for _, part in parts_of(data.block):
        yield part
    data.require_finite()
