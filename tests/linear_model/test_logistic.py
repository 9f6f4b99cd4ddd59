"""`LogisticRegression` against scikit-learn."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import sklearn.linear_model
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.fixes import parse_version
from tables import error

import xpulab
from xpulab.estimator.labels import encoded, places_of
from xpulab.linear_model import LogisticRegression

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("current"),
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]

Reference = sklearn.linear_model.LogisticRegression
LABELS = [3, 5, 8, 9, 11, 20, 21]
TIGHT: dict[str, Any] = {"tol": 1e-7, "max_iter": 10_000}


OLDER = parse_version(sklearn.__version__) < parse_version("1.9")


def table(
    n: int = 400, d: int = 6, k: int = 2, dtype: Any = np.float64, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows of different scales, classes that overlap and all occur, and weights."""
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, d)) * np.geomspace(0.5, 3, d) + rng.normal(size=d)).astype(dtype)
    score = X @ rng.normal(size=(d, k)) / np.sqrt(d) + rng.gumbel(size=(n, k))
    y = score.argmax(axis=1)
    y[:k] = np.arange(k)
    return X, y, rng.uniform(0.1, 2, n)


def assert_same(ours: Any, theirs: Any, tolerance: float = 1e-6) -> None:
    scale = max(float(np.abs(theirs.coef_).max()), float(np.abs(theirs.intercept_).max()))
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=tolerance * scale)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=0, atol=tolerance * scale)
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    intercept = theirs.intercept_ if theirs.fit_intercept else theirs.coef_  # in 1.6, zeros are always float64
    dtypes = ours.coef_.dtype, ours.intercept_.dtype
    # Before 1.9, coefficients of rows of float32 may be float64.
    assert dtypes == (theirs.coef_.dtype, intercept.dtype) or (OLDER and dtypes == (np.float32, np.float32))
    assert (ours.classes_.dtype, ours.n_iter_.dtype) == (theirs.classes_.dtype, theirs.n_iter_.dtype)
    assert (ours.coef_.shape, ours.n_iter_.shape) == (theirs.coef_.shape, theirs.n_iter_.shape)


@pytest.mark.fraction(2)
@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "newton-cholesky"])
@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("C", [0.3, np.inf])
def test_coefficients_and_iterations(solver: str, k: int, C: float) -> None:
    X, y, weights = table(k=k)
    for parameters in ({}, {"fit_intercept": False, "class_weight": "balanced"}):
        how = {"solver": solver, "C": C, **parameters}
        ours, theirs = (c(**how).fit(X, y, weights) for c in (LogisticRegression, Reference))
        assert_same(ours, theirs, 1e-4 if solver == "newton-cg" else 1e-7)  # rounding may end its inner loop earlier
        assert ours.n_iter_ == theirs.n_iter_
        assert len(ours.report_.iterations) == ours.n_iter_[0]
        assert (ours.report_.status, ours.report_.converged) == ("finished", True)
        last = ours.report_.iterations[-1].metrics
        assert last["loss"] < ours.report_.iterations[0].metrics["loss"]
        assert last["gradient"] <= ours.tol


