"""What all estimators of neighbours share: rows that stay on the engines, and the search in them."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.neighbors import BallTree, KDTree
from sklearn.neighbors._base import NeighborsBase
from sklearn.utils.validation import _to_object_array, check_is_fitted

from xpulab.data import Outgoing, ShardedArray, bounds_of, mapped
from xpulab.deploy.answers import Answer
from xpulab.deploy.cluster import XPUCluster, current_cluster
from xpulab.estimator.call import Call
from xpulab.estimator.interrupted import CallInterrupted
from xpulab.estimator.proxy import Proxy, Result
from xpulab.estimator.rows import Packing
from xpulab.neighbors._metric import Distance, distance_of

__all__ = ["NeighborsProxy"]


class _Searched:
    """Queries, and the rows that are searched unless the engines have them already, on their way to the engines.

    Parameters
    ----------
    estimator : NeighborsProxy
    outgoing : Outgoing
    call : Call
    queries : numpy.ndarray, optional
    results : mapping of str to Result, optional
        Results with one entry per query, by the name of the task's argument.
    given : array or ShardedArray, optional
        The queries as they were given, for the results.

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
        """Where rows and queries are, and where results go."""
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
    """Base of estimators of neighbours; put it before scikit-learn's class.

    The engines keep the rows of the fit. Where they do not have them any more, because the cluster was started again
    or is another one, the next call sends them again from this process.
    """

    #: The row that is copied, the half norm and the zero.
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
            raise TypeError(f"a {type(X).__name__} was given, and rows are expected; pass those it was made of")
        distance = distance_of(self)
        X = self._checked(cluster, X, reset=True)
        self._read_targets(cluster, X, y)
        self._distance, self._fit_X, self._index = distance, X, None
        self._fit_method, self._tree, self.n_samples_fit_ = "engines", None, X.shape[0]
        with self._fitting(X):
            self._call(cluster, "fit", "neighbors.index", X)
        return self

    def _read_targets(self, cluster: XPUCluster, X: Any, y: Any) -> None:
        """What is known of the rows besides where they are."""

    def _is_on(self, cluster: XPUCluster) -> bool:
        """Whether the engines have the rows."""
        return self._index is not None and self._index.is_on(cluster)

    def _keep_on(self, cluster: XPUCluster) -> None:
        """A handle for the rows that are about to be sent; they are freed when it dies."""
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
        """Run a task on the rows of the fit; the queries are X, unless this is the fit."""
        fits = method == "fit"
        with Call(self, method, X, cluster) as call, cluster.outgoing() as outgoing:
            if fits:
                self.report_ = call.report
            packing = _Searched(self, outgoing, call, None if fits else X, results, given)
            try:
                answer = call.send(task, packing, **arguments)
                packing.sends = False
            except KeyboardInterrupt:
                again = "; type: fit(X) again" if fits else ""
                raise CallInterrupted(f"{type(self).__name__}.{method} was interrupted{again}") from None
            finally:
                if packing.sends:
                    self._index = None  # some of the engines may have the rows, and others not
        return answer

    def _read_queries(self, cluster: XPUCluster, X: Any) -> tuple[np.ndarray, Any]:
        """Queries as an array of this process, and as they were given; raises before anything is sent."""
        if X is None:
            X = self._fit_X
        elif mapped(X) is not None:
            X = np.asarray(X)  # the engines all need it, and so this process copies it
        if X is not self._fit_X:
            X = self._checked(cluster, X, reset=False, look_now=True)
        return (X.gather() if isinstance(X, ShardedArray) else X), X

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        """The nearest rows of the fit to each query, and how far they are.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_queries, n_features), optional
            By default the rows of the fit, each of which is then not its own neighbour.
        n_neighbors : int, optional
            By default the estimator's.
        return_distance : bool, default=True

        Returns
        -------
        neigh_dist : ndarray of float64 of shape (n_queries, n_neighbors)
            In their order; only if `return_distance`.
        neigh_ind : ndarray of int64 of shape (n_queries, n_neighbors)
            Of rows that are equally far the first come first.

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
        """
        check_is_fitted(self)
        k = self.n_neighbors if n_neighbors is None else n_neighbors
        if n_neighbors is not None and n_neighbors <= 0:
            raise ValueError(f"Expected n_neighbors > 0. Got {n_neighbors:d}")
        if not isinstance(k, numbers.Integral):
            raise TypeError(f"n_neighbors does not take {type(k)} value, enter integer value")
        cluster, own = self._cluster(), X is None
        queries, given = self._read_queries(cluster, X)
        n = self.n_samples_fit_
        if k + own > n:
            raise ValueError(
                f"Expected n_neighbors {'<' if own else '<='} n_samples_fit, but n_neighbors = {k}, n_samples_fit = "
                f"{n}, n_samples = {queries.shape[0]}"
            )
        results = {"compared": Result(int(k), np.float64), "places": Result(int(k), np.int64)}
        self._call(cluster, "kneighbors", "neighbors.nearest", queries, results, given, k=int(k), own=own)
        compared, places = (result.value for result in results.values())
        return (self._distance.of(compared), places) if return_distance else places

    def radius_neighbors(
        self, X: Any = None, radius: float | None = None, return_distance: bool = True, sort_results: bool = False
    ) -> Any:
        """The rows of the fit that are no farther than a radius from each query, and how far they are.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_queries, n_features), optional
            By default the rows of the fit, each of which is then not its own neighbour.
        radius : float, optional
            By default the estimator's.
        return_distance : bool, default=True
        sort_results : bool, default=False
            Whether the nearest come first; the order is that of the rows otherwise.

        Returns
        -------
        neigh_dist : ndarray of shape (n_queries,) of ndarray of float64
            Only if `return_distance`.
        neigh_ind : ndarray of shape (n_queries,) of ndarray of int64

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
        """
        check_is_fitted(self)
        if sort_results and not return_distance:
            raise ValueError("return_distance must be True if sort_results is True.")
        cluster, own = self._cluster(), X is None
        queries, given = self._read_queries(cluster, X)
        limit = self.radius if radius is None else radius
        if np.ndim(limit) or not limit >= 0:
            raise ValueError(f"radius={limit!r} was given, and one number of at least 0 is expected")
        limit = float(limit) ** self._distance.power
        answer = self._call(cluster, "radius_neighbors", "neighbors.within", queries, limit=limit)
        compared, places = [], []
        for i, near, some in _by_query(answer.results, cluster.entries(given)):
            kept = some != i if own else slice(None)
            near, some = near[kept], some[kept]
            order = np.argsort(near, kind="stable") if sort_results else slice(None)
            compared.append(self._distance.of(near[order]))
            places.append(some[order])
        found = _to_object_array(places)
        return (_to_object_array(compared), found) if return_distance else found

    def to_sklearn(self) -> Any:
        """A plain scikit-learn estimator with the same parameters and rows, which needs no cluster.

        Raises
        ------
        NotFittedError
        HandleError
            If the rows were given as a handle, and are gone.
        """
        plain = super().to_sklearn()
        for name in ("_distance", "_index"):
            vars(plain).pop(name, None)
        plain._fit_method = "brute"
        if isinstance(self._fit_X, ShardedArray):
            plain._fit_X = self._fit_X.gather()
        return plain

    def __getstate__(self) -> dict[str, Any]:
        """Without the handle of the rows on the engines: a copy sends them when it needs them."""
        state = {name: value for name, value in super().__getstate__().items() if name != "_index"}
        if isinstance(state.get("_fit_X"), ShardedArray):
            raise TypeError(
                f"the rows of this {type(self).__name__} are a ShardedArray, which stays with its cluster; pickle "
                "to_sklearn(), or an estimator that was fitted to X.gather()"
            )
        return state


def _by_query(results: list[dict[str, Any]], queries: range) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Each query, what is compared, and the places: those of the first rank come first."""
    ends = [np.concatenate([[0], np.cumsum(result["counts"])]) for result in results]
    for i in queries:
        parts = [slice(end[i], end[i + 1]) for end in ends]
        compared, places = (
            np.concatenate([result[name][part] for result, part in zip(results, parts, strict=True)])
            for name in ("compared", "places")
        )
        yield i, compared, places
