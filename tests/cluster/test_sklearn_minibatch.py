"""scikit-learn's tests and checks of MiniBatchKMeans and BisectingKMeans on two engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.cluster import BisectingKMeans, MiniBatchKMeans

pytestmark = pytest.mark.cluster

_WEIGHTS = (
    "rows are drawn by weight, so that weights do not stand for repeated rows; scikit-learn's does not pass either"
)
EXPECTED_FAILED_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": _WEIGHTS,
    "check_sample_weight_equivalence_on_sparse_data": _WEIGHTS,
}
CANNOT = {"test_bisecting_kmeans_custom_init_validation": "a callable init is refused"}
#: Numbers of tests that call the fit of the proxies, with scikit-learn 1.7 and 1.9.
LEAST_CALLING = {"MiniBatchKMeans": 60, "BisectingKMeans": 14}


@pytest.mark.parametrize(
    ("proxy", "module", "only"),
    [
        ("MiniBatchKMeans", "test_k_means", "MiniBatch or mini_batch or minibatch"),
        ("BisectingKMeans", "test_bisect_k_means", ""),
    ],
)
def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path, proxy: str, module: str, only: str) -> None:
    """All tests pass except those that cannot, and enough of them call our fit."""
    modules, proxies = [f"sklearn.cluster.tests.{module}"], [f"xpulab.cluster:{proxy}"]
    run_suite(tmp_path, pair, modules, proxies, LEAST_CALLING[proxy], CANNOT, only)


_checks = parametrize_with_checks(
    [MiniBatchKMeans(n_clusters=3, n_init=1), BisectingKMeans(n_clusters=3)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS,
)


# The list of checks in scikit-learn 1.7 has a generator, and pytest warns about it.
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(on_pair: xpulab.XPUCluster, estimator: Any, check: Any) -> None:
    check(estimator)
