"""A logistic regression goes on from its last iteration after an interrupt, or after the loss of an engine."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import xpulab
from xpulab.exceptions import EngineLostError
from xpulab.linear_model import LogisticRegression

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 10)) * np.geomspace(0.5, 3, 10)
Y = (X @ RNG.normal(size=(10, 3)) + 2 * RNG.gumbel(size=(3000, 3))).argmax(axis=1)


def at_evaluation(task: Any, number: int, dies: bool) -> None:
    """On an engine: at this evaluation of the next fit, rank 1 dies, or all ranks wait for the interrupt."""
    import os
    import signal
    import time

    from xpulab.engine.algorithms.linear.logistic import Problem

    sums, seen = Problem._sums, []

    def counting(self: Any, *asked: Any) -> Any:
        seen.append(asked)
        if len(seen) == number:
            Problem._sums = sums  # type: ignore[method-assign]
            if dies and self.comm.rank == 1:
                time.sleep(0.1)  # after rank 0 has kept a state
                os.kill(os.getpid(), signal.SIGKILL)
            until = time.monotonic() + 10
            while not dies and not self.task.cancelled():
                assert time.monotonic() < until
                time.sleep(0.01)
        return sums(self, *asked)

    Problem._sums = counting  # type: ignore[assignment, method-assign]


def evaluations(task: Any) -> int:
    """On an engine: return the number of evaluations since the last call of this function."""
    from xpulab.engine.algorithms.linear import logistic

    problem: Any = logistic.Problem
    if not hasattr(problem, "seen"):
        sums, problem.seen = problem._sums, []
        problem._sums = lambda self, *asked: (problem.seen.append(asked), sums(self, *asked))[1]
    count = len(problem.seen)
    problem.seen.clear()
    return count


def keep_at_once(task: Any) -> None:
    """On an engine: keep a state after each iteration."""
    from xpulab.engine.algorithms.linear import logistic

    logistic._KEEP = -1.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[xpulab.XPUCluster]:
    with xpulab.XPUCluster(2, silence=5.0) as cluster:
        yield cluster


@pytest.fixture
def running(cluster: xpulab.XPUCluster) -> xpulab.XPUCluster:
    """The active cluster; a test may lose its engines."""
    if not cluster.running:
        cluster.restart()
    return cluster.activate()


def interrupt(cluster: xpulab.XPUCluster, model: Any, evaluation: int, message: str) -> None:
    cluster.run(at_evaluation, evaluation, False)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt, match=message):
            model.fit(X, Y)
    finally:
        timer.join()
    assert model.report_.status == "interrupted"


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "newton-cholesky"])
def test_an_interrupted_fit_goes_on_as_if_it_had_not_been(running: xpulab.XPUCluster, solver: str) -> None:
    running.run(evaluations)
    expected = LogisticRegression(solver=solver).fit(X, Y)
    total = running.run(evaluations)[0]
    model = LogisticRegression(solver=solver)
    interrupt(running, model, 9, r"interrupted in iteration \d+; to go on, type: .*resume")
    done = model.n_iter_[0]
    assert 0 < done < expected.n_iter_[0]
    assert model.predict_proba(X).shape == (3000, 3)
    assert xpulab.interrupted() is model
    copy = pickle.loads(pickle.dumps(model))
    with pytest.raises(NotFittedError, match="has the coefficients and not the rows; to go on from them, type"):
        copy.resume()
    model.set_params(max_iter=1)  # the fit that goes on has the parameters that it began with
    running.run(evaluations)
    assert model.resume() is model
    assert running.run(evaluations)[0] <= total - done  # those of the state are not repeated
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    assert model.n_iter_ == expected.n_iter_
    assert [each.number for each in model.report_.iterations] == list(range(done + 1, expected.n_iter_[0] + 1))
    assert running.interrupted is None
    with pytest.raises(NotFittedError, match="no interrupted fit to go on with"):
        model.resume()


def test_an_interrupt_before_the_first_iteration(running: xpulab.XPUCluster) -> None:
    model = LogisticRegression()
    interrupt(running, model, 1, "before an iteration had ended; nothing was fitted: call it again")
    assert not hasattr(model, "coef_")
    assert model.fit(X, Y).report_.status == "finished"


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cholesky"])
def test_a_fit_that_loses_an_engine_goes_on_with_new_ones(running: xpulab.XPUCluster, solver: str) -> None:
    expected = LogisticRegression(solver=solver).fit(X, Y)
    running.run(keep_at_once)
    running.run(at_evaluation, 9, True)
    pids = [fact["pid"] for fact in running.facts]
    model = LogisticRegression(solver=solver).fit(X, Y)
    assert [fact["pid"] for fact in running.facts] != pids
    assert any("the fit went on from iteration" in note for note in model.report_.notes)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-9)
    assert model.n_iter_ == expected.n_iter_
    assert model.report_.iterations[-1].number == expected.n_iter_[0]


def test_rows_of_a_handle_are_lost_with_the_engine(running: xpulab.XPUCluster) -> None:
    rows = running.scatter(X)
    running.run(at_evaluation, 2, True)
    with pytest.raises(EngineLostError):
        LogisticRegression().fit(rows, Y)


def test_a_long_record_is_cut_off(running: xpulab.XPUCluster) -> None:
    """The state is then that of an earlier iteration. The fit goes on from it with the same result."""

    def shorten(task: Any, nbytes: int) -> None:
        from xpulab.engine.algorithms.linear import logistic

        logistic._MOST_KEPT = nbytes

    expected = LogisticRegression().fit(X, Y)
    running.run(shorten, 4000)
    try:
        model = LogisticRegression()
        interrupt(running, model, 12, "interrupted in iteration")
    finally:
        running.run(shorten, 4 << 20)
    assert model.n_iter_ < 8
    np.testing.assert_array_equal(model.resume().coef_, expected.coef_)
