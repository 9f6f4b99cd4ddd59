"""scikit-learn's own tests and checks, run against the proxies on two engines."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.neighbors
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestNeighbors

pytestmark = pytest.mark.cluster

#: Parts of the names of tests of input that these estimators reject with an error, so that the tests cannot pass.
REFUSED = [
    *("braycurtis", "canberra", "correlation", "dice", "hamming", "haversine", "jaccard", "mahalanobis", "matching"),
    *("nan_euclidean", "rogerstanimoto", "russellrao", "seuclidean", "sokal", "yule", "boolean_distance", "DM_"),
    *("precomputed", "callable_metric", "metric_callable", "nearest_neighbors_transformer"),  # tests with other metrics
    *("kneighbors_regressor_sparse", "returns_array_of_objects", "(validate_parameters and csr)"),  # and sparse rows
    *("parallel_array_radius", "unsupervised_inputs"),  # several radii, trees as input
    *("auto_algorithm", "semimetric_algo_warn"),  # these tests read which of scikit-learn's algorithms was chosen
]
#: Tests that say nothing more. xpulab computes the same for every `algorithm`: `brute` and `auto` stand for all four,
#: and one of the two tests that compare the algorithms for the other. `test_neighbors_metrics` has the three metrics
#: with a second name. The estimators with a radius are scikit-learn's.
REPEATED = [
    "kd_tree",
    "(ball_tree and not semimetric_algo_error)",  # but an error for trees is tested
    "agnosticity",
    "radius_neighbors_brute_backend",  # it compares two ways of scikit-learn, as `test_kneighbors_brute_backend` does
    "((unsupervised_kneighbors or brute_backend) and (l1 or l2 or cityblock))",
    "RadiusNeighborsClassifier",
    "RadiusNeighborsRegressor",
    "radius_neighbors_classifier",
    "radius_neighbors_regressor",
    "radius_neighbors_predict_proba",
    "neighbor_classifiers_loocv",  # which calls no proxy
]
CANNOT = {
    f"{name}[42-{dtype}-minkowski": "it has weights of the features, which are refused"
    for name in ("neighbors_metrics", "brute_backend")
    for dtype in ("float32", "float64")
}
LEAST_CALLING = 140
PROXIES = [f"xpulab.neighbors:{name}" for name in ("NearestNeighbors", "KNeighborsClassifier", "KNeighborsRegressor")]


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    """All tests pass except those that cannot, and enough of them call a proxy's fit."""
    only = " and ".join(f"not {part}" for part in REFUSED + REPEATED)
    # Nearly two hundred fits each. `test_knn` and `test_sparse_neighbors` compare such votes with scikit-learn's.
    dear = ["test_kneighbors_classifier_sparse", "test_KNeighborsClassifier_multioutput"]
    modules = ["sklearn.neighbors.tests.test_neighbors"]
    run_suite(tmp_path, pair, modules, PROXIES, LEAST_CALLING, CANNOT, only, dear=dear)


@pytest.fixture(autouse=True)
def _on_the_pair(pair: xpulab.XPUCluster) -> None:
    pair.activate()


ESTIMATORS = [NearestNeighbors(), KNeighborsClassifier(), KNeighborsRegressor(weights="distance")]
_checks = parametrize_with_checks(ESTIMATORS)


# The list of checks in scikit-learn 1.7 has a generator, and pytest warns about it.
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_clones_pickles_and_plain_estimators(estimator: Any) -> None:
    X = np.random.default_rng(0).normal(size=(300, 5))
    y = (X[:, 0] > 0).astype(int)
    with pytest.raises(sklearn.exceptions.NotFittedError):
        clone(estimator).to_sklearn()
    fitted = clone(estimator).fit(X, y)
    with pytest.raises(sklearn.exceptions.NotFittedError):
        clone(fitted).kneighbors(X)
    again = pickle.loads(pickle.dumps(fitted))
    plain = fitted.to_sklearn()
    assert type(plain) is getattr(sklearn.neighbors, type(estimator).__name__)
    assert vars(plain).keys() <= vars(clone(plain).fit(X, y)).keys()
    for other in (again, plain, pickle.loads(pickle.dumps(plain))):
        np.testing.assert_array_equal(other.kneighbors(X[:9])[1], fitted.kneighbors(X[:9])[1])
        if hasattr(fitted, "predict"):
            np.testing.assert_allclose(other.predict(X[:9]), fitted.predict(X[:9]), atol=1e-6)
    with pytest.raises(TypeError, match=r"the rows of this .* are a ShardedArray"):
        pickle.dumps(clone(estimator).fit(xpulab.current_cluster().scatter(X), y))


def test_the_names_of_columns() -> None:
    import pandas as pd

    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 3)), columns=list("abc"))
    fitted = KNeighborsClassifier().fit(frame, frame["a"] > 0)
    assert list(fitted.feature_names_in_) == list("abc")
    assert fitted.predict(frame).dtype == bool
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame.rename(columns={"a": "z"}))
