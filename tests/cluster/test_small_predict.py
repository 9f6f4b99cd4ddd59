"""The notebook's process computes the labels of a few rows, which are equal to the engines' labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xpulab
from xpulab.cluster import KMeans
from xpulab.cluster import _small_predict as small_predict
from xpulab.report.profile import profiled


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 60),
    d=st.integers(1, 70),
    k=st.integers(1, 20),
    dtype=st.sampled_from([np.float32, np.float64]),
    offset=st.sampled_from([0.0, 1e4]),
)
def test_a_label_that_is_certain_is_the_nearest_of_all_by_more_than_any_rounding(
    seed: int, n: int, d: int, k: int, dtype: Any, offset: float
) -> None:
    rng = np.random.default_rng(seed)
    X, centers = (rng.normal(size=(rows, d)).astype(dtype) + dtype(offset) for rows in (n, k))
    labels = small_predict.certain_labels(X, centers)
    if labels is not None:
        exact = np.square(X[:, None].astype(np.longdouble) - centers).sum(axis=2)
        np.testing.assert_array_equal(labels, exact.argmin(axis=1))
        given_dtype = np.square(X[:, None] - centers).sum(axis=2, dtype=dtype)  # as an engine might compute it
        np.testing.assert_array_equal(labels, given_dtype.argmin(axis=1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_between_two_centres_and_centres_that_coincide_are_not_certain(dtype: Any) -> None:
    centers = np.array([[-1, 0], [1, 0], [1, 0]], dtype)
    (label,) = small_predict.certain_labels(np.array([[-0.5, 3]], dtype), centers)  # type: ignore[misc]
    assert label == 0
    assert small_predict.certain_labels(np.array([[0, 3]], dtype), centers) is None
    assert small_predict.certain_labels(np.array([[0.5, 3]], dtype), centers) is None
    assert small_predict.certain_labels(np.array([[np.nan, 3]], dtype), centers) is None


@pytest.mark.cluster
@pytest.mark.usefixtures("current")
@pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids="{}-engines".format)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_few_rows_get_the_engines_labels_and_the_report_says_where(
    dtype: Any, cluster: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 5)).astype(dtype)
    model = KMeans(8, n_init=1, random_state=0).fit(X)
    some = rng.normal(size=(200, 5)).astype(dtype)
    here = model.predict(some)
    report = cluster.last_report
    assert "computed in the notebook's process" in str(report)
    assert "for messages" not in str(report)
    assert (report.title, report.status) == ("KMeans.predict", "finished")
    monkeypatch.setattr("xpulab.cluster._centers.MOST_PRODUCTS", 0)
    np.testing.assert_array_equal(here, model.predict(some))
    assert "computed in the notebook's process" not in str(cluster.last_report)
    assert sum(engine.rows for engine in cluster.last_report.engines) == len(some)


@pytest.mark.cluster
@pytest.mark.usefixtures("current")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("cluster", [3], indirect=True, ids="{}-engines".format)
def test_few_rows_with_nan_are_refused_like_many_rows(cluster: xpulab.XPUCluster) -> None:
    model = KMeans(2, n_init=1, random_state=0).fit(np.arange(12.0).reshape(6, 2))
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            model.predict([[0.0, value]])
    assert len(model.predict(np.zeros((1, 2)))) == 1


@pytest.mark.cluster
@pytest.mark.usefixtures("current")
@pytest.mark.parametrize("cluster", [1], indirect=True, ids=["1-engine"])
def test_rows_that_are_not_certain_go_to_the_engines_in_the_same_call(cluster: xpulab.XPUCluster) -> None:
    model = KMeans(2, init=[[-1.0, 0.0], [1.0, 0.0]], n_init=1).fit([[-1.0, 0.0], [1.0, 0.0]])
    with profiled() as profile:
        assert len(model.predict([[0.0, 3.0]])) == 1  # as near to one centre as to the other
    (report,) = profile.reports
    assert [engine.rows for engine in report.engines] == [1]
    assert "notebook's process" not in str(report)
