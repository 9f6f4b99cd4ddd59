"""A search that was interrupted keeps the candidates that had ended, and goes on with the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from jobs import Gated, meet
from numpy.testing import assert_allclose
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV, KFold, RandomizedSearchCV
from strikes import pressed_when

import xpulab
from xpulab.exceptions import CallInterrupted

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3))
Y = X @ [1.0, 2.0, 3.0] + RNG.normal(size=120)
ALPHAS = {"alpha": [1.0, 10.0, 100.0, 1000.0]}


def made(kind: str, model: Gated) -> Any:
    if kind == "halving":
        return HalvingGridSearchCV(model, ALPHAS, cv=2, min_resources=30, factor=2, random_state=0)
    if kind == "random":
        cv = KFold(2, shuffle=True, random_state=1)
        return RandomizedSearchCV(model, ALPHAS, n_iter=4, cv=cv, random_state=0, scoring=["r2"], refit="r2")
    return GridSearchCV(model, ALPHAS, cv=2)


@pytest.mark.parametrize("n_jobs", [1, -1], ids=["one by one", "side by side"])
@pytest.mark.parametrize("kind", ["grid", "random", "halving"])
def test_it_keeps_what_had_ended_and_goes_on(
    on_pair: xpulab.XPUCluster, tmp_path: Path, kind: str, n_jobs: int
) -> None:
    whole = made(kind, Gated(folder=str(tmp_path))).fit(X, Y)
    for file in tmp_path.iterdir():
        file.unlink()
    order = [each["alpha"] for each in whole.cv_results_["params"][:4]]
    search = made(kind, Gated(folder=str(tmp_path), waits=order[2]))
    said = f"{type(search).__name__}.fit was interrupted: 4 of 8 fits had ended, and cv_results_ and best_params_ are "
    said += "those of 2 candidates of 4; to go on with the others, type: "

    def in_the_third() -> bool:
        waiting, ranks = len(list(tmp_path.glob("waits-*"))), on_pair.engines.board.ranks  # type: ignore[union-attr]
        return waiting == (1 if n_jobs == 1 else 2) and bool((ranks["iteration"] >= 2).all())

    with (
        joblib.parallel_config("xpulab", n_jobs=n_jobs),
        pressed_when(in_the_third),
        pytest.raises(CallInterrupted, match=said),
    ):
        search.fit(X, Y)
    assert not on_pair.engines.board.requests  # type: ignore[union-attr]
    assert [each["alpha"] for each in search.cv_results_["params"]] == order[:2]
    name = "mean_test_r2" if kind == "random" else "mean_test_score"
    assert_allclose(search.cv_results_[name], whole.cv_results_[name][:2], rtol=1e-12)
    assert search.best_params_["alpha"] in order[:2]
    assert not hasattr(search, "best_estimator_")
    kept = xpulab.interrupted()
    for file in tmp_path.glob("waits-*"):
        file.unlink()
    with pressed_when(in_the_third), pytest.raises(CallInterrupted, match=said):  # once more
        kept.resume()
    (tmp_path / "open").touch()
    kept = xpulab.interrupted()
    assert kept.search is search
    assert kept.resume() is search
    assert on_pair.interrupted is None
    assert search.best_params_ == whole.best_params_
    assert_allclose(search.cv_results_[name], whole.cv_results_[name], rtol=1e-12)
    assert_allclose(search.predict(X), whole.predict(X), rtol=1e-12)
    fits = [os.path.basename(file).split("-")[1] for file in tmp_path.glob("fit-*")]
    assert fits.count(f"{order[0]:g}") >= 2
    assert len(fits) == len(whole.cv_results_["params"]) * 2 + 1  # each fold of each round once, and the refit


def test_before_the_first_end_nothing_is_kept(on_pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    said = r"joblib\.Parallel was interrupted: 0 of 2 jobs had ended; "
    with (
        joblib.parallel_config("xpulab"),
        pressed_when(lambda: len(list(tmp_path.glob("[01]"))) == 2),
        pytest.raises(CallInterrupted, match=said),
    ):
        joblib.Parallel()(joblib.delayed(meet)(number, tmp_path, 3) for number in range(2))
    with joblib.parallel_config("xpulab"):
        assert joblib.Parallel()(joblib.delayed(abs)(number) for number in (-1, 2)) == [1, 2]
