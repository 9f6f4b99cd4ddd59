"""Bins of columns: scikit-learn finds those of one column at a time on an engine, and the hosts look numbers up."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from xpulab.engine.algorithms.columns import by_turns
from xpulab.engine.algorithms.encoding import chosen_of
from xpulab.engine.dataset import Data, PassedRows, data_of, give_computed, weights_of
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.sharing.answers import BinEdges, OwnRows
from xpulab.sharing.sources import Handle, SharedArray, Source, Target

__all__: list[str] = []  # this module only registers tasks


@task("bins.edges")
def _edges(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    chosen: np.ndarray | None,
    n_bins: np.ndarray,
    how: dict[str, Any],
) -> BinEdges:
    """Return the edges of the bins of each column of the chosen rows, or of all rows, and scikit-learn's warnings."""
    from sklearn.preprocessing import KBinsDiscretizer

    data = Data(task, source)
    mine = weights_of(task, weights, data.bounds)
    every = None if mine is None else np.concatenate(task.comm.allgather(mine))
    if every is not None and chosen is not None:
        every = every[chosen]

    def found(column: int, values: np.ndarray) -> tuple[np.ndarray, list[tuple[type[Warning], str]]] | ValueError:
        plain = KBinsDiscretizer(n_bins=int(n_bins[column]), encode="ordinal", subsample=None, **how)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                plain.fit(values[:, None], sample_weight=every)
            except ValueError as error:
                return error
        return plain.bin_edges_[0], [(each.category, str(each.message)) for each in said]

    columns = []
    for each in by_turns(task, chosen_of(task, data, chosen), found):
        if isinstance(each, ValueError):
            raise each
        columns.append(each)
    return {"rows": data.n_own, "columns": columns}


@task("bins.find")
def _find(
    task: Task,
    source: Source,
    weights: None,
    edges: list[np.ndarray],
    compared: str,
    first: np.ndarray,
    n_encoded: int | None = None,
    target: Target | None = None,
    kept: Handle | None = None,
) -> OwnRows:
    """Find the bin of each number, plus `first` of its column; with `n_encoded`, put a 1 into the column of the bin.

    The numbers are compared in the dtype `compared`.
    """
    rows = data_of(task, source).rows

    def places(some: np.ndarray) -> np.ndarray:
        numbers = some.astype(compared).T
        found = [
            np.searchsorted(inner[1:-1], column, side="right") for inner, column in zip(edges, numbers, strict=True)
        ]
        return np.stack(found, axis=1) + first

    def encoded(some: np.ndarray) -> np.ndarray:
        made = np.zeros((len(some), n_encoded or 0), np.uint8)
        np.put_along_axis(made, places(some), 1, axis=1)
        return made

    columns, compute = (rows.n_features, places) if n_encoded is None else (n_encoded, encoded)
    give_computed(task, rows, columns, compute, source.bounds, target, kept)
    return {"rows": rows.n_samples}
