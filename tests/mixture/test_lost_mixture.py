"""A fit of a mixture goes on from its last iteration after an interrupt, or after the loss of an engine."""

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
from xpulab.exceptions import CallInterrupted, EngineLostError
from xpulab.mixture import GaussianMixture

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 4)) * RNG.integers(1, 4, size=(3000, 1)) + RNG.integers(0, 3, size=(3000, 1))
PARAMETERS: dict[str, Any] = {"n_components": 3, "random_state": 0, "tol": 0.0, "max_iter": 8, "n_init": 2}


def at_step(task: Any, number: int, dies: bool) -> None:
    """On an engine: at this step of the next fit, rank 1 dies, or all ranks wait for the interrupt."""
    import os
    import signal
    import time

    from xpulab.engine.algorithms import mixture

    step, seen = mixture.Problem.step, []
    mixture._KEEP = -1.0  # keep a state after each iteration

    def counting(self: Any, parameters: Any) -> Any:
        seen.append(parameters)
        if len(seen) == number:
            mixture.Problem.step = step  # type: ignore[method-assign]
            if dies and self.comm.rank == 1:
                time.sleep(0.1)  # after rank 0 has kept a state
                os.kill(os.getpid(), signal.SIGKILL)
            until = time.monotonic() + 10
            while not dies and not self.task.cancelled():
                assert time.monotonic() < until
                time.sleep(0.01)
        return step(self, parameters)

    mixture.Problem.step = counting  # type: ignore[method-assign]


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


def stopped(cluster: xpulab.XPUCluster, step: int) -> GaussianMixture:
    """Return an estimator whose fit was interrupted at this step."""
    model = GaussianMixture(**PARAMETERS)
    cluster.run(at_step, step, False)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt, match=rf"interrupted in iteration {(step - 1) % 8 + 1}; to go on, type"):
            model.fit(X)
    finally:
        timer.join()
    return model


@pytest.mark.parametrize("step", [3, 11])  # in the first run, and in the second
def test_an_interrupted_fit_goes_on_as_if_it_had_not_been(running: xpulab.XPUCluster, step: int) -> None:
    expected = GaussianMixture(**PARAMETERS).fit(X)
    model = stopped(running, step)
    assert model.report_.status == "interrupted"
    assert model.predict(X).shape == (3000,)
    assert xpulab.interrupted() is model
    with pytest.raises(NotFittedError, match="has the parameters and not the rows; to go on from them, type"):
        pickle.loads(pickle.dumps(model)).resume()
    model.set_params(max_iter=1)  # the fit that goes on has the parameters that it began with
    assert model.resume() is model
    np.testing.assert_array_equal(model.means_, expected.means_)
    assert model.lower_bounds_ == expected.lower_bounds_
    assert running.interrupted is None
    with pytest.raises(NotFittedError, match="no interrupted fit to go on with"):
        model.resume()


def test_a_fit_that_is_resumed_and_interrupted_before_its_next_iteration_can_still_go_on(
    running: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(_: int) -> Any:
        raise KeyboardInterrupt

    expected = GaussianMixture(**PARAMETERS).fit(X)
    model = stopped(running, 3)
    with monkeypatch.context() as patch:
        patch.setattr("xpulab.sharing.checkpoint.Checkpoint.create", pressed)
        with pytest.raises(KeyboardInterrupt, match="interrupted in iteration 3; to go on, type"):
            model.resume()
    assert xpulab.interrupted() is model
    np.testing.assert_array_equal(model.resume().means_, expected.means_)


def test_a_resumed_fit_that_ends_as_the_interrupt_comes_is_forgotten(
    running: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = xpulab.XPUCluster.call

    def pressed_late(*args: Any, **kwargs: Any) -> Any:
        raise CallInterrupted("", call(*args, **kwargs))

    expected = GaussianMixture(**PARAMETERS).fit(X)
    model = stopped(running, 3)
    with monkeypatch.context() as patch:
        patch.setattr(xpulab.XPUCluster, "call", pressed_late)
        with pytest.raises(KeyboardInterrupt, match="had ended when the interrupt came: the estimator is fitted"):
            model.resume()
    np.testing.assert_array_equal(model.means_, expected.means_)
    assert running.interrupted is None
    with pytest.raises(NotFittedError, match="no interrupted fit to go on with"):
        model.resume()


def test_a_fit_that_loses_an_engine_goes_on_with_new_ones(running: xpulab.XPUCluster) -> None:
    expected = GaussianMixture(**PARAMETERS).fit(X)
    running.run(at_step, 6, True)
    pids = [fact["pid"] for fact in running.facts]
    model = GaussianMixture(**PARAMETERS).fit(X)
    assert [fact["pid"] for fact in running.facts] != pids
    assert any("the fit went on from iteration" in note for note in model.report_.notes)
    np.testing.assert_allclose(model.means_, expected.means_, rtol=1e-9)
    np.testing.assert_allclose(model.lower_bounds_, expected.lower_bounds_, rtol=1e-9)
    assert model.report_.iterations[-1].number == 8


def test_rows_of_a_handle_are_lost_with_the_engine(running: xpulab.XPUCluster) -> None:
    rows = running.scatter(X)
    running.run(at_step, 2, True)
    with pytest.raises(EngineLostError):
        GaussianMixture(**PARAMETERS).fit(rows)
