"""`train_test_split` of handles gives scikit-learn's rows in scikit-learn's order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.model_selection

import xpulab
from xpulab.model_selection import train_test_split

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
@pytest.mark.parametrize(
    "how",
    [{}, {"test_size": 0.4}, {"train_size": 10, "test_size": 7}, {"shuffle": False}, {"test_size": 1}],
    ids=str,
)
def test_the_same_split(current: xpulab.XPUCluster, how: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(203, 5)).astype(np.float32), rng.integers(0, 3, 203).astype(float)
    counts = [0] * (current.size - 1) + [203]
    rows, targets = current.scatter(X, counts=counts), current.scatter(y, counts=counts)
    random_state = 3 if how.get("shuffle", True) else None
    ours = train_test_split(rows, targets, X, random_state=random_state, **how)
    theirs = sklearn.model_selection.train_test_split(X, y, X, random_state=random_state, **how)
    for mine, expected in zip(ours[:4], theirs[:4], strict=True):
        assert isinstance(mine, xpulab.ShardedArray)
        assert max(mine.counts) - min(mine.counts) <= 1
        np.testing.assert_array_equal(mine.gather(), expected)
    for mine, expected in zip(ours[4:], theirs[4:], strict=True):
        np.testing.assert_array_equal(mine, expected)
    np.testing.assert_array_equal(rows.gather(), X)


def test_strata_of_a_handle(on_pair: xpulab.XPUCluster) -> None:
    X, y = np.arange(60.0).reshape(30, 2), np.repeat([0.0, 1.0, 2.0], 10)
    rows, targets = on_pair.scatter(X), on_pair.scatter(y)
    _, test, _, y_test = train_test_split(rows, targets, stratify=targets, random_state=0, test_size=6)
    expected = sklearn.model_selection.train_test_split(X, y, stratify=y, random_state=0, test_size=6)
    np.testing.assert_array_equal(test.gather(), expected[1])
    np.testing.assert_array_equal(y_test.gather(), expected[3])


def test_refusals(on_pair: xpulab.XPUCluster) -> None:
    rows = on_pair.scatter(np.ones((5, 2)))
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[5, 4\]"):
        train_test_split(rows, on_pair.scatter(np.ones(4)))
    with pytest.raises(ValueError, match="test_size"):
        train_test_split(rows, test_size=9)
    with pytest.raises(ValueError, match="inconsistent"):
        train_test_split(rows, np.ones(4))
