"""SIGINT in the notebook's process ends the call on all ranks, and the cluster can be used again."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import assert_same_fit
from reports import require_report_of
from scipy.sparse import csr_matrix
from sklearn.cluster import KMeans as Reference
from sklearn.exceptions import NotFittedError
from strikes import meetings, pressed_when, strike, wait_for_stop

import xpulab
from xpulab.cluster import KMeans
from xpulab.data import Outgoing

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("current")]


#: k-means takes hundreds of iterations to converge for these rows.
FEW = np.random.RandomState(0).normal(size=(20_000, 14))
#: A fit of the few that takes long enough for an interrupt, because `interrupted_after` slows its iterations down.
LONG: dict[str, Any] = {"n_clusters": 100, "init": FEW[:100], "n_init": 1, "max_iter": 100, "tol": 0}


@functools.cache
def uninterrupted() -> KMeans:
    """Return the whole fit with these parameters."""
    return KMeans(**LONG).fit(FEW)


def assert_as_uninterrupted(resumed: KMeans) -> None:
    """Check that a fit has gone on to the end of the whole fit."""
    whole = uninterrupted()
    assert resumed.n_iter_ == whole.n_iter_ == 100
    np.testing.assert_allclose(resumed.cluster_centers_, whole.cluster_centers_, rtol=1e-9)
    np.testing.assert_allclose(resumed.inertia_, whole.inertia_, rtol=1e-10)
    assert (resumed.labels_ == whole.labels_).mean() > 0.9999


@contextmanager
def interrupted_when(iterations: int = 0, doing: bytes = b"") -> Iterator[Any]:
    """Press Ctrl-C after `iterations`, or while rank 0 is `doing` something, or while it runs a user's code.

    The block must then raise KeyboardInterrupt; after 10 s, the engines would be ended. Its iterations take longer than
    they need, so that none ends before the interrupt, and so that the cores are free for other tests.
    """
    cluster = xpulab.current_cluster()
    cluster.run(strike, pause=0.02)
    record = cluster.engines.board.ranks[0]  # type: ignore[union-attr]
    before = int(record["task"])

    def reached() -> bool:
        """Whether the block's task has come so far. Until it begins, the board shows an earlier task's iterations."""
        begun = record["task"] not in (0, before) and (iterations or doing or record["hears"])
        return bool(begun and record["iteration"] >= iterations and record["doing"].startswith(doing))

    try:
        with pytest.raises(KeyboardInterrupt) as raised, pressed_when(reached):
            yield raised
    finally:
        cluster.run(meetings)


def test_an_interrupted_fit_keeps_its_last_centres_and_the_next_is_right(current: xpulab.XPUCluster) -> None:
    X = FEW
    estimator = KMeans(100, init=X[:100], n_init=1, max_iter=1_000_000, tol=0)
    estimator.set_params(max_iter=3).fit(X)  # compiles
    descriptors = len(os.listdir("/proc/self/fd"))
    estimator.set_params(max_iter=1_000_000)
    for _ in range(rounds := 3):
        with interrupted_when(iterations=2):
            estimator.fit(X)
            pytest.fail("converged before the interrupt")
    assert estimator.report_.status == "interrupted"
    assert estimator.cluster_centers_.shape == (100, 14)
    assert np.isfinite(estimator.cluster_centers_).all()
    assert estimator.n_iter_ == len(estimator.report_.iterations) > 0
    require_report_of(estimator)
    same = KMeans(100, init=X[:100], n_init=1, max_iter=estimator.n_iter_, tol=0).fit(X)
    np.testing.assert_allclose(estimator.cluster_centers_, same.cluster_centers_, rtol=1e-9)
    assert (estimator.labels_ == estimator.predict(X)).all()
    small = X[:500]
    assert_same_fit(small, KMeans(5, init=X[:5], n_init=1).fit(small), Reference(5, init=X[:5], n_init=1).fit(small))
    # The interrupted fit may hold a block of shared memory, but each interrupt adds none.
    assert len(os.listdir("/proc/self/fd")) < descriptors + rounds
    assert all(engine.state == "idle" for engine in current.status().engines)


def test_an_interrupted_fit_goes_on_without_a_variable_that_holds_it(current: xpulab.XPUCluster) -> None:
    current.interrupted = None
    with pytest.raises(NotFittedError, match="no fit that could go on was interrupted"):
        xpulab.interrupted()
    with interrupted_when(iterations=2) as raised:
        KMeans(**LONG).fit(FEW)
        pytest.fail("ended before the interrupt")
    copy = pickle.loads(pickle.dumps(xpulab.interrupted()))
    assert copy.n_iter_ < 100
    with pytest.raises(
        NotFittedError, match=rf"in iteration {copy.n_iter_} of 100, .* has the centres and not the rows"
    ):
        copy.resume()
    said, shown = str(raised.value), raised.value._render_traceback_()
    assert shown == [f"KeyboardInterrupt: {said}"]  # no frame of a library
    assert said.startswith(f"KMeans.fit was interrupted in iteration {copy.n_iter_} of 100; to go on, type: ")
    assert str(current.status()).endswith(f"\n  {said}")
    xpulab.interrupted().set_params(max_iter=5)  # the fit goes on with its first parameters
    names: dict[str, Any] = {}
    to_go_on, to_have = said.partition("type: ")[2].split("; to have it as it is: ")
    exec(to_have, names)  # as the message says
    assert names["model"] is xpulab.interrupted()
    exec(to_go_on, names)
    km = names["model"]
    assert km.report_.parameters["max_iter"] == 100
    assert_as_uninterrupted(km)
    assert current.interrupted is None
    assert "was interrupted" not in str(current.status())


@pytest.mark.parametrize("rows", ["float64", "weighted float32", "CSR"])
def test_a_choice_of_the_first_centres_goes_on_where_it_was_stopped(
    current: xpulab.XPUCluster, tmp_path: Path, rows: str
) -> None:
    X = FEW.astype(np.float32) if "float32" in rows else csr_matrix(FEW) if rows == "CSR" else FEW
    weights = np.random.RandomState(1).uniform(0.5, 2, len(FEW)) if "weighted" in rows else None
    parameters = {"n_clusters": 60, "n_init": 1, "max_iter": 3, "tol": 0, "random_state": 0}
    expected = KMeans(**parameters).fit(X, sample_weight=weights)
    estimator, waits = KMeans(**parameters), tmp_path / "waits"
    current.run(strike, 61, wait_for_stop, str(waits), "first centre")  # there are two meetings for each centre
    with pressed_when(waits), pytest.raises(KeyboardInterrupt) as raised:
        estimator.fit(X, sample_weight=weights)
    current.run(meetings)
    n = len(estimator.cluster_centers_)
    assert 10 < n < 60
    said = f"KMeans.fit was interrupted when {n} of 60 first centres were chosen; to go on, type: "
    assert str(raised.value).startswith(said)
    assert (estimator.n_iter_, hasattr(estimator, "labels_")) == (0, False)
    assert estimator.inertia_ == pytest.approx(-estimator.score(X, sample_weight=weights), rel=1e-4)
    with pytest.raises(
        NotFittedError, match=f"was interrupted when {n} of 60 first centres were chosen, and this copy"
    ):
        pickle.loads(pickle.dumps(estimator)).resume()
    assert xpulab.interrupted().resume() is estimator
    assert estimator.n_iter_ == expected.n_iter_
    np.testing.assert_array_equal(estimator.cluster_centers_, expected.cluster_centers_)
    np.testing.assert_array_equal(estimator.labels_, expected.labels_)


def test_an_interrupt_at_the_beginning_of_a_later_run_keeps_the_earlier_runs(
    current: xpulab.XPUCluster, tmp_path: Path
) -> None:
    parameters = {"n_clusters": 30, "n_init": 2, "max_iter": 2, "random_state": 0}
    expected = KMeans(**parameters).fit(FEW)
    estimator, waits = KMeans(**parameters), tmp_path / "waits"
    # There are two meetings for each centre. After the two iterations of the first run, the tenth is in the choice.
    current.run(strike, 10, wait_for_stop, str(waits), "first centre", iterations=2)
    where = r"when \d of 30 first centres were chosen, run 2 of 2; to go on, type"
    with pressed_when(waits), pytest.raises(KeyboardInterrupt, match=where):
        estimator.fit(FEW)
    assert estimator.cluster_centers_.shape == (30, 14)
    assert estimator.n_iter_ == 2
    estimator.resume()
    assert estimator.n_iter_ == expected.n_iter_
    np.testing.assert_allclose(estimator.cluster_centers_, expected.cluster_centers_, rtol=1e-9)
    assert (estimator.labels_ == expected.labels_).mean() > 0.9999


def shared_blocks(current: xpulab.XPUCluster) -> int:
    """Count mappings of rows or results in this process and in the engines; the board has another name.

    Blocks that wait for the next call are not mapped anywhere.
    """
    maps = [Path(f"/proc/{pid}/maps") for pid in [os.getpid(), *(fact.pid for fact in current.facts)]]
    return sum(line.endswith("memfd:xpulab (deleted)") for path in maps for line in path.read_text().splitlines())


def test_shared_memory_is_gone_after_a_fit_however_it_ends(
    current: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = FEW
    gc.collect()
    before = shared_blocks(current)  # something else may still hold results, such as the traceback of another test
    fitted = KMeans(8, init=X[:8], n_init=1, max_iter=5).fit(X, sample_weight=np.ones(len(X)))
    assert shared_blocks(current) == before + 1  # the block of labels_
    del fitted
    with interrupted_when(iterations=2):
        KMeans(100, init=X[:100], n_init=1, max_iter=1_000_000, tol=0).fit(X)
    with monkeypatch.context() as patch:
        send_rows = Outgoing.send_rows
        patch.setattr(Outgoing, "send_rows", lambda *given: replace(send_rows(*given), bounds=[0]))
        with pytest.raises(xpulab.exceptions.EngineError):
            KMeans(8, init=X[:8], n_init=1).fit(X)
    current.interrupted = None  # the interrupted estimator has the labels of its last iteration
    gc.collect()
    assert shared_blocks(current) == before


def test_an_interrupted_start_of_kmeans_leaves_the_cluster_usable() -> None:
    X = FEW
    KMeans(3, random_state=0, max_iter=1).fit(X)
    with interrupted_when(doing=b"first centre"):
        KMeans(3000, random_state=0, max_iter=1).fit(X)
    assert KMeans(3, random_state=0).fit(X[:100]).labels_.shape == (100,)


@pytest.mark.parametrize("where", ["xpulab.sharing.checkpoint.Checkpoint.create", "xpulab.data.Outgoing.receive"])
def test_an_interrupt_before_there_is_room_for_the_labels(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(where, pressed)
        with pytest.raises(KeyboardInterrupt, match="interrupted before an iteration had ended"):
            KMeans(3).fit(FEW[:100])
    assert KMeans(3, random_state=0).fit(FEW[:100]).labels_.shape == (100,)


def test_a_users_function_can_be_interrupted(current: xpulab.XPUCluster) -> None:
    def sleep(task: Any) -> None:
        time.sleep(60)

    with interrupted_when():
        current.run(sleep)
    assert current.run(lambda task: task.comm.rank) == list(range(current.size))


def test_centres_are_kept_if_the_interrupt_comes_while_a_device_compiles(current: xpulab.XPUCluster) -> None:
    estimator = KMeans(**LONG)
    current.run(_leave_like_a_compilation)
    try:
        with interrupted_when(iterations=10) as raised:  # the state is kept every 50 ms, see `strike`
            estimator.fit(FEW)
    finally:
        current.run(_leave_as_usual)
    assert "resume" in str(raised.value)
    assert not hasattr(estimator, "labels_")
    n_iter = estimator.n_iter_
    assert n_iter > 0
    same = KMeans(**{**LONG, "max_iter": n_iter}).fit(FEW)
    np.testing.assert_allclose(estimator.cluster_centers_, same.cluster_centers_, rtol=1e-9)
    assert_as_uninterrupted(estimator.resume())


def _leave_like_a_compilation(task: Any) -> None:
    from xpulab.engine.algorithms.clustering import kmeans

    iterate = kmeans.iterate

    def leaving(problem: Any, *arguments: Any) -> Any:
        stop = problem.task.engine.board.cancelled(problem.task.number)
        problem.task.cancelled = lambda: False  # the interrupt comes too late for the iteration itself
        if stop and problem.comm.rank == problem.comm.size - 1:
            raise KeyboardInterrupt
        return iterate(problem, *arguments)

    vars(kmeans).update(usual=iterate, iterate=leaving)


def test_centres_are_kept_if_the_interrupt_comes_while_launch_shapes_are_measured(current: xpulab.XPUCluster) -> None:
    estimator = KMeans(**LONG)
    current.run(_measure_until_stopped)
    try:
        with interrupted_when(doing=b"measuring") as raised:
            estimator.fit(FEW)
    finally:
        current.run(_measure_as_usual)
    assert re.search(r"in iteration \d of 100; to go on", str(raised.value))
    assert_as_uninterrupted(estimator.resume())


def _measure_until_stopped(task: Any) -> None:
    """Let a fit measure launch shapes after its first iteration, until it is stopped."""

    from xpulab.engine.algorithms.clustering.problem import Problem
    from xpulab.engine.comm import Interrupted

    def computed(problem: Any, *_: Any) -> None:
        problem.may_tune = True

    def tune(problem: Any, centers: Any) -> None:
        problem.task.show(doing="measuring")
        while not any(problem.comm.allgather(problem.task.cancelled())):
            time.sleep(0.01)
        raise Interrupted

    task.engine.usual = vars(Problem)["computed"], vars(Problem)["tune"]
    for method in (computed, tune):
        setattr(Problem, method.__name__, method)


def _measure_as_usual(task: Any) -> None:
    from xpulab.engine.algorithms.clustering.problem import Problem

    Problem.computed, Problem.tune = task.engine.usual  # type: ignore[method-assign]


def _leave_as_usual(task: Any) -> None:
    from xpulab.engine.algorithms.clustering import kmeans

    vars(kmeans).update(iterate=vars(kmeans)["usual"])
