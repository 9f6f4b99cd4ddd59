"""scikit-learn's own tests and checks, run against the proxies on two engines."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.decomposition
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.decomposition import PCA, IncrementalPCA, TruncatedSVD

pytestmark = pytest.mark.cluster

CANNOT: dict[str, str] = {}
#: Number of tests without sparse rows that call a proxy's fit. If there are fewer, the swap has missed a name.
LEAST_CALLING = 141
PROXIES = [f"xpulab.decomposition:{name}" for name in ("PCA", "IncrementalPCA", "TruncatedSVD")]


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    """All tests pass except those that cannot, and enough of them call a proxy's fit."""
    modules = [f"sklearn.decomposition.tests.test_{name}" for name in ("pca", "incremental_pca", "truncated_svd")]
    only = "(not sparse or truncated_svd) and not array_api"
    # The first has 100 components of batches of 100 rows. `test_incremental_pca` compares variances of such batches.
    # The second has 20 fits for each solver. `test_pca` compares components of each solver, and their signs.
    dear = ["test_explained_variances", "test_pca_deterministic_output"]
    run_suite(tmp_path, pair, modules, PROXIES, LEAST_CALLING, CANNOT, only, dear=dear)


@pytest.fixture(autouse=True)
def _on_the_pair(pair: xpulab.XPUCluster) -> None:
    pair.activate()


_ESTIMATORS = [PCA(), PCA(2, svd_solver="randomized", random_state=0), IncrementalPCA(batch_size=10)]
_checks = parametrize_with_checks([*_ESTIMATORS, TruncatedSVD(random_state=0)])


# The list of checks in scikit-learn 1.7 has a generator, and pytest warns about it.
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # of a single row, as in scikit-learn
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture
def X() -> np.ndarray:
    return np.random.RandomState(0).normal(size=(300, 5))


ESTIMATORS = [PCA(2), PCA(2, svd_solver="full", whiten=True), IncrementalPCA(2, batch_size=40), TruncatedSVD(2)]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_clones_pickles_and_plain_estimators(X: np.ndarray, estimator: Any) -> None:
    with pytest.raises(sklearn.exceptions.NotFittedError):
        clone(estimator).to_sklearn()
    fitted = clone(estimator).fit(X)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(X), fitted.transform(X))
    assert again.report_.to_dict() == fitted.report_.to_dict()
    assert not hasattr(clone(fitted), "components_")
    plain = fitted.to_sklearn()
    assert type(plain) is getattr(sklearn.decomposition, type(estimator).__name__)
    assert not hasattr(plain, "report_")
    np.testing.assert_allclose(plain.transform(X), fitted.transform(X), atol=1e-12)
    np.testing.assert_allclose(
        plain.inverse_transform(plain.transform(X)), fitted.inverse_transform(plain.transform(X))
    )
    assert list(plain.get_feature_names_out()) == list(fitted.get_feature_names_out())


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_set_output_and_the_names_of_columns(X: np.ndarray, estimator: Any) -> None:
    import pandas as pd

    frame = pd.DataFrame(X, columns=list("abcde"))
    fitted = clone(estimator).set_output(transform="pandas").fit(frame)
    made = fitted.transform(frame)
    assert list(made.columns) == list(fitted.get_feature_names_out())
    assert list(fitted.fit_transform(frame).columns) == list(made.columns)
    assert list(fitted.feature_names_in_) == list("abcde")
