"""The rows and labels of all ranks as the sums of which the solvers of a logistic regression ask."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xpulab.engine.comm import Interrupted
from xpulab.engine.dataset import on_host
from xpulab.engine.engine import Task
from xpulab.kernels.kmeans.choice import AnyRows
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.logistic import loss_gradient, second_products
from xpulab.kernels.products import gram
from xpulab.kernels.project import project
from xpulab.kernels.rows import Rows, weighted
from xpulab.kernels.sparse_products import HostMatrix
from xpulab.kernels.streamed import StreamedRows

__all__ = ["Problem", "probabilities", "problem_of"]


class Problem:
    """The rows of all ranks as one data set, with sums over them.

    Parameters
    ----------
    task : Task
    rows : Rows, SparseRows or StreamedRows
        This rank's rows, with the weights of samples and classes.
    codes : Rows
        The number of each row's class, in the dtype of the rows.
    n_classes : int
    fit_intercept : bool

    Attributes
    ----------
    n_columns : int
        Columns of coefficients: 1 for two classes.
    weight : float
        Sum of all weights.
    """

    def __init__(self, task: Task, rows: AnyRows, codes: Rows, n_classes: int, fit_intercept: bool) -> None:
        self.task, self.comm = task, task.comm
        self.rows, self.codes, self.n_classes = rows, codes, n_classes
        self.fit_intercept = fit_intercept
        self.n_columns = 1 if n_classes == 2 else n_classes
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
        return (columns[:, :-1], columns[:, -1]) if self.fit_intercept else (columns, np.zeros(self.n_columns))

    def _flat(self, table: np.ndarray) -> np.ndarray:
        """Return a table (n_columns, n_features + 1) in the layout of a point."""
        return (table if self.fit_intercept else table[:, :-1]).ravel(order="F")

    def _sums(self, what: str, points: tuple[np.ndarray, ...]) -> np.ndarray:
        every = self.comm.allreduce(np.append(self._mine(what, points), self.task.cancelled()))
        if every[-1]:
            raise Interrupted
        return every[:-1]

    def _mine(self, what: str, points: tuple[np.ndarray, ...]) -> np.ndarray:
        """Compute the sums over this rank's rows."""
        computations: dict[str, Callable[..., np.ndarray]] = {
            "loss": self._loss,
            "hessian": self._hessian,
            "product": self._product,
        }
        return computations[what](*points)

    def _loss(self, point: np.ndarray) -> np.ndarray:
        """Return the gradient, and then the loss."""
        assert isinstance(self.rows, Rows)
        found = loss_gradient(self.rows, self.codes, self.n_classes, *self.table(point))
        return np.append(self._flat(found.gradient), found.loss)

    def _product(self, point: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Compute the second derivatives times a step."""
        assert isinstance(self.rows, Rows)
        found = second_products(self.rows, self.codes, self.n_classes, *self.table(point), *self.table(step))
        return self._flat(found)

    def _hessian(self, point: np.ndarray) -> np.ndarray:
        """Compute all second derivatives, followed by (for two classes) the weight of rows whose own ones are zero."""
        rows = self.rows
        assert not isinstance(rows, StreamedRows)
        coef, intercept = self.table(point)
        parts = [np.empty((0, self.n_classes), rows.dtype)]
        shares = np.concatenate([*parts, *map(probabilities, project(rows, coef.T, None, intercept))])
        return self.second_derivatives(shares, rows.weights_on_cpu(), rows.n_features, self._sandwich)

    def second_derivatives(
        self, shares: np.ndarray, weight: np.ndarray, d: int, sandwich: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Return second derivatives, and then the weight of rows without any, for probabilities (n, n_classes).

        `sandwich` returns the products (d + 1, d + 1) of d columns and a column of ones, with the weights it is given.
        """
        c = self.n_columns
        whole, flat = np.zeros((c, d + 1, c, d + 1)), 0.0
        if c == 1:
            curvature = shares[:, 0] * shares[:, 1] * weight
            flat = float(weight[curvature <= 0].sum())
            whole[0, :, 0] = sandwich(curvature)
        else:
            # The derivatives add up to zero over the classes, so the derivatives on the diagonal need no products.
            for i in range(c):
                for j in range(i):
                    products = sandwich(shares[:, i] * shares[:, j] * weight)
                    whole[i, :, j] = whole[j, :, i] = -products
                    whole[i, :, i] += products
                    whole[j, :, j] += products
        kept = whole if self.fit_intercept else whole[:, :-1, :, :-1]
        return np.append(kept.transpose(1, 0, 3, 2).ravel(), flat)

    def _sandwich(self, curvature: np.ndarray) -> np.ndarray:
        """Compute products (n_features + 1, n_features + 1) of the columns and a column of ones, with these weights."""
        assert isinstance(self.rows, Rows)
        products, totals = gram(weighted(self.rows, curvature))
        return np.block([[products, totals[:, None]], [totals[None], np.full((1, 1), curvature.sum())]])


class StreamedProblem(Problem):
    """A problem whose rows come in parts: each evaluation is a pass over them."""

    def __init__(self, task: Task, rows: StreamedRows, codes: Rows, n_classes: int, fit_intercept: bool) -> None:
        super().__init__(task, rows, codes, n_classes, fit_intercept)
        self._streamed, self._every_code = rows, codes

    def _mine(self, what: str, points: tuple[np.ndarray, ...]) -> np.ndarray:
        found = np.zeros(1)
        for first, part in self._streamed.parts():
            self.rows, self.codes = part, self._every_code.part(first, part.n_samples)
            found = found + super()._mine(what, points)
        return found


class SparseProblem(Problem):
    """A problem whose rows are sparse: the host computes their sums."""

    def __init__(self, task: Task, rows: SparseRows, codes: Rows, n_classes: int, fit_intercept: bool) -> None:
        super().__init__(task, rows, codes, n_classes, fit_intercept)
        self._matrix = HostMatrix(rows)
        self._weights = rows.weights_on_cpu()
        self._places = on_host(codes, np.intp)[:, 0]

    def _loss(self, point: np.ndarray) -> np.ndarray:
        decision, each = self._decision(point), np.arange(len(self._places))
        if self.n_columns == 1:
            losses = np.logaddexp(0, decision[:, 0]) - self._places * decision[:, 0]
            residuals = probabilities(decision)[:, 1:] - self._places[:, None]
        else:
            most = decision.max(axis=1)
            losses = np.log(np.exp(decision - most[:, None]).sum(axis=1)) + most - decision[each, self._places]
            residuals = probabilities(decision)
            residuals[each, self._places] -= 1
        return np.append(self._times_rows(residuals), self._weights @ losses)

    def _product(self, point: np.ndarray, step: np.ndarray) -> np.ndarray:
        shares, along = probabilities(self._decision(point)), self._decision(step)
        if self.n_columns == 1:
            return self._times_rows(shares[:, :1] * shares[:, 1:] * along)
        return self._times_rows(shares * (along - (shares * along).sum(axis=1, keepdims=True)))

    def _decision(self, point: np.ndarray) -> np.ndarray:
        """Return the linear functions of all rows: float64 of shape (n_samples, n_columns)."""
        coef, intercept = self.table(point)
        return self._matrix.times(coef.T).astype(np.float64) + intercept

    def _times_rows(self, residuals: np.ndarray) -> np.ndarray:
        """Sum the rows, and ones, times their weights and residuals, in the layout of a point."""
        weighty = residuals * self._weights[:, None]
        return self._flat(np.hstack([self._matrix.transposed_times(weighty).T, weighty.sum(axis=0)[:, None]]))

    def _sandwich(self, curvature: np.ndarray) -> np.ndarray:
        products, totals = self._matrix.weighted_gram(curvature), self._matrix.transposed_times(curvature[:, None])
        return np.block([[products, totals], [totals.T, np.full((1, 1), curvature.sum())]])


def problem_of(task: Task, rows: AnyRows, codes: Rows, n_classes: int, fit_intercept: bool) -> Problem:
    """Return the problem for dense or sparse rows, or for rows that come in parts."""
    if isinstance(rows, StreamedRows):
        return StreamedProblem(task, rows, codes, n_classes, fit_intercept)
    if isinstance(rows, SparseRows):
        return SparseProblem(task, rows, codes, n_classes, fit_intercept)
    return Problem(task, rows, codes, n_classes, fit_intercept)


def probabilities(decision: np.ndarray) -> np.ndarray:
    """Return the probabilities of the classes (m, n_classes) from linear functions (m, 1) or (m, n_classes)."""
    if decision.shape[1] > 1:
        powers = np.exp(decision - decision.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        share = 1 / (1 + np.exp(-decision))
    return np.hstack([1 - share, share])
