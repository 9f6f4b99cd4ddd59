"""Rows after the fit are computed in the dtype in which scikit-learn computes them, whatever they are.

Rows far from zero show it: what float32 loses of them is much more than what it loses of their differences.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

import xpulab
from xpulab.cluster import BisectingKMeans, KMeans, MiniBatchKMeans
from xpulab.covariance import EmpiricalCovariance
from xpulab.decomposition import PCA, IncrementalPCA, TruncatedSVD
from xpulab.estimator.rows import in_float64
from xpulab.linear_model import Lasso, LinearRegression, LogisticRegression, Ridge, RidgeCV
from xpulab.mixture import GaussianMixture
from xpulab.naive_bayes import GaussianNB
from xpulab.preprocessing import MaxAbsScaler, StandardScaler

ROWS = np.random.default_rng(0).normal(size=(200, 4)) * [1, 2, 3, 4] + 1e5
LINE = ROWS @ [1.0, 2.0, 3.0, 4.0]
LABELS = np.greater(LINE, LINE.mean())


class Case(NamedTuple):
    """An estimator, its targets, a method, how exact this is in float64, and whether it takes sparse rows."""

    estimator: Any
    method: str
    y: Any = None
    exact: float = 1e-9
    sparse: bool = False


CASES = [
    Case(LinearRegression(), "predict", LINE),
    Case(Ridge(), "predict", LINE, sparse=True),
    Case(RidgeCV(), "predict", LINE),
    Case(Lasso(0.1), "predict", LINE),
    Case(LogisticRegression(), "decision_function", LABELS, sparse=True),
    Case(PCA(2), "transform"),
    Case(PCA(2), "score_samples"),
    Case(IncrementalPCA(2), "transform"),
    Case(TruncatedSVD(2), "transform", sparse=True),
    Case(KMeans(3, random_state=0), "transform", exact=1e-5, sparse=True),
    Case(MiniBatchKMeans(3, random_state=0), "transform", exact=1e-5, sparse=True),
    Case(BisectingKMeans(3, random_state=0), "transform", exact=1e-5, sparse=True),
    Case(GaussianMixture(2, random_state=0), "score_samples"),
    Case(GaussianNB(), "predict_log_proba", LABELS),
    Case(EmpiricalCovariance(), "mahalanobis"),
    Case(StandardScaler(with_mean=False), "transform", sparse=True),
    Case(MaxAbsScaler(), "transform", sparse=True),
]
KINDS = ["array", "handle", "memory map", "scan", "CSR", "CSR handle"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for dtype in ("float32", "float64"):
        np.save(folder / f"{dtype}.npy", ROWS.astype(dtype))
    return folder


def made(kind: str, dtype: str, cluster: xpulab.XPUCluster, files: Path) -> Any:
    rows = ROWS.astype(dtype)
    path = files / f"{dtype}.npy"
    ways = {
        "array": lambda: rows,
        "handle": lambda: cluster.scatter(rows),
        "memory map": lambda: np.load(path, mmap_mode="r"),
        "scan": lambda: xpulab.scan(path),
        "CSR": lambda: sparse.csr_matrix(rows),
        "CSR handle": lambda: cluster.scatter(sparse.csr_matrix(rows)),
    }
    return ways[kind]()


@functools.cache
def fitted(number: int) -> tuple[Any, Any]:
    """Return an estimator and scikit-learn's, fitted in float64."""
    case = CASES[number]
    ours, theirs = (each.fit(ROWS, case.y) for each in (case.estimator, case.estimator.unfitted_sklearn()))
    return ours, theirs


@pytest.mark.cluster
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    number=st.integers(0, len(CASES) - 1),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_later_rows_give_the_values_and_the_dtype_of_scikit_learn(
    on_pair: xpulab.XPUCluster, files: Path, number: int, kind: str, dtype: str
) -> None:
    case, (ours, theirs) = CASES[number], fitted(number)
    kind = kind if case.sparse else kind.replace("CSR handle", "handle").replace("CSR", "array")
    found: Any = getattr(ours, case.method)(made(kind, dtype, on_pair, files))
    found = found.gather() if isinstance(found, xpulab.ShardedArray) else found
    found = found.toarray() if sparse.issparse(found) else found
    later = ROWS.astype(dtype)
    assert found.dtype == getattr(theirs, case.method)(later).dtype
    expected = getattr(ours.to_sklearn(), case.method)(later.astype(np.float64))
    exact = case.exact if found.dtype == np.float64 else 4e-7
    np.testing.assert_allclose(found, expected, rtol=exact, atol=exact * np.abs(expected).max())


def test_rows_stay_in_float32_for_devices_without_float64() -> None:
    rows = np.ones((3, 2), np.float32)
    for has in ([True, True], [True, False]):
        cluster: Any = SimpleNamespace(facts=[SimpleNamespace(device=SimpleNamespace(float64=each)) for each in has])
        assert in_float64(rows, cluster).dtype == (np.float64 if all(has) else np.float32)
