"""Distances between all pairs of rows, and the nearest of other rows to each row, which the engines compute."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.metrics
from sklearn.exceptions import DataConversionWarning
from sklearn.metrics.pairwise import PAIRWISE_BOOLEAN_FUNCTIONS, check_pairwise_arrays
from sklearn.utils import gen_batches

from xpulab._sklearn import _VALID_METRICS, _check_chunk_size, get_chunk_n_rows
from xpulab.calls import public_call
from xpulab.checks import check_array, place_named
from xpulab.csr import is_sparse, require_dense
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.call import Call, Functions
from xpulab.estimator.rows import FLOATS, given_dtype, in_floats
from xpulab.estimator.sending import Result
from xpulab.neighbors import NearestNeighbors
from xpulab.scanning import Scan, read_here, scanned

__all__ = [
    "pairwise_distances",
    "pairwise_distances_argmin",
    "pairwise_distances_argmin_min",
    "pairwise_distances_chunked",
]

#: Metrics that depend on all rows, unless an argument says how; and what this is.
_OF_ALL_ROWS = {"seuclidean": "V", "mahalanobis": "VI"}
#: Metrics by which the engines look for neighbours, with scikit-learn's other names for them.
_OF_NEIGHBORS = {"euclidean", "l2", "sqeuclidean", "manhattan", "l1", "cityblock", "chebyshev", "cosine", "minkowski"}


@public_call
def pairwise_distances(
    X: Any, Y: Any = None, metric: str = "euclidean", *, n_jobs: int | None = None, ensure_all_finite: Any = True,
    **kwds: Any,
) -> npt.NDArray[Any]:  # fmt: skip
    """Return the distance of each row of X from each row of Y, as `sklearn.metrics.pairwise_distances`.

    Each engine computes the distances of its rows, with the functions of scikit-learn and SciPy, and writes them into
    the memory of this process.

    Parameters
    ----------
    X : array-like, ShardedArray or Scan of shape (n_samples_X, n_features)
        Rows. Files are read by the engines themselves.
    Y : array-like, ShardedArray or Scan of shape (n_samples_Y, n_features), optional
        Other rows, which come to all engines through this process; X by default.
    metric : str, default="euclidean"
        A name that scikit-learn takes, without "precomputed".
    n_jobs : int, optional
        Accepted and ignored: all engines compute.
    ensure_all_finite : bool or "allow-nan", default=True
        Whether NaN and infinity raise ValueError. "nan_euclidean" always takes NaN.
    **kwds : Any
        Arguments of the metric, such as `p` for "minkowski". "seuclidean" needs `V`, and "mahalanobis" `VI`.

    Returns
    -------
    ndarray of shape (n_samples_X, n_samples_Y)

    Raises
    ------
    ValueError, TypeError
        For input that scikit-learn rejects, sparse matrices, functions of two rows, and "precomputed".
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    _require_computed("pairwise_distances", metric, kwds)
    nan = "allow-nan" if metric == "nan_euclidean" else ensure_all_finite
    _warn_of_conversion(metric, X, Y)
    rows, others = _checked(X, Y, nan)
    found = _distances("pairwise_distances", rows, others, metric, kwds, nan)
    if Y is None or Y is X:
        np.fill_diagonal(found, 0)
    return found


def pairwise_distances_chunked(
    X: Any, Y: Any = None, *, reduce_func: Callable[[Any, int], Any] | None = None, metric: str = "euclidean",
    n_jobs: int | None = None, working_memory: float | None = None, **kwds: Any,
) -> Iterator[Any]:  # fmt: skip
    """Return an iterator over blocks of distances, as `sklearn.metrics.pairwise_distances_chunked`.

    Parameters
    ----------
    X, Y : array-like, ShardedArray or Scan
        As for `pairwise_distances`.
    reduce_func : callable, optional
        Called in this process with a block and the number of its first row; its result is yielded in place of the
        block.
    metric : str, default="euclidean"
        As for `pairwise_distances`.
    n_jobs : int, optional
        Accepted and ignored.
    working_memory : float, optional
        MiB of a block; by default the setting of scikit-learn.
    **kwds : Any
        Arguments of the metric.

    Returns
    -------
    iterator of ndarray, or of results of `reduce_func`

    Raises
    ------
    ValueError, TypeError
        As `pairwise_distances`; also if a result of `reduce_func` has another length than its block.
    """
    _require_computed("pairwise_distances_chunked", metric, kwds)
    nan = "allow-nan" if metric == "nan_euclidean" else True
    _warn_of_conversion(metric, X, Y)
    rows, others = _checked(X, Y, nan)
    return _blocks(rows, others, Y is None or Y is X, reduce_func, metric, working_memory, kwds, nan)