@settings(
    max_examples=5,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n=st.integers(30, 300),
    d=st.integers(1, 20),
    k=st.integers(2, 7),
    dtype=st.sampled_from([np.float32, np.float64]),
    weighted=st.booleans(),
    class_weight=st.sampled_from([None, "balanced", {i: 1.0 + i for i in LABELS}]),
    ordered=st.booleans(),
    seed=st.integers(0, 100),
    cut=st.lists(st.floats(0, 1), min_size=2, max_size=2),
)
def test_any_rows_classes_and_cut(
    current: xpulab.XPUCluster,
    n: int,
    d: int,
    k: int,
    dtype: Any,
    weighted: bool,
    class_weight: Any,
    ordered: bool,
    seed: int,
    cut: list[float],
) -> None:
    X, y, weights = table(n, d, k, dtype, seed)
    if ordered:  # a class is then on one rank only
        X, y = X[np.argsort(y, kind="stable")], np.sort(y)
    labels, w = np.array(LABELS)[y], weights if weighted else None
    if isinstance(class_weight, dict):
        class_weight = {label: class_weight[label] for label in LABELS[:k]}
    single = dtype == np.float32
    how = {"C": 0.01, "class_weight": class_weight, "tol": 1e-4 if single else 1e-6, "max_iter": 1000}
    tolerance = 5e-2 if single else 1e-5  # float32 stops where its rounding hides the descent, scikit-learn's too
    ours, theirs = (c(**how).fit(X, labels, w) for c in (LogisticRegression, Reference))
    assert_same(ours, theirs, tolerance)
    few = 2 / n if single else 1e-9  # rows at the border
    assert ours.score(X, labels, w) == pytest.approx(ours.to_sklearn().score(X, labels, w), abs=few)
    bounds = [0, *sorted(int(c * n) for c in cut)][: current.size]
    counts = np.diff([*bounds, n]).tolist()
    sent, known = current.scatter(X, counts=counts), current.scatter(labels.astype(dtype), counts=counts)
    numbered = LogisticRegression(**how).fit(X, known, w)
    for rows, right, same in ((sent, labels, ours), (sent, known, numbered)):
        again = LogisticRegression(**how).fit(rows, right, w)
        assert_same(again, same, tolerance)
        assert again.score(rows, right, w) == pytest.approx(ours.score(X, labels, w), abs=2 * few)


@pytest.mark.parametrize("k", [2, 3])
def test_float32_is_as_good_as_scikit_learn(k: int) -> None:
    """When the loss in float32 stops decreasing, the coefficients of both have an error of about 1e-3."""
    for seed in range(3):
        X, y, weights = table(3000, 8, k, np.float32, seed)
        exact = Reference(**TIGHT).fit(X.astype(np.float64), y, weights)
        ours, theirs = (c().fit(X, y, weights) for c in (LogisticRegression, Reference))
        assert error(ours.coef_, exact.coef_) <= error(theirs.coef_, exact.coef_) + 5e-4
        assert ours.coef_.dtype == np.float32 == ours.predict_proba(X).dtype


def test_predictions(current: xpulab.XPUCluster) -> None:
    for k in (2, 3):
        X, y, weights = table(k=k)
        names = np.array(["no", "perhaps", "yes"])[y]
        ours, theirs = (c().fit(X, names, weights) for c in (LogisticRegression, Reference))
        assert_same(ours, theirs)
        for rows in (X, current.scatter(X)):
            np.testing.assert_array_equal(ours.predict(rows), theirs.predict(X))
            for name in ("decision_function", "predict_proba", "predict_log_proba"):
                found, expected = getattr(ours, name)(rows), getattr(theirs, name)(X)
                assert found.shape == expected.shape
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
            assert ours.score(rows, names, weights) == pytest.approx(theirs.score(X, names, weights), abs=1e-12)
        strange = np.where(y == 0, "unheard of", names)
        assert ours.score(X, strange) == pytest.approx(np.mean((ours.predict(X) == names) & (y != 0)), abs=1e-12)
        assert not np.isnan(ours.predict_log_proba(np.sign(X) * 1e4)).any()


