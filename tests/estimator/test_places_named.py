"""NaN and infinity: the error names the row, and the column by its name, for rows, targets, labels and weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import xpulab
from xpulab.cluster import DBSCAN, KMeans, MiniBatchKMeans
from xpulab.decomposition import PCA
from xpulab.ensemble import RandomForestRegressor
from xpulab.linear_model import Lasso, LinearRegression, LogisticRegression
from xpulab.metrics import accuracy_score, r2_score, silhouette_score
from xpulab.neighbors import KNeighborsRegressor

pytestmark = pytest.mark.cluster

X = np.random.default_rng(0).normal(size=(40, 3))
BAD = X.copy()
BAD[7, 2] = np.nan
Y = X[:, 0].copy()
Y[11] = np.nan
NAMES = ["height", "width", "depth"]


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (lambda rows: pl.DataFrame(rows, schema=NAMES), "row 7, column 'depth'"),
        (
            lambda rows: pd.DataFrame(rows, columns=NAMES, index=[f"day {n}" for n in range(40)]),
            "row 7 (index 'day 7'), column 'depth'",
        ),
        (np.asarray, "row 7, column 2"),
    ],
    ids=["polars", "pandas", "NumPy"],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda rows, cluster: PCA(2).fit(rows),
        lambda rows, cluster: KMeans(2).fit(X).predict(rows),
        lambda rows, cluster: cluster.scatter(rows),
        lambda rows, cluster: silhouette_score(rows, np.arange(40) % 2),
    ],
    ids=["fit", "predict", "scatter", "metric"],
)
@pytest.mark.filterwarnings("ignore:X has feature names:UserWarning")
def test_the_place_in_rows_of_any_kind(
    on_pair: xpulab.XPUCluster, kind: Callable[[Any], Any], where: str, call: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match="contains NaN") as error:
        call(kind(BAD), on_pair)
    assert f"\nThe first such value is in {where}." in str(error.value)


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (np.asarray, "row 11"),
        (list, "row 11"),
        (lambda y: pd.Series(y, index=np.arange(40) + 100), "row 11 (index np.int64(111))"),
        (lambda y: pl.Series("y", y), "row 11"),
        (lambda y: pd.DataFrame({"price": y}), "row 11 (index 11), column 'price'"),
    ],
    ids=["NumPy", "list", "pandas", "polars", "frame"],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda y: LinearRegression().fit(X, y),
        lambda y: Lasso().fit(X, y),
        lambda y: RandomForestRegressor(2).fit(X, y),
        lambda y: KNeighborsRegressor().fit(X, y),
        lambda y: r2_score(y, X[:, 0]),
    ],
    ids=["LinearRegression", "Lasso", "forest", "neighbours", "r2_score"],
)
def test_the_row_in_targets_of_any_kind(
    on_pair: xpulab.XPUCluster, kind: Callable[[Any], Any], where: str, call: Callable[[Any], Any]
) -> None:
    with pytest.raises(ValueError, match="NaN") as error:
        call(kind(Y))
    said = str(error.value).replace("index 111)", "index np.int64(111))")  # NumPy 1
    assert said.endswith(f"The first such value is in {where}.")


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: LogisticRegression().fit(X, np.where(np.isnan(bad), np.nan, 1.0)),
        lambda bad: accuracy_score(np.where(np.isnan(bad), np.nan, 1.0), np.ones(40)),
        lambda bad: KMeans(2).fit(X, sample_weight=bad),
        lambda bad: DBSCAN().fit(X, sample_weight=bad),
        lambda bad: r2_score(X[:, 0], X[:, 0], sample_weight=bad),
        lambda bad: silhouette_score(X, bad),
    ],
    ids=["labels", "labels of a metric", "weights", "weights of DBSCAN", "weights of a metric", "labels of clusters"],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")  # of scikit-learn's check
def test_the_row_in_labels_and_weights(on_pair: xpulab.XPUCluster, call: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=r"NaN(.|\n)*The first such value is in row 11\.$"):
        call(Y)


@pytest.mark.parametrize("estimator", [KMeans, MiniBatchKMeans])
def test_the_place_in_centres_that_a_user_gives(on_pair: xpulab.XPUCluster, estimator: Any) -> None:
    with pytest.raises(ValueError, match=r"(?s)contains NaN.*row 2, column 2"):
        estimator(3, init=BAD[5:8], n_init=1).fit(X)
