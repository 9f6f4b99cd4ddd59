"""A small sample of `python -m tests.faults`, and faults that need a certain moment."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from sklearn.exceptions import NotFittedError
from strikes import strike
from trials import Bench
from waiting import until

import xpulab
from xpulab.cluster import KMeans
from xpulab.data import Outgoing
from xpulab.deploy import cluster as registry
from xpulab.deploy.watch.silence import Signs, Silence, _device_times
from xpulab.exceptions import EngineLostError
from xpulab.sharing.checkpoint import Checkpoint

pytestmark = pytest.mark.flaky(reruns=1)
cluster_test = pytest.mark.cluster
X = np.random.default_rng(1).normal(size=(10_000, 8)).astype(np.float32)
PARAMETERS = {"n_clusters": 60, "random_state": 0, "tol": 0, "max_iter": 30, "n_init": 2, "init": "random"}


def test_the_latest_state_is_read_and_one_too_large_is_passed_over() -> None:
    with Checkpoint.create(1000) as mine, Checkpoint.open(mine.path) as theirs:
        assert mine.read() is None
        for iteration in range(5):
            theirs.write({"iteration": iteration, "centers": np.full(20, iteration, np.float32)})
            state = mine.read()
            assert state is not None
            assert state["iteration"] == iteration
            assert (state["centers"] == iteration).all()
        theirs.write({"iteration": 5, "centers": np.zeros(1000)})
        state = mine.read()
        assert state is not None
        assert state["iteration"] == 4


def test_a_writer_that_ends_in_the_middle_leaves_the_state_before() -> None:
    with Checkpoint.create(1000) as mine:
        mine.write({"iteration": 1})
        mine.write({"iteration": 2})
        mine._slots[1] = 255  # the slot of the third state is half written
        assert mine.read() == {"iteration": 2}


@pytest.mark.parametrize("sleeping", [False, True])
def test_one_silent_engine_is_stuck_and_engines_that_are_all_silent_are_asleep(sleeping: bool) -> None:
    silence = Silence(3.0)
    beats = np.zeros(3)
    found = []
    for now in np.arange(0, 6, 0.5):
        beats += [0 if sleeping else 1, 0, 0 if sleeping else 1]
        found.append(silence.stuck(beats, now))
    assert found == [[]] * 12 if sleeping else found == [[]] * 7 + [[1]] * 5
    beats += [1, 0, 0]
    assert silence.stuck(beats, 6.0) == ([] if sleeping else [1])  # the others wake a moment later
    assert silence.stuck(beats + np.array([0, 0, 1]), 6.5) == ([] if sleeping else [1])


def test_an_engine_that_does_not_wake_with_the_others_is_stuck() -> None:
    silence = Silence(3.0)
    beats = np.zeros(2)
    for now in np.arange(0, 20, 0.5):
        assert silence.stuck(beats, now) == []
    woken = []
    for now in np.arange(20, 25, 0.5):
        beats += [0, 1]
        woken.append(silence.stuck(beats, now))
    assert woken[0] == []
    assert woken[-1] == [0]


def test_all_that_sleep_too_long_are_stuck() -> None:
    silence = Silence(3.0)
    found = [silence.stuck(np.zeros(2), now) for now in np.arange(0, 40, 0.5)]
    assert found[60] == []
    assert found[61] == [0, 1]


def test_the_only_engine_is_stuck_after_the_same_time_as_one_of_several() -> None:
    silence = Silence(3.0)
    found = [silence.stuck(np.zeros(1), now) for now in np.arange(0, 5, 0.5)]
    assert found == [[]] * 7 + [[0]] * 3
    silence = Silence(3.0)
    assert [silence.stuck(np.zeros(1), now) for now in (0.0, 3600.0, 3601.0)] == [[]] * 3  # this process slept, too


def test_a_users_code_gets_ten_times_as_long_to_stand_still() -> None:
    silence = Silence(3.0, users=True)
    beats = np.zeros(2)
    found = []
    for now in np.arange(0, 40, 0.5):
        beats += [1, 0]
        found.append(silence.stuck(beats, now))
    assert found[60] == []
    assert found[61] == [1]


def next_look(signs: Signs, beats: np.ndarray) -> np.ndarray:
    """Return the signs after processes were looked at once more."""
    read = signs.read
    until(lambda: signs(beats) is not None and signs.read > read)
    return signs(beats)


@pytest.mark.slow
def test_a_process_that_computes_is_alive_and_one_that_sleeps_is_not() -> None:
    computing = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    sleeps = "import time; print('sleeps', flush=True); time.sleep(60)"
    sleeping = subprocess.Popen([sys.executable, "-c", sleeps], stdout=subprocess.PIPE, text=True)
    try:
        assert sleeping.stdout is not None
        assert sleeping.stdout.readline() == "sleeps\n"
        signs = Signs([computing.pid, sleeping.pid, 2**22 - 1], 1.0)
        beats = np.zeros(3)
        first = next_look(signs, beats)
        until(lambda: signs(beats)[0] != first[0])
        second = signs(beats)
        assert (second != first).tolist() == [True, False, False]
        assert (signs(beats + 1) != second).all()  # a heartbeat is enough
    finally:
        for process in (computing, sleeping):
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_a_process_that_gets_a_part_of_a_core_is_heard_of() -> None:
    """The process computes for 20 ms of every 80 ms."""
    code = (
        "import time\nwhile True:\n    began = time.process_time()\n"
        "    while time.process_time() - began < 0.02: pass\n    time.sleep(0.06)"
    )
    slow = subprocess.Popen([sys.executable, "-c", code])
    try:
        signs, beats = Signs([slow.pid], 300.0), np.zeros(1)
        first = next_look(signs, beats)
        until(lambda: signs(beats) != first)
        os.kill(slow.pid, signal.SIGSTOP)
        until(lambda: psutil.Process(slow.pid).status() == psutil.STATUS_STOPPED)
        stopped = next_look(signs, beats)
        for _ in range(3):
            assert next_look(signs, beats) == stopped
    finally:
        slow.kill()
        slow.wait()


def test_the_time_on_a_gpu_is_what_the_kernel_has_counted(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    for name in ("fd", "fdinfo"):
        (folder / name).mkdir(parents=True)
    for number, (target, counts) in enumerate(
        [
            ("/dev/dri/renderD128", "pos:\t0\ndrm-driver:\ti915\ndrm-engine-compute:\t5000 ns\n"),
            ("/dev/dri/renderD129", "drm-driver:\txe\ndrm-cycles-rcs:\t7\ndrm-total-cycles-rcs:\t900\n"),
            ("/dev/null", "drm-engine-compute:\t1000000 ns\n"),
        ]
    ):
        (folder / "fd" / str(number)).symlink_to(target)
        (folder / "fdinfo" / str(number)).write_text(counts)
    (folder / "fd" / "9").symlink_to("/dev/dri/renderD128")  # closed in the meantime
    assert sorted(_device_times(7, tmp_path)) == [7, 5000]


@cluster_test
def test_an_engine_that_holds_pythons_lock_is_alive_while_it_computes() -> None:
    with xpulab.XPUCluster(1, silence=0.4) as cluster:
        pid = cluster.facts[0].pid
        assert cluster.run(lambda task: sum(range(2 * 10**7)) > 0) == [True]
        cluster.run(_compile_for_seconds)
        KMeans(3, random_state=0).fit(X[:1000])
        assert cluster.facts[0].pid == pid


def _compile_for_seconds(task: Any) -> None:
    """On an engine: before the driver finishes the next kernel, compute in one call that keeps Python's lock."""
    tasks = type(task.task)
    check = tasks.leave_if_cancelled

    def build(task: Any) -> None:
        check(task)
        tasks.leave_if_cancelled = check
        sum(range(2 * 10**7))

    tasks.leave_if_cancelled = build


