"""A logistic regression goes on from its last iteration after Stop, or after the loss of an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constants import constants
from strikes import die_on_rank_1, leave_alone, meetings, pressed_when, strike, wait_for_stop

import xpulab
from xpulab.linear_model import LogisticRegression, LogisticRegressionCV

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 10)) * np.geomspace(0.5, 3, 10)
Y = (X @ RNG.normal(size=(10, 3)) + 2 * RNG.gumbel(size=(3000, 3))).argmax(axis=1)


@pytest.fixture
def stop(losable: xpulab.XPUCluster, tmp_path: Path) -> Callable[..., Any]:
    """A function that fits a model, and presses Stop after so many iterations."""

    def stop(model: Any, iterations: int, message: str, act: Callable[[str], None] = wait_for_stop) -> None:
        losable.run(strike, 1, act, str(tmp_path / "waits"), iterations=iterations)
        with pressed_when(tmp_path / "waits"), pytest.raises(KeyboardInterrupt, match=message):
            model.fit(X, Y)
        assert model.report_.status == "interrupted"

    return stop


def meetings_of(cluster: xpulab.XPUCluster, call: Callable[..., Any], *arguments: Any) -> int:
    """Return the number of meetings of the ranks in a call."""
    cluster.run(strike)
    call(*arguments)
    return int(cluster.run(meetings)[0])


@pytest.mark.filterwarnings("ignore:'penalty' was deprecated:FutureWarning")
@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "newton-cholesky", "saga"])
def test_a_stopped_fit_goes_on_as_if_it_had_not_been(
    losable: xpulab.XPUCluster, stop: Callable[..., Any], solver: str
) -> None:
    how = {"penalty": "elasticnet", "l1_ratio": 0.5, "tol": 1e-9} if solver == "saga" else {}
    expected = LogisticRegression(solver=solver, **how)
    whole = meetings_of(losable, expected.fit, X, Y)
    model = LogisticRegression(solver=solver, **how)
    stop(model, 4, r"interrupted in iteration \d+ of 100; to go on, type: .*resume")
    done = model.n_iter_[0]
    assert 0 < done < expected.n_iter_[0]
    assert model.predict_proba(X).shape == (3000, 3)
    assert meetings_of(losable, model.resume) < whole - 2 * done  # the evaluations of the state are not repeated
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    assert model.n_iter_ == expected.n_iter_
    assert [each.number for each in model.report_.iterations] == list(range(done + 1, expected.n_iter_[0] + 1))


def test_a_stop_of_ranks_at_different_points_keeps_the_state(stop: Callable[..., Any]) -> None:
    """The fit is younger than the time between two checkpoints."""
    expected, model = LogisticRegression().fit(X, Y), LogisticRegression()
    stop(model, 4, "interrupted in iteration", leave_alone)
    np.testing.assert_array_equal(model.resume().coef_, expected.coef_)


def test_a_stop_before_the_first_iteration(stop: Callable[..., Any]) -> None:
    model = LogisticRegression()
    stop(model, 0, "before an iteration had ended; nothing was fitted: call it again")
    assert not hasattr(model, "coef_")
    assert model.fit(X, Y).report_.status == "finished"


def test_newton_s_method_goes_on_with_new_engines(losable: xpulab.XPUCluster, tmp_path: Path) -> None:
    expected = LogisticRegression(solver="newton-cholesky").fit(X, Y)
    losable.run(strike, 1, die_on_rank_1, pause=0.02, kept=str(tmp_path / "kept"))
    model = LogisticRegression(solver="newton-cholesky").fit(X, Y)
    assert any("the fit went on from iteration" in note for note in model.report_.notes)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-9)
    assert model.n_iter_ == expected.n_iter_
    assert model.report_.iterations[-1].number == expected.n_iter_[0]


def test_a_long_record_is_cut_off(losable: xpulab.XPUCluster, stop: Callable[..., Any]) -> None:
    """The state is then that of an earlier iteration. The fit goes on from it with the same result."""
    expected, model = LogisticRegression().fit(X, Y), LogisticRegression()
    with constants(losable, "xpulab.engine.algorithms.linear.objective", _MOST_KEPT=4000):
        stop(model, 8, "interrupted in iteration")
    assert model.n_iter_ < 8
    np.testing.assert_array_equal(model.resume().coef_, expected.coef_)


PATHS: dict[str, Any] = {"Cs": [0.01, 0.3, 3.0], "cv": 3, "scoring": "accuracy"}
QUIET = pytest.mark.filterwarnings("ignore:.*l1_ratios:FutureWarning", "ignore:The fitted attributes:FutureWarning")


@QUIET
def test_stopped_fits_of_folds_go_on(losable: xpulab.XPUCluster, stop: Callable[..., Any]) -> None:
    expected, model = LogisticRegressionCV(**PATHS), LogisticRegressionCV(**PATHS)
    whole = meetings_of(losable, expected.fit, X, Y)
    stop(model, 5, r"interrupted in iteration \d of 3, run [23] of 3; to go on, type: .*resume")
    assert not hasattr(model, "coef_")
    assert meetings_of(losable, model.resume) < 0.8 * whole
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    np.testing.assert_array_equal(model.n_iter_, expected.n_iter_)
    assert model.C_[0] == expected.C_[0]


@QUIET
def test_fits_of_folds_go_on_with_new_engines(losable: xpulab.XPUCluster, tmp_path: Path) -> None:
    expected = LogisticRegressionCV(**PATHS).fit(X, Y)
    losable.run(strike, 1, die_on_rank_1, iterations=2, pause=0.01, kept=str(tmp_path / "kept"))
    model = LogisticRegressionCV(**PATHS).fit(X, Y)
    assert any("the fit went on from iteration" in note for note in model.report_.notes)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-9)
    assert len(model.report_.iterations) == 9


@QUIET
def test_a_stop_while_this_process_scores(losable: xpulab.XPUCluster) -> None:
    """The fits of the folds are kept."""
    pressed: list[None] = []

    def scorer(model: Any, rows: Any, labels: Any) -> float:
        if len(pressed) == 4:
            pressed.append(None)
            raise KeyboardInterrupt
        pressed.append(None)
        return float(model.score(rows, labels))

    expected = LogisticRegressionCV(**PATHS).fit(X, Y)
    model = LogisticRegressionCV(**PATHS | {"scoring": scorer})
    with pytest.raises(KeyboardInterrupt, match=r"after the fits of all folds; to go on, type: .*resume"):
        model.fit(X, Y)
    done = len(pressed)
    losable.run(strike)
    interrupted: Any = xpulab.interrupted()
    assert interrupted is model
    model.resume()
    assert len(pressed) == done + 9
    np.testing.assert_array_equal(model.scores_[1], expected.scores_[1])
    np.testing.assert_array_equal(model.coef_, expected.coef_)
