"""The explorer of Gaussian mixtures without a front end: the EM algorithm one iteration at a time."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.calls import public_methods
from xpulab.data import ShardedArray
from xpulab.explorer.plane import Window
from xpulab.explorer.snapshot import Snapshot
from xpulab.explorer.trails import SHAPE, Trails
from xpulab.sharing.answers import ExploredMixture

__all__ = ["MixtureExplorer"]

_TOL = 1e-3  # the default of GaussianMixture
_COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
_STARTS = ("kmeans", "k-means++", "random", "random_from_data")


@public_methods("MixtureExplorer.")
class MixtureExplorer(Trails):
    """Steps of the EM algorithm on the engines, one iteration at a time, with a picture of the components.

    The engines run the code of `xpulab.mixture.GaussianMixture`. A row has the colour of its most probable component.
    An ellipse around a mean is where the normal distribution of the component, on the plane of the two features, is two
    standard deviations away from its mean; the dashed one is that of the iteration before.

    Parameters
    ----------
    X : array-like or ShardedArray of shape (n_samples, n_features)
        As for `xpulab.explorer.session.Explorer`.
    k : int, default=8
        Number of components: ``n_components`` of `GaussianMixture`.
    points : int, optional
        Number of rows that the picture and the iterations use; all rows by default.
    features : tuple of two ints or names, default=(0, 1)
        The features on the horizontal and the vertical axis of the picture.
    random_state : int, default=0
        The first parameters are those of ``GaussianMixture(k, random_state=random_state + restarts)``.
    shape : tuple of two ints, default=(384, 512)
        (lines, columns) of the picture.
    covariance_type : {"full", "tied", "diag", "spherical"}, default="full"
        As for `GaussianMixture`.
    reg_covar : float, default=1e-6
        As for `GaussianMixture`.
    init_params : {"k-means++", "kmeans", "random", "random_from_data"}, default="k-means++"
        As for `GaussianMixture`, whose default is "kmeans": from there, little is left to see of the iterations.

    Attributes
    ----------
    rows : ShardedArray
        The rows on the engines.
    names : list of str
        Names of the features.
    centers : numpy.ndarray of float64 of shape (k, n_features)
        The present means.
    trails : list of numpy.ndarray of shape (k, n_features)
        The first means, and the means after each iteration.
    converged : bool
        Whether `GaussianMixture` would end after the last iteration.
    selected : numpy.ndarray of int64 of shape (n_selected,)
        The indices in X of the rows that `select`, or a shape drawn in the picture, has selected, in ascending order.
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
        If a parameter does not fit the rows; the message says what was expected. Also if a covariance is not positive
        definite.
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
        covariance_type: str = "full",
        reg_covar: float = 1e-6,
        init_params: str = "k-means++",
    ) -> None:
        for name, value, known in (
            ("covariance_type", covariance_type, _COVARIANCE_TYPES), ("init_params", init_params, _STARTS)
        ):  # fmt: skip
            if value not in known:
                raise ValueError(f"{name}={value!r} was given; expected one of {', '.join(map(repr, known))}")
        if not isinstance(reg_covar, Real) or not 0 <= reg_covar < np.inf:
            raise ValueError(f"reg_covar={reg_covar!r} was given; expected a finite number of at least 0")
        self.covariance_type: str = covariance_type
        self.reg_covar: float = float(reg_covar)
        self.init_params: str = init_params
        self._states: list[dict[str, np.ndarray]] = []
        super().__init__(X, k, points, features, random_state, shape)

    def step(self) -> None:
        """Run one iteration of the EM algorithm: an expectation and a maximisation step."""
        super().step()

    @property
    def lower_bounds(self) -> list[float]:
        """The mean log-likelihood of a row, for each element of `trails`."""
        return self.values

    @property
    def weights(self) -> np.ndarray:
        """The present weights of the components: (k,)."""
        return self._states[-1]["weights"]

    @property
    def covariances(self) -> np.ndarray:
        """The present covariance matrices of the components: (k, n_features, n_features)."""
        return self._matrices(self._states[-1])

    def snapshot(self) -> Snapshot:
        """Return the present state, as an object that does not change, with text, HTML and a figure."""
        with self._lock:
            drawn = np.ix_(range(self.k), self._features, self._features)
            covariances = np.stack([self._matrices(state)[drawn] for state in self._states[-2:]])
            return self._seen("Gaussian mixture", "lower bound", elbows={}, covariances=covariances)

    def _matrices(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Return the covariances of all components as matrices."""
        given, (k, d) = state["covariances"], state["means"].shape
        if self.covariance_type == "full":
            return given
        if self.covariance_type == "tied":
            return np.broadcast_to(given, (k, d, d))
        return given.reshape(k, -1)[:, :, None] * np.eye(d)

    def _first(self, init: np.ndarray | None, k: int, points: int | None) -> tuple[np.ndarray, float]:
        given: dict[str, np.ndarray] = {}
        if init is not None:  # all parameters but the means stay
            given = {**self._states[0 if init is self.trails[0] else -1], "means": init}
        result = self._update(self._beginning(given, k), points=points)
        self._states = [_state(result)]
        return self._states[0]["means"], _bound(result)

    def _iterate(self) -> tuple[np.ndarray, float, bool]:
        result = self._update(iterate=True)
        self._states = [*self._states, _state(result)]
        # The estimator compares the lower bounds of the parameters with which its last two iterations began.
        before = self.values[-2] if len(self.values) > 1 else -np.inf
        return self._states[-1]["means"], _bound(result), abs(self.values[-1] - before) < _TOL

    def _beginning(self, given: dict[str, np.ndarray], k: int) -> dict[str, Any]:
        seed = self.random_state + self.restarts
        return {"init_params": self.init_params, "n_components": k, "random_state": seed, "given": given}

    def _update(
        self,
        begin: dict[str, Any] | None = None,
        iterate: bool = False,
        features: tuple[int, int] | None = None,
        points: int | None = None,
        window: Window | None = None,
    ) -> ExploredMixture:
        """Run a change on the engines, and return their answer."""
        if begin is None and not iterate and not self._labelled:  # the last change was interrupted
            begin = self._beginning(self._states[-1], self.k)
        k = self.k if begin is None else begin["n_components"]
        explored: ExploredMixture = self._draw(
            "explore.mixture", k, features, points, window, begin=begin,
            present=self._states[-1] if self._states else None, iterate=iterate, covariance_type=self.covariance_type,
            reg_covar=self.reg_covar,
        )  # fmt: skip
        return explored

    def _refresh(self, features: tuple[int, int] | None = None, window: Window | None = None) -> None:
        self._update(features=features, window=window)


def _state(result: ExploredMixture) -> dict[str, np.ndarray]:
    assert result["parameters"] is not None
    return result["parameters"]


def _bound(result: ExploredMixture) -> float:
    assert result["lower_bound"] is not None
    return result["lower_bound"]
