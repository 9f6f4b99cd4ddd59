"""`LinearSVC` and `LinearSVR` against the objectives of scikit-learn's, and its results."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import sklearn.svm
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sent import nothing_sent
from sklearn.exceptions import ConvergenceWarning
from suites import run_suite

import xpulab
from xpulab.svm import LinearSVC, LinearSVR

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("current"),
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]

NAMES = np.array(["few", "more", "most", "some"])
EXACT: dict[str, Any] = {"tol": 1e-9, "max_iter": 1_000_000, "random_state": 0}


def table(n: int = 200, d: int = 5, k: int = 3, dtype: Any = np.float64, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return rows, labels of classes that overlap, and weights."""
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, d)) * np.geomspace(0.5, 2, d) + rng.normal(size=d)).astype(dtype)
    y = (X @ rng.normal(size=(d, k)) / np.sqrt(d) + rng.gumbel(size=(n, k))).argmax(axis=1)
    y[:k] = np.arange(k)
    return X, NAMES[y], rng.uniform(0.1, 2, n)


def objective(model: Any, X: Any, y: np.ndarray, weights: np.ndarray | None) -> float:
    """Return what the fit minimises, added up over the classes."""
    coef, scale = np.atleast_2d(model.coef_), model.intercept_scaling
    raw = X @ coef.T.astype(np.float64) + np.broadcast_to(model.intercept_, len(coef))
    lengths = np.hstack([coef, np.broadcast_to(model.intercept_, len(coef))[:, None] / scale])
    norm = np.abs(lengths).sum() if getattr(model, "penalty", "l2") == "l1" else 0.5 * np.square(lengths).sum()
    if isinstance(model, sklearn.svm.LinearSVR):
        missed = np.abs(y[:, None] - raw) - model.epsilon
    else:
        signs = np.where(y[:, None] == model.classes_, 1.0, -1.0)
        missed = 1 - (signs[:, 1:] if len(model.classes_) == 2 else signs) * raw
    losses = np.maximum(missed, 0) ** (2 if model.loss.startswith("squared") else 1)
    given_ = np.ones(len(y)) if weights is None else weights
    return float(norm + model.C * (given_ @ losses).sum())


CASES = st.fixed_dictionaries(
    {
        "loss": st.sampled_from(["hinge", "squared_hinge"]),
        "C": st.sampled_from([0.01, 1.0]),
        "fit_intercept": st.booleans(),
        "intercept_scaling": st.sampled_from([1.0, 3.0]),
    }
)
few_examples = settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@few_examples
@given(
    n=st.integers(8, 200),
    d=st.integers(1, 12),
    k=st.integers(2, 4),
    dtype=st.sampled_from([np.float32, np.float64]),
    how=CASES,
    penalty=st.sampled_from(["l1", "l2"]),
    weighted=st.booleans(),
    form=st.sampled_from(["array", "handle", "csr"]),
    seed=st.integers(0, 100),
)
def test_any_rows_have_the_least_objective(
    current: xpulab.XPUCluster,
    n: int,
    d: int,
    k: int,
    dtype: Any,
    how: dict[str, Any],
    penalty: str,
    weighted: bool,
    form: str,
    seed: int,
) -> None:
    X, y, weights = table(n, d, k, dtype, seed)
    w, single = weights if weighted else None, dtype == np.float32
    if how["loss"] == "squared_hinge":
        how = {**how, "penalty": penalty}
    given_ = {"array": X, "handle": current.scatter(X), "csr": scipy.sparse.csr_matrix(X)}[form]
    ours = LinearSVC(**how, tol=1e-4 if single else 1e-7).fit(given_, y, w)
    theirs = sklearn.svm.LinearSVC(**how, **EXACT | {"tol": 1e-6}).fit(X.astype(np.float64), y, w)
    least, found = objective(theirs, X, y, w), objective(ours, X, y, w)
    assert found <= least * (1 + (1e-3 if single else 1e-5))
    assert (ours.coef_.shape, ours.coef_.dtype) == (theirs.coef_.shape, theirs.coef_.dtype)
    assert np.shape(ours.intercept_) == np.shape(theirs.intercept_)
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    assert type(ours.n_iter_) is int
    assert (ours.predict(given_) == theirs.predict(X)).mean() >= 0.95
    assert ours.decision_function(given_).shape == theirs.decision_function(X).shape