def test_warm_start_and_max_iter() -> None:
    X, y, _ = table(k=3)
    ours = LogisticRegression(max_iter=3, warm_start=True)
    for _ in range(3):
        with pytest.warns(ConvergenceWarning, match=r"lbfgs failed to converge (after 3 iteration\(s\)|\(status=1\))"):
            ours.fit(X, y)
        assert (ours.n_iter_[0], ours.report_.converged) == (3, False)
    theirs = Reference(max_iter=3, warm_start=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for _ in range(3):
            theirs.fit(X, y)
    assert_same(ours, theirs)
    again = ours.set_params(max_iter=100).fit(X, y).fit(X, y)
    assert again.n_iter_ == 0
    with pytest.raises(ValueError, match=r"Initialization coef is of shape \(3, 7\), expected shape \(1, 7\)"):
        again.fit(X, y == 0)
    for solver, message in (("newton-cg", "newton-cg failed to converge"), ("newton-cholesky", "did not converge")):
        with pytest.warns(ConvergenceWarning, match=message):
            LogisticRegression(solver=solver, max_iter=1).fit(X, y)


def test_the_newton_solver_that_falls_back_warns_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    X, y, _ = table(60, 3)
    X = np.hstack([X, X])  # without a penalty, the second derivatives are singular
    how = {"solver": "newton-cholesky", "C": np.inf, "verbose": 1}
    with pytest.warns(Warning, match="resort to lbfgs"):
        ours = LogisticRegression(**how).fit(X, y)
    with pytest.warns(Warning, match="resort to lbfgs"):
        theirs = Reference(**how).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-3)
    assert capsys.readouterr().out.count("Newton iter=1") == 2


def test_mapped_files_data_frames_pickle_and_clone(tmp_path: Path) -> None:
    X, y, _ = table()
    np.save(tmp_path / "X.npy", X)
    frame = pd.DataFrame(X, columns=list("abcdef"))
    labels = pd.Series(y).map({0: "no", 1: "yes"})
    expected = Reference().fit(frame, labels)
    for data in (np.load(tmp_path / "X.npy", mmap_mode="r"), frame, X.tolist()):
        assert_same(LogisticRegression().fit(data, labels), expected)
    ours = LogisticRegression().fit(frame, labels)
    assert list(ours.feature_names_in_) == list("abcdef")
    again, plain = pickle.loads(pickle.dumps(ours)), ours.to_sklearn()
    np.testing.assert_array_equal(again.predict(frame), plain.predict(frame))
    np.testing.assert_allclose(again.predict_proba(frame), plain.predict_proba(frame), rtol=1e-10)
    assert type(plain) is Reference
    assert set(vars(plain)) <= set(vars(expected))
    assert not hasattr(clone(ours), "coef_")
    np.testing.assert_allclose(ours.sparsify().decision_function(frame), plain.decision_function(frame), rtol=1e-10)


def test_bad_input_is_refused_before_anything_is_sent(current: xpulab.XPUCluster) -> None:
    X, y, weights = table(60, 3)
    sent, other = current.scatter(X), current.scatter(y.astype(np.float64), counts=[60] + [0] * (current.size - 1))
    before, ours = current.last_report, LogisticRegression()
    cases: list[tuple[type[Exception], str, Any, tuple[Any, ...]]] = [
        (ValueError, "requires y to be passed", ours, (X, None)),
        (ValueError, "inconsistent numbers of samples", ours, (X, y[:-1])),
        (ValueError, "contains NaN", ours, (X, np.where(y == 0, np.nan, y))),
        (ValueError, "Unknown label type: continuous", ours, (X, X[:, 0])),
        (ValueError, "Unknown label type: continuous", ours, (X, y + 0.5)),
        (ValueError, "at least 2 classes in the data", ours, (X, np.ones(60))),
        (ZeroDivisionError, "Weights sum to zero", ours, (X, y, np.tile([1.0, -1.0], 30))),
        (ValueError, "at least one (non-zero|positive weight)", ours, (X, y, np.zeros(60))),
        (ValueError, "sample_weight.shape", ours, (X, y, weights[:-1])),
        (ValueError, "'C' parameter", LogisticRegression(C=0), (X, y)),
        (ValueError, "'C' parameter", LogisticRegression(C=-1.0), (X, y)),
        (ValueError, "'solver' parameter", LogisticRegression(solver="best"), (X, y)),
        (ValueError, "the engines compute 'lbfgs'", LogisticRegression(solver="liblinear"), (X, y)),
        (ValueError, "supports only dual=False", LogisticRegression(dual=True), (X, y)),
        (ValueError, "are not in class_weight", LogisticRegression(class_weight={0: 1.0, 7: 2.0}), (X, y)),
        (
            ValueError,
            "products of up to 1,500, or, with a penalty, of so few rows and columns: use solver='newton-cg'",
            LogisticRegression(solver="newton-cholesky", C=np.inf),
            (np.ones((60, 1501)), y),
        ),
    ]
    if current.size > 1:
        cases.append((ValueError, r"send y with cluster.scatter\(y, counts=", ours, (sent, other)))
    for kind, message, estimator, arguments in cases:
        with pytest.raises(kind, match=message):
            estimator.fit(*arguments)
    assert current.last_report is before


