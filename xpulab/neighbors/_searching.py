"""The code that all estimators of neighbours share: rows that stay on the engines, and the search for neighbours."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.neighbors import BallTree, KDTree
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import NeighborsBase, _to_object_array
from xpulab.checks import instead_of_sparse
from xpulab.csr import is_sparse, require_dense, sent_csr
from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.deploy.tasks.answers import Answer
from xpulab.estimator.call import Call
from xpulab.estimator.columns import ScannedColumn, bounds_in
from xpulab.estimator.parts import may_come_in_parts, rows_at_once
from xpulab.estimator.proxy import Proxy
from xpulab.estimator.rows import checked_unnamed
from xpulab.estimator.sending import Packing, Result
from xpulab.neighbors._metric import Distance, distance_of
from xpulab.scanning import Scan, scanned

__all__ = ["NeighborsProxy"]

#: The ranks' names of the metrics for sparse rows.
_OF_SPARSE = ("euclidean", "cosine")


class _Searched:
    """Sends the queries of a search, and the rows of the fit unless the engines have them already.

    Parameters
    ----------
    estimator : NeighborsProxy
    ranks : Ranks
    queries : numpy.ndarray or ShardedArray of shape (n_queries, n_features), optional
        None during a fit. Queries of a handle stay on the engines, and each rank returns the results of its own.
    targets : ShardedArray, optional
        The targets of the rows of the fit, if the task uses them.
    tell : callable, optional
        As for `Packing`.

    Attributes
    ----------
    again : bool
        Whether the rows can be sent again.
    """

    def __init__(
        self,
        estimator: NeighborsProxy,
        ranks: Ranks,
        queries: Any = None,
        targets: Any = None,
        tell: Callable[[int, int, int], None] = lambda done, parts, nbytes: None,
    ) -> None:
        self._estimator, self._ranks, self._queries, self._targets = estimator, ranks, queries, targets
        self._X = estimator._searched_on(ranks)
        self._rows = Packing(
            estimator, ranks, self._X, rules=estimator._rules, task="neighbors.index", fits=True, tell=tell
        )
        self.again = self._rows.again and (queries.again if isinstance(queries, ShardedArray) else True)

    def require_room(self) -> None:
        """Raise an error if rows that are to be sent do not fit into memory."""
        if not self._estimator._is_on(self._ranks):
            self._rows.require_room()

    def __call__(self, outgoing: Outgoing) -> dict[str, Any]:
        """Send rows and queries; return the descriptions of rows and queries for the engines."""
        ranks, estimator, queries = self._ranks, self._estimator, self._queries
        sent: dict[str, Any] = {"metric": estimator._distance.metric, "rows": None}
        if not estimator._is_on(ranks):
            sent["rows"] = self._rows(outgoing)
            estimator._keep_on(ranks, outgoing, self._X)
            if self._rows.spool is not None:
                estimator._spool = self._rows.spool
        assert estimator._index is not None
        sent["index"] = estimator._index.id
        if queries is None:
            return sent
        if isinstance(queries, ShardedArray):
            sent["queries"] = queries.source(ranks)
        elif is_sparse(queries):
            sent["queries"] = sent_csr(outgoing, queries, bounds_in(queries, ranks.size))
        else:
            sent["queries"] = outgoing.send(queries)
        if self._targets is not None:
            sent["targets"] = self._targets.source(ranks)
        return sent | {"bounds": estimator._index.bounds}


class NeighborsProxy(Proxy):
    """Base class of estimators of neighbours. Among the bases, it comes before scikit-learn's class.

    The engines keep the rows of the fit. If the cluster was restarted, or another one is active, the next call sends
    the rows again from this process, unless they were passed as a handle. Rows of this process that do not fit into
    memory are in a file without a name as long as the engines search them.
    """

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric", "accept_sparse": "csr"}
    #: A copy of the rows, and for each row two numbers with which its scores begin: half its squared norm, and zero.
    _work_memory: ClassVar[tuple[float, float]] = (16.0, 1.0)

    algorithm: str
    n_neighbors: int
    radius: float
    weights: Any
    n_samples_fit_: int
    _fit_X: Any
    #: The targets of the rows, or the numbers of their classes; the targets or labels themselves of a handle or scan.
    _y: Any = None
    _distance: Distance
    _index: ShardedArray | None = None
    _spool: Scan | None = None

    def _fit(self, X: Any, y: Any = None) -> Any:
        cluster = current_ranks()
        if isinstance(X, (KDTree, BallTree, NeighborsBase)):
            raise TypeError(f"a {type(X).__name__} was given; expected rows: pass the array that it was made from")
        distance = distance_of(self)
        X = self._checked(cluster, X, reset=True)
        if is_sparse(X) and distance.name not in _OF_SPARSE:
            raise TypeError(
                f"metric={self.metric!r} is computed of dense rows, and X is sparse; of sparse rows are computed "
                f"'euclidean', 'sqeuclidean' and 'cosine'. {instead_of_sparse(X)}"
            )
        self._read_targets(cluster, X, y)
        self._distance, self._fit_X, self._index, self._spool = distance, X, None, None
        self._fit_method, self._tree, self.n_samples_fit_ = "engines", None, X.shape[0]
        with self._fitting(X):
            self._call(cluster, "fit", "neighbors.index", X)
        return self

    def _read_targets(self, cluster: Ranks, X: Any, y: Any) -> None:
        """Check and keep the targets of a fit. Estimators without targets do nothing."""

    def _is_on(self, cluster: Ranks) -> bool:
        """Return whether the engines of the cluster have the rows of the fit."""
        return self._index is not None and self._index.is_on(cluster)

    def _searched_on(self, cluster: Ranks) -> Any:
        """Return the rows of the fit, from their file without a name if they have one that the engines can read."""
        there = self._spool is not None and all(fact.here for fact in cluster.facts)
        return self._spool if there else self._fit_X

    def _keep_on(self, cluster: Ranks, outgoing: Outgoing, X: Any) -> None:
        """Make a handle for the rows that are about to be sent. The engines free them when Python deletes it."""

        def forget() -> None:  # perhaps only some of the engines have the rows
            self._index = self._spool = None

        outgoing.after_error(forget)
        self._index = cluster.made_handle(X.shape, X.dtype, bounds_in(X, cluster.size))

    def _call(
        self,
        cluster: Ranks,
        method: str,
        task: str,
        X: Any,
        results: Mapping[str, Result] | None = None,
        targets: ShardedArray | None = None,
        **arguments: Any,
    ) -> Answer:
        """Run a task on the rows of the fit, and their targets if it uses them.

        X is the queries, or during a fit the rows. `results` has the results with one entry per query, by the task's
        arguments for them.
        """
        fits = method == "fit"
        if results:
            arguments["shares"] = bounds_in(X, cluster.size)
        with Call(self, method, X, cluster) as call:
            if fits:
                self.report_ = call.report
            for name, result in (results or {}).items():
                arguments |= {name: result.place(cluster, call.outgoing, X)["target"]}
            return call.send(task, _Searched(self, cluster, None if fits else X, targets, call.tell), **arguments)

    def _checked_queries(self, cluster: Ranks, X: Any, own: bool = False) -> Any:
        """Return the checked queries, sparse if the rows of the fit are, or a handle as it is; those rows for None.

        With `own`, the queries are some of the rows of the fit.
        """
        queries, stored = self._in_their_form(cluster, X, own), is_sparse(self._fit_X)
        if not stored:
            require_dense(queries)
        elif not is_sparse(queries) and not isinstance(queries, ShardedArray):
            return sparse.csr_matrix(queries)
        return queries

    def _in_their_form(self, cluster: Ranks, X: Any, own: bool) -> Any:
        if X is None:
            X = self._fit_X
        if isinstance(X, Scan):  # all engines need all queries, so this process reads them
            if not own:
                self._checked(cluster, X, reset=False)  # the names of its columns, which the array has not
            return checked_unnamed(self, cluster, X.read(), self.n_features_in_, **self._rules)
        if X is not self._fit_X:
            rows = X if scanned(X) is None else np.asarray(X)  # of a memory map, too
            X = self._checked(cluster, rows, reset=False, look_now=True)
        elif isinstance(X, ShardedArray):
            X.source(cluster)
        return X

    def kneighbors(
        self,
        X: npt.ArrayLike | ShardedArray | None = None,
        n_neighbors: int | None = None,
        return_distance: bool = True,
    ) -> Any:
        """Find the rows of the fit that are nearest to each query.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_queries, n_features), optional
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
        distances, places, _ = self._nearest(X, n_neighbors, return_distance)
        return (distances, places) if return_distance else places

    def _nearest(
        self, X: Any, n_neighbors: int | None, return_distance: bool, with_targets: bool = False
    ) -> tuple[Any, Any, Any]:
        """Return distances and indices of the nearest rows, as `kneighbors`, and their targets; None if not wanted.

        The targets are float64 of shape (n_queries, n_neighbors, n_targets).
        """
        check_is_fitted(self)
        k = self.n_neighbors if n_neighbors is None else n_neighbors
        if not isinstance(k, numbers.Integral):
            raise TypeError(f"n_neighbors does not take {type(k)} value, enter integer value")
        if k <= 0:
            raise ValueError(f"Expected n_neighbors > 0. Got {k:d}")
        cluster, n, asked = self._cluster(), self.n_samples_fit_, self._fit_X if X is None else X
        if k + (X is None) > n:
            n_queries = self._checked_queries(cluster, X).shape[0] if scanned(asked) is None else asked.shape[0]
            raise ValueError(
                f"Expected n_neighbors {'<' if X is None else '<='} n_samples_fit, but n_neighbors = {k}, "
                f"n_samples_fit = {n}, n_samples = {n_queries}"
            )
        parts = [
            self._nearest_to(cluster, queries, k, return_distance, with_targets, own)
            for own, queries in self._some_queries(cluster, X, 16 * k)
        ]
        if len(parts) == 1:
            return parts[0]
        found = [None if each[0] is None else np.concatenate(each) for each in zip(*parts, strict=True)]
        return found[0], found[1], found[2]

    def _some_queries(self, cluster: Ranks, X: Any, result: int) -> Iterator[tuple[int | None, Any]]:
        """Yield checked queries: all of them, or as many at a time as fit, whose results take so many bytes each.

        With them comes the number of the first, if they are the rows of the fit. Queries of a file come to this process
        and to all engines, so that a file that is larger than memory takes several searches.
        """
        first, asked = (0, self._searched_on(cluster)) if X is None else (None, X)
        there = scanned(asked) is None
        if there:
            asked = self._checked_queries(cluster, X)
        if not may_come_in_parts(asked, "neighbors.nearest"):
            yield first, asked
            return
        n: int = asked.shape[0]
        step = rows_at_once(self, cluster, asked, float(result * n), None if there else max(16.0, result))
        for at in range(0, n, step):
            some = asked[at : at + step]
            yield None if first is None else at, some if there else self._checked_queries(cluster, some, X is None)

    def _nearest_to(
        self, cluster: Ranks, queries: Any, k: Any, return_distance: bool, with_targets: bool, own: int | None
    ) -> tuple[Any, Any, Any]:
        """Return what `_nearest` does, for checked queries; `own` is the number of the first if they are the rows."""
        results = {"compared": Result(int(k), np.float64), "places": Result(int(k), np.int64)}
        targets = self._y if with_targets else None
        if isinstance(targets, Scan):
            index = self._index if self._is_on(cluster) else None
            bounds = bounds_in(self._searched_on(cluster), cluster.size) if index is None else index.bounds
            targets = ScannedColumn(cluster, targets, bounds, targets.dtype, "y")
        if targets is not None:
            n_targets = 1 if targets.ndim == 1 else targets.shape[1]
            results["near"] = Result(int(k) * n_targets, np.float64)
        answer = self._call(
            cluster,
            "kneighbors",
            "neighbors.nearest",
            queries,
            results,
            targets,
            k=int(k),
            own=own,
            algorithm=self.algorithm,
        )
        compared, places, *near = (result.value for result in results.values())
        return (
            self._distance.of(compared, answer.results[0]["unit"]) if return_distance else None,
            places,
            near[0].reshape(len(places), int(k), -1) if near else None,
        )

    def _predicted(self, method: str, X: Any) -> Any:
        """Return what a method of scikit-learn's estimator predicts from the neighbours of X.

        The targets of a handle stay on the engines, which return those of the neighbours.
        """
        on_engines = isinstance(self._y, ShardedArray | Scan)
        distances, places, near = self._nearest(X, None, self.weights != "uniform", on_engines)
        n, k = places.shape
        if n == 0:  # a rank without rows; scikit-learn needs one
            distances, places = np.ones((1, k)), np.zeros((1, k), np.int64)
        plain: Any = object.__new__(self.sklearn_class())
        vars(plain).update(vars(self))
        if near is not None:
            targets = near.reshape(-1, near.shape[2])
            plain._y = self._targets_as_sklearn(targets if self._y.ndim == 2 else targets[:, 0])
            places = np.arange(len(targets)).reshape(places.shape)
        plain.kneighbors = lambda X, return_distance=True: (distances, places) if return_distance else places
        found = getattr(plain, method)(np.empty((len(places), 0)))
        return [each[:n] for each in found] if isinstance(found, list) else found[:n]

    def _targets_as_sklearn(self, targets: np.ndarray) -> np.ndarray:
        """Return targets of a handle as scikit-learn's estimator has them."""
        return targets.astype(self._y.dtype)

    def radius_neighbors(
        self,
        X: npt.ArrayLike | ShardedArray | None = None,
        radius: float | None = None,
        return_distance: bool = True,
        sort_results: bool = False,
    ) -> Any:
        """Find the rows of the fit whose distance from a query is at most a radius.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_queries, n_features), optional
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
        cluster = self._cluster()
        limit = self.radius if radius is None else radius
        if np.ndim(limit) or not limit >= 0:
            raise ValueError(f"radius={limit!r} was given, and one number of at least 0 is expected")
        radius, power = float(limit), self._distance.power
        compared: list[np.ndarray] = []
        places: list[np.ndarray] = []
        for own, queries in self._some_queries(cluster, X, 0):
            answer = self._call(cluster, "radius_neighbors", "neighbors.within", queries, radius=radius, power=power)
            for i, near, some in _by_query(answer.results, cluster.entries(queries)):
                kept = slice(None) if own is None else some != own + i
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
        for name in ("_distance", "_index", "_spool"):
            vars(plain).pop(name, None)
        plain._fit_method = "brute"
        if isinstance(self._fit_X, ShardedArray):
            plain._fit_X = self._fit_X.gather()
        elif isinstance(self._fit_X, Scan):
            plain._fit_X = self._fit_X.read()
        if isinstance(self._y, ShardedArray):
            plain._y = self._targets_as_sklearn(self._y.gather())
        elif isinstance(self._y, Scan):
            plain._y = self._targets_as_sklearn(self._y.read())
        return plain

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what the engines have of the rows. A copy sends the rows again if needed.

        Raises
        ------
        TypeError
            If the estimator was fitted to a `ShardedArray`.
        """
        state = {name: value for name, value in super().__getstate__().items() if name not in ("_index", "_spool")}
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
