"""Fits of files of which the engines keep all rows, some, or none, have the result of all rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sklearn.metrics
from constants import constants
from exported import numbers_of
from numpy.testing import assert_array_equal
from sent import nothing_sent
from sklearn.base import clone

import xpulab
from xpulab.cluster import DBSCAN
from xpulab.covariance import EmpiricalCovariance
from xpulab.decomposition import PCA
from xpulab.ensemble import HistGradientBoostingRegressor
from xpulab.exceptions import NotEnoughMemoryError
from xpulab.linear_model import (
    ElasticNet,
    GammaRegressor,
    HuberRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
    TweedieRegressor,
)
from xpulab.metrics import calinski_harabasz_score, davies_bouldin_score, silhouette_score
from xpulab.mixture import GaussianMixture
from xpulab.preprocessing import KBinsDiscretizer, MaxAbsScaler, MinMaxScaler, QuantileTransformer, StandardScaler
from xpulab.scanning import Scan
from xpulab.svm import LinearSVC, LinearSVR

pytestmark = pytest.mark.cluster

N, D = 10_007, 4
random = np.random.default_rng(0)
ROWS = random.normal(size=(N, D)) * [1, 5, 0.1, 20] + [0, 100, -3, 1000]
ROWS[:, 3] += 3 * ROWS[:, 0]
Y = ROWS @ [1.0, 2, -1, 0.5] + random.normal(size=N)
WEIGHTS = random.integers(0, 3, N).astype(float)
BUDGETS: dict[str, str | float] = {"40 %": f"{int(0.4 * ROWS.nbytes)}B", "nothing": 0}

#: Estimators, and what their fit takes.
FITS: dict[str, tuple[Any, dict[str, Any]]] = {
    "StandardScaler": (StandardScaler(), {}),
    "StandardScaler, weighted": (StandardScaler(), {"sample_weight": WEIGHTS}),
    "MinMaxScaler": (MinMaxScaler(), {}),
    "MaxAbsScaler": (MaxAbsScaler(), {}),
    "EmpiricalCovariance": (EmpiricalCovariance(), {}),
    "PCA": (PCA(2, svd_solver="covariance_eigh"), {}),
    "LinearRegression": (LinearRegression(), {"y": Y}),
    "Ridge, weighted": (Ridge(), {"y": np.stack([Y, -Y], axis=1), "sample_weight": WEIGHTS}),
    "Lasso": (Lasso(0.1), {"y": Y}),
    "ElasticNet": (ElasticNet(0.1), {"y": Y}),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Scan:
    path = tmp_path_factory.mktemp("rows") / "x.parquet"
    pq.write_table(pa.table({f"c{f}": ROWS[:, f] for f in range(D)}), path, row_group_size=1337)
    return xpulab.scan(path)


@pytest.fixture(params=BUDGETS)
def budget(request: pytest.FixtureRequest, current: xpulab.XPUCluster) -> Iterator[str]:
    """Give the engines memory for these rows, and have parts of 1,000 rows."""
    current.memory = BUDGETS[request.param]
    with constants(current, "xpulab.kernels.streamed", PIECE_BYTES=1000 * 8 * D):
        yield request.param
    current.memory = None


@pytest.mark.fraction(2)
@pytest.mark.parametrize("name", FITS)
def test_the_result_is_that_of_rows_in_memory(budget: str, rows: Scan, name: str) -> None:
    estimator, arguments = FITS[name]
    ours = clone(estimator).fit(rows, **arguments)
    theirs = estimator.sklearn_class()(**estimator.get_params()).fit(ROWS, **arguments)
    found = numbers_of(ours)
    expectations = {name: values for name, values in numbers_of(theirs).items() if name in found}
    assert expectations
    for attribute, expected in expectations.items():
        np.testing.assert_allclose(found[attribute], expected, rtol=1e-6, atol=1e-9, err_msg=attribute)
    notes = "\n".join(ours.report_.notes)
    assert "the others were read again in 1 pass of" in notes
    assert ("0 % of the rows were kept on the engines (0 of" in notes) == (budget == "nothing")


def test_coefficients_of_float32_are_corrected_in_a_second_pass(budget: str, tmp_path: Path) -> None:
    X, y = ROWS.astype(np.float32), Y.astype(np.float32)
    X[:, 3] = X[:, 0] + 0.1 * X[:, 3] / X[:, 3].std()  # whose products are not exact enough
    np.save(tmp_path / "x.npy", X)
    ours = LinearRegression().fit(xpulab.scan(tmp_path / "x.npy"), y)
    assert "read again in 2 passes of" in "\n".join(ours.report_.notes)
    theirs = LinearRegression().sklearn_class()().fit(X.astype(float), y.astype(float))
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4)


@pytest.mark.fraction(2)
@pytest.mark.parametrize(
    ("solver", "n_classes", "weights", "class_weight"),
    [
        ("lbfgs", 2, None, None),
        ("lbfgs", 3, WEIGHTS, "balanced"),
        ("newton-cg", 3, None, {0: 1, 1: 2, 2: 0.5}),
        ("newton-cholesky", 2, WEIGHTS, None),
    ],
)
def test_each_evaluation_of_a_classifier_is_a_pass(
    budget: str, tmp_path: Path, solver: str, n_classes: int, weights: Any, class_weight: Any
) -> None:
    X = StandardScaler().sklearn_class()().fit_transform(ROWS)
    np.save(tmp_path / "x.npy", X)
    y = np.digitize(X[:, 0] + X[:, 1] + random.normal(size=N), [0.0, 1.0][: n_classes - 1])
    arguments = {"solver": solver, "class_weight": class_weight, "tol": 1e-8}
    ours = LogisticRegression(**arguments).fit(xpulab.scan(tmp_path / "x.npy"), y, sample_weight=weights)
    theirs = LogisticRegression().sklearn_class()(**arguments).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-5, atol=1e-6)
    assert "the others were read again in" in "\n".join(ours.report_.notes)


@pytest.mark.fraction(2)
@pytest.mark.parametrize(
    ("model", "weights"),
    [
        (PoissonRegressor(tol=1e-8), None),
        (GammaRegressor(tol=1e-8, solver="newton-cholesky"), WEIGHTS),
        (TweedieRegressor(power=1.5, tol=1e-8, max_iter=1000), WEIGHTS),
    ],
)
def test_each_evaluation_of_a_deviance_is_a_pass(budget: str, tmp_path: Path, model: Any, weights: Any) -> None:
    X = StandardScaler().sklearn_class()().fit_transform(ROWS)
    np.save(tmp_path / "x.npy", X)
    y = np.exp(X[:, 0] / 2 + random.normal(size=N) / 4)
    scan = xpulab.scan(tmp_path / "x.npy")
    ours, theirs = model.fit(scan, y, sample_weight=weights), model.unfitted_sklearn().fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-5, atol=1e-6)
    assert ours.score(scan, y, weights) == pytest.approx(theirs.score(X, y, weights), abs=1e-6)
    assert "the others were read again in" in "\n".join(ours.report_.notes)


@pytest.mark.fraction(2)
@pytest.mark.parametrize(
    ("model", "weights"),
    [
        (LinearSVC(tol=1e-8), WEIGHTS),
        (LinearSVC(loss="hinge", tol=1e-8), None),
        (LinearSVR(epsilon=0.1, tol=1e-8), WEIGHTS),
        (QuantileRegressor(quantile=0.8, alpha=0.01), WEIGHTS),
        (HuberRegressor(), None),
    ],
)
def test_each_evaluation_of_what_is_missed_is_a_pass(budget: str, tmp_path: Path, model: Any, weights: Any) -> None:
    X = StandardScaler().sklearn_class()().fit_transform(ROWS)
    np.save(tmp_path / "x.npy", X)
    y = (X[:, 0] + X[:, 1] + random.normal(size=N)).round()
    y = np.clip(y, -1, 1) if isinstance(model, LinearSVC) else y
    ours, whole = (clone(model).fit(rows, y, weights) for rows in (xpulab.scan(tmp_path / "x.npy"), X))
    np.testing.assert_allclose(ours.coef_, whole.coef_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(ours.intercept_, whole.intercept_, rtol=1e-6, atol=1e-8)
    if isinstance(model, HuberRegressor):
        np.testing.assert_array_equal(ours.outliers_, whole.outliers_)
    assert "the others were read again in" in "\n".join(ours.report_.notes)


@pytest.mark.fraction(2)
@pytest.mark.parametrize(
    ("covariance_type", "init_params"),
    [("full", "random"), ("tied", "random_from_data"), ("diag", "kmeans"), ("spherical", "k-means++")],
)
def test_each_iteration_of_a_mixture_is_a_pass(
    budget: str, tmp_path: Path, covariance_type: str, init_params: str
) -> None:
    X = StandardScaler().sklearn_class()().fit_transform(ROWS)
    X[: N // 2] += 4
    np.save(tmp_path / "x.npy", X)
    arguments: dict[str, Any] = {
        "covariance_type": covariance_type,
        "init_params": init_params,
        "random_state": 0,
        "tol": 1e-5,
    }
    arguments["max_iter"] = 1000
    if init_params in ("kmeans", "k-means++"):  # these are k-means|| in passes
        arguments["means_init"] = X[[10, -10]]
    cluster = xpulab.current_cluster()
    ours = GaussianMixture(2, **arguments).fit(xpulab.scan(tmp_path / "x.npy"))
    assert "the others were read again in" in "\n".join(ours.report_.notes)
    memory, cluster.memory = cluster.memory, None
    try:
        same = GaussianMixture(2, **arguments).fit(X)
    finally:
        cluster.memory = memory
    np.testing.assert_allclose(ours.lower_bound_, same.lower_bound_, rtol=1e-5)
    np.testing.assert_allclose(ours.means_, same.means_, rtol=1e-2, atol=1e-2)
    if init_params == "random":
        np.testing.assert_allclose(ours.covariances_, same.covariances_, rtol=1e-6, atol=1e-8)
        assert ours.n_iter_ == same.n_iter_


def test_nulls_are_taken_or_refused_as_in_memory(budget: str, tmp_path: Path) -> None:
    X = ROWS.copy()
    X[9000, 1] = np.nan
    pq.write_table(pa.table({f"c{f}": pa.array(X[:, f], from_pandas=True) for f in range(D)}), tmp_path / "x.parquet")
    null = xpulab.scan(tmp_path / "x.parquet")
    np.testing.assert_allclose(MinMaxScaler().fit(null).data_max_, np.nanmax(X, axis=0))
    np.testing.assert_allclose(StandardScaler().fit(null).mean_, np.nanmean(X, axis=0), rtol=1e-9)
    for estimator in (EmpiricalCovariance(), PCA(2, svd_solver="covariance_eigh")):
        with pytest.raises(ValueError, match=r"null, NaN or infinity; the first such row is row 9000, column 'c1'"):
            estimator.fit(null)


def test_sizes_beyond_the_range_of_squares(budget: str, tmp_path: Path) -> None:
    np.save(tmp_path / "large.npy", (ROWS * 1e25).astype(np.float32))  # whose squares float32 does not have
    found = StandardScaler().fit(xpulab.scan(tmp_path / "large.npy"))
    np.testing.assert_allclose(found.mean_, ROWS.mean(axis=0) * 1e25, rtol=1e-5)
    np.testing.assert_allclose(found.scale_, ROWS.std(axis=0) * 1e25, rtol=1e-5)


def test_dependent_columns_take_a_triangle(budget: str, tmp_path: Path) -> None:
    np.save(tmp_path / "twice.npy", ROWS[:, [0, 1, 2, 0]])
    ours = LinearRegression().fit(xpulab.scan(tmp_path / "twice.npy"), Y)
    theirs = LinearRegression().sklearn_class()().fit(ROWS[:, [0, 1, 2, 0]], Y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)


@pytest.mark.parametrize("score", [davies_bouldin_score, calinski_harabasz_score])
def test_scores_of_clusters_take_two_passes(
    budget: str, current: xpulab.XPUCluster, rows: Scan, score: Callable[..., float]
) -> None:
    labels = (ROWS[:, 1] > 100).astype(int) + (ROWS[:, 3] > 1010)
    found = score(rows, labels)
    assert " 2 passes " in "".join(current.last_report.notes), budget
    assert found == pytest.approx(getattr(sklearn.metrics, score.__name__)(ROWS, labels), rel=1e-12)


def test_infinity_is_named_by_scores_of_clusters(budget: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [*range(N - 1), np.inf]}), tmp_path / "x.parquet", row_group_size=1337)
    with pytest.raises(ValueError, match=f"infinity.*row {N - 1}"):
        davies_bouldin_score(xpulab.scan(tmp_path), np.arange(N) % 3)


def test_what_needs_all_rows_at_once_says_so(current: xpulab.XPUCluster, rows: Scan) -> None:
    current.memory = "40KB"
    try:
        refused: list[tuple[Callable[[], Any], str]] = [
            (lambda: DBSCAN().fit(rows), ""),
            (lambda: HistGradientBoostingRegressor().fit(rows, Y), ""),
            (lambda: silhouette_score(rows, np.arange(N) % 3), r".*rows drawn: sample_size=10_000"),
            (lambda: QuantileTransformer(subsample=None).fit(rows), r".*rows drawn: subsample=10_000"),
            (lambda: KBinsDiscretizer(subsample=None).fit(rows), r".*rows drawn: subsample=200_000"),
        ]
        for call, instead in refused:
            with (
                nothing_sent(current),
                pytest.raises(
                    NotEnoughMemoryError,
                    match=r"takes 3(13|91) KiB, .* memory='40KB' has room for [\d.]+ KiB" + instead,
                ),
            ):
                call()
        few = QuantileTransformer(n_quantiles=9, subsample=N).fit(rows)  # which are all rows
    finally:
        current.memory = None
    assert_array_equal(few.quantiles_, QuantileTransformer(n_quantiles=9, subsample=None).fit(ROWS).quantiles_)
