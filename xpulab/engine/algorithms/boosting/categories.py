"""Columns of categories: the numbers that are categories, in the rows of all ranks, and rows with their places.

The trees have the columns of categories before the others, as those of scikit-learn. The number of a category is its
place among the categories of its column; a missing value, and a number that is no category, is NaN.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.encoding import places_of
from xpulab.engine.engine import Task
from xpulab.sharing.sources import CategoricalColumns

__all__ = ["found_in", "numbered"]


def found_in(
    task: Task, columns: CategoricalColumns, rows: npt.NDArray[Any], max_bins: int
) -> list[npt.NDArray[np.float64]]:
    """Return the numbers of each column of categories in the rows of all ranks, ascending and without NaN.

    Parameters
    ----------
    task : Task
    columns : CategoricalColumns
        If it says which numbers are categories, these are returned.
    rows : numpy.ndarray of shape (n_own, n_features)
        Rows of this rank.
    max_bins : int
        Largest number of categories of a column.

    Raises
    ------
    ValueError
        On all ranks, if a column has more.
    """
    if columns.values is not None:
        return columns.values
    found = []
    for column, name in zip(columns.order, columns.names, strict=False):
        task.check()
        with task.on_host():
            own = np.unique(rows[:, column])
        every = np.unique(np.concatenate(task.comm.allgather(own[~np.isnan(own)])))
        if len(every) > max_bins:
            raise ValueError(
                f"Categorical feature {name} is expected to have a cardinality <= {max_bins} but actually has a "
                f"cardinality of {len(every)}."
            )
        found.append(every.astype(np.float64))
    return found


def numbered(
    columns: CategoricalColumns, values: list[npt.NDArray[np.float64]], rows: npt.NDArray[Any], threads: int = 1
) -> npt.NDArray[Any]:
    """Return a copy of rows in the order of the trees, with the numbers of the categories `values`."""
    made, k = np.take(rows, columns.order, axis=1), len(values)
    places = columns.places or [np.append(np.arange(float(len(each))), np.nan) for each in values]
    known = [each if len(each) else np.array([np.inf]) for each in values]  # a column may have no category
    places = [each if len(each) > 1 else np.full(2, np.nan) for each in places]

    def number(first: int, last: int) -> None:
        made[first:last, :k] = places_of(made[first:last, :k], known, places)

    cuts = np.linspace(0, len(rows), threads + 1).astype(int).tolist()
    if threads == 1:
        number(*cuts)
        return made
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda ends: number(*ends), pairwise(cuts)))
    return made
