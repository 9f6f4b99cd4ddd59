"""Every estimator on a table of a real size, whose sums are long messages: two engines find what one finds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.decomposition
from exported import FORESTS, exported, numbers_of, rows_for, targets_for
from numpy.testing import assert_allclose
from sklearn.base import is_classifier, is_regressor
from sklearn.utils import get_tags

import xpulab
from xpulab.decomposition import PCA
from xpulab.discriminant_analysis import QuadraticDiscriminantAnalysis

pytestmark = pytest.mark.cluster

COLUMNS, TARGETS, CLUSTERS = 784, 300, 700
RNG = np.random.default_rng(0)
X = RNG.normal(size=(900, COLUMNS)) * np.linspace(1, 3, COLUMNS)
Y = X[:, :TARGETS] + RNG.normal(size=(len(X), TARGETS))
LABELS = np.arange(len(X)) % 10

#: Parameters other than the defaults, which would take long on so many columns or would not be of this size.
PARAMETERS: dict[str, dict[str, Any]] = {
    "BisectingKMeans": {"n_clusters": 16, "max_iter": 2},
    "DBSCAN": {"eps": 55.0},
    "ElasticNet": {"alpha": 0.1},
    "ElasticNetCV": {"alphas": [0.3, 0.1], "cv": 3},
    "GaussianMixture": {"n_components": 1, "max_iter": 1},
    "HistGradientBoostingClassifier": {"max_iter": 1, "max_leaf_nodes": 4},
    "HistGradientBoostingRegressor": {"max_iter": 2, "max_leaf_nodes": 4},
    "IncrementalPCA": {"n_components": 50},
    "KMeans": {"n_clusters": CLUSTERS, "init": X[:CLUSTERS], "max_iter": 1},
    "Lasso": {"alpha": 0.1},
    "LassoCV": {"alphas": [0.3, 0.1], "cv": 3},
    "HuberRegressor": {"max_iter": 2},
    "LinearSVC": {"max_iter": 2},
    "LinearSVR": {"max_iter": 2},
    "LogisticRegression": {"max_iter": 2},
    "LogisticRegressionCV": {"max_iter": 2, "Cs": 2, "cv": 2},
    "MiniBatchKMeans": {"n_clusters": CLUSTERS, "init": X[:CLUSTERS], "max_iter": 1, "compute_labels": False},
    "OneHotEncoder": {"handle_unknown": "ignore"},
    "PCA": {"n_components": 50},
    "QuantileTransformer": {"n_quantiles": 10},
    "SGDClassifier": {"max_iter": 2},
    "SGDRegressor": {"max_iter": 2},
    "Lars": {"n_nonzero_coefs": 5},
    "LassoLars": {"max_iter": 5},
    **{f"{forest}Classifier": {"n_estimators": 2, "max_depth": 5} for forest in FORESTS},
    **{f"{forest}Regressor": {"n_estimators": 1, "max_depth": 3, "max_features": 0.1} for forest in FORESTS},
    "TruncatedSVD": {"n_components": 50},
}
if "solver" in inspect.signature(QuadraticDiscriminantAnalysis).parameters:  # since scikit-learn 1.8
    PARAMETERS["QuadraticDiscriminantAnalysis"] = {"solver": "eigen", "shrinkage": 0.5}  # of fewer rows than columns
#: Rows other than X: few if 300,000 columns come out, and categories.
ROWS = {"OneHotEncoder": np.rint(X), "PolynomialFeatures": X[:10]}


def made(kind: type) -> Any:
    parameters = PARAMETERS.get(kind.__name__, {})
    seeded = {"random_state": 0} if "random_state" in inspect.signature(kind).parameters else {}
    return kind(**{**seeded, **parameters})


def targets_of(estimator: Any) -> Any:
    if is_classifier(estimator):
        return LABELS
    if is_regressor(estimator):
        return targets_for(type(estimator), Y if get_tags(estimator).target_tags.multi_output else Y[:, 0])
    return None


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.fraction(3)
@pytest.mark.parametrize("kind", exported(), ids=lambda kind: kind.__name__)
def test_long_messages_give_what_one_engine_gives(
    kind: type, pair: xpulab.XPUCluster, clusters: Callable[[int], xpulab.XPUCluster]
) -> None:
    rows = rows_for(kind, ROWS.get(kind.__name__, X))
    one, two = (made(kind) for _ in range(2))
    for estimator, cluster in ((one, clusters(1)), (two, pair)):
        cluster.activate()
        y = targets_of(estimator)
        estimator.fit(rows) if y is None else estimator.fit(rows, y)
    found = numbers_of(two)
    for name, expected in numbers_of(one).items():
        assert_allclose(found[name], expected, 1e-6, 1e-9 * np.abs(expected).max(initial=1e-3), err_msg=name)


def test_few_rows_of_many_columns(on_pair: xpulab.XPUCluster) -> None:
    few = RNG.normal(size=(10, 2048))
    found = PCA(2, svd_solver="randomized", random_state=0).fit(few)
    expected = sklearn.decomposition.PCA(2, svd_solver="randomized", random_state=0).fit(few)
    assert_allclose(found.components_, expected.components_, atol=1e-9)
