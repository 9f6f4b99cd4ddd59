"""`QuadraticDiscriminantAnalysis` against scikit-learn."""

from __future__ import annotations

import warnings
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
from xpulab.discriminant_analysis import QuadraticDiscriminantAnalysis

pytestmark = pytest.mark.cluster

ENGINES = pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
Reference = sklearn.discriminant_analysis.QuadraticDiscriminantAnalysis
NAMES = np.array(["a", "b", "c", "d"])
PRIORS = {2: [0.3, 0.7], 3: [0.2, 0.5, 0.3], 4: [0.1, 0.2, 0.3, 0.4]}
WAYS: list[dict[str, Any]] = [{}, {"reg_param": 0.3, "store_covariance": True}]
if hasattr(Reference(), "solver"):  # since 1.8
    WAYS += [{"solver": "eigen", "store_covariance": True}, {"solver": "eigen", "shrinkage": 0.4}]
    WAYS += [{"solver": "eigen", "shrinkage": "auto"}]


def table(
    n: int = 400, d: int = 4, k: int = 3, dtype: Any = np.float64, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows whose means and covariances depend on the class, and labels of classes of different sizes."""
    rng = np.random.default_rng(seed)
    y = np.minimum((rng.random(n) ** 2 * k).astype(int), k - 1)
    y[: 8 * k] = np.tile(np.arange(k), 8)
    turns = np.eye(d) + 0.3 * rng.normal(size=(k, d, d))
    X = np.einsum("nd,nde->ne", rng.normal(size=(n, d)), turns[y]) + rng.normal(size=(k, d))[y] + 5
    return X.astype(dtype), NAMES[y]


def assert_same(ours: Any, theirs: Any, rows: Any, X: np.ndarray, tolerance: float) -> None:
    """Attributes and predictions are the same, but for the signs of axes."""
    assert {name for name in vars(theirs) if name.endswith("_")} <= vars(ours).keys()
    for name in ("means_", "priors_", "scalings_", "covariance_"):
        assert hasattr(ours, name) == hasattr(theirs, name), name
        for found, expected in zip(getattr(ours, name, ()), getattr(theirs, name, ()), strict=True):
            assert (np.shape(found), found.dtype) == (np.shape(expected), expected.dtype), name
            np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max(), err_msg=name)
    for method in ("decision_function", "predict_proba", "predict_log_proba"):
        found, expected = getattr(ours, method)(rows), getattr(theirs, method)(X)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, rtol=200 * tolerance, atol=200 * tolerance, err_msg=method)
    assert ours.score(rows, theirs.predict(X)) >= 1 - 2 / len(X)


@ENGINES
@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n=st.integers(60, 400),
    d=st.integers(1, 6),
    k=st.integers(2, 4),
    dtype=st.sampled_from([np.float32, np.float64]),
    how=st.sampled_from(WAYS),
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
    ours = QuadraticDiscriminantAnalysis(**how).fit(rows, y)
    assert_same(ours, theirs, rows, X, 5e-4 if dtype == np.float32 else 1e-8)


def test_labels_on_engines_files_and_copies(on_pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    X, y = table()
    codes = np.searchsorted(NAMES, y).astype(float)
    np.save(tmp_path / "X.npy", X)
    theirs = Reference().fit(X, codes)
    for rows in (on_pair.scatter(X), np.load(tmp_path / "X.npy", mmap_mode="r")):
        ours = QuadraticDiscriminantAnalysis().fit(rows, on_pair.scatter(codes))
        assert_same(ours, theirs, rows, X, 1e-9)
        np.testing.assert_array_equal(ours.predict(rows), theirs.predict(X))
    np.testing.assert_array_equal(ours.to_sklearn().predict(X), theirs.predict(X))


def test_refusals(on_pair: xpulab.XPUCluster) -> None:
    X, y = table()
    cases: list[tuple[Any, str, dict[str, Any], tuple[Any, ...]]] = [
        (ValueError, r"expected one for each class: \(3,\)", {"priors": [0.5, 0.5]}, (X, y)),
        (ValueError, "number of classes has to be greater than one", {}, (X, np.zeros(len(X)))),
        (ValueError, "only 1 sample in class d", {}, (X, np.where(np.arange(len(X)) == 7, "d", y))),
        (ValueError, "Unknown label type", {}, (X, X[:, 0])),
        (ValueError, "inconsistent numbers of samples", {}, (X, y[:-1])),
        (ValueError, "NaN", {}, (X * np.nan, y)),
    ]
    if len(WAYS) > 2:
        eigen: dict[str, Any] = {"solver": "eigen"}
        estimator = QuadraticDiscriminantAnalysis()
        cases += [
            (NotImplementedError, "shrinkage not supported", {"shrinkage": 0.5}, (X, y)),
            (NotImplementedError, "shrinkage not supported", {"shrinkage": "auto"}, (X, y)),
            (ValueError, "covariance_estimator=", eigen | {"covariance_estimator": estimator}, (X, y)),
            (ValueError, "Try solver='eigen'", {"covariance_estimator": estimator}, (X, y)),
        ]
    with nothing_sent(on_pair):
        for kind, message, how, arguments in cases:
            with pytest.raises(kind, match=message):
                QuadraticDiscriminantAnalysis(**how).fit(*arguments)


def told(kind: Any, X: np.ndarray, y: np.ndarray) -> set[str]:
    """Return the warnings and the error of a fit."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            kind().fit(X, y)
        except np.linalg.LinAlgError as error:
            return {str(error)}
    return {str(each.message) for each in warned}


@pytest.mark.usefixtures("on_pair")
def test_a_covariance_without_the_full_rank_is_told_as_in_scikit_learn() -> None:
    X, y = table()
    for rows in (np.hstack([X, X[:, :1]]), X[:24].repeat(8, axis=1)):
        found = told(QuadraticDiscriminantAnalysis, rows, y[: len(rows)])
        assert found == told(Reference, rows, y[: len(rows)]) != set()


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    proxies = ["xpulab.discriminant_analysis:QuadraticDiscriminantAnalysis"]
    modules = ["sklearn.tests.test_discriminant_analysis"]
    run_suite(tmp_path, pair, modules, proxies, 7, {}, only="qda and not array_api and not ledoitwolf")


_checks = parametrize_with_checks([QuadraticDiscriminantAnalysis()])


@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)