def test_time_that_this_process_slept_does_not_count() -> None:
    silence = Silence(3.0)
    assert silence.stuck(np.zeros(2), 0.0) == []
    assert silence.stuck(np.array([1.0, 0.0]), 3600.0) == []


@contextlib.contextmanager
def during(cluster: xpulab.XPUCluster, iteration: int, act: Callable[[], object], seconds: float = 0) -> Iterator[None]:
    """Call a function after the fit of the block has reached an iteration, and has run for this number of seconds.

    The engines that run take longer for each iteration than they need, so that the fit does not end before. New engines
    do not. The function is not called if the fit does not get there in two minutes.
    """
    cluster.run(strike, pause=0.02)

    def wait() -> None:
        assert cluster.engines.board is not None
        rank = cluster.engines.board.ranks[0]
        until = time.monotonic() + 120
        # An idle rank shows the iterations of the previous fit.
        while not rank["task"] or rank["iteration"] < iteration or rank["total"] < seconds:
            if time.monotonic() > until:
                return
            time.sleep(0.005)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    thread.join()
    if cluster.running:
        cluster.run(lambda task: vars(task.engine).pop("end_of_strike", int)())


@pytest.fixture(scope="module")
def often_lost() -> Iterator[xpulab.XPUCluster]:
    with xpulab.XPUCluster(2, silence=2.0) as cluster:
        yield cluster


@pytest.fixture
def running(often_lost: xpulab.XPUCluster) -> xpulab.XPUCluster:
    """A cluster of 2 engines, as the active cluster. A test may lose its engines."""
    registry.clusters.running[:] = [cluster for cluster in registry.clusters.running if cluster is not often_lost]
    if often_lost.running:
        registry.clusters.running.append(often_lost)
    often_lost.recover = True
    return often_lost.start()


@pytest.fixture(scope="module")
def right(often_lost: xpulab.XPUCluster) -> KMeans:
    return KMeans(**PARAMETERS).fit(X)


def assert_same(ours: KMeans, right: KMeans) -> None:
    np.testing.assert_allclose(ours.cluster_centers_, right.cluster_centers_, rtol=1e-4, atol=1e-5)
    assert (ours.labels_ != right.labels_).mean() < 1e-3
    assert ours.inertia_ == pytest.approx(right.inertia_, rel=1e-6)