@pytest.mark.filterwarnings("ignore:'penalty' was deprecated:FutureWarning")
@pytest.mark.parametrize(("penalty", "ratio"), [("l1", 1.0), ("elasticnet", 0.5)])
def test_the_l1_norm_needs_its_solver(penalty: str, ratio: float) -> None:
    X, y, _ = table(60, 3)
    with pytest.raises(ValueError, match="supports only 'l2' or None penalties"):
        LogisticRegression(penalty=penalty, l1_ratio=ratio).fit(X, y)


def test_bad_rows_for_a_fitted_model(current: xpulab.XPUCluster) -> None:
    X, y, _ = table(60, 3)
    with pytest.raises(ValueError, match="feature names should match"):
        LogisticRegression().fit(pd.DataFrame(X, columns=list("abc")), y).predict(pd.DataFrame(X, columns=list("abd")))
    fitted = LogisticRegression().fit(X, y)
    with pytest.raises(ValueError, match="X has 2 features, but LogisticRegression is expecting 3"):
        fitted.predict_proba(X[:, :2])
    with pytest.raises(ValueError, match="y has labels that are strings; expected numbers"):
        fitted.score(X, y.astype(str))
    named = LogisticRegression().fit(X, y.astype(str))
    with pytest.raises(ValueError, match="y is a handle, which contains numbers; expected an array of labels"):
        named.score(X, current.scatter(y.astype(np.float64)))
    with pytest.raises(ValueError, match="at least 2 classes"):
        LogisticRegression().fit(X, current.scatter(np.ones(60)))


@pytest.mark.parametrize(
    "y",
    [
        np.array([3, 1, 1, 7]),
        np.array([-128, 127, 0], np.int8),
        np.array([2**63, 0, 2**63], np.uint64),
        np.array([-(2**60), 2**60]),
        np.array([True, False, True]),
        np.array([2.0, -1.0, 2.0], np.float32),
        np.array([1e18, 1.0]),
        np.array(["b", "a", "b"]),
        np.array(["b", "a", "b"], object),
    ],
    ids=lambda y: str(y.dtype),
)
def test_labels_are_numbered(y: np.ndarray) -> None:
    classes, codes = encoded(y)
    expected, places = np.unique(y, return_inverse=True)
    assert classes.dtype == expected.dtype
    np.testing.assert_array_equal(classes, expected)
    np.testing.assert_array_equal(codes, places)
    np.testing.assert_array_equal(places_of(y, classes[1:]), places - 1)


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "newton-cholesky"])
def test_nan_in_rows_that_are_said_to_be_finite_ends_as_in_scikit_learn(
    on_pair: xpulab.XPUCluster, solver: str
) -> None:
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    X[7, 1] = np.nan
    with sklearn.config_context(assume_finite=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kinds = (LogisticRegression, sklearn.linear_model.LogisticRegression)
        ours, theirs = (kind(solver=solver).fit(X, y).coef_ for kind in kinds)
    np.testing.assert_array_equal(ours, theirs)  # zeros, or NaN