@few_examples
@given(
    n=st.integers(8, 200),
    d=st.integers(1, 12),
    dtype=st.sampled_from([np.float32, np.float64]),
    how=CASES,
    epsilon=st.sampled_from([0.0, 0.3]),
    weighted=st.booleans(),
    form=st.sampled_from(["array", "handle", "csr"]),
    seed=st.integers(0, 100),
)
def test_any_targets_have_the_least_objective(
    current: xpulab.XPUCluster,
    n: int,
    d: int,
    dtype: Any,
    how: dict[str, Any],
    epsilon: float,
    weighted: bool,
    form: str,
    seed: int,
) -> None:
    X, _, weights = table(n, d, 2, dtype, seed)
    y = X @ np.arange(1.0, d + 1) + np.random.default_rng(seed).standard_t(2, n) + 3
    w, single = weights if weighted else None, dtype == np.float32
    how = {**how, "epsilon": epsilon, "loss": how["loss"].replace("hinge", "epsilon_insensitive")}
    given_ = {"array": X, "handle": current.scatter(X), "csr": scipy.sparse.csr_matrix(X)}[form]
    ours = LinearSVR(**how, tol=1e-4 if single else 1e-7).fit(given_, y, w)
    theirs = sklearn.svm.LinearSVR(**how, **EXACT | {"tol": 1e-6}).fit(X.astype(np.float64), y, w)
    least, found = objective(theirs, X, y, w), objective(ours, X, y, w)
    assert found <= least * (1 + (1e-3 if single else 1e-5))
    assert (ours.coef_.shape, ours.coef_.dtype) == (theirs.coef_.shape, theirs.coef_.dtype)
    assert np.shape(ours.intercept_) == np.shape(theirs.intercept_)
    assert ours.predict(given_).shape == (n,)


def test_labels_on_engines_weights_of_classes_and_files(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    X, y, weights = table(400)
    codes = np.searchsorted(NAMES, y).astype(float)
    theirs = sklearn.svm.LinearSVC(class_weight="balanced", **EXACT).fit(X, codes, weights)
    np.save(tmp_path / "X.npy", X)
    for rows in (current.scatter(X), np.load(tmp_path / "X.npy", mmap_mode="r")):
        ours = LinearSVC(class_weight="balanced", tol=1e-8).fit(rows, current.scatter(codes), weights)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)
    assert ours.score(rows, codes, weights) == pytest.approx(theirs.score(X, codes, weights), abs=5e-3)
    assert ours.report_.status == "finished"
    assert ours.report_.iterations[-1].number == ours.n_iter_
    plain = pickle.loads(pickle.dumps(ours)).to_sklearn()
    assert type(plain) is sklearn.svm.LinearSVC
    np.testing.assert_array_equal(plain.predict(X), ours.predict(X))


def test_a_class_without_weight_takes_no_label_of_others(cluster: xpulab.XPUCluster) -> None:
    """With scikit-learn 1.9, the rows of "b" are said to be of "a", and those of "c" of "b"."""
    X = np.array([[0.0, 0], [1, 0], [10, 10], [11, 10], [0, 10], [1, 10]])
    y = np.repeat(["a", "b", "c"], 2)
    for loss in ("hinge", "squared_hinge"):
        model = LinearSVC(loss=loss).fit(X, y, (y != "a").astype(float))
        assert model.coef_.shape == (3, 2)
        np.testing.assert_array_equal(model.predict(X[2:]), y[2:])


def test_more_coefficients_than_second_derivatives(cluster: xpulab.XPUCluster) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 1600)), np.arange(60) % 2
    for loss in ("hinge", "squared_hinge"):
        ours, theirs = LinearSVC(loss=loss, C=0.01), sklearn.svm.LinearSVC(loss=loss, C=0.01, **EXACT)
        least, found = (objective(each.fit(X, y), X, y, None) for each in (theirs, ours))
        assert found <= least * (1 + 1e-3)


def test_refusals_come_before_anything_is_sent(current: xpulab.XPUCluster) -> None:
    X, y, weights = table()
    refused: list[tuple[Any, tuple[Any, ...], str]] = [
        (LinearSVC(multi_class="crammer_singer"), (X, y), "multi_class='crammer_singer' was given"),
        (LinearSVC(penalty="l1", loss="hinge"), (X, y), "Unsupported set of arguments"),
        (LinearSVC(penalty="l1", dual=True), (X, y), "Unsupported set of arguments"),
        (LinearSVR(dual=False), (X, np.ones(200)), "Unsupported set of arguments"),
        (LinearSVC(C=0.0), (X, y), "C"),
        (LinearSVC(), (X, np.full(200, "one")), "only one class"),
        (LinearSVC(), (X, y, weights[:-1]), "sample_weight"),
    ]
    for model, arguments, message in refused:
        with nothing_sent(current), pytest.raises(ValueError, match=message):
            model.fit(*arguments)
    with pytest.warns(ConvergenceWarning, match=r"iterations; for more, type: model.set_params\(max_iter=10\)"):
        LinearSVC(max_iter=1).fit(X, y)


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, cluster: xpulab.XPUCluster, tmp_path: Path) -> None:
    if cluster.size > 1:
        pytest.skip("once is enough")
    proxies = ["xpulab.svm:LinearSVC", "xpulab.svm:LinearSVR"]
    only = "linearsvc or linearsvr or LinearSVC or LinearSVR or linear_svc or liblinear"
    least, cannot = (
        {"LinearSVC": 16, "LinearSVR": 5},
        {"crammer_singer": "the engines compute one class against all others"},
    )
    run_suite(tmp_path, pair, ["sklearn.svm.tests.test_svm"], proxies, least, cannot, only)
