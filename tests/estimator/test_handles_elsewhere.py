"""A handle that is passed where scikit-learn or NumPy needs an array raises an error that says what to pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.model_selection
import sklearn.preprocessing
from sklearn.metrics import silhouette_score
from sklearn.pipeline import make_pipeline

import xpulab
from xpulab.cluster import KMeans

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    "use",
    [
        np.asarray,
        np.mean,
        lambda rows: rows[3],
        lambda rows: silhouette_score(rows, np.arange(len(rows)) % 2),
        lambda rows: sklearn.preprocessing.StandardScaler().fit(rows),
        lambda rows: make_pipeline(sklearn.preprocessing.StandardScaler(), KMeans(2)).fit(rows),
    ],
    ids=[
        "asarray", "mean", "a row", "silhouette_score", "a scaler", "a pipeline",
    ],
)  # fmt: skip
def test_the_error_says_what_to_pass(pair: xpulab.XPUCluster, use: Callable[[Any], Any]) -> None:
    rows = pair.activate().scatter(np.random.default_rng(0).normal(size=(40, 3)))
    with pytest.raises(TypeError, match=r"ShardedArray\(shape=\(40, 3\), .* was given.*pass X\.gather\(\)"):
        use(rows)
    assert KMeans(2, n_init=1).fit(rows).cluster_centers_.shape == (2, 3)
