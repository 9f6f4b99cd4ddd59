"""joblib's jobs on the engines: each group of engines does one at a time, and the results are those of one by one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from jobs import die_once, fail_on_the_engine, meet, nested, raise_at, thread, who
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.linear_model import Ridge as PlainRidge
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline

import xpulab
from xpulab.cluster import KMeans
from xpulab.decomposition import PCA
from xpulab.deploy.side_by_side.backend import Backend
from xpulab.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from xpulab.exceptions import ClusterError, NoClusterError, NotEnoughMemoryError, UsageError, XpulabWarning
from xpulab.linear_model import Ridge
from xpulab.mixture import GaussianMixture
from xpulab.neighbors import KNeighborsRegressor
from xpulab.preprocessing import OneHotEncoder, StandardScaler
from xpulab.report import progress

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = RNG.normal(size=(301, 4))
Y = X @ [1.0, 2.0, 3.0, 4.0] + RNG.normal(size=301)


def jobs(function: Callable[..., Any], *arguments: Any, n: int = 7) -> list[Any]:
    return list(joblib.Parallel()(joblib.delayed(function)(number, *arguments) for number in range(n)))


@pytest.mark.parametrize("n_jobs", [-1, 2])
@pytest.mark.parametrize(
    "estimator",
    [
        Ridge(),
        make_pipeline(StandardScaler(), PCA(2, random_state=0), Ridge()),
        KNeighborsRegressor(3),
        RandomForestRegressor(5, random_state=0),
        HistGradientBoostingRegressor(max_iter=5, random_state=0),
        KMeans(3, random_state=0, n_init=1),
        GaussianMixture(2, random_state=0),
        PlainRidge(),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_scores_and_estimators_are_those_of_one_fit_after_the_other(
    current: xpulab.XPUCluster, estimator: Any, n_jobs: int
) -> None:
    expected = cross_validate(estimator, X, Y, cv=3, return_estimator=True, error_score="raise")
    with joblib.parallel_config("xpulab", n_jobs=n_jobs):
        found = cross_validate(estimator, X, Y, cv=3, return_estimator=True, error_score="raise")
    assert_allclose(found["test_score"], expected["test_score"], rtol=1e-9)
    for one, other in zip(found["estimator"], expected["estimator"], strict=True):
        assert_allclose(one.predict(X[:20]), other.predict(X[:20]), rtol=1e-9)


@pytest.mark.parametrize("n_jobs", [-1, 2])
def test_groups_of_engines_work_at_the_same_time(current: xpulab.XPUCluster, tmp_path: Path, n_jobs: int) -> None:
    n_groups = current.size if n_jobs == -1 else min(2, current.size)
    with joblib.parallel_config("xpulab", n_jobs=n_jobs):
        assert jobs(meet, tmp_path, n_groups, n=n_groups) == list(range(n_groups))
        found = jobs(who, n=20)
    assert [number for number, _ in found] == list(range(20))
    mine = {engine.pid for engine in current.facts}
    assert {pid for _, pid in found} <= mine if n_groups > 1 else True


@pytest.mark.parametrize("kind", ["handle", "table", "sparse", "file"])
def test_rows_on_the_engines_and_of_files(on_pair: xpulab.XPUCluster, tmp_path: Path, kind: str) -> None:
    model: Any = Ridge()
    rows: Any = on_pair.scatter(X)
    if kind == "table":
        frame = pd.DataFrame(X, columns=list("abcd")).assign(kind=np.where(X[:, 0] > 0, "u", "v"))
        rows = on_pair.scatter(frame)
        encoder = make_column_transformer(
            (OneHotEncoder(sparse_output=False), ["kind"]), (StandardScaler(), list("abcd"))
        )
        model = make_pipeline(encoder, Ridge())
    if kind == "sparse":
        rows = on_pair.scatter(sparse.csr_matrix(X * (X > 0)))
    if kind == "file":
        np.save(tmp_path / "X.npy", X)
        rows = xpulab.scan(tmp_path / "X.npy")
    expected = cross_val_score(model, rows, Y, cv=3)
    with joblib.parallel_config("xpulab"):
        found = cross_val_score(model, rows, Y, cv=3, error_score="raise")
        predicted = cross_val_predict(Ridge(), X, on_pair.scatter(Y), cv=3)
    assert_allclose(found, expected, rtol=1e-9)
    assert_allclose(predicted, cross_val_predict(Ridge(), X, Y, cv=3), rtol=1e-9)


@pytest.mark.parametrize("n_jobs", [-1, 2])
def test_an_error_is_the_jobs_own_and_the_next_jobs_run(current: xpulab.XPUCluster, n_jobs: int) -> None:
    with joblib.parallel_config("xpulab", n_jobs=n_jobs):
        with pytest.warns(FutureWarning, match="job . is odd"), pytest.raises(KeyError, match="job 3") as caught:
            jobs(raise_at, 3)
        if current.size > 1:
            assert "in raise_at" in str(caught.value.__cause__)
        with pytest.raises(ValueError, match="Input X contains NaN"):
            cross_val_score(Ridge(), np.where(X > 2, np.nan, X), Y, error_score="raise")
        assert_allclose(cross_val_score(Ridge(), X, Y, cv=3), cross_val_score(Ridge(), X, Y, cv=3, n_jobs=1))


@pytest.mark.parametrize("cluster", [3], indirect=True, ids=["3-engines"])
def test_an_error_on_the_engines_of_a_group_is_that_of_one_job(current: xpulab.XPUCluster) -> None:
    """The tasks of later jobs have other numbers than the one that has failed; jobs of one rank and of two fail."""
    with joblib.parallel_config("xpulab", n_jobs=2):
        for _ in range(2):
            with pytest.raises(ValueError, match="a scorer refuses"):
                jobs(fail_on_the_engine, X, Y, n=4)
            assert_allclose(cross_val_score(Ridge(), X, Y, cv=4), cross_val_score(Ridge(), X, Y, cv=4, n_jobs=1))


def test_what_jobs_print_and_warn_of_is_seen(on_pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with joblib.parallel_config("xpulab"), pytest.warns(FutureWarning) as said:
        jobs(raise_at, -1, n=3)
    assert sorted(str(each.message) for each in said) == [f"job {number} is odd" for number in range(3)]
    out = capsys.readouterr().out
    assert all(f"job {number} prints" in out for number in range(3))


def test_jobs_go_on_with_new_engines(losable: xpulab.XPUCluster, tmp_path: Path) -> None:
    class View:
        def update(self, report: Any) -> None:
            if report.done >= 4:
                (tmp_path / "known").touch()

        def close(self, report: Any) -> None: ...

    end = progress.subscribe(lambda report: View() if "joblib" in getattr(report, "title", "") else None)
    said = r"new engines do the .* jobs? that had not ended"
    try:
        with joblib.parallel_config("xpulab"), pytest.warns(XpulabWarning, match=said):
            assert jobs(die_once, 4, tmp_path) == list(range(7))
    finally:
        end()
    assert (tmp_path / "died").exists()
    assert len(list(tmp_path.glob("[0-3]-*"))) == 4  # what had ended is not done again


def test_what_cannot_travel_is_said(on_pair: xpulab.XPUCluster) -> None:
    with joblib.parallel_config("xpulab"):
        with pytest.raises(TypeError, match=r"the jobs cannot be sent to the engines: .*lock"):
            jobs(who_with, thread(1))
        with pytest.raises(TypeError, match=r"what the job returned cannot be sent from the engine: .*lock"):
            jobs(thread)
        assert len(jobs(who)) == 7


def who_with(number: int, _: Any) -> int:
    return number


def test_jobs_in_jobs_run_where_they_are(on_pair: xpulab.XPUCluster) -> None:
    with joblib.parallel_config("xpulab"):
        found = jobs(nested, n=4)
    assert [len(each) for each in found] == [0, 1, 2, 3]
    assert {pid for each in found for _, pid in each} <= {engine.pid for engine in on_pair.facts}


def test_functions_of_modules_beside_the_notebook_are_known(on_pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("def doubled(number):\n    return 2 * number\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import beside_it

        with joblib.parallel_config("xpulab"):
            assert jobs(beside_it.doubled, n=3) == [0, 2, 4]
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("beside_it", None)


def test_the_view_shows_parts_and_the_best_score(on_pair: xpulab.XPUCluster) -> None:
    lines: list[str] = []

    class View:
        def update(self, report: Any) -> None: ...

        def close(self, report: Any) -> None:
            lines.append(report.line())
            lines.append(report.summary)

    end = progress.subscribe(lambda report: View() if isinstance(report, progress.TaskReport) else None)
    try:
        with joblib.parallel_config("xpulab"):
            search = GridSearchCV(Ridge(), {"alpha": [1.0, 1e3]}, cv=2).fit(X, Y)
    finally:
        end()
    assert lines[0].startswith("GridSearchCV.fit, 4 fits on 2 engines  4/4  ")
    assert lines[1].startswith("GridSearchCV.fit, 4 fits on 2 engines: finished in ")
    assert search.best_params_ == {"alpha": 1.0}


def test_a_search_is_fitted_again(on_pair: xpulab.XPUCluster) -> None:
    """Its result, which has a handle, does not travel; since 1.9, scikit-learn's search sends itself."""
    rows, search = on_pair.scatter(X), GridSearchCV(KNeighborsRegressor(), {"n_neighbors": [3, 5]}, cv=2)
    first = search.fit(rows, Y).cv_results_["mean_test_score"]
    with joblib.parallel_config("xpulab"):
        assert_allclose(search.fit(rows, Y).cv_results_["mean_test_score"], first, rtol=1e-9)
    assert search.best_estimator_.predict(rows).shape == (301,)


