"""Losses of linear models, with their derivatives by the products of a row with the coefficients, on the host.

The devices sum the same losses, of `kernel`, over dense rows. The host computes those of sparse rows, second
derivatives of all coefficients, and scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from xpulab.kernels.linear.linear_losses import Loss
from xpulab.sharing.linear_models import Distribution

__all__ = [
    "KINKED",
    "UNLIMITED",
    "Classes",
    "Deviance",
    "Distances",
    "Margins",
    "Missed",
    "Robust",
    "RowLoss",
    "probabilities",
]

_Floats = npt.NDArray[np.float64]

#: A limit so small that the loss is what is missed.
KINKED = 1e-18

#: A limit that nothing misses, also of rows of float64.
UNLIMITED = float(np.finfo(np.float32).max)


class RowLoss(ABC):
    """A loss of rows, of which each has products with `n_columns` columns of coefficients.

    Attributes
    ----------
    kernel : Loss
        What the devices sum.
    """

    kernel: Loss

    @property
    def n_columns(self) -> int:
        """Columns of coefficients."""
        return self.kernel.n_columns

    @abstractmethod
    def losses(self, raw: _Floats, targets: _Floats) -> _Floats:
        """Return the losses (n,) for products (n, n_columns) and targets (n,)."""

    @abstractmethod
    def residuals(self, raw: _Floats, targets: _Floats) -> _Floats:
        """Return the derivatives (n, n_columns) of the losses."""

    @abstractmethod
    def along(self, raw: _Floats, targets: _Floats, step: _Floats) -> _Floats:
        """Return the second derivatives times the products of a step: (n, n_columns)."""

    @abstractmethod
    def second_derivatives(
        self, raw: _Floats, targets: _Floats, weight: _Floats, d: int, sandwich: Callable[[_Floats], _Floats]
    ) -> tuple[_Floats, float]:
        """Return second derivatives by all coefficients, and the weight of rows without a positive one.

        `sandwich` returns the products (d + 1, d + 1) of d columns and a column of ones, with the weights it is given.
        The result has the shape (n_columns, d + 1, n_columns, d + 1).
        """


class Classes(RowLoss):
    """Half the binomial or multinomial deviance; targets are numbers of classes.

    Parameters
    ----------
    n_classes : int
        For two classes, there is one column of coefficients.
    """

    def __init__(self, n_classes: int) -> None:
        self.kernel = Loss("binary") if n_classes == 2 else Loss("multinomial", n_classes)

    def losses(self, raw: _Floats, targets: _Floats) -> _Floats:
        """Return the negative logarithms of the probabilities of the classes."""
        if self.n_columns == 1:
            return np.logaddexp(0, raw[:, 0]) - targets * raw[:, 0]
        most = raw.max(axis=1)
        own = raw[np.arange(len(raw)), targets.astype(np.intp)]
        return np.log(np.exp(raw - most[:, None]).sum(axis=1)) + most - own

    def residuals(self, raw: _Floats, targets: _Floats) -> _Floats:
        """Return the probabilities, less 1 for the own class."""
        shares = probabilities(raw)
        if self.n_columns == 1:
            return shares[:, 1:] - targets[:, None]
        shares[np.arange(len(raw)), targets.astype(np.intp)] -= 1
        return shares

    def along(self, raw: _Floats, targets: _Floats, step: _Floats) -> _Floats:
        """Return the changes of the probabilities."""
        shares = probabilities(raw)
        if self.n_columns == 1:
            return shares[:, :1] * shares[:, 1:] * step
        return shares * (step - (shares * step).sum(axis=1, keepdims=True))

    def second_derivatives(
        self, raw: _Floats, targets: _Floats, weight: _Floats, d: int, sandwich: Callable[[_Floats], _Floats]
    ) -> tuple[_Floats, float]:
        """Compute one sandwich for each pair of classes."""
        c, shares, flat = self.n_columns, probabilities(raw), 0.0
        whole = np.zeros((c, d + 1, c, d + 1))
        if c == 1:
            curvature = shares[:, 0] * shares[:, 1] * weight
            whole[0, :, 0] = sandwich(curvature)
            return whole, float(weight[curvature <= 0].sum())
        # The derivatives add up to zero over the classes, so the derivatives on the diagonal need no products.
        for i in range(c):
            for j in range(i):
                products = sandwich(shares[:, i] * shares[:, j] * weight)
                whole[i, :, j] = whole[j, :, i] = -products
                whole[i, :, i] += products
                whole[j, :, j] += products
        return whole, flat


class Deviance(RowLoss):
    """Half the deviance of a Tweedie distribution, without `constant`.

    Parameters
    ----------
    power : float
        The power of the mean that is the variance: 0 of the normal distribution, 1 of Poisson's, 2 of the gamma.
    link : {"log", "identity"}
        Whether a row's product is the logarithm of the mean, or the mean.
    """

    def __init__(self, power: float, link: str) -> None:
        self.power, self.log = float(power), link == "log"
        self.kernel = Loss("log" if self.log else "identity", 1, (self.power,))

    @classmethod
    def of(cls, distribution: Distribution) -> Deviance:
        """Return that of a distribution."""
        return cls(distribution.power, distribution.link)

    def takes(self, lowest: float) -> bool:
        """Return whether the distribution has targets as low as this one, as in scikit-learn."""
        return self.power <= 0 or lowest > 0 or (self.power < 2 and lowest == 0)

    def raw(self, mean: float) -> float:
        """Return the product of a row with this mean."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.log(mean)) if self.log else float(mean)

    def means(self, raw: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Return the means for products of rows, in their dtype."""
        with np.errstate(over="ignore"):
            return np.exp(raw) if self.log else raw

    def _to_power(self, raw: _Floats, power: float) -> _Floats:
        """Return powers of the mean."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            if self.log:
                return np.exp(power * raw)
            return np.ones_like(raw) if power == 0 else np.power(raw, power)

    def losses(self, raw: _Floats, targets: _Floats) -> _Floats:
        """Return the losses; not numbers for a product that is no mean of the distribution."""
        z, p = raw[:, 0], self.power
        if p == 0:
            return 0.5 * np.square(self._to_power(z, 1) - targets)
        with np.errstate(divide="ignore", invalid="ignore"):
            log = z if self.log else np.log(z)
        grown = log if p == 2 else self._to_power(z, 2 - p) / (2 - p)
        return grown - targets * (log if p == 1 else self._to_power(z, 1 - p) / (1 - p))

    def residuals(self, raw: _Floats, targets: _Floats) -> _Floats:
        """Return the derivatives."""
        z, p = raw[:, 0], self.power
        if self.log:
            return (self._to_power(z, 2 - p) - targets * self._to_power(z, 1 - p))[:, None]
        return (self._to_power(z, -p) * (z - targets))[:, None]

    def _bends(self, raw: _Floats, targets: _Floats) -> _Floats:
        """Return the second derivatives (n,)."""
        z, p = raw[:, 0], self.power
        if self.log:
            return (2 - p) * self._to_power(z, 2 - p) - (1 - p) * targets * self._to_power(z, 1 - p)
        if p == 0:
            return np.ones_like(z)
        with np.errstate(divide="ignore", invalid="ignore"):
            return self._to_power(z, -p) * (1 - p + p * targets / z)

    def along(self, raw: _Floats, targets: _Floats, step: _Floats) -> _Floats:
        """Return the second derivatives times a step."""
        return self._bends(raw, targets)[:, None] * step

    def second_derivatives(
        self, raw: _Floats, targets: _Floats, weight: _Floats, d: int, sandwich: Callable[[_Floats], _Floats]
    ) -> tuple[_Floats, float]:
        """Compute one sandwich, of absolute values, as scikit-learn does: far from the minimum, some are negative."""
        bends = self._bends(raw, targets)
        return sandwich(np.abs(bends) * weight)[None, :, None], float(weight[bends <= 0].sum())

    def constant(self, targets: _Floats) -> _Floats:
        """Return what half the deviance of each row has beside the loss, an array (n,)."""
        p = self.power
        if p == 0:
            return np.zeros_like(targets)
        with np.errstate(divide="ignore", invalid="ignore"):
            if p == 1:
                logarithms: _Floats = np.where(targets > 0, np.log(targets), 0.0)
                return targets * logarithms - targets
            if p == 2:
                return -1.0 - np.log(targets)
            powers: _Floats = np.power(np.maximum(targets, 0), 2 - p)
            return powers / ((1 - p) * (2 - p))


class Missed(RowLoss):
    """What products of rows miss, v: ``v**2``, or about v itself.

    Up to a `limit`, v loses ``v**2 / (2 * limit)``, and from there on ``v - limit / 2``, so that the loss has second
    derivatives [1]_.

    Parameters
    ----------
    limit : float or None
        None for ``v**2``.
    bend : float, optional
        In place of ``1 / limit``.

    Attributes
    ----------
    limited : bool
        Whether there is a limit.

    References
    ----------
    .. [1] O. Chapelle, "Training a support vector machine in the primal", Neural Computation 19 (2007), 1155-1178.
    """

    def __init__(self, limit: float | None, bend: float | None = None) -> None:
        self.limit, self.bend = (UNLIMITED, 2.0) if limit is None else (limit, bend or 1 / limit)
        self.limited = limit is not None

    @abstractmethod
    def changed(self, limit: float) -> Missed:
        """Return the loss with another limit."""

    @abstractmethod
    def _missed(self, raw: _Floats, targets: _Floats) -> tuple[_Floats, _Floats, _Floats | float]:
        """Return what is missed, the sign of its derivatives by the products, and by what losses are multiplied."""

    def losses(self, raw: _Floats, targets: _Floats) -> _Floats:
        """Return the losses, added up over the columns."""
        missed, _, by = self._missed(raw, targets)
        cut = np.clip(missed, 0, self.limit)
        found: _Floats = (by * self.bend * cut * (missed - cut / 2)).sum(axis=1)
        return found

    def residuals(self, raw: _Floats, targets: _Floats) -> _Floats:
        """Return the derivatives."""
        missed, sign, by = self._missed(raw, targets)
        return sign * by * self.bend * np.clip(missed, 0, self.limit)

    def _bends(self, raw: _Floats, targets: _Floats) -> _Floats:
        """Return the second derivatives (n, n_columns)."""
        missed, _, by = self._missed(raw, targets)
        return by * self.bend * ((missed > 0) & (missed <= self.limit))

    def along(self, raw: _Floats, targets: _Floats, step: _Floats) -> _Floats:
        """Return the second derivatives times a step."""
        return self._bends(raw, targets) * step

    def second_derivatives(
        self, raw: _Floats, targets: _Floats, weight: _Floats, d: int, sandwich: Callable[[_Floats], _Floats]
    ) -> tuple[_Floats, float]:
        """Compute one sandwich for each column."""
        c, bends = self.n_columns, self._bends(raw, targets)
        whole = np.zeros((c, d + 1, c, d + 1))
        for j in range(c):
            whole[j, :, j] = sandwich(bends[:, j] * weight)
        return whole, float(weight @ (bends <= 0).mean(axis=1))


class Margins(Missed):
    """By how much products fall short of the margin of 1 of their class; targets are numbers of classes.

    Parameters
    ----------
    n_classes : int
        For two classes, there is one column of coefficients, of the second class; otherwise each class has one against
        all others.
    limit : float or None
    weights : numpy.ndarray of shape (n_classes,), optional
        By what the losses of a class's rows are multiplied in its own column, for more than two classes.
    bend : float, optional
    """

    def __init__(
        self, n_classes: int, limit: float | None, weights: _Floats | None = None, bend: float | None = None
    ) -> None:
        super().__init__(limit, bend)
        self._n_classes, self._given = n_classes, weights
        self._own: _Floats = np.ones(1 if n_classes == 2 else n_classes) if weights is None else weights
        settings = (self.limit, self.bend, *map(float, self._own))
        self.kernel = Loss("margin", 1, settings) if n_classes == 2 else Loss("margins", n_classes, settings)

    def changed(self, limit: float) -> Margins:
        """Return the loss with another limit."""
        return Margins(self._n_classes, limit, self._given)

    def _missed(self, raw: _Floats, targets: _Floats) -> tuple[_Floats, _Floats, _Floats]:
        own = targets[:, None] == (np.ones(1) if self.n_columns == 1 else np.arange(self.n_columns))
        signs = np.where(own, 1.0, -1.0)
        return 1 - signs * raw, -signs, np.where(own, self._own, 1.0)


class Distances(Missed):
    """By how much more than `epsilon` products miss their targets.

    Parameters
    ----------
    epsilon : float
    below, above : float
        By what the losses of products below and above their targets are multiplied.
    limit : float or None
    bend : float, optional
    """

    def __init__(
        self, epsilon: float, below: float, above: float, limit: float | None, bend: float | None = None
    ) -> None:
        super().__init__(limit, bend)
        self._facts = epsilon, below, above
        self.kernel = Loss("distance", 1, (self.limit, self.bend, *self._facts))

    def changed(self, limit: float) -> Distances:
        """Return the loss with another limit."""
        return Distances(*self._facts, limit)

    def _missed(self, raw: _Floats, targets: _Floats) -> tuple[_Floats, _Floats, _Floats]:
        epsilon, below, above = self._facts
        away = targets[:, None] - raw
        return np.abs(away) - epsilon, np.where(away > 0, -1.0, 1.0), np.where(away > 0, below, above)


class Robust(Distances):
    """Huber's loss of residuals at a scale, times the scale; or what residuals have beyond its limit.

    Parameters
    ----------
    epsilon, scale : float
        Residuals within their product lose their square divided by the scale.
    beyond : bool
        Whether the loss is what residuals have beyond this product.
    """

    def __init__(self, epsilon: float, scale: float = 1.0, beyond: bool = False) -> None:
        self.epsilon, far = epsilon, epsilon * scale
        super().__init__(*((far, 1.0, 1.0, KINKED) if beyond else (0.0, 1.0, 1.0, far, 2 / scale)))

    def changed(self, scale: float, beyond: float = 0.0) -> Robust:
        """Return the loss at another scale."""
        return Robust(self.epsilon, scale, bool(beyond))

    def second_derivatives(
        self, raw: _Floats, targets: _Floats, weight: _Floats, d: int, sandwich: Callable[[_Floats], _Floats]
    ) -> tuple[_Floats, float]:
        """Compute one sandwich, and the weight of rows beyond the limit."""
        whole, _ = super().second_derivatives(raw, targets, weight, d, sandwich)
        missed, _, _ = self._missed(raw, targets)
        return whole, float(weight[missed[:, 0] > self.limit].sum())


def probabilities(decision: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Return the probabilities of the classes (m, n_classes) from linear functions (m, 1) or (m, n_classes)."""
    if decision.shape[1] > 1:
        powers = np.exp(decision - decision.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        share = 1 / (1 + np.exp(-decision))
    return np.hstack([1 - share, share])
