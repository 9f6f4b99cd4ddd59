"""scikit-learn's own tests and checks, run against the proxy on two engines."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import sklearn.cluster
from joblib.externals.loky import get_reusable_executor
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.cluster import KMeans

_WEIGHTS = "the starts draw rows by weight, not weights of rows; scikit-learn's KMeans does not pass it either"
EXPECTED_FAILED_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": _WEIGHTS,
    "check_sample_weight_equivalence_on_sparse_data": _WEIGHTS,
}
#: Number of tests that call the proxy's fit, with scikit-learn 1.7 and 1.9. If there are fewer, the swap missed a name.
LEAST_CALLING = 165

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("on_pair")]


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    """All tests pass, and enough of them call the proxy's fit."""
    modules, proxies = ["sklearn.cluster.tests.test_k_means"], ["xpulab.cluster:KMeans"]
    run_suite(tmp_path, pair, modules, proxies, LEAST_CALLING, only="not MiniBatch and not mini_batch")


_checks = parametrize_with_checks(
    [KMeans(n_clusters=3, n_init=1), KMeans(n_clusters=3, init="random", n_init=2, algorithm="elkan")],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS,
)


# The list of checks in scikit-learn 1.7 has a generator, and pytest warns about it.
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
@pytest.mark.filterwarnings("ignore:algorithm='elkan' doesn't make sense:RuntimeWarning")  # as scikit-learn warns
def test_the_checks_of_scikit_learn(estimator: KMeans, check: Any) -> None:
    check(estimator)


@pytest.fixture
def X() -> np.ndarray:
    return np.random.RandomState(0).normal(size=(300, 5))


def test_clones_and_pickles_keep_the_right_state(X: np.ndarray) -> None:
    km = KMeans(4, random_state=0).fit(X)
    again = pickle.loads(pickle.dumps(km))
    np.testing.assert_array_equal(again.predict(X), km.labels_)
    assert again.report_.to_dict() == km.report_.to_dict()
    assert not hasattr(clone(km), "cluster_centers_")
    assert clone(km).get_params() == km.get_params()


def test_pipelines_and_grid_searches_give_scikit_learn_s_results(X: np.ndarray) -> None:
    steps = make_pipeline(StandardScaler(), KMeans(4, random_state=0))
    theirs = make_pipeline(StandardScaler(), sklearn.cluster.KMeans(4, random_state=0))
    np.testing.assert_array_equal(steps.fit_predict(X), theirs.fit_predict(X))
    grid = {"n_clusters": [2, 5], "init": ["k-means++", "random"]}
    ours = GridSearchCV(KMeans(random_state=0, n_init=2), grid, cv=3).fit(X)
    expected = GridSearchCV(sklearn.cluster.KMeans(random_state=0, n_init=2), grid, cv=3).fit(X)
    assert ours.best_params_ == expected.best_params_
    np.testing.assert_allclose(ours.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"])


def test_set_output_and_names_of_columns_work(X: np.ndarray) -> None:
    import pandas as pd

    frame = pd.DataFrame(X, columns=list("abcde"))
    km = KMeans(3, random_state=0).set_output(transform="pandas").fit(frame)
    distances = km.transform(frame)
    assert list(distances.columns) == ["kmeans0", "kmeans1", "kmeans2"] == list(km.get_feature_names_out())
    assert list(km.feature_names_in_) == list("abcde")


def test_to_sklearn_needs_no_cluster(X: np.ndarray) -> None:
    with pytest.raises(sklearn.exceptions.NotFittedError):
        KMeans(4).to_sklearn()
    km = KMeans(4, random_state=0).fit(X)
    plain = km.to_sklearn()
    assert type(plain) is sklearn.cluster.KMeans
    assert not hasattr(plain, "report_")
    np.testing.assert_array_equal(plain.predict(X), km.labels_)
    np.testing.assert_allclose(plain.transform(X), km.transform(X))
    assert plain.score(X) == pytest.approx(-km.inertia_)
    assert (plain.n_iter_, list(plain.get_feature_names_out())) == (km.n_iter_, [f"kmeans{i}" for i in range(4)])
    np.testing.assert_allclose(clone(plain).fit(X).cluster_centers_, km.cluster_centers_)


_ELSEWHERE = """
import pickle, sys
X, labels, plain, proxy = pickle.load(open(sys.argv[1], "rb"))
plain = pickle.loads(plain)
assert (plain.predict(X) == labels).all() and "xpulab" not in sys.modules
proxy = pickle.loads(proxy)
assert (proxy.labels_ == labels).all() and proxy.report_.status == "finished"
assert (proxy.to_sklearn().predict(X) == labels).all()
try:
    proxy.predict(X)
except sys.modules["xpulab"].exceptions.NoClusterError as error:
    print(error)
"""


def test_pickles_are_loaded_in_a_process_without_a_cluster(X: np.ndarray, tmp_path: Path) -> None:
    km = KMeans(4, random_state=0).fit(X)
    (tmp_path / "km").write_bytes(pickle.dumps((X, km.labels_, pickle.dumps(km.to_sklearn()), pickle.dumps(km))))
    run = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, tmp_path / "km"], capture_output=True, text=True, timeout=240
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "no cluster is running; type: import xpulab; xpulab.XPUCluster().start()" in run.stdout
    assert "xpulab.to_sklearn(model)" in run.stdout


def test_forked_workers_are_told_what_to_type(X: np.ndarray) -> None:
    """The next test has loky's workers. joblib's own forks may never end: those that it kills may hold a lock."""
    search = GridSearchCV(KMeans(random_state=0), {"n_clusters": [2, 3]}, cv=2, error_score="raise")
    told = pytest.raises(xpulab.exceptions.NoClusterError, match="type n_jobs=1")
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as workers, told:
        workers.submit(search.fit, X[:40]).result()
    with joblib.parallel_backend("threading"):
        assert search.set_params(n_jobs=2).fit(X[:40]).best_params_ == {"n_clusters": 3}


def test_a_search_with_n_jobs_shows_what_to_type_and_nothing_else(
    X: np.ndarray, shell: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, environment: Callable[..., None]
) -> None:
    environment(JOBLIB_TEMP_FOLDER=str(tmp_path))
    shell.user_ns["search"] = GridSearchCV(KMeans(random_state=0), {"n_clusters": [2, 3]}, cv=2, n_jobs=2)
    shell.user_ns["X"] = X
    try:
        assert isinstance(shell.run_cell("search.fit(X)").error_in_exec, xpulab.exceptions.NoClusterError)
    finally:
        get_reusable_executor().shutdown()
    first, second = capsys.readouterr().out.strip().splitlines()
    assert first.startswith("NoClusterError: worker processes, as n_jobs=2 starts them, have no cluster: ")
    assert second.startswith("instead, type n_jobs=1 or leave n_jobs away: ")
