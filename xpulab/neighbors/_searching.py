"""The code that all estimators of neighbours share: rows that stay on the engines, and the search for neighbours."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.neighbors import BallTree, KDTree
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import NeighborsBase, _to_object_array
from xpulab.data import Outgoing, ShardedArray, bounds_of, mapped
from xpulab.deploy.cluster import XPUCluster, current_cluster
from xpulab.deploy.tasks.answers import Answer
from xpulab.estimator.call import Call
from xpulab.estimator.proxy import Proxy, Result
from xpulab.estimator.rows import Packing, rows_at_once
from xpulab.neighbors._metric import Distance, distance_of

__all__ = ["NeighborsProxy"]


class _Searched:
    """Sends the queries of a search, and the rows of the fit unless the engines have them already.

    Parameters
    ----------
    estimator : NeighborsProxy
    outgoing : Outgoing
    call : Call
    queries : numpy.ndarray of shape (n_queries, n_features), optional
        None during a fit.
    results : mapping of str to Result, optional
        Argument of the task -> the result with one entry per query that the task writes there.
    given : array or ShardedArray, optional
        The queries as the user passed them. If they are a handle, each rank returns the results of its own queries.

    Attributes
    ----------
    again : bool
        Whether the rows can be sent again.
    sends : bool
        Whether the rows are sent with this call.
    """

    def __init__(
        self,
        estimator: NeighborsProxy,
        outgoing: Outgoing,
        call: Call,
        queries: Any = None,
        results: Mapping[str, Result] | None = None,
        given: Any = None,
    ) -> None:
        self._estimator, self._outgoing, self._call = estimator, outgoing, call
        self._queries, self._results, self._given = queries, results or {}, given
        self._rows = Packing(estimator, outgoing, call, estimator._fit_X, rules=estimator._rules)
        self.again = self._rows.again
        self.sends = False

    def __call__(self) -> dict[str, Any]:
        """Send rows and queries; return the descriptions of rows, queries and results for the engines."""
        cluster, estimator = self._call.cluster, self._estimator
        self._outgoing.drop()
        sent: dict[str, Any] = {"metric": estimator._distance.metric, "rows": None}
        self.sends = not estimator._is_on(cluster)
        if self.sends:
            sent["rows"] = self._rows()
            estimator._keep_on(cluster)
        assert estimator._index is not None
        sent["index"] = estimator._index.id
        if self._queries is None:
            return sent
        with self._call.transfer():
            sent["queries"] = self._outgoing.send(self._queries)
        sent["bounds"] = estimator._index.bounds
        if self._results:
            given = self._given
            split = isinstance(given, ShardedArray)
            sent["shares"] = given.bounds if split else bounds_of(given.shape[0], cluster.size)
            for name, result in self._results.items():
                sent |= {name: result.place(cluster, self._outgoing, given)["target"]}
        return sent


class NeighborsProxy(Proxy):
    """Base class of estimators of neighbours. Among the bases, it comes before scikit-learn's class.

    The engines keep the rows of the fit. If the cluster was restarted, or another one is active, the next call sends
    the rows again from this process, unless they were passed as a handle.
    """

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}
    #: A copy of the rows, and for each row two numbers with which its scores begin: half its squared norm, and zero.
    _work_memory: ClassVar[tuple[float, float]] = (16.0, 1.0)

    n_neighbors: int
    radius: float
    n_samples_fit_: int
    _fit_X: Any
    _distance: Distance
    _index: ShardedArray | None = None

    def _fit(self, X: Any, y: Any = None) -> Any:
        cluster = current_cluster()
        if isinstance(X, (KDTree, BallTree, NeighborsBase)):
            raise TypeError(f"a {type(X).__name__} was given; expected rows: pass the array that it was made from")
        distance = distance_of(self)
        X = self._checked(cluster, X, reset=True)
        self._read_targets(cluster, X, y)
        self._distance, self._fit_X, self._index = distance, X, None
        self._fit_method, self._tree, self.n_samples_fit_ = "engines", None, X.shape[0]
        with self._fitting(X):
            self._call(cluster, "fit", "neighbors.index", X)
        return self

    def _read_targets(self, cluster: XPUCluster, X: Any, y: Any) -> None:
        """Check and keep the targets of a fit. Estimators without targets do nothing."""

    def _is_on(self, cluster: XPUCluster) -> bool:
        """Return whether the engines of the cluster have the rows of the fit."""
        return self._index is not None and self._index.is_on(cluster)

    def _keep_on(self, cluster: XPUCluster) -> None:
        """Make a handle for the rows that are about to be sent. The engines free them when Python deletes it."""
        X = self._fit_X
        bounds = X.bounds if isinstance(X, ShardedArray) else bounds_of(X.shape[0], cluster.size)
        self._index = cluster.made_handle(X.shape, X.dtype, bounds)

    def _call(
        self,
        cluster: XPUCluster,
        method: str,
        task: str,
        X: Any,
        results: Mapping[str, Result] | None = None,
        given: Any = None,
        **arguments: Any,
    ) -> Answer:
        """Run a task on the rows of the fit. X is the queries, or during a fit the rows."""
        fits = method == "fit"
        with Call(self, method, X, cluster) as call, cluster.outgoing() as outgoing:
            if fits:
                self.report_ = call.report
            packing = _Searched(self, outgoing, call, None if fits else X, results, given)
            try:
                answer = call.send(task, packing, **arguments)
                packing.sends = False
            finally:
                if packing.sends:
                    self._index = None  # the call failed: perhaps only some of the engines have the rows
        return answer

    def _read_queries(self, cluster: XPUCluster, X: Any) -> tuple[np.ndarray, Any]:
        """Return the checked queries as an array in this process, and in the form in which they were passed."""
        if X is None:
            X = self._fit_X
        elif mapped(X) is not None:
            X = np.asarray(X)  # all engines need all queries, so this process reads them from the file
        if X is not self._fit_X:
            X = self._checked(cluster, X, reset=False, look_now=True)
        return (X.gather() if isinstance(X, ShardedArray) else X), X

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        """Find the rows of the fit that are nearest to each query.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_queries, n_features), optional
            Queries. By default these are the rows of the fit, and a row is not its own neighbour.
        n_neighbors : int, optional
            Number of neighbours of a query; the estimator's `n_neighbors` by default.
        return_distance : bool, default=True
            Whether to return the distances.

        Returns
        -------
        neigh_dist : ndarray of float64 of shape (n_queries, n_neighbors)
            Distances of the neighbours in ascending order; only with `return_distance`.
        neigh_ind : ndarray of int64 of shape (n_queries, n_neighbors)
            Indices of the neighbours. Of rows at the same distance, the row with the lowest index comes first.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects. Nothing has been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        KeyboardInterrupt
            If the user interrupted the search.
        """
        check_is_fitted(self)
        k = self.n_neighbors if n_neighbors is None else n_neighbors
        if not isinstance(k, numbers.Integral):
            raise TypeError(f"n_neighbors does not take {type(k)} value, enter integer value")
        if k <= 0:
            raise ValueError(f"Expected n_neighbors > 0. Got {k:d}")
        cluster, own = self._cluster(), X is None
        if mapped(X) is not None:
            at_once = rows_at_once(self, cluster, X, 16.0 * k * X.shape[0])
            if at_once < X.shape[0]:
                starts = range(0, X.shape[0], at_once)
                found = [self.kneighbors(X[start : start + at_once], k, return_distance) for start in starts]
                return (
                    tuple(map(np.concatenate, zip(*found, strict=True))) if return_distance else np.concatenate(found)
                )
        queries, given = self._read_queries(cluster, X)
        n = self.n_samples_fit_
        if k + own > n:
            raise ValueError(
                f"Expected n_neighbors {'<' if own else '<='} n_samples_fit, but n_neighbors = {k}, n_samples_fit = "
                f"{n}, n_samples = {queries.shape[0]}"
            )
        results = {"compared": Result(int(k), np.float64), "places": Result(int(k), np.int64)}
        answer = self._call(cluster, "kneighbors", "neighbors.nearest", queries, results, given, k=int(k), own=own)
        compared, places = (result.value for result in results.values())
        return (self._distance.of(compared, answer.results[0]["unit"]), places) if return_distance else places

    def radius_neighbors(
        self, X: Any = None, radius: float | None = None, return_distance: bool = True, sort_results: bool = False
    ) -> Any:
        """Find the rows of the fit whose distance from a query is at most a radius.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_queries, n_features), optional
            Queries. By default these are the rows of the fit, and a row is not its own neighbour.
        radius : float, optional
            Largest distance; the estimator's `radius` by default.
        return_distance : bool, default=True
            Whether to return the distances.
        sort_results : bool, default=False
            Whether to sort the neighbours of a query by distance instead of index.

        Returns
        -------
        neigh_dist : ndarray of shape (n_queries,) of ndarray of float64
            Distances of the neighbours of each query; only with `return_distance`.
        neigh_ind : ndarray of shape (n_queries,) of ndarray of int64
            Indices of the neighbours of each query.

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError, KeyboardInterrupt
            As `kneighbors`.
        """
        check_is_fitted(self)
        if sort_results and not return_distance:
            raise ValueError("return_distance must be True if sort_results is True.")
        cluster, own = self._cluster(), X is None
        queries, given = self._read_queries(cluster, X)
        limit = self.radius if radius is None else radius
        if np.ndim(limit) or not limit >= 0:
            raise ValueError(f"radius={limit!r} was given, and one number of at least 0 is expected")
        radius, power = float(limit), self._distance.power
        answer = self._call(cluster, "radius_neighbors", "neighbors.within", queries, radius=radius, power=power)
        compared, places = [], []
        for i, near, some in _by_query(answer.results, cluster.entries(given)):
            kept = some != i if own else slice(None)
            near, some = near[kept], some[kept]
            order = np.argsort(near, kind="stable") if sort_results else slice(None)
            compared.append(self._distance.of(near[order], answer.results[0]["unit"]))
            places.append(some[order])
        found = _to_object_array(places)
        return (_to_object_array(compared), found) if return_distance else found

    def to_sklearn(self) -> Any:
        """Return scikit-learn's estimator with the same parameters and rows. It needs no cluster.

        Returns
        -------
        sklearn.base.BaseEstimator

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        HandleError
            If the rows are those of a handle, and were freed.
        """
        plain = super().to_sklearn()
        for name in ("_distance", "_index"):
            vars(plain).pop(name, None)
        plain._fit_method = "brute"
        if isinstance(self._fit_X, ShardedArray):
            plain._fit_X = self._fit_X.gather()
        return plain

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the handle of the rows on the engines. A copy sends the rows again if needed.

        Raises
        ------
        TypeError
            If the estimator was fitted to a `ShardedArray`.
        """
        state = {name: value for name, value in super().__getstate__().items() if name != "_index"}
        if isinstance(state.get("_fit_X"), ShardedArray):
            raise TypeError(
                f"the rows of this {type(self).__name__} are a ShardedArray, which stays with its cluster; pickle "
                "to_sklearn(), or an estimator that was fitted to X.gather()"
            )
        return state


def _by_query(results: list[dict[str, Any]], queries: range) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the index of each query, and the compared numbers and indices of its neighbours, in the order of ranks."""
    ends = [np.concatenate([[0], np.cumsum(result["counts"])]) for result in results]
    for i in queries:
        parts = [slice(end[i], end[i + 1]) for end in ends]
        compared, places = (
            np.concatenate([result[name][part] for result, part in zip(results, parts, strict=True)])
            for name in ("compared", "places")
        )
        yield i, compared, places
