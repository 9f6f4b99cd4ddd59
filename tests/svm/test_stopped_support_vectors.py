"""A support vector machine goes on from its last iteration after Stop, or after the loss of an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from strikes import die_on_rank_1, meetings, pressed_when, strike, wait_for_stop

import xpulab
from xpulab.svm import LinearSVC, LinearSVR

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 10)) * np.geomspace(0.5, 3, 10)
CLASSES = (X @ RNG.normal(size=(10, 3)) + 2 * RNG.gumbel(size=(3000, 3))).argmax(axis=1)
TARGETS = X @ RNG.normal(size=10) + RNG.standard_t(2, 3000)

every_machine = pytest.mark.parametrize(
    ("model", "y"),
    [(LinearSVC(loss="hinge"), CLASSES), (LinearSVC(), CLASSES), (LinearSVR(), TARGETS)],
    ids=["hinge", "squared_hinge", "epsilon_insensitive"],
)


@every_machine
def test_a_stopped_fit_goes_on_as_if_it_had_not_been(
    losable: xpulab.XPUCluster, tmp_path: Path, model: Any, y: np.ndarray
) -> None:
    losable.run(strike)
    expected = clone(model).fit(X, y)
    whole = int(losable.run(meetings)[0])
    losable.run(strike, 1, wait_for_stop, str(tmp_path / "waits"), iterations=4)
    stopped = clone(model)
    with pressed_when(tmp_path / "waits"), pytest.raises(KeyboardInterrupt, match=r"iteration \d+ of 1000; to go on"):
        stopped.fit(X, y)
    done = stopped.n_iter_
    assert 0 < done < expected.n_iter_
    assert stopped.predict(X).shape == (3000,)
    losable.run(strike)
    stopped.resume()
    assert int(losable.run(meetings)[0]) < whole - done  # the evaluations of the state are not repeated
    np.testing.assert_array_equal(stopped.coef_, expected.coef_)
    np.testing.assert_array_equal(stopped.intercept_, expected.intercept_)
    assert stopped.n_iter_ == expected.n_iter_
    assert [each.number for each in stopped.report_.iterations] == list(range(done + 1, expected.n_iter_ + 1))


@every_machine
def test_a_fit_goes_on_with_new_engines(losable: xpulab.XPUCluster, tmp_path: Path, model: Any, y: np.ndarray) -> None:
    expected = clone(model).fit(X, y)
    losable.run(strike, 1, die_on_rank_1, pause=0.02, kept=str(tmp_path / "kept"))
    found = clone(model).fit(X, y)
    assert any("the fit went on from iteration" in note for note in found.report_.notes)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-9, atol=1e-12)
    assert found.n_iter_ == expected.n_iter_
