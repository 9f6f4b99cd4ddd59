"""scikit-learn's callbacks get every iteration of every run, in order, while the engines compute."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

import xpulab
from xpulab.cluster import KMeans

callback = pytest.importorskip("sklearn.callback", reason="scikit-learn before 1.9 has no callbacks")
pytestmark = pytest.mark.cluster


class Recorder:
    """Records every hook that is called, with its place in the tree of tasks."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.fitted: Any = None

    def setup(self, estimator: Any, context: Any) -> None:
        self.seen.append(("setup", context.max_subtasks))

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        self.seen.append(("begin", context.task_name, context.task_id))

    def on_fit_task_end(self, estimator: Any, context: Any, *, X: Any, fitted_estimator: Any) -> None:
        self.seen.append(("end", context.task_name, context.task_id))
        self.fitted = fitted_estimator

    def teardown(self, estimator: Any, context: Any) -> None:
        self.seen.append(("teardown",))


@pytest.fixture(autouse=True)
def on_the_pair(pair: xpulab.XPUCluster) -> None:
    pair.activate()


def expected(iterations: list[int]) -> list[tuple[Any, ...]]:
    """Return the hooks of a fit whose runs had these numbers of iterations."""
    runs: list[tuple[Any, ...]] = []
    for run, n in enumerate(iterations):
        each = [(what, "iteration", i) for i in range(n) for what in ("begin", "end")]
        runs += [("begin", "init", run), *each, ("end", "init", run)]
    return [("setup", len(iterations)), ("begin", "fit", 0), *runs, ("end", "fit", 0), ("teardown",)]


def iterations_of(km: KMeans) -> list[int]:
    last: dict[int, int] = {}
    for iteration in km.report_.iterations:
        last[iteration.init] = iteration.number
    return list(last.values())


@pytest.mark.parametrize("n_init", [1, 3])
def test_every_iteration_of_every_run_in_order(n_init: int) -> None:
    X = np.random.RandomState(0).normal(size=(500, 3))
    recorder = Recorder()
    km = KMeans(5, n_init=n_init, random_state=0).set_callbacks(recorder).fit(X)
    assert recorder.seen == expected(iterations_of(km))
    assert len(iterations_of(km)) == n_init
    np.testing.assert_array_equal(recorder.fitted.cluster_centers_, km.cluster_centers_)
    np.testing.assert_array_equal(recorder.fitted.predict(X), km.labels_)


def test_told_while_the_engines_compute() -> None:
    X = np.random.RandomState(0).normal(size=(200_000, 14)).astype(np.float32)

    class Watching(Recorder):
        running = 0

        def on_fit_task_end(self, estimator: Any, context: Any) -> None:  # type: ignore[override]
            super().on_fit_task_end(estimator, context, X=None, fitted_estimator=None)
            self.running += context.task_name == "iteration" and not hasattr(estimator, "labels_")

    watching = Watching()
    km = KMeans(100, init=X[:100], n_init=1, max_iter=300, tol=0).set_callbacks(watching).fit(X)
    assert watching.running
    assert watching.seen == expected([km.n_iter_])


def test_the_progress_bar_of_scikit_learn(capsys: pytest.CaptureFixture[str]) -> None:
    X = np.random.RandomState(0).normal(size=(500, 3))
    KMeans(5, random_state=0).set_callbacks(callback.ProgressBar()).fit(X)
    assert "KMeans" in capsys.readouterr().out


def test_an_error_in_a_callback_ends_the_fit_and_leaves_the_cluster_usable(pair: xpulab.XPUCluster) -> None:
    X = np.random.RandomState(0).normal(size=(200_000, 14)).astype(np.float32)

    class Failing(Recorder):
        def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
            super().on_fit_task_begin(estimator, context)
            if context.task_name == "iteration":
                raise LookupError("a callback of mine")

    failing, before = Failing(), threading.active_count()
    km = KMeans(100, init=X[:100], n_init=1, max_iter=3000, tol=0).set_callbacks(failing)
    with pytest.raises(LookupError, match="of mine"):
        km.fit(X)
    assert failing.seen[-1] == ("teardown",)
    assert all(engine.state == "idle" for engine in pair.status().engines)
    assert len(KMeans(3, random_state=0).fit(X[:99]).labels_) == 99
    assert threading.active_count() <= before


def test_a_search_hands_its_callback_on() -> None:
    class Everywhere(Recorder):
        max_propagation_depth = None

    X = np.random.RandomState(0).normal(size=(60, 3))
    everywhere, of_the_search = Everywhere(), Recorder()
    search = GridSearchCV(KMeans(n_init=2, random_state=0), {"n_clusters": [2, 3]}, cv=2)
    search.set_callbacks(everywhere, of_the_search).fit(X)
    fits = 2 * 2 + 1
    assert everywhere.seen.count(("begin", "init", 1)) == fits
    assert everywhere.seen.count(("begin", "iteration", 0)) == 2 * fits
    assert ("begin", "init", 0) not in of_the_search.seen
    assert [what for what, *_ in everywhere.seen].count("setup") == 1


def test_without_callbacks_no_context_is_left() -> None:
    X = np.random.RandomState(0).normal(size=(50, 3))
    km = KMeans(3).set_callbacks(Recorder()).fit(X)
    assert not hasattr(km, "_callback_fit_ctx")
    assert not hasattr(km.set_callbacks().fit(X), "_skl_callbacks")
