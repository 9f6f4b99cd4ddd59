"""The rows of batches, and the steps of a descent, on one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from xpulab.engine.algorithms.descent import fitting
from xpulab.engine.algorithms.descent.batches import DenseBatches, SparseBatches, StepLoss
from xpulab.engine.algorithms.descent.dealing import Deal
from xpulab.engine.algorithms.descent.given import Given
from xpulab.engine.algorithms.descent.steps import Steps
from xpulab.engine.engine import Engine
from xpulab.sharing.checkpoint import Checkpoint
from xpulab.sharing.linear_models import Descent

RNG = np.random.default_rng(0)
ONE = np.ones(1)


def how(**changes: Any) -> Descent:
    given: dict[str, Any] = {
        "loss": "squared_error", "learning_rate": "constant", "epsilon": 0.1, "alpha": 0.01, "eta0": 0.1,
        "power_t": 0.5, "l1_ratio": 0.0, "penalty": True, "fit_intercept": True, "shuffle": True,
        "early_stopping": False, "max_iter": 5, "n_iter_no_change": 5, "verbose": 0, "tol": -np.inf, "average": 0,
        "seed": 0, "seeds": (0,), "t": 1.0,
    }  # fmt: skip
    return Descent(**given | changes)


@given(
    lengths=st.lists(st.integers(0, 300), min_size=1, max_size=4).filter(lambda lengths: sum(lengths) > 1),
    seed=st.one_of(st.none(), st.integers(0, 5)),
    held=st.booleans(),
)
def test_each_row_is_in_one_batch_that_the_ranks_share(lengths: list[int], seed: int | None, held: bool) -> None:
    bounds = [0, *np.cumsum(lengths).tolist()]
    n = bounds[-1]
    held_out = np.arange(n) % 3 == 1 if held else np.zeros(n, bool)
    packed = np.packbits(held_out) if held else None
    whole = Deal.of([0, n], 0, seed, packed)
    parts = [Deal.of(bounds, rank, seed, packed) for rank in range(len(lengths))]
    batches = [set(whole.places[first:last]) for first, last in zip(whole.bounds[:-1], whole.bounds[1:], strict=True)]
    assert sorted(whole.places) == np.flatnonzero(~held_out).tolist()
    assert [len(batch) for batch in batches] == whole.sizes.tolist()
    assert whole.sizes.max() - whole.sizes.min() <= 1
    for batch, rows in enumerate(batches):
        of_ranks = [
            part.places[slice(*part.bounds[batch : batch + 2])] + first
            for part, first in zip(parts, bounds[:-1], strict=True)
        ]
        assert set(np.concatenate(of_ranks)) == rows
    held_rows = [part.held_out + first for part, first in zip(parts, bounds[:-1], strict=True)]
    np.testing.assert_array_equal(np.concatenate(held_rows), np.flatnonzero(held_out))


@pytest.mark.parametrize("name", ["log_loss", "squared_hinge", "modified_huber", "squared_error", "huber"])
def test_no_loss_bends_more_than_is_said(name: str) -> None:
    loss = StepLoss(name, 0.1)
    raw = np.linspace(-5, 5, 10_001)[:, None]
    for target in (0.0, 1.0):
        slopes = loss.of_rows.residuals(raw, np.full(len(raw), target))[:, 0]
        assert np.abs(np.diff(slopes) / np.diff(raw[:, 0])).max() == pytest.approx(loss.bend, rel=0.01)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["log_loss", "hinge", "perceptron", "modified_huber", "huber", "epsilon_insensitive"])
def test_the_host_and_the_device_have_the_same_sums(engine: Engine, name: str, weighted: bool) -> None:
    rows, targets = RNG.normal(size=(300, 5)), RNG.integers(0, 2, 300).astype(float)
    deal, loss, point = Deal.of([0, 300], 0, 1), StepLoss(name, 0.1), RNG.normal(size=6)
    weights = RNG.uniform(0.1, 2, 300) if weighted else None
    made = (
        DenseBatches(deal, loss, engine.device, rows),
        SparseBatches(deal, loss, sparse.csr_matrix(rows[deal.places])),
    )
    for batches in made:
        batches.aim(targets[deal.places], None if weights is None else weights[deal.places])
    for batch in range(len(deal.sizes)):
        (loss_of_device, gradient), (loss_of_host, expected) = (each.sums(batch, point) for each in made)
        assert loss_of_device == pytest.approx(loss_of_host, rel=1e-9)
        np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12)
        products = made[1].products(batch, point)
        np.testing.assert_allclose(made[0].products(batch, point), products, rtol=1e-9, atol=1e-12)


def test_a_step_is_that_of_its_rows_or_the_longest_that_cannot_rise() -> None:
    point, gradient = np.array([1.0, -2.0, 3.0]), np.array([10.0, 20.0, 30.0])
    steps = Steps(how(alpha=0.0, penalty=False), 1.0, 0.01)
    (short, long), _ = steps.plan(np.array([10, 1000]), 1.0)
    steps.take(point, gradient, 10, short)
    np.testing.assert_allclose(point, [0.9, -2.2, 2.7])
    steps.take(point, gradient, 1000, long)  # its rates add up to 10 / curvature
    np.testing.assert_allclose(point, [0.89, -2.22, 2.67])
    thin = Steps(how(alpha=1.0, l1_ratio=1.0), 1.0, 0.05)
    small = np.array([0.3, -0.2, 1.0])
    thin.take(small, np.zeros(3), 5, 0.25)
    np.testing.assert_allclose(small, [0.05, 0.0, 1.0])
    assert thin.penalty(small) == pytest.approx(0.05)


@pytest.mark.parametrize(
    "changes", [{}, {"l1_ratio": 0.3}, {"average": 40}, {"penalty": False, "fit_intercept": False}]
)
@pytest.mark.parametrize("name", ["log_loss", "hinge", "perceptron", "squared_error", "epsilon_insensitive"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_steps_of_machine_code_are_those_of_numpy(dtype: Any, name: str, changes: dict[str, Any]) -> None:
    rows = sparse.random(100, 7, density=0.4, format="csr", random_state=0, dtype=dtype)
    deal, loss = Deal.of([0, 100], 0, 1), StepLoss(name, 0.1)
    batches, steps = SparseBatches(deal, loss, rows[deal.places]), Steps(how(**changes), 1.0, 0.02)
    batches.aim(RNG.integers(0, 2, 100).astype(float), RNG.uniform(0.1, 2, 100))
    order = RNG.permutation(len(deal.sizes))
    plan = steps.plan(deal.sizes[order], 3.0)
    found, expected = RNG.normal(size=(2, 8)), np.empty(0)
    point, mean = found.copy()
    sums = np.zeros(2)
    for batch, length, share in zip(order, *plan, strict=True):
        lost, gradient = batches.sums(batch, point)
        sums += lost, deal.sizes[batch] * steps.penalty(point)
        steps.take(point, gradient, deal.sizes[batch], length)
        mean += (point - mean) * share
    expected = np.array([point, mean])
    np.testing.assert_allclose(batches.take(order, plan, steps, *found), sums, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_the_mean_is_that_of_the_second_half_or_since_a_row() -> None:
    sizes, points = np.array([3, 4, 3, 5, 4]), RNG.normal(size=5)

    def mean_of(average: int, start: float) -> float:
        mean = start
        for point, share in zip(points, Steps(how(average=average), 1.0, 0.1).plan(sizes, 1.0)[1], strict=True):
            mean += (point - mean) * share
        return mean

    assert mean_of(0, 9.0) == pytest.approx(points[2:].mean())
    assert mean_of(5, 9.0) == pytest.approx(np.average(points[1:], weights=[3, 3, 5, 4]))


def test_the_rates_are_those_of_scikit_learn() -> None:
    assert Steps(how(learning_rate="optimal", alpha=1e-4), 1.0, 0.1).rates(ONE)[0] == pytest.approx(10.0)
    assert Steps(how(learning_rate="invscaling", power_t=0.5), 1.0, 0.1).rates(100 * ONE) == pytest.approx(0.01)
    adaptive = Steps(how(learning_rate="adaptive", n_iter_no_change=2), 1.0, 0.1)
    assert not adaptive.has_ended(1)
    assert (adaptive.has_ended(2), adaptive.rates(7 * ONE)[0]) == (False, pytest.approx(0.02))
    assert Steps(how(n_iter_no_change=2), 1.0, 0.1).has_ended(2)


def test_a_class_is_told_from_all_others_with_its_weights() -> None:
    given_ = Given(np.zeros((4, 1)), np.array([0.0, 2, 1, 2]), np.array([1.0, 2, 3, 4]), [0, 4], 0)
    three = how(columns=((0, 1.0, 1.0), (1, 1.0, 1.0), (2, 3.0, 0.5)))
    weights, targets = given_.of_column(three, 2, of_classes=True)
    assert weights is not None
    np.testing.assert_array_equal(weights, [0.5, 6, 1.5, 12])
    np.testing.assert_array_equal(targets, [0, 1, 0, 1])
    weights, targets = given_.of_column(three, 0, of_classes=False)
    assert weights is given_.weights
    np.testing.assert_array_equal(targets, [1, -1, -1, -1])
    assert given_.of_column(how(), 0, of_classes=False) == (given_.weights, given_.targets)


def test_the_task_fits(ask: Callable[..., Any]) -> None:
    assert fitting.__name__ == "xpulab.engine.algorithms.descent.fitting"
    X = RNG.normal(size=(500, 3))
    y = X @ [1.0, -2, 3] + 4
    with Checkpoint.create(1 << 20) as kept:
        found = ask(
            "SGD.fit", X, targets=y, descent=how(penalty=False), checkpoint=kept.path, start=np.zeros((2, 1, 4))
        )
    np.testing.assert_allclose(found["state"]["points"], [[1, -2, 3, 4]], atol=1e-3)
    assert (found["rows"], found["converged"], found["state"]["n_iter"]) == (500, False, [5])
    assert len(found["history"]) == 5
