"""The sums over a batch's rows of this rank: the loss with its gradient, and products of the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.descent.dealing import Deal
from xpulab.engine.algorithms.descent.steps import Plan, Steps
from xpulab.engine.algorithms.linear.losses import KINKED, UNLIMITED, Classes, Distances, Margins, RowLoss
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.linear.linear_losses import Loss, Repeated, second_products
from xpulab.kernels.linear.sparse_steps import SparseSteps
from xpulab.kernels.rows import Rows, weighted
from xpulab.kernels.runtime.device import Device

if TYPE_CHECKING:
    from scipy import sparse

__all__ = ["Batches", "DenseBatches", "SparseBatches", "StepLoss"]

_Floats = npt.NDArray[np.float64]

_SQUARES = Loss("identity")  # its second derivatives are 1
_HALF_SQUARES = Loss("distance", 1, (np.inf, 1.0, 0.0, 1.0, 1.0))  # of the distance from a target
_FAR = 2.0**40


class StepLoss:
    """A loss that scikit-learn's `SGDClassifier` and `SGDRegressor` name.

    Parameters
    ----------
    name : str
    epsilon : float

    Attributes
    ----------
    of_rows : RowLoss
        Its targets are 1 for rows of the class, and 0 for others, where it is one of classes.
    of_classes : bool
        Whether it is one of classes; others have targets of 1 and -1 in a classification.
    bend : float
        Upper bound of its second derivatives, or 1 where it has kinks.
    scale : float
        By what products are multiplied, and losses divided. The loss of a perceptron, ``max(0, -product)``, is the
        limit of a margin that is so much nearer.
    """

    def __init__(self, name: str, epsilon: float) -> None:
        losses: dict[str, tuple[RowLoss, float]] = {
            "log_loss": (Classes(2), 0.25),
            "hinge": (Margins(2, KINKED), 1.0),
            "perceptron": (Margins(2, KINKED), 1.0),
            "squared_hinge": (Margins(2, None), 2.0),
            "modified_huber": (Margins(2, 2.0, bend=2.0), 2.0),
            "squared_error": (Distances(0.0, 1.0, 1.0, UNLIMITED, 1.0), 1.0),
            "huber": (Distances(0.0, 1.0, 1.0, max(epsilon, KINKED), 1.0), 1.0),
            "epsilon_insensitive": (Distances(epsilon, 1.0, 1.0, KINKED), 1.0),
            "squared_epsilon_insensitive": (Distances(epsilon, 1.0, 1.0, None), 2.0),
        }
        self.of_rows, self.bend = losses[name]
        self.of_classes = not isinstance(self.of_rows, Distances)
        self.scale = _FAR if name == "perceptron" else 1.0


class Batches(ABC):
    """The batches of a fit, of which this rank has its own rows.

    Parameters
    ----------
    deal : Deal
    loss : StepLoss
    n_features : int
    """

    def __init__(self, deal: Deal, loss: StepLoss, n_features: int) -> None:
        self.deal, self.loss, self.n_features = deal, loss, n_features

    @abstractmethod
    def aim(self, targets: _Floats, weights: _Floats | None) -> None:
        """Set the targets and the weights of this rank's rows, (n_own,) in the order of the batches."""

    @abstractmethod
    def _sums(self, batch: int, point: _Floats) -> tuple[float, _Floats]:
        """Return the sum of the losses, and the gradient by coefficients and intercept, (n_features + 1,)."""

    @abstractmethod
    def _products(self, batch: int, step: _Floats) -> _Floats:
        """Return the products of the rows and a column of ones, times their weights, with a step (n_features + 1,)."""

    def sums(self, batch: int, point: _Floats) -> tuple[float, _Floats]:
        """Return the sum of the losses at a point (n_features + 1,), and their gradient."""
        first, last = self.deal.bounds[batch : batch + 2]
        if first == last:
            return 0.0, np.zeros(len(point))
        return self._sums(batch, point)

    def products(self, batch: int, step: _Floats) -> _Floats:
        """Return products as `_products`, zeros without rows."""
        first, last = self.deal.bounds[batch : batch + 2]
        return np.zeros(len(step)) if first == last else self._products(batch, step)


