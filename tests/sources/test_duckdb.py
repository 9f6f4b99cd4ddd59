"""DuckDB's relations, which are empty at a second iteration: `xpulab.scan` reads them once, for each pass of a fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xpulab
from xpulab.cluster import KMeans
from xpulab.linear_model import Ridge
from xpulab.preprocessing import StandardScaler

duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed; type: pip install -e '.[test-more]'")
pytestmark = pytest.mark.cluster

QUERY = "SELECT sqrt(i) AS a, i % 7 AS b, (i * 37 % 101) / 10.0 AS c FROM range(5000) AS rows(i)"


@pytest.fixture
def relation() -> Any:
    return duckdb.sql(QUERY)


@pytest.fixture
def X(relation: Any) -> np.ndarray:
    return np.column_stack(list(relation.fetchnumpy().values())).astype(float)


def test_a_relation_is_refused_with_what_to_type(on_pair: xpulab.XPUCluster, relation: Any) -> None:
    for use in (KMeans(4).fit, StandardScaler().fit, on_pair.scatter):
        with pytest.raises(TypeError, match=r"a DuckDBPyRelation was given, .*; pass xpulab\.scan\(X\)"):
            use(relation)


def test_fits_and_handles_have_all_rows_each_time(on_pair: xpulab.XPUCluster, X: np.ndarray) -> None:
    rows = xpulab.scan(duckdb.sql(QUERY))
    assert rows.columns == ["a", "b", "c"]
    for _ in range(2):
        np.testing.assert_allclose(StandardScaler().fit(rows).mean_, X.mean(axis=0))
        found = KMeans(4, random_state=0).fit(rows)
        np.testing.assert_allclose(found.cluster_centers_, KMeans(4, random_state=0).fit(X).cluster_centers_)
    slopes = Ridge().fit(rows[["a", "b"]], rows["c"]).coef_
    np.testing.assert_allclose(slopes, Ridge().fit(X[:, :2], X[:, 2]).coef_)
    np.testing.assert_array_equal(on_pair.scatter(rows).gather(), X)


def test_rows_that_do_not_fit_are_there_in_each_pass(on_pair: xpulab.XPUCluster, X: np.ndarray) -> None:
    expected = KMeans(4, init=X[:4], n_init=1).fit(X)
    on_pair.memory = 0
    try:
        found = KMeans(4, init=X[:4], n_init=1).fit(xpulab.scan(duckdb.sql(QUERY)))
    finally:
        on_pair.memory = None
    assert any("0 % of the rows were kept" in note for note in found.report_.notes)
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_)
    np.testing.assert_array_equal(found.labels_, expected.labels_)
