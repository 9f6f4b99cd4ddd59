"""The scores of a scorer of scikit-learn's in a fit of gradient boosting, which rank 0 computes for the rows of all."""

from __future__ import annotations

from collections.abc import Callable

import cloudpickle
import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.boosting.binning import Part
from xpulab.engine.engine import Task

__all__ = ["Scoring"]

_Array = npt.NDArray[np.float64]


class Scoring:
    """The scores of some rows for training, and of the rows for validation; all ranks call its methods together.

    Parameters
    ----------
    task : Task
    function : bytes
        Pickled: takes the raw predictions of rows (n, k), their targets, and their weights or None; returns a score.
    train : Part
    some : numpy.ndarray of int, or None
        Which of this rank's rows for training are scored; None for all.
    validation : Part or None
    """

    def __init__(
        self, task: Task, function: bytes, train: Part, some: npt.NDArray[np.intp] | None, validation: Part | None
    ) -> None:
        self._task = task
        self._parts = [(train, slice(None) if some is None else some)]
        self._parts += [] if validation is None else [(validation, slice(None))]
        self._beside = [(self._gathered(part.y[rows]), self._weights(part, rows)) for part, rows in self._parts]
        self._score: Callable[[_Array, _Array, _Array | None], float] | None = None
        if task.comm.rank == 0:
            self._score = cloudpickle.loads(function)

    def scores(self) -> tuple[float, float]:
        """Return the scores of the rows for training and for validation (NaN without); more is better."""
        found = [np.nan, np.nan]
        for place, ((part, rows), (y, weights)) in enumerate(zip(self._parts, self._beside, strict=True)):
            raw = self._gathered(part.raw[:, rows].T.ravel())
            if self._score is not None:
                found[place] = self._score(raw.reshape(len(y), -1), y, weights)
        train, validation = self._task.comm.bcast(found)
        return train, validation

    def _gathered(self, values: _Array) -> _Array:
        """Return the values of all ranks in the order of their rows, on rank 0; on others nothing."""
        found = self._task.comm.gather_blocks(np.asarray(values, np.float64))
        return np.empty(0) if found is None else found

    def _weights(self, part: Part, rows: slice | npt.NDArray[np.intp]) -> _Array | None:
        return None if part.weights is None else self._gathered(part.weights[rows])
