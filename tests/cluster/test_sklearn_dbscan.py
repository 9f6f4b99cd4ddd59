"""scikit-learn's tests and checks of DBSCAN on two engines, and copies, pickles and a stopped fit."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.cluster
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from strikes import pressed_when
from suites import run_suite

import xpulab
from xpulab.cluster import DBSCAN

pytestmark = pytest.mark.cluster

#: Parts of the names of tests of input that this estimator rejects with an error, so that the tests cannot pass.
REFUSED = ["sparse", "precomputed", "csr", "callable", "similarity"]
CANNOT = {
    "test_dbscan_balltree": "it also fits precomputed distances, which are refused",
    "test_weighted_dbscan": "it also fits precomputed distances, which are refused",
    "test_pickle": "the class that counts calls of fit cannot be pickled; copies are tested below",
}
LEAST_CALLING = 8
X = np.random.default_rng(0).normal(size=(30_000, 3))


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    """All tests pass except those that cannot, and enough of them call our fit."""
    only = " and ".join(f"not {part}" for part in REFUSED)
    run_suite(
        tmp_path, pair, ["sklearn.cluster.tests.test_dbscan"], ["xpulab.cluster:DBSCAN"], LEAST_CALLING, CANNOT, only
    )


_checks = parametrize_with_checks([DBSCAN()])


# The list of checks in scikit-learn 1.7 has a generator, and pytest warns about it.
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(on_pair: xpulab.XPUCluster, estimator: Any, check: Any) -> None:
    check(estimator)


def test_clones_pickles_and_plain_estimators(on_pair: xpulab.XPUCluster) -> None:
    with pytest.raises(sklearn.exceptions.NotFittedError):
        DBSCAN().to_sklearn()
    fitted = DBSCAN(eps=0.2).fit(X[:3000])
    assert not hasattr(clone(fitted), "labels_")
    plain = fitted.to_sklearn()
    assert type(plain) is sklearn.cluster.DBSCAN
    assert not hasattr(plain, "report_")
    for other in (plain, pickle.loads(pickle.dumps(fitted)), pickle.loads(pickle.dumps(plain))):
        np.testing.assert_array_equal(other.labels_, fitted.labels_)
        np.testing.assert_array_equal(other.components_, fitted.components_)
    assert fitted.get_params() == sklearn.cluster.DBSCAN(eps=0.2).get_params()


def wait_in_a_pass(task: Any, waiting: str) -> None:
    """On an engine: let the next look for a request to stop, inside of a pass, wait until there is one."""
    from xpulab.engine.engine import Task

    look = Task.leave_if_cancelled

    def wait(self: Any) -> None:
        Task.leave_if_cancelled = look  # type: ignore[method-assign]
        Path(waiting).touch()
        until = time.monotonic() + 120
        while not self.cancelled():
            assert time.monotonic() < until
            time.sleep(0.01)
        look(self)

    Task.leave_if_cancelled = wait  # type: ignore[method-assign]


def test_a_fit_that_is_stopped_inside_of_a_pass_leaves_the_engines_ready(
    losable: xpulab.XPUCluster, tmp_path: Path
) -> None:
    expected, ours = DBSCAN(eps=0.15).fit(X).labels_, DBSCAN(eps=0.15)
    assert expected.max() > 1
    losable.run(wait_in_a_pass, str(tmp_path / "waits"))
    with (
        pressed_when(tmp_path / "waits"),
        pytest.raises(KeyboardInterrupt, match=r"DBSCAN\.fit was interrupted; nothing was fitted"),
    ):
        ours.fit(X)
    assert not hasattr(ours, "labels_")
    np.testing.assert_array_equal(ours.fit_predict(X), expected)
