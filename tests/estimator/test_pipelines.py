"""Pipelines of scikit-learn move no rows of a handle, send an array once, and give scikit-learn's results."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import sklearn.cluster
import sklearn.decomposition
import sklearn.impute
import sklearn.linear_model
import sklearn.preprocessing
from sklearn.pipeline import Pipeline, make_pipeline

import xpulab
from xpulab.cluster import KMeans
from xpulab.decomposition import PCA
from xpulab.impute import SimpleImputer
from xpulab.linear_model import LinearRegression
from xpulab.metrics import r2_score
from xpulab.model_selection import train_test_split
from xpulab.preprocessing import PolynomialFeatures, StandardScaler
from xpulab.sharing.memory import SharedBlock

pytestmark = pytest.mark.cluster


@pytest.fixture
def moved(written: list[int], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As `written`, with the bytes of tables that the engines write for this process."""
    array = SharedBlock.array

    def taking(block: SharedBlock, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> np.ndarray:
        found = array(block, shape, dtype, offset)
        if len(shape) == 2:
            written.append(found.nbytes)
        return found

    monkeypatch.setattr(SharedBlock, "array", taking)
    return written


@pytest.fixture
def X() -> np.ndarray:
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(6, 20)) * 5
    return (centers[rng.integers(0, 6, 40_000)] + rng.normal(size=(40_000, 20)) + 3).astype(np.float32)


def _ours() -> Pipeline:
    return make_pipeline(StandardScaler(), PCA(8), KMeans(6, random_state=0, n_init=1))


def _agrees(ours: Pipeline, X: np.ndarray) -> None:
    theirs = make_pipeline(
        sklearn.preprocessing.StandardScaler(),
        sklearn.decomposition.PCA(8),
        sklearn.cluster.KMeans(6, random_state=0, n_init=1),
    ).fit(X)
    np.testing.assert_allclose(ours["standardscaler"].mean_, theirs["standardscaler"].mean_, rtol=1e-5)
    np.testing.assert_allclose(ours["pca"].explained_variance_, theirs["pca"].explained_variance_, rtol=1e-4)
    assert ours["kmeans"].inertia_ == pytest.approx(theirs["kmeans"].inertia_, rel=1e-3)


def test_on_a_handle_no_rows_move(on_pair: xpulab.XPUCluster, moved: list[int], X: np.ndarray) -> None:
    before, rows = set(on_pair.handles()), on_pair.scatter(X)
    del moved[:]
    ours = _ours().fit(rows)
    assert sum(moved) < 64 << 10  # the room for the centres from which a fit would go on
    del moved[:]
    _agrees(ours, X)
    labels = ours.predict(rows)
    assert moved == []
    np.testing.assert_array_equal(labels, ours["kmeans"].labels_)
    deadline = time.monotonic() + 120  # those between the steps are freed by a thread
    while set(on_pair.handles()) - before != {rows.id} and time.monotonic() < deadline:
        time.sleep(0.05)
    assert set(on_pair.handles()) - before == {rows.id}


def test_missing_values_and_products_stay_on_the_engines(
    on_pair: xpulab.XPUCluster, moved: list[int], X: np.ndarray
) -> None:
    X = X[:, :4].copy()
    X[::7, 1] = np.nan
    rows = on_pair.scatter(X, allow_nan=True)
    del moved[:]
    made = make_pipeline(SimpleImputer(add_indicator=True), PolynomialFeatures(), StandardScaler()).fit_transform(rows)
    assert moved == []
    assert made.shape == (len(X), 21)
    theirs = make_pipeline(
        sklearn.impute.SimpleImputer(add_indicator=True),
        sklearn.preprocessing.PolynomialFeatures(),
        sklearn.preprocessing.StandardScaler(),
    ).fit_transform(X.astype(np.float64))
    np.testing.assert_allclose(made.gather(), theirs, rtol=0, atol=1e-3)


def test_an_array_is_sent_once(on_pair: xpulab.XPUCluster, written: list[int], X: np.ndarray) -> None:
    ours = _ours().fit(X)
    assert sum(written) == X.nbytes  # 3.2 MB; what lies between the steps is a result, which engines read where it is
    _agrees(ours, X)


def test_a_regression_from_split_to_score(on_pair: xpulab.XPUCluster, moved: list[int], X: np.ndarray) -> None:
    y = (X @ np.arange(20.0) + 4 + np.random.default_rng(1).normal(size=len(X))).astype(np.float32)
    rows, target = on_pair.scatter(X), on_pair.scatter(y)
    del moved[:]
    train, test, y_train, y_test = train_test_split(rows, target, random_state=0)
    model = make_pipeline(StandardScaler(), LinearRegression()).fit(train, y_train)
    score = model.score(test, y_test)
    assert sum(moved) <= 2 * 8 * len(X) + 4 * len(X)  # the order of the rows, and the predictions
    theirs = make_pipeline(sklearn.preprocessing.StandardScaler(), sklearn.linear_model.LinearRegression())
    # In float64: of float32 rows the coefficients of scikit-learn depend on the processor in the fourth digit.
    X1, X2, y1, y2 = train_test_split(X.astype(np.float64), y.astype(np.float64), random_state=0)
    theirs.fit(X1, y1)
    np.testing.assert_allclose(model["linearregression"].coef_, theirs["linearregression"].coef_, rtol=1e-4)
    assert score == pytest.approx(theirs.score(X2, y2), abs=1e-6)
    assert r2_score(y_test, model.predict(test)) == pytest.approx(score, abs=1e-6)


def test_a_pipeline_without_a_cluster(on_pair: xpulab.XPUCluster, X: np.ndarray) -> None:
    ours = _ours().fit(X)
    plain = make_pipeline(*(step.to_sklearn() for _, step in ours.steps))
    agree = np.mean(plain.predict(X) == ours.predict(X))
    assert agree > 0.999
