"""The k-means explorer without a front end: its attributes and methods do what the controls do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from xpulab.calls import public_methods
from xpulab.data import ShardedArray
from xpulab.explorer.plane import Window
from xpulab.explorer.snapshot import Snapshot
from xpulab.explorer.trails import SHAPE, Trails
from xpulab.sharing.answers import Explored

__all__ = ["Explorer"]

#: Numbers of clusters of the elbow curve.
ELBOW = range(1, 13)
_TOL = 1e-4  # the default of KMeans


class Beginning(TypedDict):
    """How trails begin: the parameters of `KMeans` of this name."""

    init: str | np.ndarray
    n_clusters: int
    random_state: int


@public_methods("Explorer.")
class Explorer(Trails):
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
    converged : bool
        Whether `KMeans` would end after the last iteration.
    elbows : dict of int to float
        Number of clusters -> inertia, for those that `elbow` has computed for these points.
    random_state : int
        As the parameter.
    restarts : int
        Number of calls of `restart`.
    selected : numpy.ndarray of int64 of shape (n_selected,)
        The indices in X of the rows that `select`, or a shape drawn in the picture, has selected, in ascending order.
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
        X: npt.ArrayLike | ShardedArray,
        k: int = 8,
        *,
        points: int | None = None,
        features: Sequence[int | str] = (0, 1),
        random_state: int = 0,
        shape: tuple[int, int] = SHAPE,
    ) -> None:
        self.elbows: dict[int, float] = {}
        super().__init__(X, k, points, features, random_state, shape)

    # -- settings and actions -----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Run one iteration, as ``KMeans(k, init=centers, max_iter=1)`` does."""
        super().step()

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
    def inertias(self) -> list[float]:
        """Inertia for each element of `trails`."""
        return self.values

    def snapshot(self) -> Snapshot:
        """Return the present state, as an object that does not change, with text, HTML and a figure."""
        with self._lock:
            return self._seen("k-means", "inertia", elbows=dict(self.elbows))

    # -- implementation -----------------------------------------------------------------------------------------------

    def _beginning(self, init: np.ndarray | None, k: int) -> Beginning:
        seed = self.random_state + self.restarts
        return {"init": "k-means++" if init is None else init, "n_clusters": k, "random_state": seed}

    def _first(self, init: np.ndarray | None, k: int, points: int | None) -> tuple[np.ndarray, float]:
        result = self._update(self._beginning(init, k), points=points)
        if points is not None:
            self.elbows = {}
        return result["centers"], result["inertia"]

    def _iterate(self) -> tuple[np.ndarray, float, bool]:
        result = self._update(tol=_TOL)
        return result["centers"], result["inertia"], result["converged"]

    def _update(
        self,
        begin: Beginning | None = None,
        tol: float | None = None,
        features: tuple[int, int] | None = None,
        points: int | None = None,
        window: Window | None = None,
    ) -> Explored:
        """Run a change on the engines, and return their answer."""
        if begin is None and not self._labelled:  # the last change was interrupted
            begin = self._beginning(self.centers, self.k)
        k = self.k if begin is None else begin["n_clusters"]
        explored: Explored = self._draw("explore.update", k, features, points, window, begin=begin, tol=tol)
        return explored

    def _refresh(self, features: tuple[int, int] | None = None, window: Window | None = None) -> None:
        self._update(features=features, window=window)
