"""Models that are saved, and used without a cluster and without xpulab."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.cluster
import sklearn.linear_model
import sklearn.preprocessing
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import xpulab
from xpulab.basic_statistics import BasicStatistics
from xpulab.cluster import KMeans
from xpulab.decomposition import PCA
from xpulab.exceptions import NoClusterError
from xpulab.linear_model import IncrementalRidge, Ridge
from xpulab.preprocessing import StandardScaler

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("pair")]

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(RNG.normal(size=(200, 4)), columns=list("abcd"))
Y = TABLE["a"] * 2 + RNG.normal(size=200)

_ELSEWHERE = """
import pickle, sys
for X, expected, model in pickle.load(open(sys.argv[1], "rb")):
    model = pickle.loads(model)
    assert abs(model.predict(X) - expected).max() < 1e-9, model
    assert "xpulab" not in sys.modules, model
"""


@pytest.fixture(autouse=True)
def active(pair: xpulab.XPUCluster) -> None:
    pair.activate()


def test_models_without_a_cluster(tmp_path: Path) -> None:
    models: list[Any] = [
        make_pipeline(StandardScaler(), PCA(2), KMeans(3, random_state=0, n_init=1)),
        make_pipeline(ColumnTransformer([("scaled", StandardScaler(), ["a", "b"])], remainder="passthrough"), Ridge()),
        GridSearchCV(make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": [0.1, 1.0]}, cv=2),
        IncrementalRidge(),
    ]
    saved = []
    for model in models:
        X = TABLE.to_numpy() if isinstance(model, IncrementalRidge) else TABLE
        model.fit(X, Y)
        plain = xpulab.to_sklearn(model)
        assert not any("xpulab" in name for name in [type(plain).__module__, repr(plain)])
        saved.append((X, model.predict(X), pickle.dumps(plain)))
    (tmp_path / "models").write_bytes(pickle.dumps(saved))
    run = subprocess.run([sys.executable, "-c", _ELSEWHERE, tmp_path / "models"], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_what_was_not_fitted_keeps_its_parameters() -> None:
    plain = xpulab.to_sklearn({"a": Ridge(alpha=3.0), "b": [KMeans(5)]})
    assert type(plain["a"]) is sklearn.linear_model.Ridge
    assert plain["a"].alpha == 3.0
    assert type(plain["b"][0]) is sklearn.cluster.KMeans
    with pytest.raises(NotFittedError):
        plain["a"].predict(TABLE)
    with pytest.raises(TypeError, match="scikit-learn has no BasicStatistics"):
        xpulab.to_sklearn([BasicStatistics()])


def test_without_a_cluster_a_fitted_model_says_what_to_type(request: pytest.FixtureRequest) -> None:
    scaler, km = StandardScaler().fit(TABLE), KMeans(3, n_init=1).fit(TABLE)
    request.getfixturevalue("no_cluster")
    for method in (scaler.transform, scaler.inverse_transform, km.predict, km.transform, km.score):
        with pytest.raises(NoClusterError, match=r"no cluster is running; type: .*\n.*xpulab\.to_sklearn\(model\)"):
            method(TABLE.to_numpy())
    with pytest.raises(NoClusterError, match="no cluster is running") as error:
        StandardScaler().fit(TABLE)
    assert "to_sklearn" not in str(error.value)
    assert type(xpulab.to_sklearn(scaler)) is sklearn.preprocessing.StandardScaler
