"""`Lars` and `LassoLars` against scikit-learn."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sent import nothing_sent
from sklearn.exceptions import ConvergenceWarning

import xpulab
from xpulab import linear_model

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("current"),
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
    pytest.mark.filterwarnings(f"ignore::{ConvergenceWarning.__module__}.{ConvergenceWarning.__name__}"),
]

ATTRIBUTES = ("coef_", "intercept_", "alphas_", "coef_path_")
WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Lars", {"n_nonzero_coefs": 4}),
    ("Lars", {"n_nonzero_coefs": 3, "fit_path": False}),
    ("LassoLars", {"alpha": 0.02}),
    ("LassoLars", {"alpha": 0.02, "fit_path": False, "fit_intercept": False}),
    ("LassoLars", {"alpha": 0.05, "positive": True, "max_iter": 5}),
)


def table(n: int = 120, d: int = 8, dtype: Any = np.float64, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows that are not centred, and two targets that depend on some columns."""
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, d)) * np.geomspace(0.5, 2, d) + 3).astype(dtype)
    y = X[:, : (d + 1) // 2] @ rng.normal(size=((d + 1) // 2, 2)) + 0.1 * rng.normal(size=(n, 2))
    return X, y.astype(dtype)


def assert_same(ours: Any, theirs: Any, tolerance: float) -> None:
    assert {name for name in vars(theirs) if name.endswith("_")} <= vars(ours).keys()
    for name in ("n_iter_", "active_"):
        assert getattr(ours, name, None) == getattr(theirs, name, None), name
    for name in ATTRIBUTES:
        if not hasattr(theirs, name):
            continue
        found, expected = getattr(ours, name), getattr(theirs, name)
        pairs = zip(found, expected, strict=True) if isinstance(expected, list) else [(found, expected)]
        for one, other in pairs:
            assert np.asarray(one).dtype == np.asarray(other).dtype
            scale = max(1.0, float(np.abs(other).max()))
            np.testing.assert_allclose(one, other, atol=tolerance * scale, err_msg=name)


@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n=st.integers(30, 200),
    d=st.integers(2, 20),
    dtype=st.sampled_from([np.float32, np.float64]),
    way=st.sampled_from(WAYS),
    several=st.booleans(),
    on_engines=st.booleans(),
    seed=st.integers(0, 100),
)
def test_any_rows(
    current: xpulab.XPUCluster,
    n: int,
    d: int,
    dtype: Any,
    way: tuple[str, dict[str, Any]],
    several: bool,
    on_engines: bool,
    seed: int,
) -> None:
    X, y = table(n, d, dtype, seed)
    y = y if several else y[:, 0]
    name, how = way
    theirs = getattr(sklearn.linear_model, name)(**how).fit(X.astype(np.float64), y.astype(np.float64))
    rows, targets = (current.scatter(X), current.scatter(y)) if on_engines else (X, y)
    ours = getattr(linear_model, name)(**how).fit(rows, targets)
    if dtype == np.float32:  # scikit-learn's path in float32 may take other columns than that in float64
        np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-2 * np.abs(y).max())
        assert ours.coef_.dtype == np.float32
        return
    assert_same(ours, theirs, 1e-8)
    assert ours.score(rows, targets) == pytest.approx(theirs.score(X, y), abs=1e-9)


def test_noise_of_the_targets_and_a_given_matrix(current: xpulab.XPUCluster) -> None:
    X, y = table()
    for how in ({"jitter": 0.1, "random_state": 0}, {"precompute": (X - X.mean(0)).T @ (X - X.mean(0))}):
        warned = (
            pytest.warns(UserWarning, match="recomputing Gram") if "precompute" in how else contextlib.nullcontext()
        )
        with warned:
            ours = linear_model.LassoLars(alpha=0.01, **how).fit(X, y[:, 0])
        theirs = sklearn.linear_model.LassoLars(alpha=0.01, **how).fit(X, y[:, 0])
        assert_same(ours, theirs, 1e-8)
    np.testing.assert_allclose(ours.to_sklearn().predict(X), theirs.predict(X))
    sent, targets = current.scatter(X), current.scatter(y[:, 0])
    with nothing_sent(current):
        for kind, message, how, arguments in (
            (TypeError, "expected an array of targets", {"jitter": 0.1}, (sent, targets)),
            (ValueError, "alpha", {"alpha": -1.0}, (X, y)),
            (ValueError, "inconsistent numbers of samples", {}, (X, y[:-1])),
            (ValueError, "NaN", {}, (X * np.nan, y)),
        ):
            with pytest.raises(kind, match=message):
                linear_model.LassoLars(**how).fit(*arguments)
