"""`train_test_split`: scikit-learn's permutation, by which rows move between the engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import sklearn.model_selection

from xpulab.data import Outgoing, ShardedArray, bounds_of
from xpulab.deploy.cluster import current_cluster
from xpulab.estimator.call import Call, Functions
from xpulab.estimator.rows import Packing

__all__ = ["train_test_split"]


def train_test_split(
    *arrays: Any,
    test_size: float | int | None = None,
    train_size: float | int | None = None,
    random_state: Any = None,
    shuffle: bool = True,
    stratify: Any = None,
) -> list[Any]:
    """Split rows into those to fit and those to test with, as `sklearn.model_selection.train_test_split`.

    Parameters
    ----------
    *arrays : ShardedArray or array-like, each of n_samples rows
        Rows of a handle move between the engines, and come back as handles; those of arrays as arrays.
    test_size, train_size : float or int, optional
        A part of the rows, or a number; a quarter is for tests by default.
    random_state : int, RandomState instance or None, default=None
        The same number gives the rows that scikit-learn picks, in its order.
    shuffle : bool, default=True
    stratify : array-like or ShardedArray of shape (n_samples,), optional
        Labels of which both parts get the same shares; those of a handle are gathered.

    Returns
    -------
    list
        Of each array the rows to fit with, then those to test with.

    Raises
    ------
    ValueError
        As scikit-learn.
    HandleError
        For a `ShardedArray` whose rows are elsewhere or gone.

    Notes
    -----
    A rank takes the rows that leave it, and those that it gets, through the memory of its host: twice its share of each
    handle, for a moment.
    """
    for array in arrays:
        if isinstance(array, ShardedArray):
            array.source(current_cluster())
    # scikit-learn splits the places of a handle's rows, and arrays themselves.
    stand_ins = [np.arange(array.shape[0]) if isinstance(array, ShardedArray) else array for array in arrays]
    split = sklearn.model_selection.train_test_split(
        *stand_ins,
        test_size=test_size,
        train_size=train_size,
        random_state=random_state,
        shuffle=shuffle,
        stratify=stratify.gather().ravel() if isinstance(stratify, ShardedArray) else stratify,
    )
    parts = iter(split)
    made: list[Any] = []
    for array in arrays:
        for _ in range(2):
            part = next(parts)
            made.append(_selected(array, part) if isinstance(array, ShardedArray) else part)
    return made


def _selected(handle: ShardedArray, places: np.ndarray) -> ShardedArray:
    """The rows at these places, as even as possible on the engines."""
    cluster = current_cluster()
    bounds = bounds_of(len(places), cluster.size)
    shape = (len(places), *handle.shape[1:])
    who = Functions("model_selection")
    array = cluster.made_handle(shape, handle.dtype, bounds, handle.columns)
    with (
        Call(who, "train_test_split", handle, cluster) as call,
        Outgoing(cluster.blocks) as outgoing,
        Outgoing(cluster.blocks) as order,
    ):
        call.send(
            "select",
            Packing(who, outgoing, call, handle),
            chosen=order.send(np.ascontiguousarray(places, np.int64)),
            new_bounds=bounds,
            kept={"handle": array.id, "about": array.about()},
        )
    return array
