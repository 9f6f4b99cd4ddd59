"""Columns of categories: the numbers that are categories, in the rows of all ranks, and their places.

The trees have the columns of categories before the others, as those of scikit-learn. The number of a category is its
place among the categories of its column; a missing value, and a number that is no category, is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.engine.engine import Task
from xpulab.sharing.sources import CategoricalColumns
from xpulab.sources.coded import places_of

__all__ = ["found_in", "in_order", "numbered"]

_Array = npt.NDArray[Any]


def found_in(task: Task, rows: _Array, names: Sequence[str], max_bins: int) -> list[npt.NDArray[np.float64]]:
    """Return the numbers of each column in the rows of all ranks, ascending and without NaN.

    Parameters
    ----------
    task : Task
    rows : numpy.ndarray of shape (n_own, n_columns)
        Columns of categories of this rank's rows.
    names : sequence of str
        What errors call them.
    max_bins : int
        Largest number of categories of a column.

    Raises
    ------
    ValueError
        On all ranks, if a column has more.
    """
    found = []
    for column, name in zip(rows.T, names, strict=True):
        task.check()
        with task.on_host():
            own = np.unique(column)
        every = np.unique(np.concatenate(task.comm.allgather(own[~np.isnan(own)])))
        if len(every) > max_bins:
            raise ValueError(
                f"Categorical feature {name} is expected to have a cardinality <= {max_bins} but actually has a "
                f"cardinality of {len(every)}."
            )
        found.append(every.astype(np.float64))
    return found


def numbered(rows: _Array, values: Sequence[_Array], places: Sequence[_Array] | None) -> npt.NDArray[np.float64]:
    """Return the numbers of the categories in columns of categories.

    Parameters
    ----------
    rows : numpy.ndarray of shape (n, n_columns)
    values : sequence of numpy.ndarray of float64
        The numbers in the rows that are categories, of each column in ascending order.
    places : sequence of numpy.ndarray of float64 or None
        See `CategoricalColumns`.
    """
    if places is None:
        places = [np.append(np.arange(float(len(each))), np.nan) for each in values]
    return places_of(rows, values, places)


def in_order(columns: CategoricalColumns, values: Sequence[_Array], rows: _Array) -> _Array:
    """Return a copy of rows in the order of the trees, with the numbers of the categories `values`."""
    made, k = np.take(rows, columns.order, axis=1), len(values)
    made[:, :k] = numbered(made[:, :k], values, columns.places)
    return made
