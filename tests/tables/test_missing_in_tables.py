"""Rows that were sent with missing values: estimators refuse only what has some, and say where it is."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import sparse

import xpulab
from xpulab.cluster import KMeans
from xpulab.linear_model import LinearRegression, LogisticRegression
from xpulab.model_selection import train_test_split
from xpulab.preprocessing import StandardScaler

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]

N, MISSING = 203, [150, 7, 202]
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"distance": RNG.normal(size=N), "delay": RNG.normal(size=N), "late": RNG.random(N) > 0.5})
FRAME.loc[MISSING, "distance"] = np.nan


@pytest.fixture
def table(current: xpulab.XPUCluster) -> Any:
    return current.scatter(FRAME, allow_nan=True)


def test_columns_and_rows_without_missing_values_are_taken(table: Any, written: list[int]) -> None:
    del written[:]
    fitted = LinearRegression().fit(table[["delay"]], table["late"])
    assert_allclose(fitted.coef_, LinearRegression().fit(FRAME[["delay"]].to_numpy(), FRAME["late"]).coef_, rtol=1e-9)
    train, _ = train_test_split(table, random_state=0)
    assert LogisticRegression().fit(train[["delay"]], train["late"]).classes_.tolist() == [False, True]
    there = table[np.flatnonzero(FRAME["distance"].notna())]
    assert KMeans(2, random_state=0).fit(there[["distance", "delay"]]).n_features_in_ == 2


def test_what_has_missing_values_says_where(table: Any) -> None:
    instead = re.escape(
        "Fill in missing values with xpulab.impute.SimpleImputer, or choose rows and columns without them."
    )
    place = rf"the first such row is row 7, column 'distance'\. {instead}"
    for _ in range(2):  # it is asked again: nothing was noted
        with pytest.raises(ValueError, match=rf"Input X contains null, NaN or infinity; {place}"):
            KMeans(2).fit(table[["delay", "distance"]])
        with pytest.raises(ValueError, match=rf"Input y contains null, NaN or infinity; {place}"):
            LinearRegression().fit(table[["delay"]], table["distance"])
    scaled = StandardScaler().fit_transform(table[["delay", "distance"]])
    with pytest.raises(ValueError, match=rf"Input X contains NaN or infinity; the first such row is row 7\. {instead}"):
        KMeans(2).fit(scaled)


@pytest.mark.parametrize("stored", [False, True])
def test_rows_that_might_have_had_some_are_looked_through_once(current: xpulab.XPUCluster, stored: bool) -> None:
    X = RNG.normal(size=(N, 3)) * (RNG.random((N, 3)) > 0.5)
    handle = current.scatter(sparse.csr_matrix(X) if stored else X, allow_nan=True)
    asked: list[str] = []
    call = handle.cluster.tasks.exchange

    def noting(name: str, *arguments: Any) -> Any:
        asked.append(name)
        return call(name, *arguments)

    vars(handle.cluster.tasks)["exchange"] = noting
    try:
        for _ in range(2):
            KMeans(2, random_state=0).fit(handle)
    finally:
        del vars(handle.cluster.tasks)["exchange"]
    assert asked.count("require_finite") == 1
    assert not handle.nan
    X[7, 1] = np.nan
    with pytest.raises(ValueError, match=r"Input X contains NaN or infinity; the first such row is row 7\. Fill in"):
        KMeans(2).fit(current.scatter(sparse.csr_matrix(X) if stored else X, allow_nan=True))
