"""scikit-learn's tests and checks of HDBSCAN on two engines, and copies and pickles."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.cluster
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.cluster import HDBSCAN

pytestmark = pytest.mark.cluster

#: Parts of the names of tests of input that this estimator rejects with an error, so that the tests cannot pass.
REFUSED = ["sparse", "precomputed", "callable", "distance_matrix", "best_balltree"]
CANNOT = {
    "test_hdbscan_default_copy_warning": "X is never changed, and nothing will be different in scikit-learn 1.10",
    "test_hdbscan_tree_invalid_metric": "all algorithms take the same metrics",
    "test_hdbscan_cosine_metric_invalid_algorithm": "all algorithms take the same metrics",
}
LEAST_CALLING = 10


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    """All tests pass except those that cannot, and enough of them call our fit."""
    # The trees of scikit-learn take metrics that are refused.
    only = " and ".join([*(f"not {part}" for part in REFUSED), "not (algorithms and (kd_tree or ball_tree))"])
    run_suite(
        tmp_path, pair, ["sklearn.cluster.tests.test_hdbscan"], ["xpulab.cluster:HDBSCAN"], LEAST_CALLING, CANNOT, only
    )


_checks = parametrize_with_checks([HDBSCAN(min_samples=1)])


# The list of checks in scikit-learn 1.7 has a generator, and pytest warns about it.
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(on_pair: xpulab.XPUCluster, estimator: Any, check: Any) -> None:
    check(estimator)


def test_clones_pickles_and_plain_estimators(on_pair: xpulab.XPUCluster) -> None:
    X = np.random.default_rng(0).normal(size=(300, 3))
    with pytest.raises(sklearn.exceptions.NotFittedError):
        HDBSCAN().to_sklearn()
    fitted = HDBSCAN(min_cluster_size=8).fit(X)
    assert not hasattr(clone(fitted), "labels_")
    plain = fitted.to_sklearn()
    assert type(plain) is sklearn.cluster.HDBSCAN
    assert not hasattr(plain, "report_")
    for other in (plain, pickle.loads(pickle.dumps(fitted)), pickle.loads(pickle.dumps(plain))):
        np.testing.assert_array_equal(other.labels_, fitted.labels_)
        np.testing.assert_array_equal(other.dbscan_clustering(0.5), fitted.dbscan_clustering(0.5))
    assert fitted.get_params() == sklearn.cluster.HDBSCAN(min_cluster_size=8).get_params()