def test_numbers_of_groups(on_pair: xpulab.XPUCluster) -> None:
    said = "n_jobs=0 was given; expected -1 for a job on each engine"
    with joblib.parallel_config("xpulab", n_jobs=0), pytest.raises(UsageError, match=said):
        jobs(who)
    for n_jobs, expected in ((None, 2), (-1, 2), (-2, 1), (1, 1), (2, 2), (8, 2)):
        with joblib.parallel_config("xpulab", n_jobs=n_jobs):
            assert joblib.effective_n_jobs(n_jobs) == expected


def test_a_cluster_of_one_host_is_needed() -> None:
    """A cluster with engines on two hosts that is none."""

    class Elsewhere(Backend):
        @staticmethod
        def find() -> Any:
            facts = [SimpleNamespace(host="here"), SimpleNamespace(host="there")]
            return SimpleNamespace(size=2, tasks=SimpleNamespace(engines=SimpleNamespace(facts=facts)))

    joblib.register_parallel_backend("elsewhere", Elsewhere)
    with joblib.parallel_config("elsewhere"), pytest.raises(ClusterError, match=r"on 2 hosts \(here, there\)"):
        jobs(who)


def test_without_a_cluster_the_error_says_what_to_type(no_cluster: None) -> None:
    with joblib.parallel_config("xpulab"), pytest.raises(NoClusterError, match="no cluster is running; type: "):
        jobs(who)


def test_more_than_the_memory_is_refused(on_pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    large = np.asarray(np.memmap(tmp_path / "large", np.uint8, "w+", shape=1 << 42))  # a file that takes no room
    said = r"2 jobs at a time, with arrays of 4\.0 TiB, need up to 20\.0 TiB of memory, and .* are free; leave joblib"
    with joblib.parallel_config("xpulab"), pytest.raises(NotEnoughMemoryError, match=said):
        joblib.Parallel()(joblib.delayed(np.sum)(large) for _ in range(2))


def test_nothing_is_left_in_the_folder_of_the_cluster(on_pair: xpulab.XPUCluster) -> None:
    with joblib.parallel_config("xpulab"):
        jobs(who)
    assert not list(on_pair.engines.require_running().folder.glob("jobs-*"))
