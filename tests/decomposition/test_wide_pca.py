"""PCA of more columns than rows, against scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.decomposition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xpulab
from xpulab.decomposition import PCA

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]

NUMBERS = ["explained_variance_", "explained_variance_ratio_", "singular_values_", "noise_variance_", "mean_"]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_components_are_scikit_learn_s(data: st.DataObject, current: xpulab.XPUCluster) -> None:
    n = data.draw(st.integers(4, 30))
    d, dtype = data.draw(st.integers(n + 1, 80)), data.draw(st.sampled_from([np.float32, np.float64]))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    left, right = (np.linalg.qr(random.normal(size=(size, n)))[0] for size in (n, d))
    X = (10 * left * np.logspace(0, -data.draw(st.sampled_from([1, 5])), n)) @ right.T
    X = (X + random.normal(size=d)).astype(dtype)
    solver = data.draw(st.sampled_from(["full", "covariance_eigh", "arpack", "randomized", "auto"]))
    truncated = solver in ("arpack", "randomized")
    n_components = data.draw(st.sampled_from([1, 3] if truncated else [1, 3, 0.9, n - 1, None]))
    arguments: Any = {"n_components": n_components, "whiten": data.draw(st.booleans()), "random_state": 0}
    ours, theirs = PCA(svd_solver=solver, **arguments), sklearn.decomposition.PCA(svd_solver=solver, **arguments)
    projected, expected = ours.fit_transform(X), theirs.fit_transform(X.astype(float))
    tolerance = 1e-3 if dtype == np.float32 else 1e-7
    for name in NUMBERS:
        there = np.asarray(getattr(theirs, name))
        largest = theirs.explained_variance_[0] if name == "noise_variance_" else np.abs(there).max(initial=1e-9)
        tiny = tolerance * largest
        np.testing.assert_allclose(getattr(ours, name), there, rtol=tolerance, atol=tiny, err_msg=name)
    assert ours.n_components_ == theirs.n_components_
    assert ours.components_.dtype == dtype
    gram = ours.components_.astype(float) @ ours.components_.T
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-5 if dtype == np.float32 else 1e-8)
    some = min(3, len(gram))
    np.testing.assert_allclose((ours.components_ * theirs.components_)[:some].sum(axis=1), 1, atol=10 * tolerance)
    np.testing.assert_allclose(projected[:, :some], expected[:, :some], atol=30 * tolerance)


def test_small_singular_values_keep_their_accuracy(current: xpulab.XPUCluster) -> None:
    random = np.random.default_rng(0)
    left, right = (np.linalg.qr(random.normal(size=(size, 8)))[0] for size in (20, 300))
    X = left * np.logspace(0, -10, 8) @ right.T
    ours, theirs = PCA(svd_solver="full").fit(X), sklearn.decomposition.PCA(svd_solver="full").fit(X)
    np.testing.assert_allclose(ours.singular_values_[:8], theirs.singular_values_[:8], rtol=1e-4)
    np.testing.assert_allclose(ours.components_ @ ours.components_.T, np.eye(20), atol=1e-10)
    np.testing.assert_allclose(np.abs((ours.components_ * theirs.components_)[:6].sum(axis=1)), 1, rtol=1e-6)


def test_handles_and_uneven_blocks(current: xpulab.XPUCluster) -> None:
    X = np.random.default_rng(0).normal(size=(20, 500)) * np.logspace(0, -1, 500)
    handle = current.scatter(X, counts=[0] * (current.size - 1) + [20])
    for solver in ("full", "randomized"):
        ours = PCA(3, svd_solver=solver, random_state=0)
        made = ours.fit_transform(handle)
        theirs = sklearn.decomposition.PCA(3, svd_solver=solver, random_state=0).fit(X)
        np.testing.assert_allclose(ours.singular_values_, theirs.singular_values_, rtol=1e-9)
        np.testing.assert_allclose(made.gather(), theirs.transform(X), atol=1e-6)
