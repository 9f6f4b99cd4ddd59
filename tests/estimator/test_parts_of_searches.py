"""The report of a fit says where scikit-learn's search or cross-validation is."""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from joblib import parallel_config
from reports import Document, report
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    LeaveOneOut,
    cross_val_predict,
    cross_val_score,
    learning_curve,
    validation_curve,
)
from sklearn.pipeline import make_pipeline

import xpulab
from xpulab.cluster import KMeans
from xpulab.linear_model import Ridge
from xpulab.preprocessing import StandardScaler
from xpulab.report.calls import Calls
from xpulab.report.html import fit_html
from xpulab.report.profile import profiled

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = X @ [1.0, 2.0, 3.0]
ALPHAS = {"alpha": [0.1, 1.0, 10.0]}
REFIT = "refit of the best candidate"
CANDIDATES = [f"candidate {c} of 3, fold {f} of 2" for c, f in itertools.product((1, 2, 3), (1, 2))]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("search", "parts"),
    [
        (lambda: GridSearchCV(Ridge(), ALPHAS, cv=2).fit(X, Y), [*CANDIDATES, REFIT]),
        (
            lambda: HalvingGridSearchCV(Ridge(), {"alpha": [1.0, 2.0]}, cv=2, min_resources=20, factor=2).fit(X, Y),
            [
                *(f"candidate {c} of {n}, fold {f} of 2" for n in (2, 1) for c in range(1, n + 1) for f in (1, 2)),
                REFIT,
            ],
        ),
        (lambda: GridSearchCV(Ridge(), ALPHAS, cv=2, refit=False, n_jobs=2).fit(X, Y), CANDIDATES),
        (lambda: cross_val_score(Ridge(), X, Y, cv=3), [f"fold {f} of 3" for f in (1, 2, 3)]),
        (lambda: cross_val_score(Ridge(), X, Y, cv=list(KFold(2).split(X))), ["fold 1 of 2", "fold 2 of 2"]),
        (
            lambda: cross_val_score(Ridge(), X[:3], Y[:3], cv=LeaveOneOut(), scoring="neg_max_error"),
            ["fold 1", "fold 2", "fold 3"],
        ),
        (lambda: cross_val_predict(Ridge(), X, Y, cv=2), ["fold 1 of 2", "fold 2 of 2"]),
        (lambda: learning_curve(Ridge(), X, Y, cv=2, train_sizes=[0.5, 1.0]), [f"fit {f} of 4" for f in (1, 2, 3, 4)]),
        (
            lambda: validation_curve(Ridge(), X, Y, cv=2, param_name="alpha", param_range=[1.0, 2.0]),
            [f"fit {f} of 4" for f in (1, 2, 3, 4)],
        ),
        (
            lambda: cross_val_score(GridSearchCV(Ridge(), {"alpha": [1.0]}, cv=2), X, Y, cv=2),
            [
                f"fold {outer} of 2; {inner}"
                for outer in (1, 2)
                for inner in ("candidate 1 of 1, fold 1 of 2", "candidate 1 of 1, fold 2 of 2", REFIT)
            ],
        ),
        (lambda: Ridge().fit(X, Y), [""]),
    ],
    ids=[
        "search",
        "halving",
        "threads",
        "folds",
        "list",
        "leave one out",
        "predict",
        "learning",
        "validation",
        "nested",
        "none",
    ],
)
def test_each_fit_knows_its_part(pair: xpulab.XPUCluster, search: Callable[[], Any], parts: list[str]) -> None:
    pair.activate()
    with parallel_config("threading"), profiled() as profile:
        search()
    assert sorted(each.part for each in profile.reports if each.method == "fit") == sorted(parts)


