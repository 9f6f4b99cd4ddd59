"""A descent goes on from its last iteration after Stop, or after the loss of an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from strikes import die_on_rank_1, pressed_when, strike, wait_for_stop

import xpulab
from xpulab.linear_model import SGDClassifier, SGDRegressor

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 1408)) * np.geomspace(3, 0.5, 1408)  # of few columns, rank 0 fits the rows of all
CLASSES = (X @ RNG.normal(size=(1408, 3)) + 2 * RNG.gumbel(size=(3000, 3))).argmax(axis=1)
TARGETS = X @ RNG.normal(size=1408) + RNG.standard_t(2, 3000)

every_model = pytest.mark.parametrize(
    ("model", "y"),
    [
        (SGDClassifier(random_state=0, max_iter=30, tol=None), CLASSES),
        (SGDRegressor(random_state=0, max_iter=30, tol=None, average=True), TARGETS),
    ],
    ids=["classes", "averages"],
)


@every_model
def test_a_stopped_fit_goes_on_as_if_it_had_not_been(
    losable: xpulab.XPUCluster, tmp_path: Path, model: Any, y: np.ndarray
) -> None:
    losable.run(strike)
    expected = clone(model).fit(X, y)
    losable.run(strike, 1, wait_for_stop, str(tmp_path / "waits"), iterations=4)
    stopped = clone(model)
    with pressed_when(tmp_path / "waits"), pytest.raises(KeyboardInterrupt, match=r"iteration \d+ of 30.*to go on"):
        stopped.fit(X, y)
    done = stopped.n_iter_
    assert 0 < done < expected.n_iter_
    assert stopped.predict(X).shape == (3000,)
    losable.run(strike)
    stopped.resume()
    np.testing.assert_array_equal(stopped.coef_, expected.coef_)
    np.testing.assert_array_equal(stopped.intercept_, expected.intercept_)
    assert (stopped.n_iter_, stopped.t_) == (expected.n_iter_, expected.t_)
    assert stopped.report_.iterations[0].number == done + 1


@every_model
def test_a_fit_goes_on_with_new_engines(losable: xpulab.XPUCluster, tmp_path: Path, model: Any, y: np.ndarray) -> None:
    model = clone(model).set_params(max_iter=4)
    expected = clone(model).fit(X, y)
    losable.run(strike, 1, die_on_rank_1, pause=0.002, kept=str(tmp_path / "kept"))
    found = clone(model).fit(X, y)
    assert any("the fit went on from iteration" in note for note in found.report_.notes)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-9, atol=1e-12)
    assert found.n_iter_ == expected.n_iter_


def test_few_rows_are_fitted_by_rank_0_and_go_on(on_pair: xpulab.XPUCluster) -> None:
    """No step of theirs is a meeting of the ranks, and the other ranks stop with rank 0."""
    rows, ranks = X[:, :5].copy(), on_pair.engines.board.ranks  # type: ignore[union-attr]
    endless = SGDRegressor(random_state=0, max_iter=1_000_000, tol=None)
    has_begun = lambda: bool(ranks["task"].any() and ranks["iteration"].max() >= 3)  # noqa: E731
    with pressed_when(has_begun), pytest.raises(KeyboardInterrupt, match="to go on"):
        endless.fit(rows, TARGETS)
    done = endless.n_iter_
    assert 3 <= done < 1_000_000
    straight = SGDRegressor(random_state=0, max_iter=done, tol=None).fit(rows, TARGETS)
    np.testing.assert_array_equal(endless.coef_, straight.coef_)
    assert endless.predict(rows).shape == (3000,)
