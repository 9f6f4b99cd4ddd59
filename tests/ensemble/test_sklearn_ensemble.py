"""scikit-learn's own tests and checks of forests, run against the proxies on two engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)

pytestmark = pytest.mark.cluster

_KINDS = ("Classifier", "Regressor")
#: Parts of the names of tests of other estimators, and of input that raises an error.
REFUSED = [
    *("RandomTreesEmbedding", "sparse", "csr", "csc", "embedding", "hasher"),
    *("memory_layout", "criterion_object"),  # tests with CSR matrices, and with criteria that are objects
]
#: Tests that take seconds, and grow other forests.
ELSEWHERE = ["importances_asymptotic", "test_distribution"]
CANNOT = {
    "test_pickle": "the class that counts calls of fit cannot be pickled",
    "test_backend_respected": "the engines compute, and joblib is not asked",
    "test_warm_start_oob[RandomForestRegressor]": "the sums of the ranks and of scikit-learn agree to rounding",
    **{
        f"test_forest_classifier_oob[True-{data}-array-ExtraTrees": "scikit-learn's trees of other seeds miss it, too"
        for data in ("X1-y1-0.65", "X3-y3-0.18")
    },
    "test_estimators_samples": "it grows a tree with scikit-learn again, which draws other columns for the nodes",
}
LEAST_CALLING = 150
PROXIES = [f"xpulab.ensemble:{forest}{kind}" for forest in ("RandomForest", "ExtraTrees") for kind in _KINDS]


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    """All tests pass except those that cannot, and enough of them call a proxy's fit."""
    only = " and ".join(f"not {part}" for part in REFUSED + ELSEWHERE)
    run_suite(tmp_path, pair, ["sklearn.ensemble.tests.test_forest"], PROXIES, LEAST_CALLING, CANNOT, only)


def test_the_tests_of_scikit_learn_of_monotonic_constraints(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    refused = ("sparse", "DecisionTree", "ExtraTreeClassifier", "ExtraTreeRegressor")
    only = " and ".join(["(constraints or raises)", *(f"not {part}" for part in refused)])
    run_suite(tmp_path, pair, ["sklearn.tree.tests.test_monotonic_tree"], PROXIES, 12, {}, only)


def test_the_tests_of_scikit_learn_of_isolation_forests(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    why = "it counts the pieces in which scikit-learn takes the rows"
    cannot = {f"test_iforest_chunks_works{number}[42-0.25": why for number in (1, 2)}
    modules, proxies = ["sklearn.ensemble.tests.test_iforest"], ["xpulab.ensemble:IsolationForest"]
    run_suite(tmp_path, pair, modules, proxies, 12, cannot, "not sparse and not csr and not csc")


@pytest.fixture(autouse=True)
def _on_the_pair(pair: xpulab.XPUCluster) -> None:
    pair.activate()


_checks = parametrize_with_checks(
    [
        RandomForestClassifier(5, random_state=0),
        RandomForestRegressor(5, random_state=0),
        ExtraTreesClassifier(5, random_state=0),
        ExtraTreesRegressor(5, random_state=0),
        IsolationForest(n_estimators=5),
    ],
    expected_failed_checks=lambda estimator: {
        f"check_sample_weight_equivalence_on_{kind}_data": "rows are drawn by weight; scikit-learn's do not pass either"
        for kind in ("dense", "sparse")
        if not type(estimator).__name__.startswith("ExtraTrees")
    },
)


@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)
