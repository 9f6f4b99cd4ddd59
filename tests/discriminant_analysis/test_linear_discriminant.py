"""`LinearDiscriminantAnalysis` against scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.discriminant_analysis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sent import nothing_sent
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.discriminant_analysis import LinearDiscriminantAnalysis

pytestmark = pytest.mark.cluster

ENGINES = pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
Reference = sklearn.discriminant_analysis.LinearDiscriminantAnalysis
NAMES = np.array(["a", "b", "c", "d"])
PRIORS = {2: [0.3, 0.7], 3: [0.2, 0.5, 0.3], 4: [0.1, 0.2, 0.3, 0.4]}
ATTRIBUTES = ("coef_", "intercept_", "covariance_", "explained_variance_ratio_", "means_", "priors_", "xbar_")


def table(
    n: int = 300, d: int = 5, k: int = 3, dtype: Any = np.float64, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of different scales, whose means depend on the class, and labels of classes of different sizes."""
    rng = np.random.default_rng(seed)
    y = np.minimum((rng.random(n) ** 2 * k).astype(int), k - 1)
    y[: 2 * k] = np.tile(np.arange(k), 2)
    middle = rng.normal(size=(k, d))
    X = (rng.normal(size=(n, d)) @ (np.eye(d) + 0.2) + middle[y]) * np.geomspace(0.1, 10, d) + 5
    return X.astype(dtype), NAMES[y]


def assert_same(ours: Any, theirs: Any, rows: Any, X: np.ndarray, tolerance: float) -> None:
    """Attributes and predictions are the same, but for the signs of axes."""
    for name in ATTRIBUTES:
        assert hasattr(ours, name) == hasattr(theirs, name), name
        if hasattr(theirs, name):
            found, expected = getattr(ours, name), getattr(theirs, name)
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype), name
            scale = float(np.abs(expected).max(initial=0))
            np.testing.assert_allclose(found, expected, atol=tolerance * scale, err_msg=name)
    assert vars(theirs).keys() <= vars(ours).keys()
    chances, expected = ours.predict_proba(rows), theirs.predict_proba(X)
    assert (chances.shape, chances.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(chances, expected, atol=20 * tolerance)
    if theirs.solver != "lsqr":
        projected, right = ours.transform(rows), theirs.transform(X)
        projected = projected.gather() if isinstance(projected, xpulab.ShardedArray) else projected
        assert (projected.shape, projected.dtype) == (right.shape, right.dtype)
        scale = float(np.abs(right).max(initial=0))
        np.testing.assert_allclose(np.abs(projected), np.abs(right), atol=20 * tolerance * scale)


@ENGINES
@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n=st.integers(20, 300),
    d=st.integers(1, 12),
    k=st.integers(2, 4),
    dtype=st.sampled_from([np.float32, np.float64]),
    how=st.sampled_from(
        [
            {"solver": "svd"},
            {"solver": "svd", "store_covariance": True, "n_components": 1},
            {"solver": "svd", "tol": 1e-9},
            {"solver": "lsqr"},
            {"solver": "lsqr", "shrinkage": 0.3},
            {"solver": "eigen"},
            {"solver": "eigen", "shrinkage": 0.9},
            {"solver": "lsqr", "shrinkage": "auto"},
            {"solver": "eigen", "shrinkage": "auto"},
        ]
    ),
    prior=st.booleans(),
    on_engines=st.booleans(),
    seed=st.integers(0, 100),
)
def test_any_rows(
    current: xpulab.XPUCluster,
    n: int,
    d: int,
    k: int,
    dtype: Any,
    how: dict[str, Any],
    prior: bool,
    on_engines: bool,
    seed: int,
) -> None:
    X, y = table(n, d, k, dtype, seed)
    how = how | {"priors": PRIORS[k] if prior else None}
    theirs = Reference(**how).fit(X, y)
    rows = current.scatter(X) if on_engines else X
    ours = LinearDiscriminantAnalysis(**how).fit(rows, y)
    assert_same(ours, theirs, rows, X, 2e-3 if dtype == np.float32 else 1e-8)
    assert ours.score(rows, y) == pytest.approx(theirs.score(X, y), abs=2 / n)


@ENGINES
@pytest.mark.usefixtures("current")
def test_more_columns_than_rows(tmp_path: Path) -> None:
    """The triangle of the rows takes the place of the products; a constant column counts for nothing."""
    X, y = table(24, 40, 3)
    X[:, 3] = 7
    np.save(tmp_path / "X.npy", X)
    theirs = Reference().fit(X, y)
    for rows in (X, np.load(tmp_path / "X.npy", mmap_mode="r")):
        assert_same(LinearDiscriminantAnalysis().fit(rows, y), theirs, rows, X, 1e-8)
    for shrinkage in (0.2, "auto"):
        how: dict[str, Any] = {"solver": "eigen", "shrinkage": shrinkage}
        ours, theirs = (c(**how).fit(X, y) for c in (LinearDiscriminantAnalysis, Reference))
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-8)


