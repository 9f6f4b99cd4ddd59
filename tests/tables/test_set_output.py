"""`set_output` for handles: tables on the engines, with the names that the columns of data frames have."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn.decomposition
import sklearn.preprocessing
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn import config_context
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from waiting import until

import xpulab
from xpulab.cluster import KMeans
from xpulab.decomposition import PCA, TruncatedSVD
from xpulab.preprocessing import MaxAbsScaler, OneHotEncoder, StandardScaler
from xpulab.tables import ShardedTable

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]

N = 203
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)) * [1, 2, 3]
FRAME = pd.DataFrame({"distance": X[:, 0], "delay": X[:, 1], "carrier": RNG.choice(["UA", "AA", "DL"], N)})


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_column_transformers_and_pipelines_make_named_tables(
    current: xpulab.XPUCluster, written: list[int], received: list[int], library: Any
) -> None:
    def model(encode: Any, scale: Any, reduce: Any) -> Any:
        columns = make_column_transformer(
            (encode(sparse_output=False), ["carrier"]),
            (
                make_pipeline(scale(), FunctionTransformer(np.tanh, feature_names_out="one-to-one")),
                ["delay", "distance"],
            ),
        )
        return make_pipeline(columns, reduce(2)).set_output(transform=library)

    theirs = model(sklearn.preprocessing.OneHotEncoder, sklearn.preprocessing.StandardScaler, sklearn.decomposition.PCA)
    ours, table = model(OneHotEncoder, StandardScaler, PCA), current.scatter(FRAME)
    frame = pl.DataFrame(FRAME) if library == "polars" else FRAME
    right, middle = theirs.fit_transform(frame), theirs[:-1].transform(frame)
    del written[:], received[:]
    found: Any = ours.fit_transform(table)
    between: Any = ours[:-1].transform(table)
    part = between[["pipeline__delay", "onehotencoder__carrier_UA"]]
    assert (sum(written), sum(received)) == (0, 0)
    assert all(isinstance(each, ShardedTable) for each in (found, between))
    assert (found.columns, between.columns) == (list(right.columns), list(middle.columns))
    assert list(ours[-1].feature_names_in_) == between.columns
    assert set(between.dtypes.values()) == {"float64"}
    assert_allclose(found.gather(), right.to_numpy(), atol=1e-10)
    assert_allclose(part.gather(), middle[["pipeline__delay", "onehotencoder__carrier_UA"]], atol=1e-12)
    assert isinstance(ours.transform(frame), pl.DataFrame if library == "polars" else pd.DataFrame)  # as ever


@pytest.mark.parametrize("kind", ["KMeans", "PCA", "StandardScaler", "TruncatedSVD"])
def test_names_of_arrays_and_the_setting_of_all_estimators(current: xpulab.XPUCluster, kind: str) -> None:
    ours: dict[str, Any] = {
        "KMeans": KMeans(3, random_state=0),
        "PCA": PCA(2),
        "StandardScaler": StandardScaler(),
        "TruncatedSVD": TruncatedSVD(2),
    }
    handle = current.scatter(X.astype(np.float32))
    plain: Any = ours[kind].fit(handle).transform(handle)
    assert plain.columns is None  # as an array, in scikit-learn, has no names
    with config_context(transform_output="pandas"):
        right = ours[kind].transform(X)
        for found in (ours[kind].transform(handle), ours[kind].fit_transform(handle)):
            assert found.columns == list(right.columns)
            assert (found.dtype, found.counts) == (np.float32, handle.counts)
            assert_allclose(abs(found.gather()), abs(right), rtol=1e-3, atol=1e-4)
    assert handle.columns is None


def test_rows_live_as_long_as_the_table_and_others_see_its_names(current: xpulab.XPUCluster) -> None:
    before = set(current.handles())  # of other tests

    def handles() -> dict[str, Any]:
        return {name: each for name, each in current.handles().items() if name not in before}

    handle = current.scatter(FRAME[["distance", "delay"]])
    until(lambda: len(handles()) == 1)
    table: Any = StandardScaler().set_output(transform="pandas").fit_transform(handle)
    gc.collect()
    until(lambda: len(handles()) == 2)
    assert [each.columns for each in handles().values()] == [["distance", "delay"]] * 2
    assert_allclose(table.gather(), table[["distance", "delay"]].gather())
    assert table.origin.estimator.n_features_in_ == 2
    del table
    gc.collect()
    until(lambda: len(handles()) == 1)
    same: Any = FunctionTransformer(feature_names_out="one-to-one").set_output(transform="pandas").fit_transform(handle)
    assert same is handle  # its columns have these names
    table = StandardScaler().set_output(transform="polars").fit_transform(handle)
    table.discard()
    until(lambda: len(handles()) == 1)


def test_a_cache_of_a_pipeline(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    handle = current.scatter(X)
    found = []
    for _ in range(2):
        model = make_pipeline(StandardScaler(), PCA(2), KMeans(2, random_state=0), memory=str(tmp_path))
        model.set_output(transform="pandas").fit(handle)
        assert list(model[-1].feature_names_in_) == ["pca0", "pca1"]
        found.append(model[-1].cluster_centers_)
    np.testing.assert_array_equal(*found)


def test_sparse_results_have_no_names(current: xpulab.XPUCluster) -> None:
    stored = current.scatter(sparse.random(50, 4, 0.3, "csr", random_state=0))
    scaler = MaxAbsScaler().set_output(transform="pandas")
    with pytest.raises(ValueError, match=r"set_output\(transform='pandas'\) was given, and the rows .* are sparse: "):
        scaler.fit_transform(stored)
    assert scaler.set_output(transform="default").transform(stored).shape == (50, 4)