def require_one_went_on(running: xpulab.XPUCluster, estimators: list[KMeans], right: KMeans) -> None:
    """Check that rank 1 was lost, and that one of these fits, in which this was, went on with the engines that run."""
    notes = []
    for estimator in estimators:
        assert_same(estimator, right)
        notes += [note for note in estimator.report_.notes if "started new engines" in note]
        numbers = [(iteration.init, iteration.number) for iteration in estimator.report_.iterations]
        assert numbers == sorted(set(numbers))
        assert {engine.pid for engine in estimator.report_.engines} == {fact.pid for fact in running.facts}
    assert all("rank 1" in note for note in notes)
    assert len([note for note in notes if "went on from iteration" in note]) == 1, notes


# A fit keeps a state every 50 ms, and the first iteration begins some time after the start.
LATER: dict[str, Any] = {"iteration": 10, "seconds": 0.15}


@cluster_test
def test_a_fit_outlives_its_engines(running: xpulab.XPUCluster, right: KMeans) -> None:
    """One of them stands still for longer than it may."""
    with during(running, act=lambda: os.kill(running.facts[1].pid, signal.SIGSTOP), **LATER):
        estimator = KMeans(**PARAMETERS).fit(X)
    require_one_went_on(running, [estimator], right)


@cluster_test
def test_calls_of_several_threads_outlive_their_engines(running: xpulab.XPUCluster, right: KMeans) -> None:
    """One of them is killed while one thread fits, and the others wait."""
    lost = running.facts[1].pid
    with during(running, act=lambda: os.kill(lost, signal.SIGKILL), **LATER), ThreadPoolExecutor(3) as pool:
        fits = [pool.submit(lambda: KMeans(**PARAMETERS).fit(X)) for _ in range(3)]
        require_one_went_on(running, [fit.result(timeout=120) for fit in fits], right)


@cluster_test
def test_without_recovery_a_lost_engine_is_an_error_and_a_restart_works(running: xpulab.XPUCluster) -> None:
    running.recover = False
    pid = running.facts[0].pid
    with (
        during(running, 5, lambda: os.kill(pid, signal.SIGKILL)),
        pytest.raises(EngineLostError, match=r"type: %xpu_cluster start") as error,
    ):
        KMeans(**PARAMETERS).fit(X)
    assert f"rank 0 (pid {pid} on " in error.value.reason
    assert "killed by signal: 9 (killed)" in error.value.reason
    running.restart()
    assert KMeans(2, max_iter=2).fit(X).n_iter_ <= 2


@cluster_test
def test_engines_that_all_sleep_go_on(running: xpulab.XPUCluster, right: KMeans) -> None:
    pids = [fact.pid for fact in running.facts]

    def sleep() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(3.5)  # longer than the silence that one alone may keep
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    with during(running, 10, sleep):
        estimator = KMeans(**PARAMETERS).fit(X)
    assert_same(estimator, right)
    assert [fact.pid for fact in running.facts] == pids


@cluster_test
def test_an_interrupted_fit_resumes(running: xpulab.XPUCluster, right: KMeans) -> None:
    estimator = KMeans(**PARAMETERS)
    with pytest.raises(NotFittedError, match="no interrupted fit"):
        estimator.resume()
    with (
        during(running, 10, lambda: os.kill(os.getpid(), signal.SIGINT)),
        pytest.raises(KeyboardInterrupt, match=r"in iteration \d+ of \d+.*; to go on, type: .*\.resume\(\)"),
    ):
        estimator.fit(X)
    stopped_at = estimator.n_iter_
    assert estimator.report_.status == "interrupted"
    resumed = estimator.resume()
    assert resumed is estimator
    assert_same(estimator, right)
    assert estimator.report_.iterations[0].number == stopped_at + 1


@cluster_test
def test_resume_uses_the_arguments_of_the_fit_and_survives_a_second_stop(
    running: xpulab.XPUCluster, right: KMeans, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = KMeans(**PARAMETERS)
    with during(running, 10, lambda: os.kill(os.getpid(), signal.SIGINT)), pytest.raises(KeyboardInterrupt):
        estimator.fit(X)
    estimator.set_params(n_clusters=3, max_iter=1, tol=1.0)

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Outgoing, "send_rows", stop)  # before the rows are sent
        with pytest.raises(KeyboardInterrupt):
            estimator.resume()
    assert_same(estimator.resume(), right)
    with pytest.raises(NotFittedError, match="no interrupted fit"):
        estimator.resume()


@cluster_test
def test_a_sample_of_the_trials() -> None:
    sample = [("interrupt", "gather"), ("interrupt", "iteration"), ("kill", "iteration")]
    bench, chance = Bench(phases=[phase for _, phase in sample]), random.Random(3)
    try:
        trials = [bench.trial(fault, phase, chance) for fault, phase in sample]
    finally:
        bench.close()
    assert not [trial for trial in trials if trial.wrong]
