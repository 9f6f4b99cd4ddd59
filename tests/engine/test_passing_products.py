"""Estimators that need one pass for products of columns read arrays and files a part at a time, and keep no rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import sklearn.covariance
import sklearn.decomposition
import sklearn.linear_model
from constants import constants

import xpulab
from xpulab.covariance import EmpiricalCovariance
from xpulab.decomposition import PCA, TruncatedSVD
from xpulab.linear_model import ElasticNet, LinearRegression, Ridge

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]
N, D = 5003, 7


@pytest.fixture
def kept(current: xpulab.XPUCluster) -> Iterator[Callable[[], int]]:
    """A function that returns how often an engine has read all its rows since the last call; parts are small."""

    def watch(task: Any) -> None:
        from xpulab.engine import dataset
        from xpulab.sharing.sources import ReadRows, Source

        read = dataset._read
        task.engine.kept = 0

        def counting(source: Source, task: Any, *others: Any) -> Any:
            task.engine.kept += isinstance(source, ReadRows) and source.n_features == D
            return read(source, task, *others)

        task.engine.counted = mock.patch.object(dataset, "_read", counting)
        task.engine.counted.start()

    def count(task: Any) -> int:
        found, task.engine.kept = int(task.engine.kept), 0
        return found

    def leave(task: Any) -> None:
        task.engine.counted.stop()
        del task.engine.counted, task.engine.kept

    current.run(watch)
    with constants(current, "xpulab.kernels.rows", _STREAM_BYTES=40_000, _READ_BYTES=10_000):
        yield lambda: max(current.run(count))
    current.run(leave)


def rows_of(dtype: str = "float32") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)) @ (np.eye(D) + rng.normal(0, 0.1, (D, D))) + np.linspace(-5, 50, D)
    y = X @ rng.normal(size=(D, 2)) + rng.normal(size=(N, 2)) + 9
    return X.astype(dtype), y.astype(dtype), rng.integers(0, 4, N).astype(dtype)


def opened(folder: Path, X: np.ndarray, order: str = "C") -> np.ndarray:
    np.save(folder / "rows.npy", np.asarray(X, order=order))  # type: ignore[call-overload]
    mapped: np.ndarray = np.load(folder / "rows.npy", mmap_mode="r")
    return mapped


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-8)])
def test_a_file_is_read_once_and_not_kept(
    kept: Callable[[], int], tmp_path: Path, dtype: str, tolerance: float, order: str
) -> None:
    X, y, weights = rows_of(dtype)
    mapped, exact = opened(tmp_path, X, order), X.astype(np.float64)
    close: dict[str, Any] = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(
        EmpiricalCovariance().fit(mapped).covariance_,
        sklearn.covariance.EmpiricalCovariance().fit(exact).covariance_,
        **close,
    )
    for solver in ("covariance_eigh", "full"):
        ours = PCA(3, svd_solver=solver).fit(mapped)
        theirs = sklearn.decomposition.PCA(3, svd_solver="full").fit(exact)
        assert kept() == (dtype == "float64" and solver == "full")  # then the rows have a triangle
        np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, **close)
        np.testing.assert_allclose(ours.components_, theirs.components_, **close)
    for name in ("Ridge", "LinearRegression"):
        ours = globals()[name]().fit(mapped, y, sample_weight=weights)
        theirs = getattr(sklearn.linear_model, name)().fit(exact, y.astype(np.float64), sample_weight=weights)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, **close)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=tolerance, atol=10 * tolerance)
    one = ElasticNet(0.1, tol=1e-8).fit(mapped, y[:, 0])
    reference = sklearn.linear_model.ElasticNet(0.1, tol=1e-8).fit(exact, y[:, 0].astype(np.float64))
    np.testing.assert_allclose(one.coef_, reference.coef_, **close)
    assert kept() == 0


def test_the_numbers_are_those_of_rows_on_the_engines(current: xpulab.XPUCluster, kept: Callable[[], int]) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(3, 2, (60_001, D)).astype(np.float32)  # large enough to be read from this process
    y = X @ rng.normal(size=D).astype(np.float32)
    passed, held = Ridge().fit(X, y), Ridge().fit(current.scatter(X), y)
    np.testing.assert_allclose(passed.coef_, held.coef_, rtol=1e-6)
    fits = [TruncatedSVD(3, random_state=0).fit(rows) for rows in (X, current.scatter(X))]
    np.testing.assert_allclose(fits[0].singular_values_, fits[1].singular_values_, rtol=1e-6)
    assert kept() == 2  # one for each scatter


def test_rows_stay_where_a_second_pass_needs_them(kept: Callable[[], int], tmp_path: Path) -> None:
    X, y, _ = rows_of("float64")
    X[:, 0] = X[:, 1] + 1e-5 * X[:, 0]
    ours = LinearRegression().fit(opened(tmp_path, X), y)
    assert kept() == 1
    theirs = sklearn.linear_model.LinearRegression().fit(X, y)
    np.testing.assert_allclose(ours.predict(X[:9]), theirs.predict(X[:9]), rtol=1e-8)


def test_a_first_mean_that_is_far_off(kept: Callable[[], int], tmp_path: Path) -> None:
    X, _, _ = rows_of()
    X[np.arange(N) % 97 != 0, 2] += 1e4
    ours = PCA(2, svd_solver="covariance_eigh").fit(opened(tmp_path, X))
    theirs = sklearn.decomposition.PCA(2, svd_solver="full").fit(X.astype(np.float64))
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-4)
    assert kept() == 0  # the file is read twice


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_are_refused_with_their_row(
    current: xpulab.XPUCluster, kept: Callable[[], int], tmp_path: Path, bad: float
) -> None:
    X, y, weights = rows_of()
    X[N - 2, 1], weights[N - 2] = bad, 0
    for sample_weight in (None, weights):
        with pytest.raises(ValueError, match=rf"NaN or infinity; the first such row is row {N - 2}\."):
            Ridge().fit(opened(tmp_path, X), y, sample_weight)
    assert current.run(lambda task: task.comm.allgather(1)) == [[1] * current.size] * current.size


def test_finite_numbers_whose_products_are_not(kept: Callable[[], int], tmp_path: Path) -> None:
    X, _, _ = rows_of()
    X[:, 1] *= np.float32(1e25)  # the square is more than float32 holds
    found = EmpiricalCovariance().fit(opened(tmp_path, X)).covariance_
    assert kept() == 1  # all rows were looked through
    np.testing.assert_allclose(found, np.cov(X.T.astype(np.float64), bias=True), rtol=1e-6, atol=1e-6)
    X = X.astype(np.float64)
    X[:, 1] *= 1e200
    with pytest.raises(ValueError, match="too large"):  # of the covariance, not of a row
        EmpiricalCovariance().fit(opened(tmp_path, X))


def test_no_rows_on_some_ranks(kept: Callable[[], int], tmp_path: Path) -> None:
    X, y, _ = rows_of("float64")
    ours = Ridge().fit(opened(tmp_path, X[:2]), y[:2])
    np.testing.assert_allclose(ours.coef_, sklearn.linear_model.Ridge().fit(X[:2], y[:2]).coef_, rtol=1e-8)