def pairwise_distances_argmin_min(
    X: Any, Y: Any, *, axis: int = 1, metric: str = "euclidean", metric_kwargs: Mapping[str, Any] | None = None
) -> tuple[npt.NDArray[np.intp], npt.NDArray[Any]]:
    """Return the nearest row of Y to each of X, and its distance, as `sklearn.metrics.pairwise_distances_argmin_min`.

    The engines look for nearest neighbours, and write no other distances. Of rows that are equally near, the first
    counts.

    Parameters
    ----------
    X, Y : array-like, ShardedArray or Scan
        As for `pairwise_distances`; both stay where they are.
    axis : {0, 1}, default=1
        0 for the nearest row of X to each row of Y.
    metric : str, default="euclidean"
        As for `pairwise_distances`.
    metric_kwargs : dict, optional
        Arguments of the metric.

    Returns
    -------
    argmin : ndarray of int of shape (n_samples_X,), or (n_samples_Y,) with `axis` 0
    distances : ndarray of the same shape

    Raises
    ------
    ValueError, TypeError, NoClusterError, HandleError
        As `pairwise_distances`.
    """
    if axis not in (0, 1):
        raise ValueError(f"axis={axis!r} was given; expected 0 or 1")
    kwds = dict(metric_kwargs or {})
    _require_computed("pairwise_distances_argmin_min", metric, kwds)
    queries, rows = (X, Y) if axis == 1 else (Y, X)
    if metric in _OF_NEIGHBORS and set(kwds) <= {"p"}:
        squared = metric == "sqeuclidean"
        model = NearestNeighbors(n_neighbors=1, metric="euclidean" if squared else metric, p=kwds.get("p", 2))
        distances, places = model.fit(rows).kneighbors(queries)
        return places[:, 0], distances[:, 0] ** 2 if squared else distances[:, 0]
    parts = list(pairwise_distances_chunked(queries, rows, reduce_func=_nearest, metric=metric, **kwds))
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def pairwise_distances_argmin(
    X: Any, Y: Any, *, axis: int = 1, metric: str = "euclidean", metric_kwargs: Mapping[str, Any] | None = None
) -> npt.NDArray[np.intp]:
    """Return the nearest row of Y to each row of X, as `sklearn.metrics.pairwise_distances_argmin`.

    Parameters
    ----------
    X, Y : array-like, ShardedArray or Scan
    axis : {0, 1}, default=1
    metric : str, default="euclidean"
    metric_kwargs : dict, optional
        All as for `pairwise_distances_argmin_min`.

    Returns
    -------
    ndarray of int of shape (n_samples_X,), or (n_samples_Y,) with `axis` 0

    Raises
    ------
    ValueError, TypeError, NoClusterError, HandleError
        As `pairwise_distances`.
    """
    return pairwise_distances_argmin_min(X, Y, axis=axis, metric=metric, metric_kwargs=metric_kwargs)[0]


def _nearest(distances: npt.NDArray[Any], start: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[Any]]:
    places = distances.argmin(axis=1)
    return places, distances[np.arange(len(distances)), places]


def _require_computed(function: str, metric: Any, given: Mapping[str, Any]) -> None:
    """Raise ValueError for metrics that the engines do not compute."""
    theirs = f"use sklearn.metrics.{function}"
    if not isinstance(metric, str) or metric == "precomputed":
        raise ValueError(f"metric={metric!r} was given; expected the name of a metric of rows; for others {theirs}")
    if metric not in _VALID_METRICS:
        raise ValueError(f"Unknown metric {metric}. Valid metrics are {_VALID_METRICS}")
    needed = _OF_ALL_ROWS.get(metric)
    if needed is not None and given.get(needed) is None:
        raise ValueError(
            f"metric={metric!r} without {needed} depends on all rows of X and Y; pass {needed}=..., or {theirs}"
        )


