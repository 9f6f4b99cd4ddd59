"""`train_test_split`: splits rows on the engines with scikit-learn's permutation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import sklearn.model_selection

from xpulab._sklearn import _validate_shuffle_split
from xpulab.calls import public_call
from xpulab.csr import ShardedCSR
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.tasks.limits import require_free
from xpulab.estimator.call import Call, Functions
from xpulab.scanning import Scan
from xpulab.sharing.sources import bounds_of

__all__ = ["train_test_split"]

_MANY = 1_000_000  # rows, which NumPy permutes in a twentieth of a second


@public_call
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
    *arrays : ShardedArray, Scan or array-like, each of n_samples rows
        The rows of a handle move between the engines, and the results are handles. A scan gives scans, for which
        nothing is read. An array gives arrays.
    test_size, train_size : float or int, optional
        A share of the rows, or a number of rows. By default a quarter of the rows are test rows.
    random_state : int, RandomState instance or None, default=None
        The same number gives the same rows in the same order as in scikit-learn.
    shuffle : bool, default=True
        Whether to permute the rows before the split.
    stratify : array-like, ShardedArray or Scan of shape (n_samples,), optional
        Labels that have the same shares in both parts. The labels of a handle or scan are read into this process.

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
    Rows of a scan that were permuted are read in passes over its files: one for each 256 MB of a rank's rows.
    """
    for array in arrays:
        if isinstance(array, ShardedArray):
            array.source(current_ranks())
    _require_room(arrays, test_size, train_size)
    stand_ins = [_Numbers(array.shape[0]) if isinstance(array, ShardedArray | Scan) else array for array in arrays]
    if isinstance(stratify, ShardedArray):
        found = np.ravel(stratify.gather())
        stratify.require_exact(found)
        stratify = found
    elif isinstance(stratify, Scan):
        stratify = np.ravel(stratify.read())
    split = functools.partial(
        sklearn.model_selection.train_test_split,
        *stand_ins,
        test_size=test_size,
        train_size=train_size,
        random_state=random_state,
        shuffle=shuffle,
        stratify=stratify,
    )
    many = any(isinstance(each, _Numbers) and len(each) > _MANY for each in stand_ins)
    parts = iter(_in_a_thread(split) if many else split())
    made: list[Any] = []
    with ExitStack() as undone:  # a traceback would hold the handles that the user does not get
        for array in arrays:
            for _ in range(2):
                part = next(parts)
                if isinstance(array, Scan):
                    part = array.chosen(part)
                made.append(_selected(array, part) if isinstance(array, ShardedArray) else part)
                if isinstance(array, ShardedArray):
                    undone.callback(made[-1].discard)
        undone.pop_all()
    return made


class _Numbers:
    """Stands in for rows that scikit-learn splits: some of them are their numbers.

    Parameters
    ----------
    n : int
        Number of rows.
    """

    def __init__(self, n: int) -> None:
        self.shape = (n,)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> np.ndarray:
        rows: np.ndarray = np.asarray(key[0] if isinstance(key, tuple) else key)
        return rows


def _in_a_thread(call: Callable[[], list[Any]]) -> list[Any]:
    """Return what a call returns that Ctrl-C would not end: NumPy permutes 60 million numbers in four seconds."""
    pool = ThreadPoolExecutor(1, "xpulab-split")
    try:
        return pool.submit(call).result()
    finally:
        pool.shutdown(wait=False)


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
    cluster = current_ranks()
    bounds = bounds_of(len(places), cluster.size)
    shape = (len(places), *handle.shape[1:])
    stored = handle.stored if isinstance(handle, ShardedCSR) else None  # until the engines have told how many there are
    array = cluster.made_handle(shape, handle.dtype, bounds, handle.described, nan=handle.nan, stored=stored)
    chosen = np.ascontiguousarray(places, np.int64)
    with Call(Functions("model_selection"), "train_test_split", handle, cluster) as call:
        call.outgoing.after_error(array.discard)
        answer = call.ask(
            "select",
            send_more=lambda outgoing: {"chosen": outgoing.send(chosen)},
            new_bounds=bounds,
            kept=array.handle,
        )
        if isinstance(array, ShardedCSR):
            array.stored = answer.results[0]["stored"]
    return array