@ENGINES
@pytest.mark.usefixtures("current")
def test_classes_that_are_far_apart_in_float32() -> None:
    """The spread within the classes is a millionth of that between them, and is not lost by subtraction."""
    X, y = table(400, 4, 3)
    X = X + 1e3 * np.searchsorted(NAMES, y)[:, None] * np.array([1.0, -1, 2, 0])
    exact = Reference().fit(X.astype(np.float32).astype(np.float64), y)
    ours = LinearDiscriminantAnalysis().fit(X.astype(np.float32), y)
    scale = np.abs(exact.coef_).max()
    np.testing.assert_allclose(ours.coef_, exact.coef_, atol=1e-5 * scale)


def test_labels_on_engines_and_predictions(on_pair: xpulab.XPUCluster) -> None:
    X, y = table()
    codes = np.searchsorted(NAMES, y).astype(float)
    handle = on_pair.scatter(X)
    ours, theirs = LinearDiscriminantAnalysis().fit(handle, on_pair.scatter(codes)), Reference().fit(X, codes)
    assert_same(ours, theirs, handle, X, 1e-10)
    assert isinstance(ours.transform(handle), xpulab.ShardedArray)
    np.testing.assert_array_equal(ours.predict(handle), theirs.predict(X))
    np.testing.assert_allclose(ours.predict_log_proba(1e3 * X), theirs.predict_log_proba(1e3 * X), rtol=1e-6)
    np.testing.assert_array_equal(ours.to_sklearn().predict(X), theirs.predict(X))
    np.testing.assert_allclose(np.abs(ours.fit_transform(X, y)), np.abs(theirs.fit_transform(X, y)), atol=1e-9)
    alone = LinearDiscriminantAnalysis().fit(X, np.zeros(len(X)))
    assert set(alone.predict(X)) == {0.0}


def test_refusals(on_pair: xpulab.XPUCluster) -> None:
    X, y = table()
    given = {"covariance_estimator": LinearDiscriminantAnalysis()}
    with nothing_sent(on_pair):
        for kind, message, how, arguments in (
            (NotImplementedError, "shrinkage not supported", {"shrinkage": 0.5}, (X, y)),
            (NotImplementedError, "shrinkage not supported", {"shrinkage": "auto"}, (X, y)),
            (ValueError, "covariance_estimator=.* the engines compute None", {"solver": "lsqr"} | given, (X, y)),
            (ValueError, "not supported with svd", given, (X, y)),
            (ValueError, "priors must be non-negative", {"priors": [0.5, -0.5, 1.0]}, (X, y)),
            (ValueError, r"the shape \(2,\); expected \(3,\)", {"priors": [0.5, 0.5]}, (X, y)),
            (ValueError, "n_components cannot be larger", {"n_components": 3}, (X, y)),
            (ValueError, "must be more than the number of classes", {}, (X[:3], NAMES[:3])),
            (ValueError, "minimum of 2 is required", {}, (X[:1], y[:1])),
            (ValueError, "Unknown label type", {}, (X, X[:, 0])),
            (ValueError, "inconsistent numbers of samples", {}, (X, y[:-1])),
            (ValueError, "NaN", {}, (X * np.nan, y)),
        ):
            with pytest.raises(kind, match=message):
                LinearDiscriminantAnalysis(**how).fit(*arguments)
    with pytest.warns(UserWarning, match="The priors do not sum to 1"):
        model = LinearDiscriminantAnalysis(solver="lsqr", priors=[1, 1, 2]).fit(X, y)
    np.testing.assert_array_equal(model.priors_, [0.25, 0.25, 0.5])
    with pytest.raises(NotImplementedError, match="transform not implemented for 'lsqr'"):
        model.transform(X)


@pytest.mark.usefixtures("on_pair")
def test_a_fit_that_fails_changes_nothing() -> None:
    X, y = table()
    model = LinearDiscriminantAnalysis(solver="eigen").fit(X, y)
    before = {name: np.copy(value) for name, value in vars(model).items() if isinstance(value, np.ndarray)}
    with pytest.raises(np.linalg.LinAlgError):  # the scatter of a column of zeros has no inverse
        model.fit(np.hstack([X[:, :4], np.zeros((len(X), 1))]), np.where(y == "a", "b", y))
    assert len(before) >= 6
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(model, name), value, err_msg=name)


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    proxies = ["xpulab.discriminant_analysis:LinearDiscriminantAnalysis"]
    modules = ["sklearn.tests.test_discriminant_analysis"]
    names = ("test_lda_shrinkage[1]", "test_lda_shrinkage[5]", "test_lda_ledoitwolf")
    cannot = dict.fromkeys(names, "estimators of covariances are refused")
    run_suite(tmp_path, pair, modules, proxies, 13, cannot, only="not array_api and not qda")


_checks = parametrize_with_checks([LinearDiscriminantAnalysis()])


@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)
