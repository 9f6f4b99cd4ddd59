"""`LogisticRegressionCV` against scikit-learn."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import sklearn.linear_model
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sent import nothing_sent
from sklearn import config_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import get_scorer
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit

import xpulab
from xpulab.linear_model import LogisticRegressionCV

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("current"),
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
    pytest.mark.filterwarnings("ignore:'penalty' was deprecated:FutureWarning"),
]

Reference = sklearn.linear_model.LogisticRegressionCV
NAMES = np.array(["few", "more", "most", "some"])
#: What newer releases of scikit-learn warn of, unless it is given.
_GIVEN = {"l1_ratios": (0.0,), "scoring": "accuracy", "use_legacy_attributes": True}
SINCE = "use_legacy_attributes" in inspect.signature(Reference).parameters
PLAIN: dict[str, Any] = {"Cs": [0.01, 0.3, 3.0], "tol": 1e-7, "max_iter": 1000, **(_GIVEN if SINCE else {})}
ATTRIBUTES = ("Cs_", "l1_ratios_", "C_", "l1_ratio_", "scores_", "coefs_paths_", "n_iter_", "coef_", "intercept_")


def table(n: int = 200, d: int = 5, k: int = 3, dtype: Any = np.float64, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return rows, labels of classes that overlap, and weights."""
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, d)) * np.geomspace(0.5, 2, d) + rng.normal(size=d)).astype(dtype)
    y = (X @ rng.normal(size=(d, k)) / np.sqrt(d) + rng.gumbel(size=(n, k))).argmax(axis=1)
    y[: 6 * k] = np.arange(6 * k) % k
    return X, NAMES[y], rng.uniform(0.1, 2, n)


def assert_same(ours: Any, theirs: Any, tolerance: float, iterations: bool = False) -> None:
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    for name in ATTRIBUTES:
        found, expected = getattr(ours, name), getattr(theirs, name)
        assert type(found) is type(expected), name
        if isinstance(found, dict):
            assert list(found) == list(expected), name
            found, expected = np.array(list(found.values())), np.array(list(expected.values()))
        found, expected = np.asarray(found), np.asarray(expected)
        assert found.shape == expected.shape, name
        if expected.dtype.kind == "O":  # l1_ratio_ without l1_ratios; before 1.8 in any case
            assert found.dtype.kind == "O" or not SINCE, name
        elif expected.dtype.kind == "f":
            np.testing.assert_allclose(found, expected, atol=tolerance, rtol=tolerance, err_msg=name)
        elif iterations:
            np.testing.assert_array_equal(found, expected, err_msg=name)


