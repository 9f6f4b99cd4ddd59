"""`MiniBatchKMeans` against scikit-learn's, on 1, 2 and 3 real engines."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.cluster
from agreement import assert_same_labels
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import make_blobs

import xpulab
from xpulab.cluster import MiniBatchKMeans

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("current")]
X, _ = make_blobs(5003, 6, centers=12, cluster_std=1.5, random_state=1)
WEIGHTS = np.random.default_rng(0).uniform(0, 2, len(X)) * (np.arange(len(X)) % 7 > 0)


@pytest.fixture
def current(cluster: xpulab.XPUCluster) -> xpulab.XPUCluster:
    return cluster.activate()


def assert_same(ours: Any, theirs: Any, rows: np.ndarray, rtol: float = 1e-8) -> None:
    assert (ours.n_steps_, ours.n_iter_) == (theirs.n_steps_, theirs.n_iter_)
    scale = float(np.abs(theirs.cluster_centers_).max())
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=0, atol=rtol * scale)
    np.testing.assert_allclose(ours.inertia_, theirs.inertia_, rtol=rtol)
    assert_same_labels(rows, theirs.cluster_centers_, ours.labels_, theirs.labels_)
    assert ours.labels_.dtype == theirs.labels_.dtype
    # A further step depends on how many rows each centre has had.
    later, their_later = (copy.deepcopy(each).partial_fit(rows[:300]).cluster_centers_ for each in (ours, theirs))
    np.testing.assert_allclose(later, their_later, rtol=0, atol=rtol * scale)


@pytest.mark.fraction(3)
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"init": "random", "batch_size": 100},  # three starts, of which the best is chosen
        {"init": X[:15], "n_init": 1, "tol": 1e-3, "max_no_improvement": None},
        {"batch_size": 64, "reassignment_ratio": 0.5, "max_iter": 3},
        {"batch_size": 7, "reassignment_ratio": 1.0, "init_size": 20, "max_iter": 1},
        {"batch_size": 10_000, "reassignment_ratio": 0},
    ],
    ids=["defaults", "random", "tol", "reassign", "tiny", "whole"],
)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_the_same_random_state_gives_scikit_learn_s_fit(parameters: dict[str, Any], weights: Any) -> None:
    random, their_random = np.random.RandomState(3), np.random.RandomState(3)
    ours = MiniBatchKMeans(15, random_state=random, **parameters).fit(X, sample_weight=weights)
    theirs = sklearn.cluster.MiniBatchKMeans(15, random_state=their_random, **parameters).fit(X, sample_weight=weights)
    assert_same(ours, theirs, X)
    assert random.random_sample() == their_random.random_sample()
    np.testing.assert_array_equal(ours.predict(X), ours.labels_)
    np.testing.assert_allclose(ours.score(X, sample_weight=weights), -ours.inertia_)


def test_float32_has_the_same_inertia() -> None:
    rows = X.astype(np.float32)
    ours = MiniBatchKMeans(15, random_state=0, max_no_improvement=None, max_iter=5).fit(rows)
    theirs = sklearn.cluster.MiniBatchKMeans(15, random_state=0, max_no_improvement=None, max_iter=5).fit(rows)
    assert ours.cluster_centers_.dtype == np.float32
    np.testing.assert_allclose(ours.inertia_, theirs.inertia_, rtol=1e-3)
    assert_same(ours, theirs, rows, 1e-3)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(counts=st.tuples(*[st.integers(0, 60)] * 2), dtype=st.sampled_from([np.float32, np.float64]))
def test_uneven_and_empty_shards(current: xpulab.XPUCluster, counts: Any, dtype: Any) -> None:
    n, size = 200, current.size
    rows = X[:n].astype(dtype)
    cut = [0] * size
    cut[:2] = [*counts][:size]
    cut[-1] = n - sum(cut[:-1])
    handle = current.scatter(rows, counts=cut)
    ours = MiniBatchKMeans(4, random_state=1, batch_size=50, max_iter=2).fit(handle, sample_weight=WEIGHTS[:n])
    theirs = sklearn.cluster.MiniBatchKMeans(4, random_state=1, batch_size=50, max_iter=2)
    assert_same(ours, theirs.fit(rows, sample_weight=WEIGHTS[:n]), rows, 1e-8 if dtype == np.float64 else 1e-4)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_partial_fit_goes_on_as_scikit_learn_s(current: xpulab.XPUCluster, weights: Any) -> None:
    ours = MiniBatchKMeans(15, random_state=2, reassignment_ratio=0.3, init="random")
    theirs = sklearn.cluster.MiniBatchKMeans(15, random_state=2, reassignment_ratio=0.3, init="random")
    for first in range(0, 2000, 400):
        part = slice(first, first + 400)
        w = None if weights is None else weights[part]
        rows: Any = X[part] if first else current.scatter(X[part])
        ours.partial_fit(rows, sample_weight=w)
        theirs.partial_fit(X[part], sample_weight=w)
        np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-9)
        np.testing.assert_array_equal(ours.labels_, theirs.labels_)
        np.testing.assert_allclose(ours.inertia_, theirs.inertia_)
    assert ours.n_steps_ == theirs.n_steps_ == 5
    for each in (ours, theirs):
        each.set_params(max_iter=3).fit(X[:500]).partial_fit(X[500:600])
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-9)


def test_csr_files_and_functions_as_init(tmp_path: Path) -> None:
    rows = np.where(np.abs(X) < 4, 0, X)
    ours = MiniBatchKMeans(5, random_state=0, reassignment_ratio=0.2).fit(sparse.csr_matrix(rows))
    theirs = sklearn.cluster.MiniBatchKMeans(5, random_state=0, reassignment_ratio=0.2).fit(sparse.csr_matrix(rows))
    assert_same(ours, theirs, rows)
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")

    def init(X: np.ndarray, n_clusters: int, random_state: np.random.RandomState) -> np.ndarray:
        return X[random_state.permutation(len(X))[:n_clusters]]

    ours = MiniBatchKMeans(5, init=init, random_state=0).fit(mapped)
    assert_same(ours, sklearn.cluster.MiniBatchKMeans(5, init=init, random_state=0).fit(X), X)


def test_what_is_printed_and_told_is_scikit_learn_s(capsys: pytest.CaptureFixture[str]) -> None:
    parameters = {"n_clusters": 12, "verbose": 1, "random_state": 0, "batch_size": 50, "reassignment_ratio": 0.2}
    ours = MiniBatchKMeans(**parameters).fit(X)
    mine = capsys.readouterr().out.splitlines()
    theirs = sklearn.cluster.MiniBatchKMeans(**parameters).fit(X)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("inertia")[0] for line in mine] == [line.partition("inertia")[0] for line in lines]
    assert any("Reassigning" in line for line in mine)
    assert [each.number for each in ours.report_.iterations] == list(range(1, theirs.n_steps_ + 1))
    assert ours.report_.converged


def test_an_estimate_of_the_inertia_without_labels() -> None:
    parameters = {"n_clusters": 12, "random_state": 0, "compute_labels": False}
    ours = MiniBatchKMeans(**parameters).fit(X, sample_weight=WEIGHTS)
    theirs = sklearn.cluster.MiniBatchKMeans(**parameters).fit(X, sample_weight=WEIGHTS)
    assert not hasattr(ours, "labels_")
    np.testing.assert_allclose(ours.inertia_, theirs.inertia_)
    plain = ours.to_sklearn()
    assert type(plain) is sklearn.cluster.MiniBatchKMeans
    np.testing.assert_array_equal(plain.predict(X), ours.predict(X))
    np.testing.assert_allclose(plain.partial_fit(X[:50]).cluster_centers_, theirs.partial_fit(X[:50]).cluster_centers_)


def test_bad_input_is_rejected() -> None:
    holed = X.copy()
    holed[:, 2] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        MiniBatchKMeans(3).fit(holed)
    holed[:, 2] = X[:, 2]
    holed[4000, 1] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        MiniBatchKMeans(3, random_state=0, init_size=50).fit(holed)
    with pytest.raises(ValueError, match="n_samples=4 should be >= n_clusters=8"):
        MiniBatchKMeans(8).fit(X[:4])
    with pytest.raises(ValueError, match="Negative values"):
        MiniBatchKMeans(3).fit(X, sample_weight=WEIGHTS - 1)
    with pytest.raises(ValueError, match="does not match the number of clusters"):
        MiniBatchKMeans(3, init=X[:4], n_init=1).fit(X)