@pytest.mark.cluster
def test_a_search_is_one_entry_with_its_best_score_and_the_time_of_each_estimator(pair: xpulab.XPUCluster) -> None:
    pair.activate()
    calls, model = Calls(), make_pipeline(StandardScaler(), KMeans(n_init=1, random_state=0))
    with profiled() as profile:
        search = GridSearchCV(model, {"kmeans__n_clusters": [3, 2]}, cv=2).fit(X)
    for each in profile.reports:
        calls.add(each)
    calls.end()
    best = f"best mean score {search.best_score_:.6g} with kmeans__n_clusters=3"
    assert re.match(rf"GridSearchCV\.fit: finished in .*, 23 calls, {best}\n", str(calls))
    shown = Document(calls._repr_html_()).text
    for title, n in {
        "KMeans.fit": 5,
        "KMeans.score": 4,
        "StandardScaler.fit": 5,
        "StandardScaler.transform": 9,
    }.items():
        assert re.search(rf"(?m)^  {title} +{n}  ", str(calls))
        assert f"{title}{n}" in shown
    assert f"report of the last fit: KMeans.fit, {REFIT}" in shown
    again = pickle.loads(pickle.dumps(search))
    assert again.best_estimator_[-1].report_.search is None


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("made", "given"),
    [
        (GridSearchCV, {}),
        (GridSearchCV, {"refit": False}),
        (GridSearchCV, {"n_jobs": 2}),
        (GridSearchCV, {"scoring": ["r2", "neg_max_error"], "refit": "r2"}),
        (GridSearchCV, {"scoring": ["r2", "neg_max_error"], "refit": False}),
        (HalvingGridSearchCV, {"min_resources": 20, "factor": 2}),
    ],
    ids=["search", "no refit", "threads", "several scores", "no best", "halving"],
)
def test_each_search_is_one_entry(pair: xpulab.XPUCluster, made: Any, given: dict[str, Any]) -> None:
    pair.activate()
    calls, search = Calls(), made(Ridge(), ALPHAS, cv=2, **given)
    with parallel_config("threading"), profiled() as profile:
        search.fit(X, Y)
        search.fit(X, Y)
        Ridge().fit(X, Y)
    for each in profile.reports:
        calls.add(each)
    calls.end()
    first, second, last = str(calls).splitlines()[2:]
    for number, line in enumerate((first, second), 1):  # the second fit of the same object is another entry
        assert line.startswith(f"  {number}  {made.__name__}.fit ")
        assert line.endswith("finished")
        if hasattr(search, "best_score_"):
            assert f"mean score {search.best_score_:.6g} with alpha={search.best_params_['alpha']}" in line
    assert last.startswith("  3  Ridge.fit")


@pytest.mark.cluster
def test_a_running_search_knows_the_best_of_the_candidates_so_far(pair: xpulab.XPUCluster) -> None:
    pair.activate()
    seen = []

    class Told(Ridge):  # in place of a view, which draws from time to time
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Told:
            super().fit(X, y, sample_weight)
            search = self.report_.search
            seen.append((search.status, search.done, search.total, search.best and dict(search.best[1])))
            return self

    made = GridSearchCV(Told(), {"alpha": [10.0, 0.1, 1.0]}, cv=2).fit(X, Y)
    best = [None, None, {"alpha": 10.0}, {"alpha": 10.0}, *[{"alpha": 0.1}] * 3]
    assert seen == [("running", min(n, 6), 6, each) for n, each in enumerate(best)]
    assert made.best_params_ == {"alpha": 0.1}


@pytest.mark.cluster
def test_a_cross_validation_is_one_entry(pair: xpulab.XPUCluster) -> None:
    pair.activate()
    calls = Calls()
    with profiled() as profile:
        scores = cross_val_score(Ridge(), X, Y, cv=3)
    for each in profile.reports:
        calls.add(each)
    assert f", score {scores[:2].mean():.6g} of the first 2 folds" in str(calls).replace("mean score", "score")
    assert str(calls).startswith("cross_val_score: running for ")
    calls.end()
    assert str(calls).startswith("cross_val_score: finished in ")


@pytest.mark.cluster
def test_a_call_after_a_search_has_no_part(pair: xpulab.XPUCluster) -> None:
    pair.activate()
    search = GridSearchCV(Ridge(), ALPHAS, cv=2).fit(X, Y)
    with profiled() as profile:
        search.predict(X)
        search.best_estimator_.fit(X, Y)
        Ridge().fit(X, Y)
    assert [each.part for each in profile.reports] == [""] * len(profile.reports)
    assert len(profile.reports) == 3


def test_a_running_report_says_where_the_search_is() -> None:
    running = report(status="running", part="candidate 3 of 12, fold 2 of 5")
    for text in (running.line(), str(running), Document(fit_html(running)).text):
        assert "candidate 3 of 12, fold 2 of 5" in text
    assert type(running).from_dict(running.to_dict()).part == running.part