@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n=st.integers(60, 200),
    d=st.integers(1, 8),
    k=st.integers(2, 4),
    dtype=st.sampled_from([np.float32, np.float64]),
    how=st.fixed_dictionaries(
        {
            "fit_intercept": st.booleans(),
            "class_weight": st.sampled_from([None, "balanced", {"few": 3.0}]),
            # Before 1.8, scikit-learn's Newton solver does not go on well from the coefficients of another penalty.
            "solver": st.sampled_from(["lbfgs", *(["newton-cholesky"] if SINCE else [])]),
            "refit": st.booleans(),
            # Before 1.8, log losses need all classes in each fold.
            "scoring": st.sampled_from(["accuracy", "matthews_corrcoef", *(["neg_log_loss"] if SINCE else [])]),
            "cv": st.sampled_from([3, KFold(4), ShuffleSplit(2, test_size=0.4, random_state=1)]),
        }
    ),
    weighted=st.booleans(),
    form=st.sampled_from(["array", "handle", "csr"]),
    seed=st.integers(0, 100),
)
def test_any_rows_folds_and_scores(
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
    single = dtype == np.float32
    how = PLAIN | how | ({"tol": 1e-4} if single else {})
    theirs = Reference(**how | {"tol": 1e-7}).fit(scipy.sparse.csr_matrix(X) if form == "csr" else X, y, w)
    given = {"array": X, "handle": current.scatter(X), "csr": scipy.sparse.csr_matrix(X)}[form]
    ours = LogisticRegressionCV(**how).fit(given, y, w)
    if single:  # a row near the boundary may be on its other side, and another penalty may be best
        np.testing.assert_allclose(
            np.array(list(ours.coefs_paths_.values())), np.array(list(theirs.coefs_paths_.values())), atol=5e-2
        )
    else:
        assert_same(ours, theirs, 1e-4, iterations=form != "csr" and how["solver"] == "newton-cholesky")
    assert ours.coef_.dtype == theirs.coef_.dtype
    assert (ours.predict(given) == theirs.predict(X)).mean() >= 0.95
    if not single:
        assert ours.score(X, y, sample_weight=w) == pytest.approx(theirs.score(X, y, sample_weight=w), abs=2 / n)


@pytest.mark.skipif(not SINCE, reason="there was one form of the attributes")
def test_attributes_in_their_new_form(current: xpulab.XPUCluster) -> None:
    for k in (2, 3):
        X, y, weights = table(k=k)
        for more in (
            {},
            {"solver": "saga", "Cs": [0.3, 3.0], "l1_ratios": [0.0, 0.5], "tol": 1e-10, "max_iter": 20_000},
        ):
            how = PLAIN | {"use_legacy_attributes": False} | more
            ours, theirs = (c(**how).fit(X, y, weights) for c in (LogisticRegressionCV, Reference))
            assert_same(ours, theirs, 1e-4)
            assert (type(ours.C_), type(ours.l1_ratio_)) == (float, float)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("refit", [True, False])
def test_shares_of_the_l1_norm(cluster: xpulab.XPUCluster, k: int, refit: bool) -> None:
    X, y, _ = table(k=k)
    how = PLAIN | {
        "solver": "saga", "Cs": [0.3, 3.0], "l1_ratios": np.array([0.3, 1.0]), "tol": 1e-10, "max_iter": 20_000,
        "refit": refit, "cv": 3,
    }  # fmt: skip
    how |= {} if SINCE else {"penalty": "elasticnet"}
    ours, theirs = (c(**how).fit(X, y) for c in (LogisticRegressionCV, Reference))
    assert_same(ours, theirs, 1e-4)
    lasso = LogisticRegressionCV(**how | {"penalty": "l1", "l1_ratios": None, "scoring": None}).fit(X, y)
    columns = NAMES[:k] if k > 2 else NAMES[1:2]
    for label in columns:
        np.testing.assert_allclose(lasso.coefs_paths_[label], theirs.coefs_paths_[label][:, :, 1], atol=1e-4)


def test_labels_on_engines_files_and_the_report(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    X, y, weights = table()
    codes = np.searchsorted(NAMES, y).astype(float)
    theirs = Reference(**PLAIN).fit(X, codes, weights)
    np.save(tmp_path / "X.npy", X)
    for rows in (current.scatter(X), np.load(tmp_path / "X.npy", mmap_mode="r")):
        ours = LogisticRegressionCV(**PLAIN).fit(rows, current.scatter(codes), weights)
        assert_same(ours, theirs, 1e-5)
    report = ours.report_
    assert [(each.init, each.number) for each in report.iterations] == [(r, i) for r in range(1, 6) for i in (1, 2, 3)]
    assert report.iterations[4].metrics["accuracy"] == pytest.approx(theirs.scores_[0.0][1, 1])
    assert (report.status, report.n_init, sum(each.rows for each in report.engines)) == ("finished", 5, 200)
    plain = ours.to_sklearn()
    np.testing.assert_array_equal(plain.predict(X), ours.predict(X))
    assert type(plain) is Reference
    with pytest.raises(Exception, match="no interrupted fit"):
        ours.resume()


def test_classes_that_folds_lack(current: xpulab.XPUCluster) -> None:
    """The last class is in one fold only, of which the fit therefore has no row of it."""
    X, y, _ = table()
    y = np.where(np.arange(200) < 20, "rare", y)
    how = PLAIN | {"cv": KFold(5), "Cs": [0.3]}
    ours = LogisticRegressionCV(**how).fit(X, y)
    assert len(ours.coefs_paths_["rare"]) == 5
    if SINCE:
        assert_same(ours, Reference(**how).fit(X, y), 3e-2)
        by_loss = how | {"scoring": "neg_log_loss"}
        ours, theirs = (c(**by_loss).fit(X, y) for c in (LogisticRegressionCV, Reference))
        assert_same(ours, theirs, 3e-2)


@config_context(enable_metadata_routing=True)
def test_parameters_of_splitter_and_scorer(current: xpulab.XPUCluster) -> None:
    X, y, weights = table()
    how = PLAIN | {
        "cv": GroupKFold(4).set_split_request(groups=True),
        "scoring": get_scorer("accuracy").set_score_request(sample_weight=True),
    }
    groups = np.arange(200) % 7
    ours, theirs = (c(**how).fit(X, y, weights, groups=groups) for c in (LogisticRegressionCV, Reference))
    assert_same(ours, theirs, 1e-4)
    for rows in (X, current.scatter(X)):
        found = ours.score(rows, y, sample_weight=weights)
        assert found == pytest.approx(theirs.score(X, y, sample_weight=weights))


def test_refusals_come_before_anything_is_sent(current: xpulab.XPUCluster) -> None:
    X, y, weights = table()
    few = np.where(np.arange(200) < 150, 0.0, 1.0)
    folds = [(np.arange(100), np.arange(100, 200)), (np.arange(150), np.arange(150, 200))]
    refused: list[tuple[dict[str, Any], tuple[Any, ...], str]] = [
        ({"solver": "liblinear"}, (X, y), "solver='liblinear' was given"),
        ({"solver": "lbfgs", "penalty": "l1", "l1_ratios": None}, (X, y), "lbfgs"),
        ({"cv": [(np.array([0, 0, 1]), np.array([2]))]}, (X, y), "a row twice"),
        ({"cv": folds}, (X, y, few), "Weights sum to zero"),
        ({"Cs": 0}, (X, y), "Cs"),
        ({}, (X, np.full(200, "one")), "only one class"),
        ({}, (X, y, weights[:-1]), "sample_weight"),
    ]
    for how, arguments, message in refused:
        with nothing_sent(current), pytest.raises(Exception, match=message):
            LogisticRegressionCV(**PLAIN | how).fit(*arguments)
    model = LogisticRegressionCV(**PLAIN).fit(X, y)
    with pytest.warns(ConvergenceWarning):
        LogisticRegressionCV(**PLAIN | {"max_iter": 1}).fit(X, y)
    assert model.predict(X).shape == (200,)
