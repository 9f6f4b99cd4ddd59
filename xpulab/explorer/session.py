"""The k-means explorer without its front end: attributes and methods in the place of controls, and its pictures."""

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
from xpulab.deploy.answers import Answer
from xpulab.deploy.cluster import XPUCluster, current_cluster, find_current
from xpulab.exceptions import HandleError, NoClusterError
from xpulab.explorer.picture import MOST_CELLS, Picture
from xpulab.explorer.snapshot import Snapshot

__all__ = ["Explorer"]

#: (lines, columns) of the picture; a browser shows it in about this size.
SHAPE = (384, 512)
#: Numbers of clusters for which the elbow is looked for.
ELBOW = range(1, 13)
_MOST_PIXELS = 1 << 16
_MOST_SEED = 2**32 - 1
_TOL = 1e-4  # that of KMeans
_SPREAD = 4  # standard deviations in view to either side of the mean; a row far away would shrink all other rows
_MARGIN = 0.03  # of the range, around it


class Explorer:
    """k-means on the engines, one iteration at a time, and its picture.

    Every change is one task on all engines: they find the centres and the labels, count the rows of each cluster on
    each pixel, and send those counts alone. The rows stay where they are.

    Parameters
    ----------
    X : array-like or ShardedArray of shape (n_samples, n_features)
        An array is sent to the engines of the active cluster, to stay there as long as this object lives.
    k : int, default=8
        Number of clusters.
    points : int, optional
        How many of the rows take part, in the picture and in the iterations; all by default. They are spread evenly
        over X, and the same for any number of engines.
    features : tuple of two ints or names, default=(0, 1)
        Those that the picture shows, across and up. Rows of one feature show it in both directions.
    random_state : int, default=0
        The start is that of ``KMeans(k, random_state=random_state + restarts)``.
    shape : tuple of two ints
        (lines, columns) of the picture.

    Attributes
    ----------
    rows : ShardedArray
    names : list of str
        Of the features.
    centers : numpy.ndarray of shape (k, n_features)
        In the dtype of the rows.
    trails : list of numpy.ndarray of shape (k, n_features)
        The centres at the start and after each iteration since.
    inertias : list of float
        Of each of them.
    converged : bool
        Whether the last iteration moved the centres by less than `KMeans` goes on for.
    elbows : dict of int to float
        Inertia by number of clusters, as far as `elbow` has found it for these points.
    random_state : int
    restarts : int
        How often `restart` was called.
    seconds : dict of str to float
        What the last change took: ``total``, and of it on the slowest engine ``kernel``, ``communicate`` and ``wait``.
    changed : callable
        Is called after each change, without arguments; does nothing by default.

    Raises
    ------
    NoClusterError
        If no cluster is running.
    ValueError
        If a parameter does not fit the rows; the message says what would.
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
        self._array = None if isinstance(X, ShardedArray) else X  # to be sent again if the engines are stopped
        self.rows = X if isinstance(X, ShardedArray) else current_cluster().scatter(X)
        self._cluster: Any = self.rows.cluster
        self.changed: Callable[[], None] = lambda: None
        self._id = uuid.uuid4().hex
        self._lock = threading.RLock()  # a view changes this from a thread of its own
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
        """Number of clusters; another one makes a new start."""
        return len(self.centers)

    @k.setter
    def k(self, k: int) -> None:
        with self._changing():
            self._begin("k-means++", k=self._checked("k", k, self._points))

    @property
    def features(self) -> tuple[int, int]:
        """Those that the picture shows, across and up; numbers, or names when set."""
        return self._features

    @features.setter
    def features(self, features: Sequence[int | str]) -> None:
        with self._changing():
            self._update(features=self._checked_features(features))

    @property
    def points(self) -> int:
        """How many of the rows take part; the centres stay where they are, and begin new trails."""
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
        """Begin at another start."""
        with self._changing():
            self.restarts += 1
            self._begin("k-means++")

    def reset(self) -> None:
        """Back to where the trails begin."""
        with self._changing():
            self._begin(self.trails[0])

    def step(self) -> None:
        """One iteration, as ``KMeans(k, init=centers, max_iter=1)`` does it."""
        with self._changing():
            result = self._update(tol=_TOL)
            self.converged = result["converged"]
            self.trails = [*self.trails, result["centers"]]
            self.inertias = [*self.inertias, result["inertia"]]

    def move_center(self, j: int, x: float, y: float) -> None:
        """Put the centre `j` at a place of the picture; its other features stay, and the trails begin anew.

        Parameters
        ----------
        j : int
            From 0 to k - 1.
        x, y : float
            In the units of the features shown.
        """
        with self._changing():
            j = self._checked("j", j, self.k - 1, 0)
            if not (isinstance(x, Real) and isinstance(y, Real) and math.isfinite(x) and math.isfinite(y)):
                raise ValueError(f"x={x!r}, y={y!r} was given; expected two finite numbers")
            centers = self.centers.copy()
            centers[j, list(self._features)] = x, y
            self._begin(centers)

    def elbow(self, ks: Iterable[int] = ELBOW) -> dict[int, float]:
        """Inertia of a whole fit for each number of clusters, that of ``KMeans(k, random_state=random_state)``.

        Numbers beyond the number of points are left out, and what is known is not computed again.
        """
        for k in ks:
            if k not in self.elbows and k <= self._points:
                self.extend_elbow(k)
        return self.elbows

    def extend_elbow(self, k: int) -> None:
        """One more number of clusters in `elbows`."""
        with self._changing():
            parameters = {"n_clusters": self._checked("k", k, self._points), "max_iter": 300, "tol": _TOL}
            answer = self._call(
                "explore.fit", self._points, parameters={**parameters, "random_state": self.random_state}
            )
            self.elbows = dict(sorted({**self.elbows, k: answer.results[0]["inertia"]}.items()))

    # -- results ------------------------------------------------------------------------------------------------------

    @property
    def centers(self) -> np.ndarray:
        """The centres now."""
        return self.trails[-1]

    @property
    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the picture of each feature begins and ends: two arrays of shape (n_features,)."""
        low, high, mean, deviation = (self._facts[name] for name in ("low", "high", "mean", "deviation"))
        low = np.maximum(low, mean - _SPREAD * deviation)
        high = np.minimum(high, mean + _SPREAD * deviation)
        width = np.where(high > low, high - low, np.maximum(np.abs(low), 1))
        return low - _MARGIN * width, high + _MARGIN * width

    def picture(self) -> Picture:
        """The clusters as they are now, in the two features."""
        return self._picture

    def snapshot(self) -> Snapshot:
        """All that can be seen now, as an object that stays as it is: text, HTML, a figure."""
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

    # -- engines that come and go -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the cluster again if it was stopped, and send the rows again."""
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
        """Send the rows again if their engines were stopped, and new engines run now."""
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

    # -- how it is done -----------------------------------------------------------------------------------------------

    def _begin(self, init: str | np.ndarray, k: int | None = None, points: int | None = None) -> None:
        """New trails, from a start or from given centres."""
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
        """The engines' answer to a change, and its picture; nothing has changed here if they raise."""
        started = time.perf_counter()
        features = features or self._features
        points = points or self._points
        if begin is None and not self._labelled:  # the last change was cut off
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
        """The engines count in an array that they index with 32 bits."""
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
