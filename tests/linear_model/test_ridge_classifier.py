"""`RidgeClassifier` and `RidgeClassifierCV` against scikit-learn."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import sklearn.linear_model
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sent import nothing_sent

import xpulab
from xpulab.linear_model import RidgeClassifier, RidgeClassifierCV

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("current"),
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]

Reference = sklearn.linear_model.RidgeClassifier
NAMES = np.array(["few", "more", "most", "some"])


def table(n: int = 200, d: int = 6, k: int = 3, dtype: Any = np.float64, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return rows, labels of classes of different sizes, and weights."""
    rng = np.random.default_rng(seed)
    y = np.minimum((rng.random(n) ** 2 * k).astype(int), k - 1)
    y[:k] = np.arange(k)
    X = rng.normal(size=(n, d)).astype(dtype) + 3
    X[:, 0] += y
    return X, NAMES[y], rng.uniform(0.1, 2, n)


def assert_same(ours: Any, theirs: Any, rows: Any, X: Any, tolerance: float) -> None:
    for name in ("coef_", "intercept_"):
        found, expected = np.asarray(getattr(ours, name)), np.asarray(getattr(theirs, name))
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), name
        np.testing.assert_allclose(found, expected, atol=tolerance, err_msg=name)
    assert {name for name in vars(theirs) if name.endswith("_")} <= vars(ours).keys()
    decision = ours.decision_function(rows)
    expected = theirs.decision_function(X)
    assert (decision.shape, decision.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(decision, expected, atol=20 * tolerance)
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)


@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n=st.integers(8, 200),
    d=st.integers(1, 40),
    k=st.integers(2, 4),
    dtype=st.sampled_from([np.float32, np.float64]),
    how=st.fixed_dictionaries(
        {
            "alpha": st.sampled_from([0.5, 20.0]),
            "fit_intercept": st.booleans(),
            "class_weight": st.sampled_from([None, "balanced", {"few": 3.0}]),
            "solver": st.sampled_from(["auto", "svd"]),
        }
    ),
    weighted=st.booleans(),
    form=st.sampled_from(["array", "handle", "csr"]),
    seed=st.integers(0, 100),
)
def test_any_rows(
    current: xpulab.XPUCluster,
    n: int,
    d: int,
    k: int,
    dtype: Any,
    how: dict[str, Any],
    weighted: bool,
    form: str,
    seed: int,
) -> None:
    X, y, weights = table(n, d, k, dtype, seed)
    w = weights if weighted else None
    exact = {"solver": "sparse_cg", "tol": 1e-14} if form == "csr" else {}
    theirs = Reference(**how | exact).fit(scipy.sparse.csr_matrix(X) if form == "csr" else X, y, w)
    given = {"array": X, "handle": current.scatter(X), "csr": scipy.sparse.csr_matrix(X)}[form]
    ours = RidgeClassifier(**how).fit(given, y, w)
    assert_same(ours, theirs, given, X, 2e-3 if dtype == np.float32 else 1e-8)
    assert ours.score(given, y, w) == pytest.approx(theirs.score(X, y, w), abs=2 / n)


