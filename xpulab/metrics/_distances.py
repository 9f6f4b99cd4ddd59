"""Distances between all pairs of rows, and the nearest of other rows to each row, which the engines compute."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
from xpulab.data import Outgoing, ShardedArray
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
    X: npt.ArrayLike | ShardedArray | Scan,
    Y: npt.ArrayLike | ShardedArray | Scan | None = None,
    metric: str = "euclidean",
    *,
    n_jobs: int | None = None,
    ensure_all_finite: bool | str = True,
    **kwds: Any,
) -> npt.NDArray[Any]:
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
    how = _Metric.checked("pairwise_distances", metric, kwds, ensure_all_finite)
    how.warn_of_conversion(X, Y)
    rows, others = _checked(X, Y, how.nan)
    found = _distances("pairwise_distances", rows, others, how)
    if Y is None or Y is X:
        np.fill_diagonal(found, 0)
    return found


def pairwise_distances_chunked(
    X: npt.ArrayLike | ShardedArray | Scan,
    Y: npt.ArrayLike | ShardedArray | Scan | None = None,
    *,
    reduce_func: Callable[[npt.NDArray[Any], int], Any] | None = None,
    metric: str = "euclidean",
    n_jobs: int | None = None,
    working_memory: float | None = None,
    **kwds: Any,
) -> Iterator[Any]:
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
    how = _Metric.checked("pairwise_distances_chunked", metric, kwds)
    how.warn_of_conversion(X, Y)
    rows, others = _checked(X, Y, how.nan)
    n_rows = get_chunk_n_rows(row_bytes=8 * len(others), max_n_rows=rows.shape[0], working_memory=working_memory)
    return _blocks(rows, others, how, n_rows, reduce_func, Y is None or Y is X)


def pairwise_distances_argmin_min(
    X: npt.ArrayLike | ShardedArray | Scan,
    Y: npt.ArrayLike | ShardedArray | Scan,
    *,
    axis: int = 1,
    metric: str = "euclidean",
    metric_kwargs: Mapping[str, Any] | None = None,
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
    _Metric.checked("pairwise_distances_argmin_min", metric, kwds)
    queries, rows = (X, Y) if axis == 1 else (Y, X)
    if metric in _OF_NEIGHBORS and set(kwds) <= {"p"}:
        squared = metric == "sqeuclidean"
        model = NearestNeighbors(n_neighbors=1, metric="euclidean" if squared else metric, p=kwds.get("p", 2))
        distances, places = model.fit(rows).kneighbors(queries)
        return places[:, 0], distances[:, 0] ** 2 if squared else distances[:, 0]
    parts = list(pairwise_distances_chunked(queries, rows, reduce_func=_nearest, metric=metric, **kwds))
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def pairwise_distances_argmin(
    X: npt.ArrayLike | ShardedArray | Scan,
    Y: npt.ArrayLike | ShardedArray | Scan,
    *,
    axis: int = 1,
    metric: str = "euclidean",
    metric_kwargs: Mapping[str, Any] | None = None,
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


@dataclass(frozen=True)
class _Metric:
    """A metric by its name, its arguments, and whether NaN and infinity are errors."""

    name: str
    given: Mapping[str, Any]
    nan: bool | str

    @classmethod
    def checked(cls, function: str, name: object, given: Mapping[str, Any], nan: bool | str = True) -> _Metric:
        """Return a metric; raise ValueError for those that the engines do not compute."""
        theirs = f"use sklearn.metrics.{function}"
        if not isinstance(name, str) or name == "precomputed":
            raise ValueError(f"metric={name!r} was given; expected the name of a metric of rows; for others {theirs}")
        if name not in _VALID_METRICS:
            raise ValueError(f"Unknown metric {name}. Valid metrics are {_VALID_METRICS}")
        needed = _OF_ALL_ROWS.get(name)
        if needed is not None and given.get(needed) is None:
            raise ValueError(
                f"metric={name!r} without {needed} depends on all rows of X and Y; pass {needed}=..., or {theirs}"
            )
        return cls(name, dict(given), "allow-nan" if name == "nan_euclidean" else nan)

    def warn_of_conversion(self, *rows: object) -> None:
        """Warn, as scikit-learn does, that a metric compares what is not zero."""
        others = [each for each in rows if each is not None and given_dtype(each) != np.bool_]
        if self.name in PAIRWISE_BOOLEAN_FUNCTIONS and others:
            warnings.warn(f"Data was converted to boolean for metric {self.name}", DataConversionWarning, stacklevel=3)

    def dtype_of(self, *dtypes: np.dtype[Any], n_features: int) -> np.dtype[Any]:
        """Return the dtype of distances between rows of two dtypes."""
        one = (np.ones((1, n_features), dtype) for dtype in dtypes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: np.dtype[Any] = sklearn.metrics.pairwise_distances(*one, metric=self.name, **self.given).dtype
        return found


def _nearest(distances: npt.NDArray[Any], start: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[Any]]:
    places = distances.argmin(axis=1)
    return places, distances[np.arange(len(distances)), places]


def _checked(X: Any, Y: Any, nan: bool | str) -> tuple[Any, npt.NDArray[Any]]:
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


def _rows(X: Any, nan: bool | str) -> Any:
    """Return X as it can be sent."""
    if isinstance(X, ShardedArray | Scan) or scanned(X) is not None:
        return X
    with place_named(X):
        return in_floats(check_array(X, dtype=FLOATS, ensure_all_finite=nan, input_name="X"))


def _distances(function: str, X: Any, others: npt.NDArray[Any], how: _Metric) -> npt.NDArray[Any]:
    """Have the engines compute the distances of checked rows."""
    result = Result(len(others), how.dtype_of(X.dtype, others.dtype, n_features=others.shape[1]))

    def send(outgoing: Outgoing) -> dict[str, object]:
        return {"others": outgoing.send(others)}

    with Call(Functions("metrics"), function, X, current_ranks()) as call:
        call.ask(
            "metrics.distances", result=result, rules={"ensure_all_finite": how.nan}, send_more=send, metric=how.name,
            given=how.given,
        )  # fmt: skip
    found: npt.NDArray[Any] = result.value
    return found


def _blocks(
    X: Any,
    others: npt.NDArray[Any],
    how: _Metric,
    n_rows: int,
    reduce_func: Callable[[npt.NDArray[Any], int], Any] | None,
    same: bool,
) -> Iterator[Any]:
    """Yield blocks of the distances of `n_rows` rows, or what a function makes of them."""
    for some in gen_batches(X.shape[0], n_rows):
        rows = X if n_rows >= X.shape[0] else X[some]
        found = _distances("pairwise_distances_chunked", rows, others, how)
        if same:
            found.flat[some.start :: len(others) + 1] = 0
        if reduce_func is None:
            yield found
            continue
        reduced = reduce_func(found, some.start)
        _check_chunk_size(reduced, len(found))
        yield reduced
