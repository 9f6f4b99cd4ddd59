"""`train_test_split`: splits rows on the engines with scikit-learn's permutation."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import sklearn.model_selection

from xpulab._sklearn import _validate_shuffle_split
from xpulab.data import ShardedArray, bounds_of
from xpulab.deploy.cluster import current_cluster
from xpulab.deploy.tasks.limits import require_free
from xpulab.deploy.watch.signals import interruptible
from xpulab.estimator.call import Call, Functions
from xpulab.estimator.rows import Packing

__all__ = ["train_test_split"]


@interruptible("model_selection.train_test_split")
def train_test_split(
    *arrays: Any,
    test_size: float | int | None = None,
    train_size: float | int | None = None,
    random_state: Any = None,
    shuffle: bool = True,
    stratify: Any = None,
) -> list[Any]:
    """Split rows into training rows and test rows, as `sklearn.model_selection.train_test_split` does.

    Parameters
    ----------
    *arrays : ShardedArray or array-like, each of n_samples rows
        The rows of a handle move between the engines, and the results are handles. An array gives arrays.
    test_size, train_size : float or int, optional
        A share of the rows, or a number of rows. By default a quarter of the rows are test rows.
    random_state : int, RandomState instance or None, default=None
        The same number gives the same rows in the same order as in scikit-learn.
    shuffle : bool, default=True
        Whether to permute the rows before the split.
    stratify : array-like or ShardedArray of shape (n_samples,), optional
        Labels that have the same shares in both parts. The labels of a handle are gathered in this process.

    Returns
    -------
    list
        For each array, the training rows and the test rows.

    Raises
    ------
    NoClusterError
        If an array is a handle, and no cluster is running.
    ValueError
        For arguments that scikit-learn rejects.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.

    Notes
    -----
    The rows that a rank receives go through host memory, which takes as much memory as the rank's share of a handle.
    """
    for array in arrays:
        if isinstance(array, ShardedArray):
            array.source(current_cluster())
    _require_room(arrays, test_size, train_size)
    # For a handle, scikit-learn splits the indices of the rows.
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
    with ExitStack() as undone:  # a traceback would hold the handles that the user does not get
        for array in arrays:
            for _ in range(2):
                part = next(parts)
                made.append(_selected(array, part) if isinstance(array, ShardedArray) else part)
                if isinstance(array, ShardedArray):
                    undone.callback(made[-1].discard)
        undone.pop_all()
    return made


def _require_room(arrays: tuple[Any, ...], test_size: Any, train_size: Any) -> None:
    """Raise an error if this process has no room for the parts of the arrays, which are copies of their rows."""
    here = [array for array in arrays if isinstance(array, np.ndarray) and array.ndim and len(array)]
    if not here:
        return
    n = len(here[0])
    share = sum(_validate_shuffle_split(n, test_size, train_size, default_test_size=0.25)) / n
    require_free(
        f"the split of arrays of {n:,} rows",
        int(share * sum(array.nbytes for array in here)),
        "split the numbers of the rows instead, train, test = train_test_split(numpy.arange(len(X))), and pass parts "
        "such as X[train[:1_000_000]] one after the other to partial_fit, ask for fewer rows with train_size and "
        "test_size",
    )


def _selected(handle: ShardedArray, places: np.ndarray) -> ShardedArray:
    """Return a handle for the rows with these indices, distributed evenly over the engines."""
    cluster = current_cluster()
    bounds = bounds_of(len(places), cluster.size)
    shape = (len(places), *handle.shape[1:])
    who = Functions("model_selection")
    array = cluster.made_handle(shape, handle.dtype, bounds, handle.columns, nan=handle.nan)
    with (
        Call(who, "train_test_split", handle, cluster) as call,
        cluster.outgoing() as outgoing,
        cluster.outgoing() as order,
    ):
        outgoing.after_error(array.discard)
        call.send(
            "select",
            Packing(who, outgoing, call, handle),
            chosen=order.send(np.ascontiguousarray(places, np.int64)),
            new_bounds=bounds,
            kept={"handle": array.id, "about": array.about()},
        )
    return array
