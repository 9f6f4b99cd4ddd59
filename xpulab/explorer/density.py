"""The explorer of DBSCAN without a front end: clusters grow as `eps` does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real

import numpy as np
import numpy.typing as npt

from xpulab.calls import public_methods
from xpulab.data import ShardedArray
from xpulab.explorer.counting import LARGEST
from xpulab.explorer.picture import PALETTE, DensityPicture
from xpulab.explorer.plane import Plane, Window
from xpulab.explorer.plane_snapshot import PlaneSnapshot
from xpulab.explorer.trails import SHAPE
from xpulab.report.rendering import Html, counted, table_html, table_text
from xpulab.sharing.answers import ExploredDensity

__all__ = ["DensityExplorer", "DensitySnapshot"]

_KINDS = 2 * (LARGEST + 1) + 1  # the counters of a pixel
_MOST_SAMPLES = 1 << 31


@dataclass(frozen=True, eq=False)
class DensitySnapshot(PlaneSnapshot):
    """The state of an explorer of DBSCAN at one moment.

    Attributes
    ----------
    picture : DensityPicture
        The rows in the plane of two features.
    points, n_samples, n_features : int
        Numbers of used rows, of all rows, and of features.
    selection : Selection, optional
        The rows inside of a shape.
    method : str
        ``"DBSCAN"``.
    eps : float
    min_samples : int
        The parameters of DBSCAN.
    sizes : tuple of int
        Number of rows of each cluster.
    cores, borders, noise : int
        Numbers of cores, of other rows in a cluster, and of rows in none.
    """

    eps: float = 0.5
    min_samples: int = 5
    sizes: tuple[int, ...] = ()
    cores: int = 0
    borders: int = 0
    noise: int = 0
    method: str = field(default="DBSCAN", kw_only=True)

    def line(self) -> str:
        """Return a summary on one line."""
        return (
            f"DBSCAN of {self._rows_used}, eps={self.eps:.6g}, min_samples={self.min_samples}: "
            f"{counted(len(self.sizes), 'cluster')}, {self.cores:,} cores, {self.borders:,} border rows, "
            f"{self.noise:,} rows of noise"
        )

    def __str__(self) -> str:
        selection = [f"  {self.selection}"] if self.selection else []
        return "\n".join([self.line(), table_text(("cluster", "rows"), self._largest(), "rr"), *selection])

    def table(self) -> Html:
        """Return the largest clusters as a folded table."""
        keys = [
            Html(f'<i class="xpu-key xpu-hue" style="--xpu-hue:{self.picture.colours[min(rank, LARGEST)]}"></i>{j}')
            for rank, (j, _) in enumerate(self._largest())
        ]
        rows = [(key, size) for key, (_, size) in zip(keys, self._largest(), strict=True)]
        table = table_html(("cluster", "rows"), rows, "lr")
        return Html(f"<details><summary>Largest clusters</summary>{table}</details>")

    def _largest(self) -> list[tuple[str, ...]]:
        order = np.argsort(-np.array(self.sizes, np.int64), kind="stable")[:20]
        return [(str(j), f"{self.sizes[j]:,}") for j in order.tolist()]


@public_methods("DensityExplorer.")
class DensityExplorer(Plane):
    """DBSCAN on the engines, with a picture of cores, border rows and noise.

    A change of `eps` or `min_samples` is a fit of all chosen rows, by the code of `xpulab.cluster.DBSCAN`. Cores are
    opaque, border rows are paler, and noise is grey. The eleven largest clusters have colours of their own.

    Parameters
    ----------
    X : array-like or ShardedArray of shape (n_samples, n_features)
        As for `xpulab.explorer.session.Explorer`.
    eps : float, optional
        As for `DBSCAN`; by default a twentieth of the mean standard deviation of the features.
    min_samples : int, default=5
        As for `DBSCAN`.
    points : int, optional
        Number of rows that are clustered; by default at most 100,000 of them, so that a change takes less than a
        second.
    features : tuple of two ints or names, default=(0, 1)
        The features on the horizontal and the vertical axis of the picture.
    shape : tuple of two ints, default=(384, 512)
        (lines, columns) of the picture.

    Attributes
    ----------
    rows : ShardedArray
        The rows on the engines.
    names : list of str
        Names of the features.
    sizes : numpy.ndarray of int64 of shape (n_clusters,)
        Number of rows of each cluster.
    cores, borders, noise : int
        Numbers of cores, of other rows in a cluster, and of rows in none.
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

    _drawing = DensityPicture

    def __init__(
        self,
        X: npt.ArrayLike | ShardedArray,
        *,
        eps: float | None = None,
        min_samples: int = 5,
        points: int | None = None,
        features: Sequence[int | str] = (0, 1),
        shape: tuple[int, int] = SHAPE,
    ) -> None:
        if points is None and np.ndim(X) == 2:
            points = min(np.shape(X)[0], 100_000)
        super().__init__(X, points, features, shape)
        self._min_samples = self._checked("min_samples", min_samples, _MOST_SAMPLES)
        self._eps = 1.0 if eps is None else _checked_eps(eps)
        self._require_counters(_KINDS)
        self._look()
        if eps is None:
            self._eps = float(np.mean(self._facts["deviation"])) / 20 or 1.0
        self._fit()

    @property
    def eps(self) -> float:
        """Largest distance of two neighbours. Setting it fits again."""
        return self._eps

    @eps.setter
    def eps(self, eps: float) -> None:
        with self._changing():
            self._fit(eps=_checked_eps(eps))

    @property
    def min_samples(self) -> int:
        """Number of neighbours, with the row itself, that make a row a core. Setting it fits again."""
        return self._min_samples

    @min_samples.setter
    def min_samples(self, min_samples: int) -> None:
        with self._changing():
            self._fit(min_samples=self._checked("min_samples", min_samples, _MOST_SAMPLES))

    def _use(self, points: int) -> None:
        self._fit(points=points)

    def colour_of(self, cluster: int) -> str:
        """Return the colour of a cluster, or of noise, as ``"#rrggbb"``.

        Parameters
        ----------
        cluster : int
            The number of the cluster, or -1.
        """
        if cluster < 0:
            return "#808080"
        rank = int(np.count_nonzero(self.sizes > self.sizes[cluster]))
        rank += int(np.count_nonzero(self.sizes[:cluster] == self.sizes[cluster]))
        return PALETTE[self.picture().hues[min(rank, LARGEST)]]

    def snapshot(self) -> DensitySnapshot:
        """Return the present state, as an object that does not change, with text, HTML and a figure."""
        with self._lock:
            return DensitySnapshot(
                picture=self.picture(),
                points=self._points,
                n_samples=self.rows.shape[0],
                n_features=self.rows.shape[1],
                selection=self._selection(),
                eps=self._eps,
                min_samples=self._min_samples,
                sizes=tuple(self.sizes.tolist()),
                cores=self.cores,
                borders=self.borders,
                noise=self.noise,
            )

    def _fit(self, eps: float | None = None, min_samples: int | None = None, points: int | None = None) -> None:
        eps, min_samples = eps or self._eps, min_samples or self._min_samples
        result: ExploredDensity = self._draw("explore.density", _KINDS, points=points, eps=eps, min_samples=min_samples)
        self._take(result)
        self._eps, self._min_samples = eps, min_samples

    def _refresh(self, features: tuple[int, int] | None = None, window: Window | None = None) -> None:
        eps = None if self._labelled else self._eps
        result: ExploredDensity = self._draw(
            "explore.density", _KINDS, features, None, window, eps=eps, min_samples=self._min_samples
        )
        self._take(result)

    def _take(self, result: ExploredDensity) -> None:
        if result["sizes"] is not None and result["kinds"] is not None:
            self.sizes = result["sizes"]
            self.cores, self.borders, self.noise = (int(n) for n in result["kinds"])


def _checked_eps(eps: float) -> float:
    if not isinstance(eps, Real) or not 0 < eps < math.inf:
        raise ValueError(f"eps={eps!r} was given; expected a finite number greater than 0")
    return float(eps)
