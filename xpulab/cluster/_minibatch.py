"""`MiniBatchKMeans`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import sklearn.cluster
from scipy import sparse
from sklearn.utils import check_random_state
from sklearn.utils.extmath import row_norms

from xpulab._sklearn import _fit_context, _is_arraylike_not_scalar, _labels_inertia, _openmp_effective_n_threads
from xpulab.checks import check_array, place_named
from xpulab.cluster._centers import LEFT, CentersProxy
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.blas import one_thread
from xpulab.estimator.columns import bounds_in, in_parts
from xpulab.estimator.resumable import FitInput, ResumableFit
from xpulab.estimator.rows import checked_weights
from xpulab.estimator.sending import Result
from xpulab.scanning import Scan

__all__ = ["MiniBatchKMeans"]


@dataclass(frozen=True, kw_only=True)
class _Input(FitInput):
    random: np.random.RandomState
    n_clusters: int
    compute_labels: bool
    tol: float
    options: dict[str, Any]


class MiniBatchKMeans(ResumableFit[_Input], CentersProxy, sklearn.cluster.MiniBatchKMeans):
    """K-means on small batches of the rows, on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.cluster.MiniBatchKMeans`, for any number of engines. The
    rows stay on the devices for the whole fit. All engines draw the batches that scikit-learn draws with the same
    `random_state`, and each labels the rows of a batch that it has; a step has one reduction [1]_.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters, and of centres to find.
    init : {"k-means++", "random"}, callable or array-like of shape (n_clusters, n_features), default="k-means++"
        How the initial centres are chosen. scikit-learn's own functions choose them in this process, from a sample of
        `init_size` rows.
    max_iter : int, default=100
        Largest number of times that as many rows as X has are drawn.
    batch_size : int, default=1024
        Number of rows of a batch.
    verbose : int, default=0
        Whether to print what scikit-learn prints. The lines about steps come after the fit.
    compute_labels : bool, default=True
        Whether to label all rows at the end of a fit.
    random_state : int, RandomState instance or None, default=None
        The random numbers for the sample, the initial centres, the batches and the new places of centres, used in
        scikit-learn's order. They give the rows that scikit-learn draws, to the last bit.
    tol : float, default=0.0
        If positive, a fit ends once the squared movement of the centres is at most `tol` times the mean variance of the
        columns.
    max_no_improvement : int or None, default=10
        A fit ends after this many steps in which the average inertia of the batches has not fallen; None never ends it.
    init_size : int, default=None
        Number of rows of the sample; None for three times `batch_size`, or three times `n_clusters` if this is less
        than `n_clusters`.
    n_init : "auto" or int, default="auto"
        Number of initial centres of which the best are used. "auto" is 3 for "random" and callables, and 1 otherwise.
    reassignment_ratio : float, default=0.01
        A centre whose weight is less than this share of the largest weight moves to a row of the batch.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Centres of the clusters, in the dtype of X.
    labels_ : ndarray of shape (n_samples,)
        Label of each row, int32; only with `compute_labels`.
    inertia_ : float
        Weighted sum of the squared distances of the rows to their centres. Without `compute_labels`, an estimate from
        the batches.
    n_iter_ : int
        Number of times that as many rows as X has were drawn, rounded up.
    n_steps_ : int
        Number of batches.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.cluster.MiniBatchKMeans : The same in one process.

    Notes
    -----
    In float64 the centres are scikit-learn's to 1e-8, unless a row of a batch is equally close to two centres up to
    rounding. In float32 more rows are, and scikit-learn rounds the centres to float32 after each step, while xpulab
    keeps them in float64. Two fits may then take different ways, and end after different numbers of steps.

    Of files that are larger than the engines' memory, one pass gathers the rows of the next batches, 64 MiB of them.
    They are the rows that are drawn one batch after the other in memory: each row of a batch is any of all rows, with
    the chance of its weight. Only the new places of centres then come from another generator, which follows from the
    same `random_state`, so that they do not change the rows of batches that are drawn ahead. The result is the same
    for any number of engines and any memory.

    References
    ----------
    .. [1] D. Sculley, "Web-scale k-means clustering", WWW 2010, 1177-1178.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.cluster import MiniBatchKMeans
    >>> with xpulab.XPUCluster(n=2):
    ...     MiniBatchKMeans(n_clusters=2, random_state=0).fit([[1, 2], [1, 4], [10, 2], [10, 4]]).labels_
    array([1, 1, 0, 0], dtype=int32)
    """

    #: 8 bytes per row for the sums from which batches are drawn, and 12 for its label at the end.
    _work_memory: ClassVar[tuple[float, float]] = (20.0, 0.0)
    _every_row: float = 12.0  # of these, those on the host
    _rules: ClassVar[dict[str, Any]] = {"accept_sparse": "csr"}

    _task: ClassVar[str] = "MiniBatchKMeans.fit"
    _part: ClassVar[str] = "a step"
    _left: ClassVar[tuple[str, str]] = LEFT
    _fitted: ClassVar[tuple[str, ...]] = (
        "cluster_centers_", "labels_", "inertia_", "n_iter_", "n_steps_", "n_features_in_", "feature_names_in_",
        "_n_features_out",
    )  # fmt: skip

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> MiniBatchKMeans:
        """Compute the centres from batches of the rows.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array
            (``np.load(path, mmap_mode="r")``) is read by the engines themselves.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative; 1 by default. Rows are drawn in proportion to their weights.

        Returns
        -------
        MiniBatchKMeans
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit. All engines have stopped after the same step; `cluster_centers_` are those
            of this step. `resume` continues the fit, also as ``xpulab.interrupted().resume()``.
        """
        cluster = current_ranks()
        X = self._checked(cluster, X, reset=True)
        self._keep_sizes(X)
        weights = checked_weights(sample_weight, X.shape[0], X.dtype)
        random = check_random_state(self.random_state)
        self._n_threads = _openmp_effective_n_threads()
        n_steps = (self.max_iter * X.shape[0]) // self._batch_size
        checked = _Input(
            X=X,
            weights=weights,
            random=random,
            n_clusters=self.n_clusters,
            max_iter=n_steps,
            compute_labels=self.compute_labels,
            tol=float(self.tol),
            options={
                "n_steps": n_steps,
                "batch_size": self._batch_size,
                "reassignment_ratio": self.reassignment_ratio,
                "max_no_improvement": self.max_no_improvement,
                "verbose": int(self.verbose),
            },
            parameters=self.get_params(deep=False),
        )
        return self._run(cluster, checked)

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> MiniBatchKMeans:
        """Update the centres with one batch.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            The rows of the batch. The first batch also chooses the initial centres.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative; 1 by default.

        Returns
        -------
        MiniBatchKMeans
            This object. With `compute_labels`, `labels_` and `inertia_` are those of the batch.

        Raises
        ------
        NoClusterError, ValueError, TypeError, HandleError, EngineError, EngineLostError
            As `fit`.
        KeyboardInterrupt
            If the user interrupted the call; the centres are those before it.
        """
        cluster = current_ranks()
        fitted = hasattr(self, "cluster_centers_")
        X = self._checked(cluster, X, reset=not fitted)
        self._random_state = getattr(self, "_random_state", check_random_state(self.random_state))
        weights = checked_weights(sample_weight, X.shape[0], X.dtype)
        self.n_steps_ = getattr(self, "n_steps_", 0)
        if not fitted:
            self._keep_sizes(X)
            self._n_threads = _openmp_effective_n_threads()
            centers = self._drawn(cluster, X, weights, self._random_state, self._checked_init(X))
            self._counts = np.zeros(self.n_clusters, X.dtype)
            self._n_since_last_reassign = 0
        else:
            centers = self.cluster_centers_
        since = self._n_since_last_reassign
        ratio = self.reassignment_ratio if self._random_reassign() else 0.0
        labels = Result(None, np.int32) if self.compute_labels else None
        try:
            result = self._ask(
                cluster, "partial_fit", "MiniBatchKMeans.partial_fit", X, sample_weight=weights, result=labels,
                centers=np.ascontiguousarray(centers, X.dtype), counts=self._counts.astype(X.dtype, copy=False),
                random=self._random_state.get_state(), ratio=ratio,
            ).results[0]  # fmt: skip
        except BaseException:
            self._n_since_last_reassign = since
            raise
        self._random_state.set_state(result["random"])
        if self.verbose and result["reassigned"]:
            print(f"[MiniBatchKMeans] Reassigning {result['reassigned']} cluster centers.")
        self.cluster_centers_, self._counts = result["centers"], result["counts"]
        if labels is not None:
            self.labels_, self.inertia_ = labels.value, result["inertia"]
        self.n_steps_ += 1
        self._n_features_out = len(self.cluster_centers_)
        return self

    def _keep_sizes(self, X: Any) -> None:
        """Set the number of runs and the sizes of batches and of the sample, with scikit-learn's checks."""
        plain = self.sklearn_class()(**{**self.get_params(deep=False), "tol": 0.0})
        plain._check_params_vs_input(SimpleNamespace(shape=X.shape))
        self._n_init, self._batch_size, self._init_size = plain._n_init, plain._batch_size, plain._init_size

    def _checked_init(self, X: Any) -> Any:
        """Return `init`, as a checked array if it has centres."""
        if not _is_arraylike_not_scalar(self.init):
            return self.init
        with place_named(self.init):
            init = check_array(self.init, dtype=X.dtype, copy=True, order="C", input_name="init")
        self._validate_center_shape(X, init)
        return init

    def _some(self, cluster: Ranks, X: Any, weights: Any, chosen: np.ndarray) -> tuple[Any, np.ndarray]:
        """Return some of the rows and their weights in this process; those of handles and scans come from engines."""
        scan = X if isinstance(X, Scan) and X.files else None
        if isinstance(X, ShardedArray) or scan is not None:
            with cluster.outgoing() as outgoing:
                if isinstance(weights, ShardedArray):
                    sent: Any = weights.source(cluster)
                else:
                    sent = None if weights is None else outgoing.send(weights)
                if scan is None:
                    source = X.source(cluster)
                else:
                    source = in_parts(scan.block_rows(bounds_in(X, cluster.size)), cluster)
                payload = {"source": source, "weights": sent, "chosen": chosen}
                found = cluster.call("MiniBatchKMeans.rows", payload).results[0]
            some = found["chosen"]
            return sparse.csr_matrix(*some) if isinstance(some, tuple) else some, found["weights"]
        some = X[chosen] if sparse.issparse(X) else np.ascontiguousarray(X[chosen], X.dtype)
        numbers: Any = some.data if sparse.issparse(some) else some
        if not np.isfinite(numbers).all():
            check_array(X, accept_sparse="csr", estimator=self, input_name="X")  # raises scikit-learn's error
        return some, np.ones(len(chosen), X.dtype) if weights is None else weights[chosen]

    def _drawn(self, cluster: Ranks, X: Any, weights: Any, random: np.random.RandomState, init: Any) -> np.ndarray:
        """Return initial centres from a sample of the rows, as scikit-learn's `_init_centroids`."""
        n = X.shape[0]
        chosen = random.randint(0, n, self._init_size) if self._init_size < n else np.arange(n)
        if _is_arraylike_not_scalar(init):
            return np.asarray(init)
        some, some_weights = self._some(cluster, X, weights, chosen)
        squares = row_norms(some, squared=True)
        return np.asarray(self._init_centroids(some, squares, init, random, some_weights))

    def _best_start(self, cluster: Ranks, checked: _Input) -> np.ndarray:
        """Return the best of `n_init` initial centres for a second sample, as scikit-learn's fit chooses them."""
        X, weights, random = checked.X, checked.weights, checked.random
        init = self._checked_init(X)
        validation = random.randint(0, X.shape[0], self._init_size)
        if self._n_init == 1 and not self.verbose:
            return self._drawn(cluster, X, weights, random, init)
        valid, valid_weights = self._some(cluster, X, weights, validation)
        best, least = None, np.inf
        for run in range(self._n_init):
            if self.verbose:
                print(f"Init {run + 1}/{self._n_init} with method {init}")
            centers = self._drawn(cluster, X, weights, random, init)
            with one_thread():
                _, inertia = _labels_inertia(valid, valid_weights, centers, n_threads=self._n_threads)
            if self.verbose:
                print(f"Inertia for init {run + 1}/{self._n_init}: {inertia}")
            if best is None or inertia < least:
                best, least = centers, inertia
        assert best is not None
        return best

    def _room(self, checked: _Input) -> int:
        # Centres and counts, the generator, and small values.
        return checked.n_clusters * (checked.X.shape[1] + 1) * 8 + (16 << 10)

    def _labels(self, checked: _Input) -> Result | None:
        return Result(None, np.int32) if checked.compute_labels else None

    def _arguments(self, cluster: Ranks, checked: _Input, state: dict[str, Any] | None) -> dict[str, Any]:
        start = self._best_start(cluster, checked) if state is None else state["centers"]
        return {
            "centers": start,
            "random": checked.random.get_state(),
            "total": _total(checked.weights, checked.X),
            "tol": checked.tol,
            "options": checked.options,
        }

    def _keep_state(self, checked: _Input, state: dict[str, Any], labels: np.ndarray | None) -> None:
        with contextlib.suppress(AttributeError):
            del self.labels_
        self._set(checked, state, state["centers"].astype(checked.X.dtype))

    def _keep(self, checked: _Input, answer: dict[str, Any], labels: Any) -> None:
        for line in answer["said"]:
            print(line)
        self._set(checked, answer["state"], answer["centers"])
        if checked.compute_labels:
            self.labels_, self.inertia_ = labels, answer["final"]["inertia"]
            return
        with contextlib.suppress(AttributeError):
            del self.labels_
        self.inertia_ = (
            self._ewa_inertia * _weight(checked.weights, checked.X) if self._ewa_inertia is not None else np.nan
        )

    def _set(self, checked: _Input, state: dict[str, Any], centers: np.ndarray) -> None:
        """Set what a step changes; `partial_fit` goes on from it."""
        checked.random.set_state(state["random"])
        self._random_state = checked.random
        self.cluster_centers_ = centers
        self._n_features_out = len(centers)
        self._counts, self._n_since_last_reassign = state["counts"], state["since"]
        self._ewa_inertia, self._ewa_inertia_min = state["average"], state["least"]
        self._no_improvement, self.n_steps_ = state["stale"], state["iteration"]
        self.n_iter_ = int(np.ceil(self.n_steps_ * checked.options["batch_size"] / checked.X.shape[0]))


def _total(weights: Any, X: Any) -> float | None:
    """Return the sum of the weights as scikit-learn computes it; None for weights of which each rank has a part."""
    return None if isinstance(weights, ShardedArray) else float(_weight(weights, X))


def _weight(weights: Any, X: Any) -> Any:
    if isinstance(weights, ShardedArray):
        weights = weights.gather()
    return np.sum(np.broadcast_to(X.dtype.type(1), X.shape[0]) if weights is None else weights)
