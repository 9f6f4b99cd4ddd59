"""Stop, and the loss of an engine, in the middle of a call: every estimator goes on, or says what to do."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import exported, numbers_of, rows_for, targets_for, with_known
from numpy.testing import assert_allclose
from reports import require_report_of
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from strikes import die_on_rank_1, meetings, pressed_when, strike, wait_for_stop

import xpulab
from xpulab.cluster import KMeans
from xpulab.estimator.resumable import ResumableFit
from xpulab.exceptions import EngineLostError, HandleError
from xpulab.metrics import silhouette_score
from xpulab.preprocessing import StandardScaler

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]

RNG = np.random.default_rng(0)
X = np.rint(3 * RNG.normal(size=(5_000, 6)) * np.arange(1, 7))
LABELS = (X[:, 0] > X[:, 1]) + (X[:, 2] > 0).astype(int)
Y = X @ np.arange(6.0) + RNG.normal(size=len(X))
#: Parameters with which a fit repeats itself and is short, but has some iterations, for the classes that have them.
GIVEN = {
    "random_state": 0, "n_clusters": 20, "n_components": 2, "n_quantiles": 50, "eps": 9.0, "max_leaf_nodes": 8,
}  # fmt: skip
#: Methods of which the first that a class has shows whether it is fitted.
METHODS = ("predict_proba", "predict", "transform", "kneighbors")
#: When a fault reaches a fit that can be resumed: after some iterations, in each of which it has kept its state.
BETWEEN_ITERATIONS = {"iterations": 2, "pause": 0.06}
#: Those whose ranks meet at each of many steps, and only if there are many columns.
OF_STEPS = ("SGDClassifier", "SGDRegressor")

every = pytest.mark.parametrize("kind", exported(), ids=lambda kind: kind.__name__)


def made(kind: Any) -> Any:
    return with_known(kind, **GIVEN)


class Work:
    """What is done with the objects of a class: a fit, or `transform` if the fit sends nothing to the engines."""

    def __init__(self, kind: Any, cluster: xpulab.XPUCluster) -> None:
        self.kind, self.fits, self.X = kind, True, rows_for(kind, X)
        if kind.__name__ in OF_STEPS:
            self.X = np.hstack([X, np.zeros((len(X), 850))])
        self.y = LABELS if is_classifier(made(kind)) else targets_for(kind, Y)
        self.undisturbed, met = self.fitted(), 0
        for self.fits in (True, False):
            estimator = self.ready()
            cluster.run(strike)
            self.do(estimator)
            if met := cluster.run(meetings)[0]:
                break
        self.moment = 1 if issubclass(kind, ResumableFit) else max(1, int(0.6 * met))
        self.when = BETWEEN_ITERATIONS if issubclass(kind, ResumableFit) else {}
        if kind.__name__ in OF_STEPS:
            self.when = {"iterations": 2, "pause": 0.002}
        self.expected = self.facts(self.undisturbed)

    def fitted(self) -> Any:
        return made(self.kind).fit(self.X, self.y)

    def ready(self) -> Any:
        """Return an estimator for `do`."""
        return made(self.kind) if self.fits else self.fitted()

    def do(self, estimator: Any) -> None:
        if self.fits:
            estimator.fit(self.X, self.y)
        else:
            estimator.transform(self.X)

    def facts(self, estimator: Any) -> list[Any]:
        """Return the fitted numbers, and what a method computes."""
        found = list(numbers_of(estimator).values())
        if method := next((name for name in METHODS if hasattr(estimator, name)), ""):
            results = getattr(estimator, method)(self.X)
            found += results if isinstance(results, tuple) else [results]
        assert found
        return [each.toarray() if hasattr(each, "toarray") else each for each in found]

    def require_done(self, estimator: Any, rtol: float = 1e-7) -> None:
        """Check that the estimator equals one that nothing has disturbed."""
        for found, expected in zip(self.facts(estimator), self.expected, strict=True):
            assert_allclose(found, expected, rtol, 1e-9 * np.abs(expected).max(initial=1e-3))


@functools.cache
def work_of(kind: Any, cluster: xpulab.XPUCluster) -> Work:
    """Return the work of a class, which has been done once without a fault."""
    return Work(kind, cluster)


@pytest.fixture
def work(losable: xpulab.XPUCluster, kind: Any) -> Work:
    return work_of(kind, losable)


@every
def test_a_report_shows_what_the_estimator_has(work: Work, kind: Any) -> None:
    require_report_of(work.undisturbed)
    if issubclass(kind, ResumableFit):
        assert work.undisturbed.report_.reached is not None


@every
def test_stop_says_what_to_type_and_the_engines_go_on(
    losable: xpulab.XPUCluster, work: Work, kind: Any, tmp_path: Path
) -> None:
    pids, estimator = [fact.pid for fact in losable.facts], work.ready()
    losable.run(strike, work.moment, wait_for_stop, str(tmp_path / "waits"), **work.when)
    with pressed_when(tmp_path / "waits"), pytest.raises(KeyboardInterrupt) as raised:
        work.do(estimator)
    said = str(raised.value)
    if issubclass(kind, ResumableFit):
        assert "interrupted in iteration" in said
        assert "; to go on, type: import xpulab; model = xpulab.interrupted().resume()" in said
        assert estimator.report_.status == "interrupted"
        require_report_of(estimator)
        assert xpulab.interrupted() is estimator
        with pytest.raises(NotFittedError, match=r"has the .* and not the rows; to go on from them, type"):
            pickle.loads(pickle.dumps(estimator)).resume()
        # The fit that goes on has the parameters that it began with.
        known = estimator.get_params()
        estimator.set_params(**({"max_iter": 1} if "max_iter" in known else {"solver_options": {"maxiter": 1}}))
        assert estimator.resume() is estimator
        assert losable.interrupted is None
        with pytest.raises(NotFittedError, match="no interrupted fit to go on with"):
            estimator.resume()
    elif "had ended" not in said:
        assert said.endswith("; nothing was fitted: call it again" if work.fits else ": call it again")
        assert losable.last_report.status == "interrupted"
        work.do(estimator)
    work.require_done(estimator)
    assert [fact.pid for fact in losable.facts] == pids


@pytest.mark.fraction(24)  # each takes a start
@every
def test_a_lost_engine_costs_a_restart(losable: xpulab.XPUCluster, work: Work, kind: Any) -> None:
    pids, estimator = [fact.pid for fact in losable.facts], work.ready()
    losable.run(strike, work.moment, die_on_rank_1, **work.when)
    work.do(estimator)
    report = losable.last_report
    (note,) = [note for note in report.notes if "the cluster started new engines" in note]
    engines = max(engine.total for engine in report.engines)
    assert report.lost > 0 < report.restart
    assert report.lost + report.restart + report.sent + engines < report.seconds
    assert " to start new engines, " in str(report)
    assert ("the fit went on from iteration" in note) == issubclass(kind, ResumableFit)
    assert [fact.pid for fact in losable.facts] != pids
    work.require_done(estimator)
    work.require_done(work.undisturbed)  # also what the lost engines knew of it


def test_a_silhouette_goes_on_with_new_engines_and_ends_with_stop(losable: xpulab.XPUCluster, tmp_path: Path) -> None:
    few, labels = X[:3_000], (X[:3_000, 5] > 0).astype(int)
    expected = silhouette_score(few, labels)
    losable.run(strike, 2, die_on_rank_1)
    assert_allclose(silhouette_score(few, labels), expected)
    losable.run(strike, 2, wait_for_stop, str(tmp_path / "waits"))
    with pressed_when(tmp_path / "waits"), pytest.raises(KeyboardInterrupt):
        silhouette_score(few, labels)
    assert_allclose(silhouette_score(few, labels), expected)


def test_rows_of_a_handle_are_lost_with_the_engine(losable: xpulab.XPUCluster) -> None:
    rows = losable.scatter(X)
    losable.run(strike, 2, die_on_rank_1)
    with pytest.raises(EngineLostError):
        StandardScaler().fit(rows)
    losable.restart()
    with pytest.raises(HandleError, match="scatter"):
        StandardScaler().fit(rows)


def test_a_choice_of_the_first_centres_outlives_an_engine(losable: xpulab.XPUCluster) -> None:
    rows = RNG.normal(size=(20_000, 14))
    parameters = {"n_clusters": 60, "n_init": 1, "max_iter": 3, "tol": 0, "random_state": 0}
    expected = KMeans(**parameters).fit(rows)
    losable.run(strike, 61, die_on_rank_1)
    fitted = KMeans(**parameters).fit(rows)
    assert "the fit went on with its start" in "\n".join(fitted.report_.notes)
    np.testing.assert_array_equal(fitted.cluster_centers_, expected.cluster_centers_)
