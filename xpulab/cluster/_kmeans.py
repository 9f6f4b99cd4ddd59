"""`KMeans`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import sklearn.cluster
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from xpulab._sklearn import Interval, _fit_context, _is_arraylike_not_scalar
from xpulab.checks import check_array, place_named
from xpulab.cluster._centers import LEFT, CentersProxy
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.resumable import FitInput, ResumableFit
from xpulab.estimator.rows import checked_weights
from xpulab.estimator.sending import Result
from xpulab.scanning import Scan

__all__ = ["KMeans"]


class _Seeded:
    """The generator of an integer `random_state`, of which nobody can see what a fit has drawn.

    Its first state is computed once: that takes a tenth of a millisecond, which is long for a loop of small fits.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def get_state(self) -> Any:
        """Return the first state."""
        return _state_of(self._seed)

    def set_state(self, state: Any) -> None:
        """Do nothing."""


@functools.lru_cache(maxsize=64)
def _state_of(seed: int) -> Any:
    return np.random.RandomState(seed).get_state()


@dataclass(frozen=True, kw_only=True)
class _Input(FitInput):
    random: np.random.RandomState | _Seeded
    init: Any
    n_clusters: int
    tol: float
    init_size: int | None


class KMeans(ResumableFit[_Input], CentersProxy, sklearn.cluster.KMeans):
    """K-means clustering on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.cluster.KMeans`, for any number of engines. The same
    initial centres give the same labels, and the same centres and inertia to 1e-10 in float64 and 1e-5 in float32. A
    row that is equally close to two centres, up to rounding, may get either label. Rows stay on the devices for the
    whole fit; an iteration sends only centres and partial sums. Of files that do not fit into the engines' memory (see
    ``memory`` of `xpulab.XPUCluster`), the devices keep a part, and each iteration reads the other rows again.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters, and of centres to find.
    init : {"k-means++", "random"}, callable or array-like of shape (n_clusters, n_features), default="k-means++"
        How the initial centres are chosen. "k-means++" is scikit-learn's greedy k-means++ [1]_, over the rows of all
        engines. For files that do not fit it takes a pass for each centre, and the centres are then drawn by k-means||
        [3]_ in six passes: five draw two rows for each centre, the last one counts the rows near to each, and weighted
        k-means++ chooses among them; or, with `init_size`, k-means++ over a sample. A callable gets the centred rows in
        this process, so X must be an array, not a `ShardedArray`.
    n_init : "auto" or int, default="auto"
        Number of runs from different initial centres; the best run is kept. "auto" is 10 for "random" and callables,
        and 1 otherwise.
    max_iter : int, default=300
        Largest number of iterations of a run.
    tol : float, default=1e-4
        A run has converged if the squared movement of the centres is at most `tol` times the mean variance of the
        columns.
    verbose : int, default=0
        Whether to print the iterations of each run, after the fit.
    random_state : int, RandomState instance or None, default=None
        The random numbers for the initial centres, used in scikit-learn's order. They give the rows that scikit-learn
        draws for the same numbers in float64. A draw that falls on the border between two rows, up to rounding, may
        take the neighbouring row. For float32, scikit-learn itself draws from sums that are rounded to float32, and
        therefore often draws other rows.
    copy_x : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    algorithm : {"lloyd", "elkan"}, default="lloyd"
        Accepted for compatibility with scikit-learn. Both give the same result, which is computed with Lloyd's
        algorithm [2]_.
    init_size : int, optional
        For "k-means++" of files that do not fit: the number of rows, drawn by weight with replacement, among which
        greedy k-means++ chooses the centres, instead of k-means||. One pass gathers them. It has no effect on rows that
        fit. scikit-learn's class does not have it.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Centres of the clusters, in the dtype of X.
    labels_ : ndarray of shape (n_samples,)
        Label of each row, int32.
    inertia_ : float
        Weighted sum of the squared distances of the rows to their centres.
    n_iter_ : int
        Number of iterations of the best run.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.cluster.KMeans : The same in one process.

    References
    ----------
    .. [1] D. Arthur, S. Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007, 1027-1035.
    .. [2] S. P. Lloyd, "Least squares quantization in PCM", IEEE Transactions on Information Theory 28 (1982), 129-137.
    .. [3] B. Bahmani, B. Moseley, A. Vattani, R. Kumar, S. Vassilvitskii, "Scalable k-means++", Proceedings of the VLDB
       Endowment 5 (2012), 622-633.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.cluster import KMeans
    >>> with xpulab.XPUCluster(n=2):
    ...     KMeans(n_clusters=2, random_state=0, n_init="auto").fit([[1, 2], [1, 4], [10, 2], [10, 4]]).labels_
    array([1, 1, 0, 0], dtype=int32)

    Callbacks of scikit-learn 1.9 follow the iterations::

        from sklearn.callback import ProgressBar
        KMeans(n_clusters=2).set_callbacks(ProgressBar()).fit(X)
    """

    #: 12 bytes per row for its label, previous label and bound; and a share of the rows for copies of the rows that an
    #: iteration compares (measured, see benchmarks/README.md).
    _work_memory: ClassVar[tuple[float, float]] = (12.0, 1 / 30)
    _rules: ClassVar[Mapping[str, Any]] = {"accept_sparse": "csr"}

    @property
    def _every_row(self) -> float:  # type: ignore[override]
        """Bytes of a label on the host; and of those of the best run."""
        label = np.min_scalar_type(-self.n_clusters).itemsize
        return label if getattr(self, "_n_init", 1) == 1 else 2 * label

    _task: ClassVar[str] = "KMeans.fit"
    _left: ClassVar[tuple[str, str]] = LEFT
    _own: ClassVar[tuple[str, ...]] = ("report_", "init_size")
    init_size: int | None = None  # also of scikit-learn's objects in accel
    _parameter_constraints: ClassVar[Mapping[str, Any]] = {
        **sklearn.cluster.KMeans._parameter_constraints,
        "init_size": [Interval(Integral, 1, None, closed="left"), None],
    }
    _fitted: ClassVar[tuple[str, ...]] = (
        "cluster_centers_", "labels_", "inertia_", "n_iter_", "n_features_in_", "_n_features_out"
    )  # fmt: skip

    def __init__(
        self,
        n_clusters: Any = 8,
        *,
        init: Any = "k-means++",
        n_init: Any = "auto",
        max_iter: Any = 300,
        tol: Any = 1e-4,
        verbose: Any = 0,
        random_state: Any = None,
        copy_x: Any = True,
        algorithm: Any = "lloyd",
        init_size: Any = None,
    ) -> None:
        super().__init__(
            n_clusters, init=init, n_init=n_init, max_iter=max_iter, tol=tol, verbose=verbose,
            random_state=random_state, copy_x=copy_x, algorithm=algorithm,
        )  # fmt: skip
        self.init_size = init_size

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KMeans:
        """Compute k-means clustering.

        Parameters
        ----------
        X : array-like, CSR matrix, ShardedArray or Scan of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array
            (``np.load(path, mmap_mode="r")``) and a scan of files are read by the engines themselves.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative; 1 by default.

        Returns
        -------
        KMeans
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
            If the user interrupted the fit. All engines have stopped at the same iteration; `cluster_centers_` and
            `labels_` are those of the last iteration. `resume` continues the fit, also as
            ``xpulab.interrupted().resume()``.
        """
        cluster = current_ranks()
        X = self._checked(cluster, X, reset=True)
        n_init, init = self._checked_init(X)
        weights = checked_weights(sample_weight, X.shape[0], X.dtype)
        if isinstance(init, str) and init == "random" and weights is not None:
            _require_enough(weights.gather() if isinstance(weights, ShardedArray) else weights, self.n_clusters)
        seeded = type(self.random_state) is int and not callable(self.init)
        random: Any = _Seeded(self.random_state) if seeded else check_random_state(self.random_state)
        if callable(self.init):
            init = self._called_init(X, random, n_init)
        checked = _Input(
            X=X,
            weights=weights,
            random=random,
            n_init=n_init,
            init=init,
            n_clusters=self.n_clusters,
            max_iter=self.max_iter,
            tol=float(self.tol),
            init_size=self.init_size,
            parameters=self.get_params(deep=False),
        )
        return self._run(cluster, checked)

    def _checked(self, cluster: Ranks, X: Any, *, reset: bool, look_now: bool = False, **rules: Any) -> Any:
        # If the user's function draws the initial centres, it needs checked rows before they are sent.
        return super()._checked(cluster, X, reset=reset, look_now=look_now or (reset and callable(self.init)), **rules)

    def _checked_init(self, X: Any) -> tuple[int, Any]:
        """Return the number of runs, and "k-means++", "random" or a list of centres.

        `n_init` and `init` have the same meaning as in scikit-learn.
        """
        if X.shape[0] < self.n_clusters:
            raise ValueError(f"n_samples={X.shape[0]} should be >= n_clusters={self.n_clusters}.")
        given = _is_arraylike_not_scalar(self.init)
        once = given or self.init == "k-means++"
        n_init = self._n_init = (1 if once else 10) if self.n_init == "auto" else self.n_init
        if self.algorithm == "elkan" and self.n_clusters == 1:
            warnings.warn(
                "algorithm='elkan' doesn't make sense for a single cluster. Using 'lloyd' instead.",
                RuntimeWarning,
                stacklevel=4,
            )
        if not given:
            return n_init, self.init
        self._n_init = 1
        if n_init != 1:
            warnings.warn(
                "Explicit initial center position passed: performing only one init in "
                f"{type(self).__name__} instead of n_init={n_init}.",
                RuntimeWarning,
                stacklevel=4,
            )
        with place_named(self.init):
            centers = check_array(self.init, dtype=X.dtype, copy=True, order="C", input_name="init")
        self._validate_center_shape(X, centers)
        return 1, [centers]

    def _called_init(self, X: Any, random: np.random.RandomState, n_init: int) -> list[np.ndarray]:
        """Get the initial centres of each run from the user's function, which gets centred rows, as in scikit-learn."""
        if isinstance(X, ShardedArray | Scan):
            rows = "X.read()" if isinstance(X, Scan) else "X.gather()"
            raise TypeError(
                f"init is a callable, which needs the rows in this process, and X is a {type(X).__name__}; pass the "
                f"centres: init=function({rows}, n_clusters, random_state), or X itself as an array"
            )
        mean = 0 if sparse.issparse(X) else X.mean(axis=0, dtype=np.float64).astype(X.dtype)
        starts = []
        for _ in range(n_init):
            centers = self.init(X if sparse.issparse(X) else X - mean, self.n_clusters, random_state=random)
            with place_named(centers):
                centers = check_array(centers, dtype=X.dtype, order="C", input_name="init")
            self._validate_center_shape(X, centers)
            starts.append((centers + mean).astype(X.dtype))
        return starts

    def _room(self, checked: _Input) -> int:
        # Two sets of centres, one of which k-means|| may be drawing, the shift, the generator, and small values.
        return (10 * checked.n_clusters + 2) * checked.X.shape[1] * checked.X.dtype.itemsize + (16 << 10)

    def _labels(self, checked: _Input) -> Result:
        return Result(None, np.int32)

    def _arguments(self, cluster: Ranks, checked: _Input, state: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "random": checked.random.get_state(),
            "init": checked.init,
            "n_clusters": checked.n_clusters,
            "n_init": checked.n_init,
            "max_iter": checked.max_iter,
            "tol": checked.tol,
            "init_size": checked.init_size,
        }

    def _stopped_at(self, checked: _Input, state: dict[str, Any]) -> str:
        if "drawn" not in state:
            return super()._stopped_at(checked, state)
        if state["drawn"]:
            return f"after pass {len(state['drawn'])} of k-means||, which draws the first centres"
        return f"when {len(state['centers']):,} of {checked.n_clusters:,} first centres were chosen"

    def _keep_state(self, checked: _Input, state: dict[str, Any], labels: np.ndarray | None) -> None:
        unit, of_run, n_iter = state["unit"], state, state["iteration"]
        if "drawn" in state:
            labels = None
            if state["best"] is not None:  # an earlier run has more than the choice for this one
                of_run, n_iter = state["best"], state["best"]["n_iter"]
        self._set((of_run["centers"] + state["shift"]) * unit, of_run["inertia"] * unit * unit, n_iter)
        if labels is not None:
            self.labels_ = labels
        elif "labels_" in vars(self):
            del self.labels_

    def _keep(self, checked: _Input, answer: dict[str, Any], labels: Any) -> None:
        if self.verbose:
            print("Initialization complete", *_words(answer), sep="\n")
        n_clusters = len(answer["centers"])
        if answer["distinct"] < n_clusters:
            warnings.warn(
                f"Number of distinct clusters ({answer['distinct']}) found smaller than n_clusters "
                f"({n_clusters}). Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=4,
            )
        checked.random.set_state(answer["random"])
        self._set(answer["centers"], answer["final"]["inertia"], answer["n_iter"])
        self.labels_ = labels

    def _set(self, centers: np.ndarray, inertia: float, n_iter: int) -> None:
        self.cluster_centers_, self.inertia_, self.n_iter_ = centers, inertia, n_iter
        self._n_features_out = len(centers)


def _words(result: dict[str, Any]) -> list[str]:
    """Return the lines that scikit-learn prints about the best run."""
    iterations = [(number - 1, inertia) for run, number, inertia, *_ in result["history"] if run == result["run"]]
    return [f"Iteration {i}, inertia {inertia}." for i, inertia in iterations] + [result["ending"]] * (
        result["ending"] != ""
    )


def _require_enough(weights: np.ndarray, n_clusters: int) -> None:
    """Raise NumPy's error, which scikit-learn raises, if fewer than `n_clusters` rows have a positive weight."""
    there = np.count_nonzero(weights / weights.sum())
    if there < n_clusters:
        raise ValueError(
            f"Fewer non-zero entries in p than size: sample_weight is positive for {there} rows, and init='random' "
            f"draws n_clusters={n_clusters} of them; lower n_clusters, or use init='k-means++'"
        )
