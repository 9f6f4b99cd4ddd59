"""A fit of a mixture goes on from its last iteration after Stop, in any of its runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from strikes import pressed_when, strike, wait_for_stop

import xpulab
from xpulab.exceptions import CallInterrupted
from xpulab.mixture import GaussianMixture

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 4)) * RNG.integers(1, 4, size=(3000, 1)) + RNG.integers(0, 3, size=(3000, 1))
PARAMETERS: dict[str, Any] = {"n_components": 3, "random_state": 0, "tol": 0.0, "max_iter": 8, "n_init": 2}


@pytest.fixture
def stopped(losable: xpulab.XPUCluster, tmp_path: Path) -> Callable[[int], GaussianMixture]:
    """A function that returns an estimator whose fit was stopped after so many iterations of all runs."""

    def stop(iterations: int) -> GaussianMixture:
        losable.run(strike, 1, wait_for_stop, str(tmp_path / "waits"), iterations=iterations)
        model = GaussianMixture(**PARAMETERS)
        with (
            pressed_when(tmp_path / "waits"),
            pytest.raises(KeyboardInterrupt, match=r"interrupted in iteration \d of 8, run \d of 2; to go on"),
        ):
            model.fit(X)
        return model

    return stop


@pytest.mark.parametrize(("iterations", "run"), [(3, 1), (11, 2)])
def test_a_stopped_fit_goes_on_as_if_it_had_not_been(
    stopped: Callable[[int], GaussianMixture], iterations: int, run: int
) -> None:
    expected, model = GaussianMixture(**PARAMETERS).fit(X), stopped(iterations)
    assert model.report_.iterations[-1].init == run
    assert model.predict(X).shape == (3000,)
    model.resume()
    np.testing.assert_array_equal(model.means_, expected.means_)
    assert model.lower_bounds_ == expected.lower_bounds_


def test_a_fit_that_is_resumed_and_interrupted_before_its_next_iteration_can_still_go_on(
    stopped: Callable[[int], GaussianMixture], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(_: int) -> Any:
        raise KeyboardInterrupt

    expected = GaussianMixture(**PARAMETERS).fit(X)
    model = stopped(3)
    with monkeypatch.context() as patch:
        patch.setattr("xpulab.sharing.checkpoint.Checkpoint.create", pressed)
        with pytest.raises(KeyboardInterrupt, match=r"interrupted in iteration \d of 8, run \d of 2; to go on"):
            model.resume()
    assert xpulab.interrupted() is model
    np.testing.assert_array_equal(model.resume().means_, expected.means_)


def test_a_resumed_fit_that_ends_as_the_interrupt_comes_is_forgotten(
    stopped: Callable[[int], GaussianMixture], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = xpulab.XPUCluster.call

    def pressed_late(*args: Any, **kwargs: Any) -> Any:
        raise CallInterrupted("", call(*args, **kwargs))

    expected = GaussianMixture(**PARAMETERS).fit(X)
    model = stopped(3)
    with monkeypatch.context() as patch:
        patch.setattr(xpulab.XPUCluster, "call", pressed_late)
        with pytest.raises(KeyboardInterrupt, match="had ended when the interrupt came: the estimator is fitted"):
            model.resume()
    np.testing.assert_array_equal(model.means_, expected.means_)
    with pytest.raises(NotFittedError, match="no interrupted fit to go on with"):
        model.resume()
