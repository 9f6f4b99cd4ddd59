"""The rows of a fit on the hosts of the ranks, with their targets and weights; few of them are all on rank 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.descent.dealing import STEPS, n_batches_of
from xpulab.engine.algorithms.labels import codes_of
from xpulab.engine.comm import Communicator
from xpulab.engine.dataset import Data, PassedRows, kind_of, on_host, rows_of, weights_of
from xpulab.engine.engine import Task
from xpulab.kernels.kmeans import sparse as sparse_kernels
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.rows import Rows
from xpulab.kernels.sparse_products import HostMatrix
from xpulab.sharing.linear_models import Descent
from xpulab.sharing.sources import SharedArray, Source

if TYPE_CHECKING:
    from scipy import sparse

__all__ = ["Given"]

_Floats = npt.NDArray[np.float64]

_FEW = 1 << 16  # numbers of a batch with which one rank is done before all ranks have met
_PIECE = 16 << 20  # bytes that are read between two looks for an interrupt


@dataclass(frozen=True)
class Given:
    """The rows of a rank, in their order.

    Attributes
    ----------
    rows : numpy.ndarray or scipy.sparse.csr_matrix of shape (n_own, n_features)
    targets : numpy.ndarray of float64 of shape (n_own,)
        Numbers of classes, or targets of a regression.
    weights : numpy.ndarray of float64 of shape (n_own,) or None
    bounds : list of int
        Rank r has the rows from bounds[r] up to, not including, bounds[r + 1].
    rank : int
    """

    rows: npt.NDArray[np.floating] | sparse.csr_matrix
    targets: _Floats
    weights: _Floats | None
    bounds: list[int]
    rank: int

    @classmethod
    def of(
        cls, task: Task, source: Source, weights: SharedArray | PassedRows | None, targets: Source, how: Descent
    ) -> Given:
        """Return what this rank has got.

        Raises
        ------
        ValueError
            On all ranks together, if a row has NaN or infinity.
        NotEnoughMemoryError
            If the devices do not keep all rows.
        """
        if kind_of(task, source)[0] is sparse_kernels:
            held = rows_of(task, source)
            assert isinstance(held, SparseRows)
            rows: Any = HostMatrix(held).as_given
        else:
            rows = _in_order(task, Data(task, source))
            task.show(rows=len(rows), doing="computing")
        beside = rows_of(task, targets)
        assert isinstance(beside, Rows)
        numbers = codes_of(beside, how.known) if how.columns else on_host(beside, np.float64)[:, 0]
        own = weights_of(task, weights, source.bounds)
        return cls(
            rows, numbers.astype(np.float64), None if own is None else own.astype(np.float64), source.bounds,
            task.comm.rank,
        )  # fmt: skip

    def are_few(self, comm: Communicator) -> bool:
        """Return whether rank 0 alone is done sooner; all ranks ask together."""
        if isinstance(self.rows, np.ndarray):
            n = self.bounds[-1]
            return -(-n // n_batches_of(n)) * self.rows.shape[1] <= _FEW
        return int(comm.allreduce(np.array([self.rows.nnz]))[0]) <= _FEW * STEPS

    def joined(self, comm: Communicator) -> Given | None:
        """Return the rows of all ranks, on rank 0; None on others. All ranks call this together."""
        targets = comm.gather_blocks(self.targets)
        weights = None if self.weights is None else comm.gather_blocks(self.weights)
        if isinstance(self.rows, np.ndarray):
            parts: list[Any] = [comm.gather_blocks(self.rows.ravel())]
        else:
            csr = self.rows
            parts = [comm.gather_blocks(each) for each in (csr.data, csr.indices, np.diff(csr.indptr))]
        if targets is None:
            return None
        n, d = len(targets), self.rows.shape[1]
        if isinstance(self.rows, np.ndarray):
            rows: Any = parts[0].reshape(n, d)
        else:
            data, columns, lengths = parts
            rows = type(self.rows)((data, columns, np.concatenate([[0], np.cumsum(lengths)])), (n, d))
        return Given(rows, targets, weights, [0, n], 0)

    def of_column(self, how: Descent, run: int, of_classes: bool) -> tuple[_Floats | None, _Floats]:
        """Return weights and targets for a column of coefficients.

        `of_classes` says whether its loss takes 1 and 0 for rows of its class and others, and not 1 and -1.
        """
        if not how.columns:
            return self.weights, self.targets
        place, inside, outside = how.columns[run]
        own, weights = self.targets == place, self.weights
        if (inside, outside) != (1.0, 1.0):
            weights = np.where(own, inside, outside) * (1.0 if weights is None else weights)
        return weights, np.where(own, 1.0, 0.0 if of_classes else -1.0)


def _in_order(task: Task, data: Data) -> npt.NDArray[np.floating]:
    """Return this rank's rows in C order."""
    if data.in_passes:
        return on_host(data.rows, data.dtype)  # says that it needs all rows at once
    finite = True
    with data.stream() as fill:
        if fill is None:
            return on_host(data.rows, data.dtype)
        whole = np.empty((data.n_own, data.n_features), data.dtype)
        step = max(1, _PIECE // (data.n_features * whole.itemsize))
        for first in range(0, data.n_own, step):
            task.leave_if_cancelled()
            part = whole[first : first + step]
            fill(first, part)
            with np.errstate(over="ignore", invalid="ignore"):
                finite = finite and bool(np.isfinite(part.sum()))
    data.require_finite(0.0 if all(task.comm.allgather(finite)) else np.nan)
    return whole
