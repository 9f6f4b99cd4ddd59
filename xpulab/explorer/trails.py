"""What explorers of iterations have in common: centres that move with each iteration, and leave trails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.data import ShardedArray
from xpulab.explorer.plane import Plane, checked_place
from xpulab.explorer.snapshot import Snapshot

__all__ = ["SHAPE", "Trails"]

#: (lines, columns) of the picture; a browser shows it at about this size.
SHAPE = (384, 512)
_MOST_SEED = 2**32 - 1


class Trails(Plane):
    """Centres on the plane, and what is measured after each iteration.

    The parameters are those of `xpulab.explorer.session.Explorer`.
    """

    def __init__(
        self,
        X: npt.ArrayLike | ShardedArray,
        k: int,
        points: int | None,
        features: Sequence[int | str],
        random_state: int,
        shape: tuple[int, int],
    ) -> None:
        super().__init__(X, points, features, shape)
        self.random_state = self._checked("random_state", random_state, _MOST_SEED, 0)
        self.restarts = 0
        self.trails: list[np.ndarray] = []
        self.values: list[float] = []
        self.converged = False
        self._past: tuple[float, ...] = ()
        self._require_counters(self._checked("k", k, self._points))
        self._look()
        self._begin(None, k=k)

    @property
    def k(self) -> int:
        """Number of clusters. Setting it draws new initial centres."""
        return len(self.centers)

    @k.setter
    def k(self, k: int) -> None:
        with self._changing():
            self._begin(None, k=self._checked("k", k, self._points))

    def _use(self, points: int) -> None:
        if self.k > points:
            self._begin(None, k=points, points=points)
        else:
            self._begin(self.centers, points=points)

    def restart(self) -> None:
        """Draw new initial centres."""
        with self._changing():
            self.restarts += 1
            self._begin(None)

    def reset(self) -> None:
        """Go back to the first centres of the trails."""
        with self._changing():
            self._begin(self.trails[0])

    def step(self) -> None:
        """Run one iteration."""
        with self._changing():
            centers, value, self.converged = self._iterate()
            self.trails, self.values = [*self.trails, centers], [*self.values, value]

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
            place = checked_place(x, y)
            centers = self.centers.copy()
            centers[j, list(self._features)] = place
            self._begin(centers)

    @property
    def centers(self) -> np.ndarray:
        """The present centres."""
        return self.trails[-1]

    def _seen(self, method: str, measure: str, **more: Any) -> Snapshot:
        """Return the present state, with what only some explorers have."""
        with self._lock:
            return Snapshot(
                picture=self.picture(),
                k=self.k,
                points=self._points,
                n_samples=self.rows.shape[0],
                n_features=self.rows.shape[1],
                random_state=self.random_state + self.restarts,
                trails=np.stack(self.trails)[:, :, list(self._features)].astype(np.float64),
                inertias=tuple(self.values),
                converged=self.converged,
                past=self._past,
                selection=self._selection(),
                method=method,
                measure=measure,
                **more,
            )

    def _begin(self, init: np.ndarray | None, k: int | None = None, points: int | None = None) -> None:
        """Begin new trails, from an initialisation or from given centres."""
        centers, value = self._first(init, self.k if k is None else k, points)
        if k is not None or points is not None:
            self._past = ()
        elif len(self.values) > 1:  # else a centre is being dragged, or was moved several times
            self._past = tuple(self.values)
        self.trails, self.values, self.converged = [centers], [value], False

    def _first(self, init: np.ndarray | None, k: int, points: int | None) -> tuple[np.ndarray, float]:
        """Draw first centres, or those of `init`; return them, and the value of `values` for them."""
        raise NotImplementedError

    def _iterate(self) -> tuple[np.ndarray, float, bool]:
        """Run an iteration; return the centres, the value for them, and whether the estimator would end after it."""
        raise NotImplementedError
