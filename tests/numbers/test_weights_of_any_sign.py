"""Weights that are negative, zero, whole, boolean or float16: scikit-learn's values, and its errors in words."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from exported import FORESTS, exported, numbers_of, outcome, rows_for, targets_for, theirs_of, with_known
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.base import is_classifier, is_regressor

from xpulab import metrics
from xpulab.linear_model import Ridge
from xpulab.preprocessing import StandardScaler

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("on_pair")]

N = 60
RNG = np.random.default_rng(0)
X = np.rint(3 * RNG.normal(size=(N, 3))) + 0.25 + RNG.random((N, 3))
CLASSES, LINE = np.arange(N) % 3, X @ [1.0, 2.0, 3.0] + 0.1 * RNG.normal(size=N)
WEIGHTS: dict[str, Any] = {
    "some negative": np.where(np.arange(N) % 7 == 0, -0.5, 1.0 + np.arange(N) % 2),
    "all negative": -1.0 - np.arange(N) % 2,
    "a class of negative": np.where(CLASSES == 0, -0.25, 1.0),
    "some zero": np.r_[np.zeros(5), np.ones(N - 10), np.zeros(5)],
    "all zero": np.zeros(N),
    "a class of zero": (CLASSES != 0).astype(float),
    "a sum of zero": np.where(np.arange(N) % 2, 1.0, -1.0),
    "whole": np.arange(N) % 3 + 1,
    "boolean": np.arange(N) % 2 == 0,
    "float16": np.linspace(0.5, 1, N).astype(np.float16),
    "NaN": np.r_[np.nan, np.ones(N - 1)],
    "too few": np.ones(N - 1),
}
#: Where scikit-learn computes nothing that means something: such weights are refused in words.
REFUSED = {
    **{name: {"all negative"} for name in ("KMeans", "BisectingKMeans", "MiniBatchKMeans")},
    **{f"RandomForest{kind}": {"all negative"} for kind in ("Classifier", "Regressor")},
    # Nodes whose weight is negative have no impurity.
    **{
        f"ExtraTrees{kind}": {"all negative", "some negative", "a class of negative", "a sum of zero"}
        for kind in ("Classifier", "Regressor")
    },
    **{name: {"some negative", "a class of negative"} for name in ("Lasso", "ElasticNet")},
    # As any negative weights.
    **{f"Ridge{kind}": {"a sum of zero"} for kind in ("", "CV", "Classifier", "ClassifierCV")},
    "BayesianRidge": {"a sum of zero"},
    "LogisticRegressionCV": {"all negative"},
    # There is no least loss, or scikit-learn's solver fails.
    **{
        f"{name}Regressor": {"all negative", "some negative", "a class of negative", "a sum of zero"}
        for name in ("Huber", "Quantile")
    },
    # Steps that lead away from the minimum of a row have no end.
    **{
        f"SGD{kind}": {"all negative", "some negative", "a class of negative", "a sum of zero"}
        for kind in ("Classifier", "Regressor")
    },
    # scikit-learn leaves out rows whose weight is negative.
    **{f"LinearSV{kind}": {"all negative", "some negative", "a class of negative", "a sum of zero"} for kind in "CR"},
}
#: Where the loss has no least value, so that the coefficients depend on when a solver stops.
UNBOUNDED = {
    **{f"LogisticRegression{kind}": {"a class of negative"} for kind in ("", "CV")},
    "LinearSVC": {"a class of zero"},  # of which scikit-learn makes one column of coefficients for three classes
}
#: Beginnings of the names of estimators that have other numbers, as with another `random_state`.
OTHERS = (*FORESTS, "SGD")
#: With which scikit-learn's solvers come as near to the optimum as ours, or there is one optimum only.
EXACT: dict[str, dict[str, Any]] = {
    "LinearSVR": {"tol": 1e-8, "max_iter": 1_000_000},
    "QuantileRegressor": {"quantile": 0.43},  # the median of an even number of rows is any value between two
}


def takes_weights(kind: Any, method: str) -> bool:
    return all(
        hasattr(each, method) and "sample_weight" in inspect.signature(getattr(each, method)).parameters
        for each in (kind, theirs_of(kind))
    )


def made(kind: Any) -> tuple[Any, Any]:
    ours = with_known(kind, random_state=0, n_clusters=2, alphas=[0.1, 1.0], encode="ordinal")
    ours.set_params(**EXACT.get(kind.__name__, {}))
    known = ours.get_params(deep=False)
    theirs = theirs_of(kind)
    return ours, theirs(**{name: known[name] for name in known if name in inspect.signature(theirs).parameters})


def targets(kind: Any) -> tuple[Any, ...]:
    estimator = kind()
    return (CLASSES,) if is_classifier(estimator) else (targets_for(kind, LINE),) if is_regressor(estimator) else ()


def require_alike(found: Any, expected: Any, told: Any) -> bool:
    """Compare two outcomes; return whether both are values."""
    if isinstance(expected, Exception):
        alike = isinstance(found, type(expected)) or all(isinstance(each, ValueError) for each in (found, expected))
        assert alike, (told, found, expected)
        return False
    assert not isinstance(found, Exception), (told, found)
    return True


KINDS = [kind for kind in exported() if theirs_of(kind)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if takes_weights(kind, "fit")], ids=lambda kind: kind.__name__)
def test_a_fit_with_weights_of_any_sign_has_the_numbers_or_the_error_of_scikit_learn(kind: Any) -> None:
    rows, name = rows_for(kind, X), kind.__name__
    for which, weights in WEIGHTS.items():
        ours, theirs = made(kind)
        found = outcome(ours.fit, rows, *targets(kind), sample_weight=weights)
        if which in REFUSED.get(name, ()):
            assert isinstance(found, ValueError), which
            continue
        expected = outcome(theirs.fit, rows, *targets(kind), sample_weight=weights)
        if require_alike(found, expected, which) and not (name.startswith(OTHERS) or which in UNBOUNDED.get(name, ())):
            of_theirs = numbers_of(theirs)
            for attribute, value in numbers_of(ours).items():
                if attribute in of_theirs and attribute != "dual_gap_":
                    size = np.nanmax(np.abs(value[np.isfinite(value)]), initial=0.0)
                    close = {"rtol": 2e-3, "atol": 1e-3 * size, "err_msg": f"{which}: {attribute}"}
                    assert_allclose(value, of_theirs[attribute], **close)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if takes_weights(kind, "score")], ids=lambda kind: kind.__name__
)
def test_a_score_with_weights_of_any_sign_has_the_value_or_the_error_of_scikit_learn(kind: Any) -> None:
    rows = rows_for(kind, X)
    ours = made(kind)[0].fit(rows, *targets(kind))
    theirs, y = ours.to_sklearn(), targets(kind) or (None,)
    for which, weights in {**WEIGHTS, "a number": 2.0}.items():
        found, expected = (outcome(each.score, rows, *y, sample_weight=weights) for each in (ours, theirs))
        if require_alike(found, expected, which):
            assert found == pytest.approx(expected, rel=1e-6), which


@examples(max_examples=30)
@given(weights=st.lists(st.integers(-3, 4), min_size=N, max_size=N), sparse_rows=st.booleans(), batch=st.booleans())
def test_any_weights_of_a_scaler_and_a_score(weights: list[int], sparse_rows: bool, batch: bool) -> None:
    given_ = np.array(weights) * 0.5
    ours, theirs = (made(StandardScaler)[place].set_params(with_mean=not sparse_rows) for place in (0, 1))
    rows = sparse.csr_matrix(X) if sparse_rows else X
    for each in (ours, theirs):
        if batch:
            outcome(each.partial_fit, rows, sample_weight=np.ones(N))
    found, expected = (outcome(each.partial_fit, rows, sample_weight=given_) for each in (ours, theirs))
    if require_alike(found, expected, weights):
        for name in ("mean_", "var_"):
            value = getattr(theirs, name)
            assert_allclose(getattr(ours, name), value, rtol=1e-6, atol=1e-9 * np.abs(value).max(), err_msg=name)
    ridge = Ridge().fit(X, LINE)
    found, expected = (outcome(each.score, X, LINE, given_) for each in (ridge, ridge.to_sklearn()))
    if require_alike(found, expected, weights):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)


SCORES, SHARES = RNG.random(N), RNG.dirichlet(np.ones(3), N)
RIGHT = RNG.gamma(2.0, 1, (2, N))
WEIGHED = [name for name in metrics.__all__ if "sample_weight" in inspect.signature(getattr(metrics, name)).parameters]


@pytest.mark.parametrize("name", WEIGHED)
def test_a_metric_with_weights_of_any_sign_has_the_value_or_the_error_of_scikit_learn(name: str) -> None:
    second = list(inspect.signature(getattr(metrics, name)).parameters)[1]
    if second == "y_score":
        columns: tuple[Any, Any] = (CLASSES == 1, SCORES)
    elif second == "y_proba":
        columns = (CLASSES == 1, SCORES) if name == "brier_score_loss" else (CLASSES, SHARES)
    elif re.search("error|deviance|pinball|variance|^r2|^d2", name):
        columns = tuple(RIGHT)
    else:
        columns = (CLASSES == 1, (SCORES > 0.4))
    for which, weights in WEIGHTS.items():
        given_ = {"beta": 2.0} if name == "fbeta_score" else {}
        found, expected = (
            outcome(getattr(module, name), *columns, sample_weight=weights, **given_)
            for module in (metrics, sklearn.metrics)
        )
        if require_alike(found, expected, which) and not isinstance(expected, str):
            several = isinstance(expected, tuple)
            for mine, theirs in zip(found, expected, strict=True) if several else [(found, expected)]:
                close: Any = {"rtol": 1e-3 if which == "float16" else 1e-9, "atol": 1e-9, "err_msg": which}
                assert_allclose(np.asarray(mine, float), np.asarray(theirs, float), **close)
