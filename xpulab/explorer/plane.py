"""Rows on the engines in the plane of two of their features: which part of it is drawn, its rows, and shapes in it."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from xpulab.csr import require_dense
from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.cluster import XPUCluster
from xpulab.deploy.current import current_cluster, find_current
from xpulab.deploy.tasks.answers import Answer
from xpulab.exceptions import HandleError, NoClusterError
from xpulab.explorer.counting import MOST_CELLS, View
from xpulab.explorer.picture import Picture
from xpulab.explorer.plane_snapshot import Selection

__all__ = ["REACH", "WHOLE", "DrawnRow", "Plane", "Window", "checked_place"]

_MOST_PIXELS = 1 << 16
_SPREAD = 4  # the picture shows this many standard deviations around the mean, so that outliers do not shrink the rest
_MARGIN = 0.03  # margin around the range of a feature, as a share of the range
#: Pixels of the picture from a place to the row that is shown for it.
REACH = 12.0


#: The part of each axis that the picture shows; None for the whole range.
Window = tuple[tuple[float, float] | None, tuple[float, float] | None]
WHOLE: Window = (None, None)


@dataclass(frozen=True)
class DrawnRow:
    """A row of an explorer's picture.

    Attributes
    ----------
    number : int
        The index of the row in X, from 0, as in ``X[number]``, also if the picture shows only some of the rows.
    values : dict of str to float
        The name of each feature -> the row's value.
    cluster : int
        The cluster of the row; -1 for noise.
    x, y : float
        The values of the features on the horizontal and the vertical axis.
    n_rows : int
        How many rows the picture has in the pixel of this row, which is the first of them.
    """

    number: int
    values: dict[str, float]
    cluster: int
    x: float
    y: float
    n_rows: int


class Plane:
    """Rows on the engines, and the part of the plane of two features that a picture shows.

    The parameters are those of `xpulab.explorer.session.Explorer`, which says what the engines compute.
    """

    _drawing: ClassVar[type[Picture]] = Picture

    def __init__(
        self, X: npt.ArrayLike | ShardedArray, points: int | None, features: Sequence[int | str], shape: tuple[int, int]
    ) -> None:
        if np.ndim(X) == 1 or (isinstance(X, ShardedArray) and X.ndim != 2):
            raise ValueError(
                f"Expected 2D array, got 1D array instead: X has the shape {np.shape(X)}; expected (n_samples, "
                "n_features)"
            )
        require_dense(X)
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
        self.seconds: dict[str, float] = {}
        self._picture: Picture | None = None
        self._window: Window = WHOLE
        self._points = self._checked("points", n_samples if points is None else points, n_samples)
        self._features = self._checked_features(features)
        self._labelled = False  # whether the engines have the labels of the present clusters and points
        self._corners: np.ndarray | None = None  # of the shape whose rows are selected
        self._corners_of: tuple[int, int] | None = None  # the features of the plane in which they are
        self._sizes: np.ndarray | None = None  # number of selected rows by cluster, and of noise
        self.selected = np.empty(0, np.int64)

    def _look(self) -> None:
        """Ask the engines for the ranges of the features."""
        self._facts = self._cluster.call("explore.facts", {"source": self.rows.source(self._cluster)}).results[0]
        self._cluster.release_with(self, self._id)

    def _refresh(self, features: tuple[int, int] | None = None, window: Window | None = None) -> None:
        """Draw the present clusters."""
        raise NotImplementedError

    def _use(self, points: int) -> None:
        """Use so many rows from now on, and draw them."""
        raise NotImplementedError

    @property
    def features(self) -> tuple[int, int]:
        """Indices of the features on the horizontal and the vertical axis. They can be set by index or by name."""
        return self._features

    @features.setter
    def features(self, features: Sequence[int | str]) -> None:
        with self._changing():
            self._refresh(features=self._checked_features(features), window=WHOLE)

    def zoom(self, x: Sequence[float] | None = None, y: Sequence[float] | None = None) -> None:
        """Show a part of the plane of the two features. Centres, labels and iterations stay those of all points.

        Parameters
        ----------
        x, y : sequence of two floats, optional
            Lower and upper limit on the horizontal and the vertical axis, in the units of the features. By default the
            axis shows its whole range.

        Raises
        ------
        ValueError
            If two limits are no finite numbers, or are not in ascending order.
        """
        with self._changing():
            self._refresh(window=(_checked_limits("x", x), _checked_limits("y", y)))

    @property
    def points(self) -> int:
        """Number of rows that are used. Setting it keeps centres, and begins new trails; DBSCAN fits again."""
        return self._points

    @points.setter
    def points(self, points: int) -> None:
        with self._changing():
            self._use(self._checked("points", points, self.rows.shape[0]))

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
        assert self._picture is not None  # the constructor makes the first one
        return self._picture

    # -- single rows, and those inside of a shape ---------------------------------------------------------------------

    def row_at(self, x: float, y: float) -> DrawnRow | None:
        """Return the row that the picture shows nearest to a place, or None if no pixel with rows is near.

        Of the pixels that have rows, the one whose middle is nearest to the place is looked for, up to 12 pixels away.
        The row is the first of the rows in this pixel.

        Parameters
        ----------
        x, y : float
            Coordinates, in the units of the features of the picture.

        Returns
        -------
        DrawnRow or None

        Raises
        ------
        ValueError
            If a coordinate is not finite.
        """
        at = checked_place(x, y)
        with self._lock:
            self._require_rows()
            if not self._labelled:  # the last change was interrupted
                self._refresh()
            view = self._view(self._features, self._window)
            answer = self._call("explore.row", self._points, view=view, at=at, reach=REACH)
            found = min(answer.results, key=lambda each: (each["square"], each["number"]))
            if not np.isfinite(found["square"]):
                return None
            line, column = found["pixel"]
            values = dict(zip(self.names, found["values"].tolist(), strict=True))
            across, up = (float(found["values"][feature]) for feature in self._features)
            n_rows = int(self.picture().counts[:, line, column].sum())
            return DrawnRow(found["number"], values, found["cluster"], across, up, n_rows)

    def select(self, shape: npt.ArrayLike | None = None) -> np.ndarray:
        """Select the rows inside of a shape in the plane of the two features.

        Of all rows, `points` are looked at. Iterations and other features keep the selection. A change of `points`, and
        another start of the engines, end it.

        Parameters
        ----------
        shape : array-like of shape (n, 2), optional
            The corners, in the units of the features, in order; the last one is joined to the first. Where the shape
            crosses itself, a row is inside if a line from it to the outside crosses the border an odd number of times.
            Without a shape nothing is selected any more.

        Returns
        -------
        numpy.ndarray of int64 of shape (n_selected,)
            `selected`, in ascending order.

        Raises
        ------
        ValueError
            If the shape is no array of at least three corners with finite coordinates.
        """
        corners = None if shape is None else _checked_corners(shape)
        with self._changing():
            if not self._labelled:
                self._refresh()
            with Outgoing() as outgoing:
                target, inside = outgoing.receive((self.rows.shape[0],), np.bool_)
                answer = self._call(
                    "explore.select", self._points, corners=corners, features=self._features, target=target
                )
            self._forget_shape()
            if corners is not None:
                self._corners, self._corners_of = corners, self._features
                self.selected, self._sizes = np.flatnonzero(inside), answer.results[0]["selected"]
        return self.selected

    def _forget_shape(self) -> None:
        self._corners = self._corners_of = self._sizes = None
        self.selected = np.empty(0, np.int64)

    def _selection(self) -> Selection | None:
        if self._sizes is None:
            return None
        return Selection(
            tuple(self._sizes[:-1].tolist()),
            self._corners if self._corners_of == self._features else None,
            int(self._sizes[-1]),
        )

    def colour_of(self, cluster: int) -> str:
        """Return the colour of a cluster, as ``"#rrggbb"``.

        Parameters
        ----------
        cluster : int
            The number of the cluster.
        """
        return self.picture().colours[cluster]

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
        self._forget_shape()
        cluster.release_with(self, self._id)

    # -- implementation -----------------------------------------------------------------------------------------------

    def _draw(
        self,
        task: str,
        k: int,
        features: tuple[int, int] | None = None,
        points: int | None = None,
        window: Window | None = None,
        **payload: object,
    ) -> Any:
        """Run a change on the engines, and draw `k` clusters. If they raise an error, this object does not change."""
        started = time.perf_counter()
        features, points, window = features or self._features, points or self._points, window or self._window
        self._require_counters(k)
        view = self._view(features, window)
        self._labelled = False
        with Outgoing() as outgoing:
            target, counts = outgoing.receive((k, *self.shape), np.int32)
            answer = self._call(task, points, view=view, target=target, **payload)
        if points != self._points:
            self._forget_shape()
        self._labelled, self._features, self._points, self._window = True, features, points, window
        before = self._picture.hues if self._picture is not None and len(self._picture.counts) == k else ()
        names = (self.names[features[0]], self.names[features[1]])
        self._picture = self._drawing(counts=counts, names=names, low=view["low"], high=view["high"], before=before)
        slowest = max(answer.seconds, key=lambda seconds: seconds["kernel"])
        self.seconds = {"total": time.perf_counter() - started, "task": max(answer.totals), **slowest}
        result = answer.results[0]
        self._sizes = result["selected"]
        return result

    def _call(self, task: str, points: int, **payload: object) -> Answer:
        source = self.rows.source(self._cluster)
        return self._cluster.call(task, {"explorer": self._id, "source": source, "points": points, **payload})

    def _view(self, features: tuple[int, int], window: Window) -> View:
        lowest, highest = self.limits
        whole = [(float(lowest[feature]), float(highest[feature])) for feature in features]
        (left, right), (bottom, top) = (part or axis for part, axis in zip(window, whole, strict=True))
        low, high = (left, bottom), (right, top)
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


def _checked_limits(axis: str, limits: Sequence[float] | None) -> tuple[float, float] | None:
    if limits is None:
        return None
    numbers = list(limits) if isinstance(limits, Iterable) else []
    finite = len(numbers) == 2 and all(isinstance(each, Real) and math.isfinite(each) for each in numbers)
    if not finite or not numbers[0] < numbers[1]:
        raise ValueError(f"{axis}={limits!r} was given; expected two finite numbers in ascending order")
    return float(numbers[0]), float(numbers[1])


def checked_place(x: float, y: float) -> tuple[float, float]:
    if not (isinstance(x, Real) and isinstance(y, Real) and math.isfinite(x) and math.isfinite(y)):
        raise ValueError(f"x={x!r}, y={y!r} was given; expected two finite numbers")
    return float(x), float(y)


def _checked_corners(shape: npt.ArrayLike) -> np.ndarray:
    expected = "expected at least three corners (x, y) of finite numbers"
    try:
        corners = np.array(shape, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"shape={shape!r} was given; {expected}") from None
    if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 3 or not np.isfinite(corners).all():
        raise ValueError(f"a shape of {corners.shape} numbers was given; {expected}")
    return corners
