"""The rows of a rank in a fit of gradient boosting: their losses, gradients and trees.

Each rank has the bins of its own rows, one byte a value, on its host, and the sums of the trees' values for them.
In each iteration a reduction finds the largest gradients, by which all gradients are scaled to integers; it also has
the request to stop. Results are the same for any number of ranks, because only integers and maxima are reduced.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.boosting.binning import Part
from xpulab.engine.algorithms.boosting.growing import Binned, Node, grow, nodes_of
from xpulab.engine.algorithms.boosting.losses import LOSSES, weighted_percentile
from xpulab.engine.comm import Interrupted
from xpulab.engine.engine import Task
from xpulab.kernels.on_cpu.boosting import HESSIAN_BITS, add_by_bins, add_leaves, as_integers
from xpulab.sharing.sources import Growth

__all__ = ["Fit", "should_stop"]

_PIECE = 8192  # rows whose losses are computed together, in a core's cache

_Array = npt.NDArray[np.float64]


class Fit:
    """A fit on this rank.

    Parameters
    ----------
    task : Task
    binned : Binned
    train, validation : Part
        `validation` is None without rows for validation.
    loss : str
        A name of `LOSSES`.
    quantile : float
    growth : Growth
    pool : ThreadPoolExecutor
    threads : int
    """

    def __init__(
        self,
        task: Task,
        binned: Binned,
        train: Part,
        validation: Part | None,
        loss: str,
        quantile: float,
        growth: Growth,
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> None:
        self.task, self.binned, self.train, self.validation = task, binned, train, validation
        self.loss, self.quantile, self.growth = LOSSES[loss], quantile, growth
        self.parts = [train] if validation is None else [train, validation]
        self.pool, self.threads = pool, threads
        k, n = train.raw.shape
        self.gradients, self.hessians = np.empty((k, n), np.float32), np.empty((k, n), np.float32)
        self.numbers = np.empty((n, 2), np.int64)
        self.rows, self.aside = np.empty(n, np.int32), np.empty(n, np.int32)
        self.weight = _total(task, train)
        self.weight_of_validation = 1.0 if validation is None else _total(task, validation)

    def in_pieces(self, n: int, function: Callable[[slice], Any]) -> list[Any]:
        """Call a function for some rows at a time, in threads."""
        pieces = [slice(first, first + _PIECE) for first in range(0, n, _PIECE)]
        return list((self.pool.map if self.threads > 1 else map)(function, pieces))

    def derive(self) -> npt.NDArray[np.int64]:
        """Compute the gradients, and return the exponents of the largest ones, and of the second derivatives (2, k).

        Raises
        ------
        Interrupted
            On all ranks, if one of them has seen the request to stop.
        """
        train = self.train

        def piece(some: slice) -> _Array:
            with np.errstate(over="ignore", invalid="ignore"):
                found = self.loss.gradients(train.y[some], train.raw[:, some], self.quantile)
                for made, kept in zip(found, (self.gradients, self.hessians), strict=True):
                    kept[:, some] = made if train.weights is None else made * train.weights[some]
            return np.stack([np.abs(kept[:, some]).max(axis=1) for kept in (self.gradients, self.hessians)])

        with self.task.on_host():
            most = np.zeros((2, len(train.raw)))
            for each in self.in_pieces(len(train.y), piece):
                most = np.maximum(most, each)  # NaN stays
        most[np.isnan(most)] = np.inf
        stop = [float(self.task.cancelled())]
        facts = self.task.comm.allreduce(np.concatenate([most.ravel(), stop]), np.maximum)
        if facts[-1]:
            raise Interrupted
        if not np.isfinite(facts).all():
            raise ValueError(
                "the gradients of the loss are not finite: the predictions have become too large; use a smaller "
                "learning_rate, or larger min_samples_leaf and l2_regularization"
            )
        room = 62 - int(np.ceil(np.log2(max(2, train.n_samples))))
        rooms = np.array([[room], [min(room, HESSIAN_BITS)]])
        exponents = np.minimum(rooms - np.frexp(facts[:-1])[1].reshape(2, -1), 1000)
        return np.asarray(exponents, np.int64)

    def tree(self, k: int, exponents: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[Any]:
        """Grow the tree of output k, add it to the raw predictions, and return its nodes."""
        train = self.train
        g, h = exponents[:, k].tolist()
        with self.task.on_host():
            as_integers(self.gradients[k], self.hessians[k], 2.0**g, 2.0**h, self.numbers)
            self.rows[:] = np.arange(len(self.rows))
            root, leaves = grow(
                self.task, self.binned, self.growth, self.numbers, (2.0**-g, 2.0**-h), self.rows, self.aside, rng,
                self.pool, self.threads,
            )  # fmt: skip
            if self.loss.by_quantile:
                self.set_quantiles(leaves)
            bounds = np.array([[leaf.begin, leaf.end] for leaf in leaves], np.int64)
            values = np.array([leaf.value for leaf in leaves])
            add_leaves(self.rows, bounds, values, train.raw[k])
            nodes = nodes_of(root, self.binned.thresholds)
            if self.validation is not None:
                self.follow(self.validation, nodes, k)
        return nodes

    def follow(self, part: Part, nodes: npt.NDArray[Any], k: int) -> None:
        """Add the values of a tree to raw predictions."""
        missing = self.binned.thresholds.missing
        self.in_pieces(len(part.y), lambda some: add_by_bins(part.bins[some], missing, nodes, part.raw[k, some]))

    def set_quantiles(self, leaves: list[Node]) -> None:
        """Give each leaf the quantile of its rows' residuals, for losses whose second derivatives say nothing."""
        comm, train = self.task.comm, self.train
        residuals = (train.y - train.raw[0])[self.rows]
        mine = np.array([[leaf.begin, leaf.end] for leaf in leaves], np.int64)
        counts = comm.allgather((len(residuals), mine))
        longest = max(n for n, _ in counts)

        def of_all(values: _Array) -> npt.NDArray[Any]:
            padded = np.zeros(longest)
            padded[: len(values)] = values
            return comm.allgather_arrays(padded)

        every = of_all(residuals)
        weights = None if train.weights is None else of_all(train.weights[self.rows])
        percent = 100 * self.quantile
        found = np.zeros(len(leaves))
        for number in range(comm.rank, len(leaves), comm.size):
            cuts = [slice(*bounds[number]) for _, bounds in counts]
            values = np.concatenate([part[cut] for part, cut in zip(every, cuts, strict=True)])
            if weights is None:
                found[number] = np.percentile(values, percent)
            else:
                beside = np.concatenate([part[cut] for part, cut in zip(weights, cuts, strict=True)])
                found[number] = weighted_percentile(values, beside, np.array([percent]))[0]
        for leaf, value in zip(leaves, comm.allreduce(found).tolist(), strict=True):
            leaf.value = self.growth.learning_rate * value

    def scores(self) -> tuple[float, float]:
        """Return the mean losses of the rows for training and for validation (NaN without)."""
        found = [self._losses(part) for part in self.parts]
        most = self.task.comm.allreduce(np.array([largest for _, largest in found]), np.maximum)
        most[np.isnan(most)] = np.inf
        exponents = [_exponent(m, part.n_samples) for m, part in zip(most, self.parts, strict=True)]
        sums = [self._total(losses, e) for (losses, _), e in zip(found, exponents, strict=True)]
        totals = self.task.comm.allreduce(np.array(sums, np.int64))
        means = [
            np.ldexp(float(total), -e) / weight if np.isfinite(m) else np.nan
            for total, e, weight, m in zip(
                totals, exponents, (self.weight, self.weight_of_validation), most, strict=False
            )
        ]
        return float(means[0]), float(means[1]) if len(means) > 1 else np.nan

    def _losses(self, part: Part) -> tuple[_Array, float]:
        """Return the weighted losses of rows, and the largest of them."""
        found = np.empty(len(part.y))

        def piece(some: slice) -> Any:
            with np.errstate(over="ignore", invalid="ignore"):
                found[some] = self.loss.values(part.y[some], part.raw[:, some], self.quantile)
                if part.weights is not None:
                    found[some] *= part.weights[some]
            return np.abs(found[some]).max()

        with self.task.on_host():
            return found, float(np.max(self.in_pieces(len(found), piece), initial=0.0))  # NaN stays

    def _total(self, losses: _Array, exponent: int) -> int:
        """Return the sum of losses times a power of two, each of which is rounded to an integer."""

        def piece(some: slice) -> Any:
            with np.errstate(invalid="ignore"):
                return np.rint(losses[some] * 2.0**exponent).astype(np.int64).sum()

        with self.task.on_host():
            return sum(map(int, self.in_pieces(len(losses), piece)))


def _exponent(most: float, n: int) -> int:
    """Return the power of two by which n numbers up to `most` are multiplied, so that their sum is an int64."""
    return min(62 - int(np.ceil(np.log2(max(2, n)))) - int(np.frexp(most)[1]), 1000) if np.isfinite(most) else 0


def _total(task: Task, part: Part) -> float:
    """Return the sum of the weights of the rows of all ranks."""
    if part.weights is None:
        return float(part.n_samples)
    most = float(task.comm.allreduce(np.array([part.weights.max(initial=0.0)]), np.maximum)[0])
    e = _exponent(most, part.n_samples)
    total = task.comm.allreduce(np.array([np.rint(np.ldexp(part.weights, e)).astype(np.int64).sum()], np.int64))
    return float(np.ldexp(float(total[0]), -e))


def should_stop(scores: list[float], n_iter_no_change: int, tol: float) -> bool:
    """Return whether none of the last scores is better than the one before them, as in scikit-learn."""
    reference = n_iter_no_change + 1
    if len(scores) < reference:
        return False
    least = scores[-reference] + tol
    return not any(score > least for score in scores[-reference + 1 :])
