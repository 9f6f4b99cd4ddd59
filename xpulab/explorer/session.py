"""The k-means explorer without a front end: its attributes and methods do what the controls do."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.cluster import XPUCluster, current_cluster, find_current
from xpulab.deploy.tasks.answers import Answer
from xpulab.exceptions import HandleError, NoClusterError
from xpulab.explorer.picture import MOST_CELLS, Picture
from xpulab.explorer.snapshot import Snapshot

__all__ = ["Explorer"]

#: (lines, columns) of the picture; a browser shows it at about this size.
SHAPE = (384, 512)
#: Numbers of clusters of the elbow curve.
ELBOW = range(1, 13)
_MOST_PIXELS = 1 << 16
_MOST_SEED = 2**32 - 1
_TOL = 1e-4  # the default of KMeans
_SPREAD = 4  # the picture shows this many standard deviations around the mean, so that outliers do not shrink the rest
_MARGIN = 0.03  # margin around the range of a feature, as a share of the range


class Explorer:
    """Steps of k-means on the engines, one iteration at a time, with a picture of the clusters.

    Every change is one task on all engines. They compute the centres and the labels, and count the rows of each cluster
    in each pixel. They return only these counts; the rows stay on the engines.

    Parameters
    ----------
    X : array-like or ShardedArray of shape (n_samples, n_features)
        An array is sent to the engines of the active cluster, which keep it until Python deletes this object.
    k : int, default=8
        Number of clusters.
    points : int, optional
        Number of rows that the picture and the iterations use; all rows by default. They are spread evenly over X, and
        are the same for any number of engines.
    features : tuple of two ints or names, default=(0, 1)
        The features on the horizontal and the vertical axis of the picture. If X has one feature, both axes show it.
    random_state : int, default=0
        The initial centres are those of ``KMeans(k, random_state=random_state + restarts)``.
    shape : tuple of two ints, default=(384, 512)
        (lines, columns) of the picture.

    Attributes
    ----------
    rows : ShardedArray
        The rows on the engines.
    names : list of str
        Names of the features.
    centers : numpy.ndarray of shape (k, n_features)
        The present centres, in the dtype of the rows.
    trails : list of numpy.ndarray of shape (k, n_features)
        The initial centres, and the centres after each iteration.
    inertias : list of float
        Inertia for each element of `trails`.
    converged : bool
        Whether `KMeans` would end after the last iteration.
    elbows : dict of int to float
        Number of clusters -> inertia, for those that `elbow` has computed for these points.
    random_state : int
        As the parameter.
    restarts : int
        Number of calls of `restart`.
    seconds : dict of str to float
        Seconds of the last change: ``total``, and ``kernel``, ``communicate`` and ``wait`` of the slowest engine.
    changed : callable
        Called without arguments after each change; by default it does nothing.

    Raises
    ------
    NoClusterError
        If no cluster is running.
    ValueError
        If a parameter does not fit the rows; the message says what was expected.
    """

    def __init__(
        self,
        X: Any,
        k: int = 8,
        *,
        points: int | None = None,
        features: Sequence[int | str] = (0, 1),
        random_state: int = 0,
        shape: tuple[int, int] = SHAPE,
    ) -> None:
        if np.ndim(X) == 1 or (isinstance(X, ShardedArray) and X.ndim != 2):
            raise ValueError(
                f"Expected 2D array, got 1D array instead: X has the shape {np.shape(X)}; expected (n_samples, "
                "n_features)"
            )
        self._array = None if isinstance(X, ShardedArray) else X  # sent again after the engines were stopped
        self.rows = X if isinstance(X, ShardedArray) else current_cluster().scatter(X)
        self._cluster: Any = self.rows.cluster
        self.changed: Callable[[], None] = lambda: None
        self._id = uuid.uuid4().hex
        self._lock = threading.RLock()  # a view changes this object from another thread
        n_samples, n_features = self.rows.shape
        columns = self.rows.columns
        self.names = [f"feature {f}" for f in range(n_features)] if columns is None else [str(c) for c in columns]
        if not isinstance(shape, Sequence) or len(shape) != 2:
            raise ValueError(f"shape={shape!r} was given; expected (lines, columns)")
        self.shape = (self._checked("lines", shape[0], _MOST_PIXELS), self._checked("columns", shape[1], _MOST_PIXELS))
        self.random_state = self._checked("random_state", random_state, _MOST_SEED, 0)
        self.restarts = 0
        self.elbows: dict[int, float] = {}
        self.seconds: dict[str, float] = {}
        self.trails: list[np.ndarray] = []
        self.inertias: list[float] = []
        self.converged = False
        self._points = self._checked("points", n_samples if points is None else points, n_samples)
        self._features = self._checked_features(features)
        self._require_counters(self._checked("k", k, self._points))
        self._facts = self._cluster.call("explore.facts", {"source": self.rows.source(self._cluster)}).results[0]
        self._cluster.release_with(self, self._id)
        self._labelled = False  # whether the engines have the labels of these centres and points
        self._begin("k-means++", k=k)

    # -- settings and actions -----------------------------------------------------------------------------------------

    @property
    def k(self) -> int:
        """Number of clusters. Setting it draws new initial centres."""
        return len(self.centers)

    @k.setter
    def k(self, k: int) -> None:
        with self._changing():
            self._begin("k-means++", k=self._checked("k", k, self._points))

    @property
    def features(self) -> tuple[int, int]:
        """Indices of the features on the horizontal and the vertical axis. They can be set by index or by name."""
        return self._features

    @features.setter
    def features(self, features: Sequence[int | str]) -> None:
        with self._changing():
            self._update(features=self._checked_features(features))

    @property
    def points(self) -> int:
        """Number of rows that are used. Setting it keeps the centres, and begins new trails."""
        return self._points

    @points.setter
    def points(self, points: int) -> None:
        with self._changing():
            points = self._checked("points", points, self.rows.shape[0])
            if self.k > points:
                self._begin("k-means++", k=points, points=points)
            else:
                self._begin(self.centers, points=points)
            self.elbows = {}

    def restart(self) -> None:
        """Draw new initial centres."""
        with self._changing():
            self.restarts += 1
            self._begin("k-means++")

    def reset(self) -> None:
        """Go back to the first centres of the trails."""
        with self._changing():
            self._begin(self.trails[0])

    def step(self) -> None:
        """Run one iteration, as ``KMeans(k, init=centers, max_iter=1)`` does."""
        with self._changing():
            result = self._update(tol=_TOL)
            self.converged = result["converged"]
            self.trails = [*self.trails, result["centers"]]
            self.inertias = [*self.inertias, result["inertia"]]

    def move_center(self, j: int, x: float, y: float) -> None:
        """Move the centre `j` to a point of the picture. Its other features stay, and new trails begin.

        Parameters
        ----------
        j : int
            Index of the centre, from 0 to k - 1.
        x, y : float
            Coordinates, in the units of the features of the picture.

        Raises
        ------
        ValueError
            If there is no such centre, or if a coordinate is not finite.
        """
        with self._changing():
            j = self._checked("j", j, self.k - 1, 0)
            if not (isinstance(x, Real) and isinstance(y, Real) and math.isfinite(x) and math.isfinite(y)):
                raise ValueError(f"x={x!r}, y={y!r} was given; expected two finite numbers")
            centers = self.centers.copy()
            centers[j, list(self._features)] = x, y
            self._begin(centers)

    def elbow(self, ks: Iterable[int] = ELBOW) -> dict[int, float]:
        """Compute the inertia of ``KMeans(k, random_state=random_state)`` for each number of clusters.

        Parameters
        ----------
        ks : iterable of int, default=range(1, 13)
            Numbers of clusters. Those above the number of points are left out. Known inertias are not computed again.

        Returns
        -------
        dict of int to float
            Number of clusters -> inertia.
        """
        for k in ks:
            if k not in self.elbows and k <= self._points:
                self.extend_elbow(k)
        return self.elbows

    def extend_elbow(self, k: int) -> None:
        """Add the inertia for a number of clusters to `elbows`.

        Parameters
        ----------
        k : int
            The number of clusters.
        """
        with self._changing():
            parameters = {"n_clusters": self._checked("k", k, self._points), "max_iter": 300, "tol": _TOL}
            answer = self._call(
                "explore.fit", self._points, parameters={**parameters, "random_state": self.random_state}
            )
            self.elbows = dict(sorted({**self.elbows, k: answer.results[0]["inertia"]}.items()))

    # -- results ------------------------------------------------------------------------------------------------------

    @property
    def centers(self) -> np.ndarray:
        """The present centres."""
        return self.trails[-1]

    @property
    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper limits of each feature in the picture: two arrays of shape (n_features,)."""
        low, high, mean, deviation = (self._facts[name] for name in ("low", "high", "mean", "deviation"))
        low = np.maximum(low, mean - _SPREAD * deviation)
        high = np.minimum(high, mean + _SPREAD * deviation)
        width = np.where(high > low, high - low, np.maximum(np.abs(low), 1))
        return low - _MARGIN * width, high + _MARGIN * width

    def picture(self) -> Picture:
        """Return the present clusters in the plane of the two features."""
        return self._picture

    def snapshot(self) -> Snapshot:
        """Return the present state, as an object that does not change, with text, HTML and a figure."""
        with self._lock:
            return Snapshot(
                picture=self.picture(),
                k=self.k,
                points=self._points,
                n_samples=self.rows.shape[0],
                n_features=self.rows.shape[1],
                random_state=self.random_state + self.restarts,
                trails=np.stack(self.trails)[:, :, list(self._features)].astype(np.float64),
                inertias=tuple(self.inertias),
                elbows=dict(self.elbows),
                converged=self.converged,
            )

    # -- stopped engines ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the cluster if it was stopped, and send the rows again."""
        with self._lock:
            if find_current() is None:
                self._cluster.start()
            self._require_rows()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            self._require_rows()
            yield
        self.changed()

    def _require_rows(self) -> None:
        """Send the rows again if the engines with the rows were stopped, and new engines run.

        Raises
        ------
        NoClusterError
            If no engines run.
        HandleError
            If the rows were passed as a handle, so that this process does not have them.
        """
        with contextlib.suppress(HandleError):
            if self._cluster.running:
                self.rows.source(self._cluster)
                return
        cluster: XPUCluster | None = self._cluster if self._cluster.running else find_current()
        if cluster is None:
            raise NoClusterError("the cluster was stopped; type: %xpu_cluster start")
        if self._array is None:
            raise HandleError(
                "the rows of this explorer were on engines that were stopped; scatter them again, and type: "
                "xpulab.explore(rows)"
            )
        self.rows = cluster.scatter(self._array)
        self._cluster, self._labelled = cluster, False
        cluster.release_with(self, self._id)

    # -- implementation -----------------------------------------------------------------------------------------------

    def _begin(self, init: str | np.ndarray, k: int | None = None, points: int | None = None) -> None:
        """Begin new trails, from an initialisation or from given centres."""
        result = self._update(self._beginning(init, k), points=points)
        self.trails, self.inertias, self.converged = [result["centers"]], [result["inertia"]], False

    def _beginning(self, init: str | np.ndarray, k: int | None = None) -> dict[str, Any]:
        n_clusters = self.k if k is None else k
        return {"init": init, "n_clusters": n_clusters, "random_state": self.random_state + self.restarts}

    def _update(
        self,
        begin: dict[str, Any] | None = None,
        tol: float | None = None,
        features: tuple[int, int] | None = None,
        points: int | None = None,
    ) -> dict[str, Any]:
        """Run a change on the engines, and return their answer. If they raise an error, this object does not change."""
        started = time.perf_counter()
        features = features or self._features
        points = points or self._points
        if begin is None and not self._labelled:  # the last change was interrupted
            begin = self._beginning(self.centers)
        k = self.k if begin is None else begin["n_clusters"]
        self._require_counters(k)
        view = self._view(features)
        self._labelled = False
        with Outgoing() as outgoing:
            target, counts = outgoing.receive((k, *self.shape), np.int32)
            answer = self._call("explore.update", points, begin=begin, tol=tol, view=view, target=target)
        self._labelled, self._features, self._points = True, features, points
        self._picture = Picture(
            counts=counts, names=(self.names[features[0]], self.names[features[1]]), low=view["low"], high=view["high"]
        )
        slowest = max(answer.seconds, key=lambda seconds: seconds["kernel"])
        self.seconds = {"total": time.perf_counter() - started, "task": max(answer.totals), **slowest}
        return answer.results[0]

    def _call(self, task: str, points: int, **payload: Any) -> Answer:
        source = self.rows.source(self._cluster)
        return self._cluster.call(task, {"explorer": self._id, "source": source, "points": points, **payload})

    def _view(self, features: tuple[int, int]) -> dict[str, Any]:
        low, high = (tuple(float(limit[f]) for f in features) for limit in self.limits)
        return {"features": features, "low": low, "high": high, "shape": self.shape}

    def _checked(self, name: str, value: int, most: int, least: int = 1) -> int:
        whole = isinstance(value, Integral)
        if not whole or not least <= value <= most:
            raise ValueError(f"{name}={value!r} was given; expected a whole number from {least} to {most:,}")
        return int(value)

    def _require_counters(self, k: int) -> None:
        """Raise an error if the picture needs more counters than 32-bit indices allow."""
        lines, columns = self.shape
        if k * lines * columns > MOST_CELLS:
            raise ValueError(
                f"k={k} with shape={self.shape} is {k * lines * columns:,} counters, one for each cluster and pixel; "
                f"expected at most {MOST_CELLS:,}: k={MOST_CELLS // (lines * columns)}, or a smaller shape"
            )

    def _checked_features(self, features: Sequence[int | str]) -> tuple[int, int]:
        given = features
        features = list(given) if isinstance(given, Iterable) else []
        numbers = [self.names.index(f) if isinstance(f, str) and f in self.names else f for f in features]
        if len(self.names) == 1 and numbers == [0, 1]:
            numbers = [0, 0]
        known_ones = all(isinstance(f, Integral) and 0 <= f < len(self.names) for f in numbers)
        if len(numbers) != 2 or not known_ones:
            known = f"two of 0 to {len(self.names) - 1}"
            known += f", or of {', '.join(self.names)}" if len(self.names) <= 20 else ""
            raise ValueError(f"features={given!r} was given; expected {known}")
        return int(numbers[0]), int(numbers[1])