def test_labels_on_engines_and_positive_coefficients(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    X, y, weights = table()
    codes = np.searchsorted(NAMES, y).astype(float)
    theirs = Reference(class_weight="balanced").fit(X, codes, weights)
    np.save(tmp_path / "X.npy", X)
    for rows in (current.scatter(X), np.load(tmp_path / "X.npy", mmap_mode="r")):
        ours = RidgeClassifier(class_weight="balanced").fit(rows, current.scatter(codes), weights)
        assert_same(ours, theirs, rows, X, 1e-10)
    assert ours.predict(rows).dtype == codes.dtype
    for alpha in (1.0, 0.0):
        positive, expected = (c(positive=True, alpha=alpha).fit(X, y) for c in (RidgeClassifier, Reference))
        np.testing.assert_allclose(positive.coef_, expected.coef_, atol=1e-3)
        assert positive.coef_.min() >= 0
    plain = positive.to_sklearn()
    np.testing.assert_array_equal(plain.predict(X), positive.predict(X))
    one = RidgeClassifier().fit(X, np.full(len(X), "alone"))
    assert set(one.predict(X)) == {"alone"}


def test_several_labels_of_a_row(current: xpulab.XPUCluster) -> None:
    X, _, weights = table()
    y = (X[:, :3] + np.random.default_rng(1).normal(size=(200, 3)) > 3).astype(int)
    for labels in (y, scipy.sparse.csr_matrix(y)):
        ours, theirs = (c(class_weight="balanced").fit(X, labels, weights) for c in (RidgeClassifier, Reference))
        assert_same(ours, theirs, X, X, 1e-9)
        for rows in (X, current.scatter(X)):
            found, expected = ours.predict(rows), theirs.predict(X)
            assert scipy.sparse.issparse(found) == scipy.sparse.issparse(expected)
            np.testing.assert_array_equal(*(scipy.sparse.csr_matrix(each).toarray() for each in (found, expected)))
    assert ours.score(X, y, weights) == pytest.approx(theirs.score(X, y, weights))


def test_refusals(current: xpulab.XPUCluster) -> None:
    X, y, weights = table()
    with nothing_sent(current):
        for kind, message, how, arguments in (
            (ValueError, "solver='svd' does not support positive", {"solver": "svd", "positive": True}, (X, y)),
            (ValueError, "can be used only when positive=True", {"solver": "lbfgs"}, (X, y)),
            (ValueError, "are not in class_weight", {"class_weight": {"nobody": 1.0}}, (X, y)),
            (ValueError, "Unknown label type", {}, (X, X[:, 0])),
            (ValueError, "y should be a 1d array", {}, (X, X[:, :2])),
            (ValueError, "inconsistent numbers of samples", {}, (X, np.eye(100, 3, dtype=int))),
            (ValueError, "inconsistent numbers of samples", {}, (X, y[:-1])),
            (ValueError, "Negative values", {}, (X, y, -weights)),
            (ValueError, "NaN", {}, (X * np.nan, y)),
            (TypeError, "positive=True was given with sparse", {"positive": True}, (scipy.sparse.csr_matrix(X), y)),
        ):
            with pytest.raises(kind, match=message):
                RidgeClassifier(**how).fit(*arguments)
    fitted = RidgeClassifier().fit(X, y)
    with pytest.raises(ValueError, match="X has 2 features, but RidgeClassifier is expecting 6"):
        fitted.predict(X[:, :2])
    with contextlib.suppress(ValueError):
        fitted.fit(X * np.nan, y)
    assert fitted.score(X, y) > 0.5


CHOICES: dict[str, Any] = {"alphas": [0.01, 1.0, 10.0, 1000.0]}


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("d", [6, 90])
def test_the_best_penalty(current: xpulab.XPUCluster, k: int, d: int) -> None:
    X, y, weights = table(60, d, k)
    for how in (
        {"class_weight": "balanced", "store_cv_results": True},
        {"fit_intercept": False},
        {"cv": 3, "class_weight": {"few": 3.0}},
        {"scoring": "accuracy", "store_cv_results": True},
    ):
        theirs = sklearn.linear_model.RidgeClassifierCV(**CHOICES | how).fit(X, y, weights)
        ours = RidgeClassifierCV(**CHOICES | how).fit(X, y, weights)
        if "store_cv_results" in how:
            np.testing.assert_allclose(ours.cv_results_, theirs.cv_results_, atol=1e-8)
        if k == 2 and "scoring" in how:
            continue  # scikit-learn takes the first penalty: see the next test
        assert ours.alpha_ == theirs.alpha_
        assert ours.best_score_ == pytest.approx(theirs.best_score_, rel=1e-9)
        assert_same(ours, theirs, X, X, 1e-9)
    codes = np.searchsorted(NAMES, y).astype(float)
    sent, labels = current.scatter(X), current.scatter(codes)
    here, there = (
        RidgeClassifierCV(**CHOICES, scoring="accuracy", class_weight="balanced").fit(rows, y, weights)
        for rows, y in ((X, codes), (sent, labels))
    )
    assert (here.alpha_, here.best_score_) == (there.alpha_, pytest.approx(there.best_score_))


@pytest.mark.usefixtures("current")
def test_the_score_of_two_classes_is_that_of_rows_that_were_left_out() -> None:
    """scikit-learn compares each row with itself, for which every penalty is as good (1.9.1)."""
    X, y, _ = table(60, 40, 2)
    ours = RidgeClassifierCV(**CHOICES, scoring="accuracy").fit(X, y)
    right = []
    for alpha in CHOICES["alphas"]:
        fits = (Reference(alpha=alpha).fit(np.delete(X, i, 0), np.delete(y, i)) for i in range(60))
        right.append(np.mean([fit.predict(X[[i]])[0] == y[i] for i, fit in enumerate(fits)]))
    assert max(right) < 1
    assert ours.best_score_ == pytest.approx(max(right))
    assert ours.alpha_ == CHOICES["alphas"][int(np.argmax(right))]


def test_several_labels_and_refusals_of_the_best_penalty(current: xpulab.XPUCluster) -> None:
    X, y, _ = table()
    several = (X[:, :3] > 3).astype(int)
    ours, theirs = (c(**CHOICES).fit(X, several) for c in (RidgeClassifierCV, sklearn.linear_model.RidgeClassifierCV))
    assert ours.alpha_ == theirs.alpha_
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    sent = current.scatter(X)
    with nothing_sent(current):
        for kind, message, how, arguments in (
            (ValueError, "pass a number of folds as cv", {"scoring": "accuracy"}, (X, several)),
            (ValueError, "cv!=None and store_cv_results=True", {"cv": 3, "store_cv_results": True}, (X, y)),
            (ValueError, "alphas", {"alphas": [0.0, 1.0]}, (X, y)),
            (TypeError, "sparse", {}, (scipy.sparse.csr_matrix(X), y)),
        ):
            with pytest.raises(kind, match=message):
                RidgeClassifierCV(**how).fit(*arguments)
        with pytest.raises(TypeError, match="needs the rows in this process"):
            RidgeClassifierCV(cv=3).fit(sent, y)
