"""Rows of handles and scans by their numbers, with which scikit-learn's own searches work on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sent import nothing_sent
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    RandomizedSearchCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    train_test_split,
)
from sklearn.pipeline import make_pipeline

import xpulab
from xpulab.cluster import KMeans
from xpulab.ensemble import RandomForestClassifier
from xpulab.linear_model import LogisticRegression, Ridge
from xpulab.preprocessing import StandardScaler

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = RNG.normal(size=(203, 40))
Y = X[:, 0] * 2 + RNG.normal(size=203)
KEYS: list[Any] = [
    slice(3, 150, 2), slice(None, None, -1), np.array([5, 200, -1, 5]), [7, 3], X[:, 0] > 0, (np.arange(9), ...),
]  # fmt: skip


def test_rows_are_those_of_numpy(current: xpulab.XPUCluster, received: list[int]) -> None:
    handle = current.scatter(X, counts=[0] * (current.size - 1) + [203])
    stored = sparse.csr_matrix(X * (X > 1))
    targets, rows = current.scatter(Y), current.scatter(stored)
    table: Any = current.scatter(pd.DataFrame(X[:, :3], columns=list("abc")))
    found = [(handle[key], targets[key], rows[key], table[key]) for key in KEYS]
    assert received == []
    for key, (some, of_targets, sparse_ones, of_table) in zip(KEYS, found, strict=True):
        numbers = np.arange(203)[key[0] if isinstance(key, tuple) else key]
        assert_array_equal(some.gather(), X[numbers])
        assert_array_equal(of_targets.gather(), Y[numbers])
        assert_array_equal(sparse_ones.gather().toarray(), stored[numbers].toarray())
        assert of_table.columns == ["a", "b", "c"]
        assert_array_equal(of_table.gather(), X[numbers, :3])
        assert max(some.counts) - min(some.counts) <= 1
    assert_array_equal(table.take([4, 2]).gather(), X[[4, 2], :3])
    assert_array_equal(table.take([2, 0], axis=1).gather(), X[:, [2, 0]])


def test_what_selects_no_rows_is_said(on_pair: xpulab.XPUCluster) -> None:
    handle: Any = on_pair.scatter(X)
    table: Any = on_pair.scatter(pd.DataFrame(X[:, :2], columns=["a", "b"]))
    refused: list[tuple[Any, Any, type, str]] = [
        (handle, [203], IndexError, "row 203 was asked for, of 203 rows"),
        (handle, np.ones(5, bool), IndexError, "a mask of 5 values was given for 203 rows"),
        (handle, slice(0, 0), ValueError, "no row was chosen of 203; expected at least one"),
        (handle, [], ValueError, "no row was chosen"),
        (handle, 3, TypeError, r"pass X\.gather\(\)"),
        (handle, (slice(None), 1), TypeError, r"pass X\.gather\(\)"),
        (table, 3, TypeError, "expected the name of a column, or a list of names; for some rows pass a slice"),
        (table.iloc, (3, 1), TypeError, "expected the name of a column"),
    ]
    with nothing_sent(on_pair):
        for rows, key, kind, message in refused:
            with pytest.raises(kind, match=message):
                rows[key]


def test_searches_move_no_row(on_pair: xpulab.XPUCluster, written: list[int], received: list[int]) -> None:
    shuffled = KFold(3, shuffle=True, random_state=0)
    searches: list[Any] = [
        lambda X, y: GridSearchCV(KMeans(2, random_state=0, n_init=1), {"max_iter": [1, 3]}, cv=3).fit(X).best_score_,
        lambda X, y: (
            GridSearchCV(make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": [0.1, 9]}, cv=3)
            .fit(X, y)
            .cv_results_["mean_test_score"]
        ),
        lambda X, y: (
            RandomizedSearchCV(Ridge(), {"alpha": [1, 9]}, n_iter=2, random_state=0, cv=2).fit(X, y).best_score_
        ),
        lambda X, y: cross_val_score(Ridge(), X, y, cv=shuffled),
        lambda X, y: cross_validate(Ridge(), X, y, cv=3, return_train_score=True)["train_score"],
        lambda X, y: cross_val_predict(Ridge(), X, y, cv=3),
        lambda X, y: learning_curve(Ridge(), X, y, cv=2, train_sizes=[0.5, 1.0])[2],
    ]
    of_others = set(on_pair.handles())
    handle, targets = on_pair.scatter(X), on_pair.scatter(Y)
    for search in searches:
        del written[:], received[:]
        found = search(handle, targets)
        assert sum(written) + sum(received) <= 40 * Y.nbytes  # numbers of rows, and predictions: 40 calls at most
        assert max([0, *received]) <= Y.nbytes
        assert_allclose(found, search(X, Y), rtol=1e-6)
    assert len(set(on_pair.handles()) - of_others) == 2  # the folds are freed


def test_searches_of_classes_and_halves(on_pair: xpulab.XPUCluster) -> None:
    """The classes are in this process, where scikit-learn divides the rows by them."""
    classes = (Y > 0).astype(int)
    handle, table = on_pair.scatter(X), on_pair.scatter(pd.DataFrame(X, columns=[f"c{i}" for i in range(40)]))
    for model, scoring in ((LogisticRegression(), "roc_auc"), (RandomForestClassifier(3, random_state=0), None)):
        expected = cross_val_score(model, X, classes, cv=3, scoring=scoring)
        for rows in (handle, table):
            assert_allclose(cross_val_score(model, rows, classes, cv=3, scoring=scoring), expected, rtol=1e-9)
    grid = HalvingGridSearchCV(Ridge(), {"alpha": [0.1, 1, 10]}, cv=3, random_state=0, min_resources=60)
    assert grid.fit(handle, on_pair.scatter(Y)).best_params_ == grid.fit(X, Y).best_params_
    parts = train_test_split(handle, classes, random_state=0)
    expected_parts = train_test_split(X, classes, random_state=0)
    assert_array_equal(parts[1].gather(), expected_parts[1])
    assert_array_equal(parts[3], expected_parts[3])


def test_folds_of_files_are_read_by_the_engines(on_pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(40)]
    pd.DataFrame(X, columns=names).assign(y=Y).to_parquet(tmp_path / "rows.parquet")
    rows = xpulab.scan(tmp_path / "rows.parquet")
    some = rows[names][np.array([7, 3]), ...]
    assert isinstance(some, xpulab.scanning.Scan)
    assert_array_equal(some.read(), X[[7, 3]])
    found = cross_val_score(Ridge(), rows[names], rows["y"], cv=3)
    assert_allclose(found, cross_val_score(Ridge(), X, Y, cv=3), rtol=1e-9)