def _warn_of_conversion(metric: str, X: Any, Y: Any) -> None:
    """Warn, as scikit-learn does, that a metric compares what is not zero."""
    if metric in PAIRWISE_BOOLEAN_FUNCTIONS and any(
        given_dtype(each) != np.bool_ for each in (X, Y) if each is not None
    ):
        warnings.warn(f"Data was converted to boolean for metric {metric}", DataConversionWarning, stacklevel=3)


def _checked(X: Any, Y: Any, nan: Any) -> tuple[Any, npt.NDArray[Any]]:
    """Check both as scikit-learn does. The rows of X stay where they are, and those of Y come to this process."""
    lazy = isinstance(X, ShardedArray | Scan) or scanned(X) is not None
    if not lazy and not isinstance(Y, ShardedArray | Scan):
        for each in (X, Y):
            if is_sparse(each):
                raise TypeError("sparse rows were given; expected dense rows: pass X.toarray()")
        with place_named(X), place_named(X if Y is None else Y):
            X, others = check_pairwise_arrays(X, Y, ensure_all_finite=nan)
        return in_floats(X), np.ascontiguousarray(others)
    every = [X if Y is None else Y, X]
    if isinstance(X, ShardedArray):
        require_dense(X)
        X.source(current_ranks())
    if nan is True and isinstance(X, ShardedArray):
        X.require_finite()
    others, rows = (_here(each) if number == 0 else _rows(each, nan) for number, each in enumerate(every))
    others = check_array(others, dtype=FLOATS, ensure_all_finite=nan, input_name="Y")
    if rows.ndim != 2 or rows.shape[1] != others.shape[1]:
        raise ValueError(
            f"Incompatible dimension for X and Y matrices: X has {rows.shape[1] if rows.ndim == 2 else 1} columns, "
            f"and Y {others.shape[1]}; expected rows with as many columns"
        )
    return rows, np.ascontiguousarray(others)


def _here(rows: Any) -> Any:
    """Return rows in this process."""
    return rows.gather() if isinstance(rows, ShardedArray) else read_here(rows) if scanned(rows) is not None else rows


def _rows(X: Any, nan: Any) -> Any:
    """Return X as it can be sent."""
    if isinstance(X, ShardedArray | Scan) or scanned(X) is not None:
        return X
    with place_named(X):
        return in_floats(check_array(X, dtype=FLOATS, ensure_all_finite=nan, input_name="X"))


def _distances(
    function: str, X: Any, others: npt.NDArray[Any], metric: str, given: Mapping[str, Any], nan: Any
) -> npt.NDArray[Any]:
    """Have the engines compute the distances of checked rows."""
    one = np.zeros((1, others.shape[1])) + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        like = sklearn.metrics.pairwise_distances(one.astype(X.dtype), one.astype(others.dtype), metric=metric, **given)
    result = Result(len(others), like.dtype)
    send = functools.partial(_sent, others)
    with Call(Functions("metrics"), function, X, current_ranks()) as call:
        call.ask(
            "metrics.distances", result=result, rules={"ensure_all_finite": nan}, send_more=send, metric=metric,
            given=dict(given),
        )  # fmt: skip
    found: npt.NDArray[Any] = result.value
    return found


def _sent(others: npt.NDArray[Any], outgoing: Any) -> dict[str, Any]:
    return {"others": outgoing.send(others)}


def _blocks(
    X: Any, others: npt.NDArray[Any], same: bool, reduce_func: Any, metric: str, working_memory: float | None,
    given: Mapping[str, Any], nan: Any,
) -> Iterator[Any]:  # fmt: skip
    """Yield blocks of distances, or what a function makes of them."""
    n, m = X.shape[0], len(others)
    n_rows = get_chunk_n_rows(row_bytes=8 * m, max_n_rows=n, working_memory=working_memory)
    for some in gen_batches(n, n_rows):
        rows = X if n_rows >= n else X[some]
        found = _distances("pairwise_distances_chunked", rows, others, metric, given, nan)
        if same:
            found.flat[some.start :: m + 1] = 0
        if reduce_func is None:
            yield found
            continue
        reduced = reduce_func(found, some.start)
        _check_chunk_size(reduced, len(found))
        yield reduced
