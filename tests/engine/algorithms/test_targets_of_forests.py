"""The targets of forests that a rank keeps, and the facts about them, against NumPy and scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.class_weight import compute_sample_weight

from xpulab.engine.algorithms.forests.targets import opened_shares, opened_targets
from xpulab.engine.engine import Task
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.sources import HandleTargets, SharedArray

RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=(3000, 2))
LABELS = RNG.choice([-2.0, 5.0, 7.0], (3000, 2))
CLASSES = [np.unique(column) for column in LABELS.T]
CODES = np.stack([np.searchsorted(*pair) for pair in zip(CLASSES, LABELS.T, strict=True)], axis=1)
WEIGHTS = RNG.uniform(0.5, 2, 3000)


@pytest.fixture
def shared() -> Any:
    """A function that puts an array into shared memory."""
    blocks = []

    def put(values: np.ndarray) -> SharedArray:
        blocks.append(SharedBlock.create(values.nbytes))
        blocks[-1].write(values, 0)
        return SharedArray(blocks[-1].path, values.shape, values.dtype)

    yield put
    for block in blocks:
        block.close()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_targets_are_centred_numbers_or_numbers_of_classes(task: Task, sent: Callable[..., Any], dtype: Any) -> None:
    numbers, middle = NUMBERS.astype(dtype), np.array([0.1, -3.0])
    found = opened_targets(task, HandleTargets(sent(numbers), middle=middle))
    np.testing.assert_array_equal(found, numbers.astype(np.float64) - middle)
    assert found.dtype == np.float64
    classes = [each.astype(dtype) for each in CLASSES]
    np.testing.assert_array_equal(opened_targets(task, HandleTargets(sent(LABELS.astype(dtype)), classes)), CODES)
    assert opened_targets(task, HandleTargets(sent(NUMBERS[:, 0].copy()))).shape == (3000, 1)


def test_weights_of_rows_are_multiplied_by_those_of_classes(
    task: Task, sent: Callable[..., Any], shared: Callable[..., SharedArray]
) -> None:
    each = [{-2: 0.3, 5: 1.7, 7: 0.1}, {-2: 3.3, 5: 0.7, 7: 1.0}]
    y = HandleTargets(sent(LABELS), CLASSES, None, [np.array(list(weights.values())) for weights in each])
    expected, target = compute_sample_weight(each, LABELS), opened_targets(task, y)
    for found, right in (
        (opened_shares(None, y, target), expected),
        (opened_shares(shared(WEIGHTS), y, target), WEIGHTS * expected),
        (opened_shares(shared(WEIGHTS), None, None), WEIGHTS),
    ):
        assert found is not None
        np.testing.assert_array_equal(found, right)
    assert opened_shares(None, HandleTargets(sent(LABELS), CLASSES), target) is None


def test_sums_are_those_of_numpy_to_the_last_bit(ask: Callable[..., Any], shared: Callable[..., SharedArray]) -> None:
    found = ask("forest.range", NUMBERS)
    np.testing.assert_array_equal(found["mean"], NUMBERS.mean(axis=0))
    np.testing.assert_array_equal([found["least"], found["largest"]], [NUMBERS.min(axis=0), NUMBERS.max(axis=0)])
    counted, weighed = (ask("forest.classes", LABELS, shares=each) for each in (None, shared(WEIGHTS)))
    for output, classes in enumerate(CLASSES):
        np.testing.assert_array_equal(counted["values"][output], classes)
        np.testing.assert_array_equal(counted["counts"][output], np.bincount(CODES[:, output]))
        np.testing.assert_array_equal(weighed["counts"][output], np.bincount(CODES[:, output], WEIGHTS))


def test_scores_are_those_of_scikit_learn(
    ask: Callable[..., Any], sent: Callable[..., Any], shared: Callable[..., SharedArray]
) -> None:
    predicted = NUMBERS + RNG.normal(size=NUMBERS.shape)
    found = ask("forest.score", NUMBERS, y=HandleTargets(sent(NUMBERS)), predicted=shared(predicted))
    assert float(np.average(1 - found["errors"] / found["spread"])) == r2_score(NUMBERS, predicted)
    guess = np.where(RNG.random(3000) < 0.3, 0, CODES[:, 0]).astype(np.float64)
    y = HandleTargets(sent(LABELS[:, 0].copy()), CLASSES[:1])
    found = ask("forest.score", LABELS[:, 0].copy(), y=y, predicted=shared(guess.reshape(-1, 1)))
    assert found["right"] / 3000 == accuracy_score(CODES[:, 0], guess)