class SparseBatches(Batches):
    """Batches of sparse rows on the host.

    Parameters
    ----------
    matrix : scipy.sparse.csr_matrix of shape (n_own, n_features)
        The rows in the order of the batches.
    """

    def __init__(self, deal: Deal, loss: StepLoss, matrix: sparse.csr_matrix) -> None:
        super().__init__(deal, loss, matrix.shape[1])
        self._steps = SparseSteps(matrix, deal.bounds, loss.of_rows.kernel, loss.scale)
        self._squares = SparseSteps(matrix, deal.bounds, _HALF_SQUARES, 1.0)
        self._targets: _Floats = np.empty(0)
        self._weights: _Floats = np.empty(0)

    def aim(self, targets: _Floats, weights: _Floats | None) -> None:
        """Set the targets and the weights."""
        self._targets, self._weights = targets, np.ones(len(targets)) if weights is None else weights

    def _sums(self, batch: int, point: _Floats) -> tuple[float, _Floats]:
        return self._steps.gradient(batch, self._targets, self._weights, point)

    def _products(self, batch: int, step: _Floats) -> _Floats:
        # These are the gradient of half the squares of the products.
        return self._squares.gradient(batch, np.zeros(len(self._targets)), self._weights, step)[1]

    def take(
        self, order: npt.NDArray[np.int64], plan: Plan, steps: Steps, point: _Floats, mean: _Floats
    ) -> tuple[float, float]:
        """Take a step for each batch, of rows that are all on this rank, as `steps.take` does.

        Returns the sums over the rows of the losses and of the penalties, each before the step of its batch.
        """
        return self._steps.take(order, plan, self._targets, self._weights, steps.penalties, point, mean)


class DenseBatches(Batches):
    """Batches of dense rows on the device, each from the beginning of a block on.

    Parameters
    ----------
    rows : numpy.ndarray of shape (n_own, n_features)
        This rank's rows, not yet in the order of the batches.
    """

    def __init__(self, deal: Deal, loss: StepLoss, device: Device, rows: npt.NDArray[np.floating]) -> None:
        super().__init__(deal, loss, rows.shape[1])
        self._device, self._dtype = device, rows.dtype
        counts = np.diff(deal.bounds)
        self._starts = np.concatenate([[0], np.cumsum(-(-counts // BLOCK) * BLOCK)])
        self._filled = np.arange(len(deal.places)) + np.repeat(self._starts[:-1] - deal.bounds[:-1], counts)
        order = np.full(self._starts[-1], -1)  # -1 fills the blocks
        order[self._filled] = deal.places

        def fill(first: int, part: npt.NDArray[Any]) -> None:
            chosen = order[first : first + len(part)]
            np.take(rows, chosen, axis=0, out=part, mode="clip")
            part[chosen < 0] = 0

        self._rows, _ = Rows.read(device, (len(order), rows.shape[1]), rows.dtype, fill)
        self._parts: dict[int, tuple[Rows, Rows]] = {}
        self._repeated: dict[int, Repeated] = {}

    def aim(self, targets: _Floats, weights: _Floats | None) -> None:
        """Set the targets and the weights."""
        rows = self._rows if weights is None else weighted(self._rows, self._padded(weights))
        column = Rows.upload(self._device, self._padded(targets)[:, None])
        for batch, first in enumerate(self._starts[:-1]):
            n = int(self.deal.bounds[batch + 1] - self.deal.bounds[batch])
            if n:
                self._parts[batch] = rows.part(int(first), n), column.part(int(first), n)
        self._repeated = {}

    def _padded(self, values: _Floats) -> npt.NDArray[np.floating]:
        found = np.zeros(self._starts[-1], self._dtype)
        found[self._filled] = values
        return found

    def _sums(self, batch: int, point: _Floats) -> tuple[float, _Floats]:
        repeated, scale = self._repeated.get(batch), self.loss.scale
        if repeated is None:
            repeated = self._repeated[batch] = Repeated(*self._parts[batch], self.loss.of_rows.kernel)
        found = repeated(point[None, :-1] * scale, point[-1:] * scale)
        return found.loss / scale, found.gradient[0]

    def _products(self, batch: int, step: _Floats) -> _Floats:
        zero, one = np.zeros((1, self.n_features)), np.zeros(1)
        rows, targets = self._parts[batch]
        return second_products(rows, targets, _SQUARES, zero, one, step[None, :-1], step[-1:])[0]
