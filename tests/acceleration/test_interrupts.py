"""Stop, lost engines and new engines while scikit-learn's classes compute on the engines."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import KMeans
from strikes import pressed_when, strike, wait_for_stop

import xpulab
from xpulab.acceleration import active
from xpulab.exceptions import EngineLostError

NOISE = np.random.RandomState(0).normal(size=(5_000, 14))
K, ITERATIONS = 32, 30


def test_a_stopped_fit_goes_on_in_the_same_object(on_pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    waiting = tmp_path / "waiting"
    km = KMeans(K, init=NOISE[:K], n_init=1, max_iter=ITERATIONS, tol=0)
    with xpulab.accel(least=0):
        on_pair.run(strike, 1, wait_for_stop, str(waiting), iterations=2)
        with pytest.raises(KeyboardInterrupt, match="interrupted in iteration"), pressed_when(waiting):
            km.fit(NOISE)
        assert type(km) is KMeans
        assert km.cluster_centers_.shape == (K, 14)
        assert xpulab.interrupted().resume() is km
        assert km.n_iter_ == ITERATIONS
        whole = KMeans(K, init=NOISE[:K], n_init=1, max_iter=ITERATIONS, tol=0).fit(NOISE)
    np.testing.assert_allclose(km.cluster_centers_, whole.cluster_centers_)
    assert "resume" not in vars(km)


@pytest.mark.slow
def test_new_engines_keep_accel_on_and_the_loss_of_all_ends_it() -> None:
    theirs = KMeans.fit
    others = xpulab.deploy.cluster.clusters.running.copy()
    xpulab.deploy.cluster.clusters.running.clear()
    try:
        with xpulab.XPUCluster(1) as cluster:
            acceleration = xpulab.accel(least=0)
            os.kill(cluster.facts[0].pid, signal.SIGKILL)
            km = KMeans(2, random_state=0, n_init=1).fit(NOISE[:1000])
            assert active() is acceleration
            cluster.restart()
            assert active() is acceleration
            assert km.predict(NOISE[:1000]).tolist() == km.labels_.tolist()
            assert [entry.engines for entry in acceleration.log.since(0).entries] == [1, 1]
            cluster.recover = False
            os.kill(cluster.facts[0].pid, signal.SIGKILL)
            with pytest.raises(EngineLostError):
                km.fit(NOISE[:1000])
            assert active() is None
            assert KMeans.fit is theirs
    finally:
        xpulab.deploy.cluster.clusters.running.extend(others)
