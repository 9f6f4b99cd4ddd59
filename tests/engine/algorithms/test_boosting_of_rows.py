"""The parts of gradient boosting on a rank alone: losses, thresholds, a tree, and the sums of a fit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cloudpickle
import numpy as np
import pytest
import sklearn._loss.loss as theirs
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp

from xpulab.engine.algorithms.boosting.binning import Part
from xpulab.engine.algorithms.boosting.boosting import predict
from xpulab.engine.algorithms.boosting.categories import found_in, in_order
from xpulab.engine.algorithms.boosting.fitting import Fit, should_stop
from xpulab.engine.algorithms.boosting.growing import Binned, grow, nodes_of
from xpulab.engine.algorithms.boosting.losses import LOSSES, weighted_percentile
from xpulab.engine.algorithms.boosting.scoring import Scoring
from xpulab.engine.algorithms.boosting.thresholds import thresholds_of
from xpulab.engine.engine import Task
from xpulab.engine.registry import TASKS
from xpulab.kernels.on_cpu.boosting import as_integers
from xpulab.sharing.sources import CategoricalColumns, Growth

RNG = np.random.default_rng(0)
RAW = 3 * RNG.normal(size=(3, 200))
COUNTS = RNG.integers(0, 3, 200).astype(float)
CLASSES: dict[str, Any] = {
    "squared_error": (theirs.HalfSquaredError(), RAW[1]),
    "absolute_error": (theirs.AbsoluteError(), RAW[1]),
    "quantile": (theirs.PinballLoss(quantile=0.3), RAW[1]),
    "poisson": (theirs.HalfPoissonLoss(), np.exp(RAW[1])),
    "gamma": (theirs.HalfGammaLoss(), np.exp(RAW[1])),
    "binomial": (theirs.HalfBinomialLoss(), (RAW[1] > 0).astype(float)),
}


@pytest.mark.parametrize("name", CLASSES)
def test_losses_are_those_of_scikit_learn(name: str) -> None:
    expected, y = CLASSES[name]
    raw = RAW[:1] * (20 if name == "binomial" else 1)
    gradients, hessians = expected.gradient_hessian(y, raw[0])
    found = LOSSES[name].gradients(y, raw, 0.3)
    assert_allclose(found[0][0], gradients, 1e-12)
    assert_allclose(found[1][0], hessians if len(hessians) > 1 else np.ones(200), 1e-12)
    assert_allclose(LOSSES[name].values(y, raw, 0.3), expected.loss(y, raw[0]), 1e-9, 1e-12)


def test_the_loss_of_several_classes() -> None:
    gradients, hessians = LOSSES["multinomial"].gradients(COUNTS, RAW, 0.5)
    shares = np.exp(RAW - logsumexp(RAW, axis=0))
    assert_allclose(gradients, shares - (np.arange(3)[:, None] == COUNTS))
    assert_allclose(hessians, shares * (1 - shares))
    right = -np.log(shares[COUNTS.astype(int), np.arange(200)])
    assert_allclose(LOSSES["multinomial"].values(COUNTS, RAW, 0.5), right, 1e-9)


def test_percentiles_of_whole_weights_are_those_of_repeated_numbers() -> None:
    percents = np.array([0.0, 10, 50, 77, 100])
    every = np.repeat(RAW[0], COUNTS.astype(int))
    methods: list[tuple[bool, Any]] = [(False, "inverted_cdf"), (True, "averaged_inverted_cdf")]
    for average, method in methods:
        found = weighted_percentile(RAW[0], COUNTS, percents, average)
        assert_allclose(found, np.percentile(every, percents, method=method))
    assert np.isnan(weighted_percentile(RAW[0], np.zeros(200), percents)).all()


def test_a_tree_divides_the_rows(task: Task) -> None:
    X, g = RAW.T.copy(), np.sign(RAW[0]).astype(np.float32)
    thresholds = thresholds_of(task, X, None, 20)
    bins = np.empty(X.shape, np.uint8)
    thresholds.bins(X, bins)
    assert_array_equal(bins[:, 0], np.searchsorted(thresholds.columns[0], X[:, 0]))
    assert [len(column) for column in thresholds.columns] == [19] * 3
    numbers, rows = np.empty((200, 2), np.int64), np.arange(200, dtype=np.int32)
    as_integers(g, np.ones_like(g), 4.0, 4.0, numbers)
    growth = Growth(
        learning_rate=1.0, max_leaf_nodes=2, max_depth=None, min_samples_leaf=1, l2_regularization=0.0,
        max_features=1.0, constraints=np.zeros(3, np.int64), interactions=None,
    )  # fmt: skip
    binned = Binned(bins, np.ascontiguousarray(bins.T), thresholds, np.zeros(3, np.uint8), [])
    with ThreadPoolExecutor(1) as pool:
        generator = np.random.default_rng(0)
        root, leaves = grow(task, binned, growth, numbers, (0.25, 0.25), rows, rows.copy(), generator, pool, 1)
        part = Part(bins, np.maximum(RAW[0], 0), None, np.zeros((1, 200)), 200)
        fit = Fit(task, binned, part, None, "squared_error", 0.5, growth, pool, 1)
        before, exponents = fit.scores(), fit.derive()
        fit.tree(0, exponents, generator)
        assert fit.scores()[0] < 0.7 * before[0]
    tree = nodes_of(root, thresholds)
    assert (len(tree), tree["feature_idx"][0], len(leaves)) == (3, 0, 2)
    middle = leaves[0].end
    assert RAW[0][rows[:middle]].max() < RAW[0][rows[middle:]].min()
    assert_allclose(tree["value"][1], -g[rows[:middle]].mean())


def test_a_fit_stops_when_no_score_is_better() -> None:
    assert not should_stop([1.0, 2.0], 2, 0.0)
    assert should_stop([3.0, 2.0, 3.0], 2, 0.0)
    assert not should_stop([3.0, 2.0, 3.1], 2, 0.0)
    assert TASKS["HistGradientBoosting.predict"] is predict


def test_categories_have_numbers(task: Task) -> None:
    rows = np.array([[0.5, 7, np.nan], [0.5, -3, np.nan], [1.5, np.nan, np.nan], [2.5, 7, np.nan]])
    values = found_in(task, rows[:, 1:], ["'b'", "'c'"], 255)
    assert [each.tolist() for each in values] == [[-3, 7], []]
    later = np.vstack([rows, [1.0, 8, 5]])
    columns = CategoricalColumns(order=[1, 2, 0], names=["'b'", "'c'"])
    nan = np.nan
    expected = [[1, nan, 0.5], [0, nan, 0.5], [nan, nan, 1.5], [1, nan, 2.5], [nan, nan, 1.0]]
    assert_array_equal(in_order(columns, values, later), expected)
    with pytest.raises(ValueError, match="feature 'a' is expected to have a cardinality <= 2 but actually"):
        found_in(task, rows[:, :1], ["'a'"], 2)


def test_a_scorer_gets_raw_predictions_targets_and_weights(task: Task) -> None:
    n, some = 30, np.array([2, 5, 7])
    raw, y, weights = RNG.normal(size=(2, n)), RNG.normal(size=n), RNG.random(n)
    train = Part(np.zeros((n, 1), np.uint8), y, weights, raw, n)
    validation = Part(np.zeros((n, 1), np.uint8), y + 1, None, raw + 1, n)

    def score(found: Any, targets: Any, beside: Any) -> float:
        return float((found[:, 0] + 10 * found[:, 1] + 100 * targets).sum() + (0 if beside is None else beside.sum()))

    found = Scoring(task, cloudpickle.dumps(score), train, some, validation).scores()
    expected = [score(raw[:, some].T, y[some], weights[some]), score(raw.T + 1, y + 1, None)]
    assert_allclose(found, expected)
    alone = Scoring(task, cloudpickle.dumps(score), train, None, None).scores()
    assert_allclose(alone, [score(raw.T, y, weights), np.nan])
