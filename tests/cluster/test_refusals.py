"""Rejected input and its messages. It is rejected before anything is sent, for any number of engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.cluster
from sent import nothing_sent
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError

import xpulab
from xpulab.cluster import KMeans
from xpulab.exceptions import HandleError, NoClusterError

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("on_pair")]

GOOD, _ = make_blobs(60, 3, centers=3, cluster_std=2.0, random_state=0)


def bad_arrays() -> dict[str, Any]:
    nan, inf = GOOD.copy(), GOOD.copy()
    nan[59, 2], inf[0, 0] = np.nan, np.inf
    return {
        "nan": (nan, ValueError, "NaN"),
        "inf": (inf, ValueError, "infinity"),
        "1-D": (GOOD[:, 0], ValueError, "Expected 2D array, got 1D"),
        "3-D": (GOOD[None], ValueError, "dim 3"),
        "empty": (GOOD[:0], ValueError, "0 sample"),
        "no columns": (GOOD[:, :0], ValueError, "0 feature"),
        "object": (np.array([["a", object()]] * 5, dtype=object), (ValueError, TypeError), "float"),
        "strings": (np.array([["a", "b"]] * 5), ValueError, "could not convert|dtype"),
        "complex": (GOOD * 1j, ValueError, "Complex"),
        "none": (None, (ValueError, TypeError), "."),
    }


def test_what_is_sent_is_noticed(on_pair: xpulab.XPUCluster) -> None:
    with pytest.raises(AssertionError, match="something was sent"), nothing_sent(on_pair):
        KMeans(2, n_init=1).fit(GOOD)
    with nothing_sent(on_pair):
        pass


@pytest.mark.parametrize("kind", bad_arrays())
def test_bad_rows_are_refused_before_anything_is_sent(kind: str, on_pair: xpulab.XPUCluster) -> None:
    X, error, words = bad_arrays()[kind]
    fitted = KMeans(3, random_state=0).fit(GOOD)
    with nothing_sent(on_pair):
        for call in (KMeans(3).fit, fitted.predict, fitted.transform, fitted.score):
            with pytest.raises(error, match=words):
                call(X)
    np.testing.assert_array_equal(KMeans(3, random_state=0).fit(GOOD).labels_, fitted.labels_)


TABLE = pd.DataFrame(
    {
        "price": [1.5, 2.5, 3.5],
        "city": ["Paris", "Rome", "Oslo"],
        "kind": pd.Categorical(["x", "y", "x"]),
        "day": pd.to_datetime(["2026-01-01"] * 3),
        "coded": pd.Categorical([1, 2, 1]),
    }
)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["price", "city"], r"No numbers: column 'city' \(which begins with 'Paris'\)\. Leave out .*OneHotEncoder"),
        (
            ["kind", "coded", "city"],
            r"No numbers: columns 'kind' \(which begins with 'x'\), 'city' \(which begins with 'Paris'\)\. Leave out",
        ),
        (["price", "day"], r"No numbers: column 'day' \("),
    ],
)
def test_columns_of_a_table_that_hold_no_numbers_are_named(
    on_pair: xpulab.XPUCluster, columns: list[str], words: str
) -> None:
    error = TypeError if "day" in columns else ValueError  # as NumPy raises them for dates and for strings
    with pytest.raises(error, match=words):
        KMeans(2).fit(TABLE[columns])
    if "day" in columns:  # the engines take strings of tables, but no dates
        with pytest.raises(ValueError, match=r"column 'day' .* has neither numbers nor strings; leave it out"):
            on_pair.scatter(TABLE[columns])
    assert KMeans(2, random_state=0).fit(TABLE[["price", "coded"]]).labels_.shape == (3,)
    with pytest.raises(error, match=r"0 sample|No numbers: column 'day'\. Leave out"):
        KMeans(2).fit(TABLE[columns][:0])


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"n_clusters": 0}, "'n_clusters' parameter of KMeans must be an int in the range"),
        ({"n_clusters": "three"}, "'n_clusters' parameter of KMeans must be an int"),
        ({"n_clusters": 61}, "n_samples=60 should be >= n_clusters=61"),
        ({"init": np.zeros((2, 3))}, r"shape of the initial centers \(2, 3\)"),
        ({"init": np.zeros((3, 2))}, r"shape of the initial centers \(3, 2\)"),
        ({"init": np.full((3, 3), np.nan)}, "NaN"),
        ({"init": "kmeans"}, "'init' parameter of KMeans must be"),
        ({"n_init": 0}, "'n_init' parameter"),
        ({"max_iter": 0}, "'max_iter' parameter"),
        ({"tol": -1}, "'tol' parameter"),
        ({"algorithm": "auto"}, "'algorithm' parameter"),
        ({"random_state": "x"}, "'random_state' parameter"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_sent(
    parameters: dict[str, Any], words: str, on_pair: xpulab.XPUCluster
) -> None:
    with nothing_sent(on_pair), pytest.raises((ValueError, TypeError), match=words):
        KMeans(**{"n_clusters": 3, **parameters}).fit(GOOD)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(59), "sample_weight.shape"),
        (np.ones((60, 2)), "must be 1D"),
        (-np.ones(60), "Negative values in data passed to sample_weight: -1.0 for row 0"),
        (np.zeros(60), "non-zero number|zero for all rows"),
        (np.full(60, np.nan), "NaN"),
        (["a"] * 60, "could not convert|dtype"),
    ],
)
def test_bad_weights_are_refused(weights: Any, words: str, on_pair: xpulab.XPUCluster) -> None:
    with nothing_sent(on_pair), pytest.raises(ValueError, match=words):
        KMeans(3).fit(GOOD, sample_weight=weights)


def test_a_random_start_needs_a_row_with_a_weight_for_each_cluster(on_pair: xpulab.XPUCluster) -> None:
    handle = on_pair.scatter(GOOD)
    weights = np.zeros(60)
    weights[[5, 20]] = 1, 2
    with nothing_sent(on_pair):
        for rows in (GOOD, handle):
            with pytest.raises(ValueError, match=r"Fewer non-zero entries in p than size.*positive for 2 rows"):
                KMeans(3, init="random").fit(rows, sample_weight=weights)
    with pytest.raises(ValueError, match="Fewer non-zero entries in p than size"):
        sklearn.cluster.KMeans(3, init="random").fit(GOOD, sample_weight=weights)
    two = KMeans(2, init="random", n_init=1, max_iter=1).fit(GOOD, sample_weight=weights)
    assert two.inertia_ == 0


def test_other_columns_and_estimators_without_a_fit_are_refused() -> None:
    fitted = KMeans(3, random_state=0).fit(pd.DataFrame(GOOD, columns=list("abc")))
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(pd.DataFrame(GOOD[:, :2], columns=list("ab")))
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(pd.DataFrame(GOOD, columns=list("abd")))
    for method in ("predict", "transform", "score"):
        with pytest.raises(NotFittedError):
            getattr(KMeans(3), method)(GOOD)


def test_a_function_as_start_needs_the_rows_in_this_process(on_pair: xpulab.XPUCluster) -> None:
    with pytest.raises(TypeError, match="gather"):
        KMeans(3, init=lambda X, k, random_state: X[:k]).fit(on_pair.scatter(GOOD))


def test_without_a_cluster_the_error_says_what_to_type(no_cluster: None) -> None:
    with pytest.raises(NoClusterError, match=r"xpulab\.XPUCluster\(\)\.start\(\)"):
        KMeans(3).fit(GOOD)


def test_rows_of_another_cluster_are_refused(on_pair: xpulab.XPUCluster) -> None:
    handle = on_pair.scatter(GOOD)
    with xpulab.XPUCluster(1):
        with pytest.raises(HandleError, match="another cluster"):
            KMeans(3).fit(handle)
        stale = xpulab.current_cluster().scatter(GOOD)
    with pytest.raises((HandleError, NoClusterError)):
        stale.gather()
    np.testing.assert_array_equal(handle.gather(), GOOD)
