"""The log says once for each object why it stays in scikit-learn, and names the classes that xpulab does not have."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.dummy import DummyClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PowerTransformer, StandardScaler
from sklearn.svm import SVC

import xpulab

pytestmark = pytest.mark.cluster

X = np.random.default_rng(0).normal(size=(600, 4))
Y = (X[:, 0] > 0).astype(int)


def test_an_object_that_stays_says_why_once(on_pair: xpulab.XPUCluster, caplog: pytest.LogCaptureFixture) -> None:
    words = np.where(X > 0, "up", "down").astype(object)
    with xpulab.accel(least=0) as acceleration, caplog.at_level(logging.INFO, "xpulab.accel"):
        encoder = OneHotEncoder().fit(words)
        for _ in range(4):
            encoder.transform(words)
        OneHotEncoder().fit(words)  # another object
        fitted = StandardScaler().fit(X)
        copies = [pickle.loads(pickle.dumps(fitted)) for _ in range(2)]
        for copy in copies:
            copy.transform(X)
            copy.transform(X)
        NearestNeighbors(metric="canberra").fit(X).kneighbors(X)
        log = acceleration.log
    lines = str(log.since(0)).splitlines()[1:]
    assert [line.split(",")[0].strip() for line in lines] == [
        "OneHotEncoder.fit",
        "OneHotEncoder.fit",
        "StandardScaler.fit",
        "StandardScaler.transform",
        "StandardScaler.transform",
        "NearestNeighbors.fit",
    ]
    assert len(caplog.records) == len(lines)
    assert log.total == 13
    assert log.since(0).title == "accel: 13 calls of scikit-learn's names, 1 on the engines and 12 in scikit-learn"


def test_classes_that_xpulab_lacks_are_named_in_the_summaries(on_pair: xpulab.XPUCluster) -> None:
    with xpulab.accel(least=0) as acceleration:
        before = dict(acceleration.log.lacking)
        KMeans(2, n_init=1).fit(X)
        search = GridSearchCV(make_pipeline(PowerTransformer(), SVC()), {"svc__C": [1, 2]}, cv=2).fit(X, Y)
        search.predict(X)
        DummyClassifier().fit(X, Y)
        title, status = acceleration.log.since(0, before).title, acceleration.status()
        assert acceleration.log.since(acceleration.log.total, acceleration.log.lacking).lacking == []
    assert "on the engines" in title
    assert title.endswith("; xpulab has no DummyClassifier, PowerTransformer, SVC")
    assert status.lacking == ("DummyClassifier", "PowerTransformer", "SVC")
    assert str(status).splitlines()[0].endswith("; xpulab has no DummyClassifier, PowerTransformer, SVC")
    assert status.to_dict()["lacking"] == list(status.lacking)
