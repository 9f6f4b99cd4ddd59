"""Losses of rows on the host: their derivatives, and what the devices sum."""

from __future__ import annotations

import numpy as np
import pytest

from xpulab.engine.algorithms.linear.losses import Classes, Deviance, Distances, Margins, RowLoss
from xpulab.kernels.linear.linear_losses import Loss

RNG = np.random.default_rng(0)
TARGETS = RNG.integers(0, 3, 40).astype(np.float64)
STEP = 1e-6


def every() -> list[tuple[str, RowLoss, np.ndarray, np.ndarray]]:
    """Return the name of each loss, the loss, products, and targets."""
    found: list[tuple[str, RowLoss, np.ndarray, np.ndarray]] = [
        ("2 classes", Classes(2), RNG.normal(size=(40, 1)), TARGETS % 2),
        ("3 classes", Classes(3), RNG.normal(size=(40, 3)), TARGETS),
    ]
    for limit in (0.7, None):
        found.append((f"margin up to {limit}", Margins(2, limit), RNG.normal(size=(40, 1)), TARGETS % 2))
        found.append(
            (f"margins up to {limit}", Margins(3, limit, np.array([0.5, 1.0, 2.0])), RNG.normal(size=(40, 3)), TARGETS)
        )
        distances = Distances(0.1, 0.3, 0.7, limit)
        found.append((f"distance up to {limit}", distances, RNG.normal(size=(40, 1)), TARGETS - 1))
    for power in (-1, 0, 1, 1.5, 2, 3):
        for link in ("log", "identity"):
            means = RNG.uniform(0.5, 3, size=(40, 1))
            found.append((f"{power} {link}", Deviance(power, link), means, TARGETS + (power >= 2)))
    return found


@pytest.mark.parametrize(("loss", "raw", "targets"), [each[1:] for each in every()], ids=[each[0] for each in every()])
def test_derivatives(loss: RowLoss, raw: np.ndarray, targets: np.ndarray) -> None:
    along = RNG.normal(size=raw.shape)
    ahead, behind = raw + STEP * along, raw - STEP * along
    slopes = (loss.losses(ahead, targets) - loss.losses(behind, targets)) / (2 * STEP)
    np.testing.assert_allclose((loss.residuals(raw, targets) * along).sum(axis=1), slopes, atol=1e-7)
    bends = (loss.residuals(ahead, targets) - loss.residuals(behind, targets)) / (2 * STEP)
    np.testing.assert_allclose(loss.along(raw, targets, along), bends, atol=1e-7)
    X, weights = np.ones((40, 1)), np.ones(40)
    whole, flat = loss.second_derivatives(raw, targets, weights, 0, lambda curvature: (X.T * curvature) @ X)
    found = whole[:, 0, :, 0]
    units = [np.broadcast_to(unit, raw.shape) for unit in np.eye(loss.n_columns)]
    exact = np.stack([loss.along(raw, targets, unit) for unit in units], axis=2)
    if loss.n_columns == 1:
        assert flat == (exact <= 0).sum()
        exact = np.abs(exact)
    np.testing.assert_allclose(found, exact.sum(axis=0), atol=1e-9)


@pytest.mark.parametrize("power", [-1, 0, 1, 1.5, 2, 3])
@pytest.mark.parametrize("link", ["log", "identity"])
def test_half_a_deviance_is_zero_where_the_mean_is_the_target(power: float, link: str) -> None:
    loss, targets = Deviance(power, link), TARGETS + 0.5
    exact = np.log(targets) if link == "log" else targets
    at, beside = (loss.losses(raw[:, None], targets) + loss.constant(targets) for raw in (exact, exact + 0.01))
    np.testing.assert_allclose(at, 0, atol=1e-9)
    assert (beside > 0).all()
    np.testing.assert_allclose(loss.means(exact), targets)
    assert loss.raw(2.0) == pytest.approx(np.log(2) if link == "log" else 2)


def test_which_targets_distributions_have() -> None:
    taken = {power: [Deviance(power, "log").takes(lowest) for lowest in (-1, 0, 1)] for power in (-1, 0, 1, 1.5, 2, 3)}
    assert taken[-1] == taken[0] == [True, True, True]
    assert taken[1] == taken[1.5] == [False, True, True]
    assert taken[2] == taken[3] == [False, False, True]


def test_what_the_devices_sum() -> None:
    assert Classes(2).kernel == Loss("binary")
    assert Classes(5).kernel == Loss("multinomial", 5)
    assert Deviance(1, "log").kernel == Loss("log", 1, (1.0,))
    assert Deviance(0, "identity").kernel == Loss("identity", 1, (0.0,))
