"""Stop, lost engines and new engines while scikit-learn's classes compute on the engines."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from sklearn.cluster import KMeans

import xpulab
from xpulab.acceleration import active
from xpulab.exceptions import EngineLostError

NOISE = np.random.RandomState(0).normal(size=(100_000, 14))


def press(cluster: xpulab.XPUCluster) -> None:
    until = time.monotonic() + 30
    while cluster.status().engines[0].iteration < 2 and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def test_a_stopped_fit_goes_on_in_the_same_object(on_pair: xpulab.XPUCluster) -> None:
    km = KMeans(64, init=NOISE[:64], n_init=1, max_iter=200, tol=0)
    with xpulab.accel(least=0):
        KMeans(64, init=NOISE[:64], n_init=1, max_iter=1).fit(NOISE)  # compiles; the board then shows one iteration
        thread = threading.Timer(0.2, press, (on_pair,))
        thread.start()
        with pytest.raises(KeyboardInterrupt, match="interrupted in iteration"):
            km.fit(NOISE)
        thread.join()
        assert type(km) is KMeans
        assert km.cluster_centers_.shape == (64, 14)
        assert xpulab.interrupted().resume() is km
        assert km.n_iter_ == 200
        whole = KMeans(64, init=NOISE[:64], n_init=1, max_iter=200, tol=0).fit(NOISE)
    np.testing.assert_allclose(km.cluster_centers_, whole.cluster_centers_)
    assert "resume" not in vars(km)


def test_new_engines_keep_accel_on_and_the_loss_of_all_ends_it() -> None:
    theirs = KMeans.fit
    others = xpulab.deploy.cluster._clusters.copy()
    xpulab.deploy.cluster._clusters.clear()
    try:
        with xpulab.XPUCluster(1) as cluster:
            acceleration = xpulab.accel(least=0)
            os.kill(cluster.facts[0]["pid"], signal.SIGKILL)
            km = KMeans(2, random_state=0, n_init=1).fit(NOISE[:1000])
            assert active() is acceleration
            cluster.restart()
            assert active() is acceleration
            assert km.predict(NOISE[:1000]).tolist() == km.labels_.tolist()
            assert [entry.engines for entry in acceleration.log.since(0).entries] == [1, 1]
            cluster.recover = False
            os.kill(cluster.facts[0]["pid"], signal.SIGKILL)
            with pytest.raises(EngineLostError):
                km.fit(NOISE[:1000])
            assert active() is None
            assert KMeans.fit is theirs
    finally:
        xpulab.deploy.cluster._clusters.extend(others)
