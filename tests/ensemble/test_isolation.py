"""`IsolationForest` has the trees and the scores of scikit-learn's."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.ensemble
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import xpulab
from xpulab.ensemble import IsolationForest

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("current"),
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]

Reference = sklearn.ensemble.IsolationForest


def table(n: int = 500, d: int = 4, holes: bool = False, seed: int = 0) -> np.ndarray:
    """Return rows of which some are far from the others."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    X[:: max(n // 10, 1)] *= 5
    X[:, 0] = np.rint(X[:, 0])
    if holes:
        X[rng.random((n, d)) < 0.05] = np.nan
    return X


def assert_same(ours: Any, theirs: Any, X: np.ndarray, rows: Any = None) -> None:
    rows = X if rows is None else rows
    for mine, other in zip(ours.estimators_, theirs.estimators_, strict=True):
        first, second = (each.tree_.__getstate__()["nodes"] for each in (mine, other))
        for name in first.dtype.names:
            np.testing.assert_array_equal(first[name], second[name])
    np.testing.assert_allclose(ours.score_samples(rows), theirs.score_samples(X), rtol=1e-12)
    assert ours.offset_ == pytest.approx(theirs.offset_, rel=1e-12)
    assert (ours.max_samples_, type(ours.offset_)) == (theirs.max_samples_, float)
    beside = np.abs(theirs.decision_function(X)) > 1e-9
    np.testing.assert_array_equal(ours.predict(rows)[beside], theirs.predict(X)[beside])
    for mine, other in zip(ours.estimators_samples_, theirs.estimators_samples_, strict=True):
        np.testing.assert_array_equal(mine, other)


@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n=st.integers(1, 700),
    d=st.integers(1, 8),
    holes=st.booleans(),
    weighted=st.booleans(),
    bootstrap=st.booleans(),
    max_samples=st.sampled_from(["auto", 1, 20, 0.5, 1.0]),
    max_features=st.sampled_from([1.0, 0.4, 1]),
    contamination=st.sampled_from(["auto", 0.1, 0.5]),
    seed=st.integers(0, 100),
    cut=st.lists(st.floats(0, 1), min_size=2, max_size=2),
)
def test_any_rows_parameters_and_cut(
    current: xpulab.XPUCluster,
    n: int,
    d: int,
    holes: bool,
    weighted: bool,
    bootstrap: bool,
    max_samples: Any,
    max_features: Any,
    contamination: Any,
    seed: int,
    cut: list[float],
) -> None:
    X = table(n, d, holes, seed)
    max_samples = 1.0 if isinstance(max_samples, float) and int(max_samples * n) < 1 else max_samples
    max_samples = min(max_samples, n) if isinstance(max_samples, int) else max_samples
    weights = np.random.default_rng(seed).uniform(0.5, 1, n) if weighted else None
    how: dict[str, Any] = {
        "n_estimators": 12, "bootstrap": bootstrap, "max_samples": max_samples, "max_features": max_features,
        "contamination": contamination, "random_state": seed,
    }  # fmt: skip
    theirs = Reference(**how).fit(X, sample_weight=weights)
    bounds = [0, *sorted(int(c * n) for c in cut)][: current.size]
    counts = np.diff([*bounds, n]).tolist()
    for rows in (X, X.astype(np.float64), current.scatter(X, counts=counts, allow_nan=True)):
        assert_same(IsolationForest(**how).fit(rows, sample_weight=weights), theirs, X, rows)


def test_few_rows_come_to_this_process(current: xpulab.XPUCluster, received: list[int]) -> None:
    X = table(20_000, 3)
    handle = current.scatter(X)
    received.clear()
    model = IsolationForest(n_estimators=10, random_state=0, contamination=0.01).fit(handle)
    assert sum(received) < X.nbytes / 4  # ten times 256 rows
    assert_same(model, Reference(n_estimators=10, random_state=0, contamination=0.01).fit(X), X, handle)
    assert (model.fit_predict(handle) == -1).sum() == pytest.approx(200, abs=2)


def test_a_warm_start_grows_more_trees() -> None:
    X = table()
    ours, theirs = (
        kind(n_estimators=5, random_state=0, warm_start=True).fit(X) for kind in (IsolationForest, Reference)
    )
    first = ours.estimators_[0]
    for model in (ours, theirs):
        model.set_params(n_estimators=9).fit(X)
    assert ours.estimators_[0] is first
    assert_same(ours, theirs, X)
    with pytest.warns(UserWarning, match="does not fit new trees"):
        ours.fit(X)
    assert len(ours.estimators_) == 9


def test_copies_and_scikit_learns_estimator_have_the_trees() -> None:
    X = table(holes=True)
    model = IsolationForest(n_estimators=8, random_state=0).fit(X)
    expected = model.score_samples(X)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.score_samples(X), expected)
    plain = model.to_sklearn()
    assert type(plain) is Reference
    np.testing.assert_allclose(plain.score_samples(X), expected, rtol=1e-12)
    assert set(vars(plain)) == set(vars(Reference(n_estimators=8, random_state=0).fit(X)))


def test_a_file_is_read_where_rows_are_drawn(tmp_path: Path) -> None:
    X = table(3000)
    np.save(tmp_path / "x.npy", X)
    scan = xpulab.scan(tmp_path / "x.npy")
    model = IsolationForest(n_estimators=6, random_state=1, contamination=0.1).fit(scan)
    assert_same(model, Reference(n_estimators=6, random_state=1, contamination=0.1).fit(X), X, scan)
    written = model.score_samples(scan, out=tmp_path / "scores.npy")
    np.testing.assert_allclose(written, model.score_samples(X), rtol=1e-12)  # few rows are followed in this process


def test_what_scikit_learn_warns_of_and_refuses() -> None:
    X = table(50)
    with pytest.warns(UserWarning, match=r"max_samples \(1000\) is greater than the total number of samples \(50\)"):
        assert IsolationForest(n_estimators=2, max_samples=1000).fit(X).max_samples_ == 50
    with pytest.raises(ValueError, match="contamination"):
        IsolationForest(contamination=0.6).fit(X)
    with pytest.raises(ValueError, match="must be larger or equal"):
        IsolationForest(n_estimators=3, warm_start=True).fit(X).set_params(n_estimators=2).fit(X)


@pytest.mark.parametrize("warm_start", [False, True])
def test_a_fit_that_fails_leaves_the_trees_of_the_one_before(warm_start: bool) -> None:
    X = table()
    model = IsolationForest(n_estimators=4, random_state=0, warm_start=warm_start).fit(X)
    expected, names = model.score_samples(X), set(vars(model))
    for n_estimators, rows, said in ((6, np.where(X[3, 1] == X, np.inf, X), "infinity"), (2, X, "larger or equal")):
        if n_estimators > 2 or warm_start:
            with pytest.raises(ValueError, match=said):
                model.set_params(n_estimators=n_estimators).fit(rows)
        assert (len(model.estimators_), len(model.estimators_features_)) == (4, 4)
        assert set(vars(model)) == names
        np.testing.assert_array_equal(model.score_samples(X), expected)
