"""SimpleImputer against scikit-learn: strategies, missing values, indicators, handles, files, refusals."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.impute
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.cluster import KMeans
from xpulab.impute import SimpleImputer
from xpulab.preprocessing import StandardScaler

pytestmark = pytest.mark.cluster
STRATEGIES = ["mean", "median", "most_frequent", "constant"]


def table(missing: float, dtype: Any) -> np.ndarray:
    """Return rows with and without missing values, and a column that has no others."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 6, (307, 5)) * [1.0, 0.1, 100, 1, 1] + [0, 5, 1e4, 0, 0]
    X[rng.random(X.shape) < 0.3] = missing
    X[:, 3], X[:, 4] = missing, np.arange(307)
    return X.astype(dtype)


@pytest.mark.fraction(2)
@pytest.mark.filterwarnings("ignore:Skipping features", "ignore:.*keep_empty_feature")
@pytest.mark.parametrize("missing", [np.nan, -1])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_against_scikit_learn(current: xpulab.XPUCluster, strategy: str, missing: float) -> None:
    counts = [0] * (current.size - 1) + [307] if current.size < 3 else [0, 300, 7]
    for dtype, how in ((np.float32, {"keep_empty_features": True}), (np.float64, {"add_indicator": True})):
        X = table(missing, dtype)
        for rows in (X, current.scatter(X, counts=counts, allow_nan=True)):
            if missing == -1 and rows is not X:
                rows = current.scatter(X, counts=counts)
            ours = SimpleImputer(strategy=strategy, missing_values=missing, fill_value=2.5, **how).fit(rows)
            theirs = sklearn.impute.SimpleImputer(**ours.get_params()).fit(X)
            expected = theirs.transform(X)
            found = ours.transform(rows)
            assert isinstance(found, xpulab.ShardedArray) == (rows is not X)
            found = found if rows is X else found.gather()
            exact = 2e-5 if dtype == np.float32 else 1e-14
            assert ours.statistics_.dtype == theirs.statistics_.dtype
            np.testing.assert_allclose(
                ours.statistics_.astype(float), theirs.statistics_.astype(float), rtol=exact, atol=0
            )
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=exact)
            np.testing.assert_array_equal(ours.get_feature_names_out(), theirs.get_feature_names_out())
            np.testing.assert_allclose(ours.to_sklearn().transform(X), expected, rtol=exact)
            if ours.add_indicator and strategy != "constant":
                back = ours.inverse_transform(ours.transform(rows))
                assert not isinstance(back, xpulab.ShardedArray) or back.nan == np.isnan(missing)
                back = back.gather() if isinstance(back, xpulab.ShardedArray) else back
                np.testing.assert_array_equal(back, X)


def test_a_pipeline_on_a_handle_with_nan(on_pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    X = table(np.nan, np.float64)[:, [0, 1, 2, 4]]
    np.save(tmp_path / "X.npy", X)
    handle = on_pair.scatter(np.load(tmp_path / "X.npy", mmap_mode="r"), allow_nan=True)
    model = make_pipeline(SimpleImputer(), StandardScaler(), KMeans(3, random_state=0, n_init=1))
    labels = model.fit(handle).predict(handle)
    np.testing.assert_array_equal(labels, model.fit(X).predict(X))
    scaled = StandardScaler().fit_transform(handle)
    assert scaled.nan
    for rows in (handle, scaled):
        with pytest.raises(ValueError, match=r"Input X contains NaN.*\n?.*SimpleImputer"):
            KMeans(3).fit(rows)
    with pytest.raises(ValueError, match="NaN"):
        on_pair.scatter(X)


def test_frames_pickles_and_refusals(on_pair: xpulab.XPUCluster) -> None:
    frame = pd.DataFrame(table(np.nan, np.float64), columns=list("abcde"))
    ours = SimpleImputer(add_indicator=True).set_output(transform="pandas").fit(frame)
    with pytest.warns(UserWarning, match=r"Skipping features without any observed values: \['d'\]"):
        found = ours.transform(frame)
    assert list(found.columns) == [*"abce", *(f"missingindicator_{name}" for name in "abcd")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pd.testing.assert_frame_equal(pickle.loads(pickle.dumps(ours)).transform(frame), found)
    for wrong, words in (
        ({"strategy": np.mean}, "for a function use sklearn.impute.SimpleImputer"),
        ({"missing_values": "?"}, "missing_values='\\?' was given, and the engines take numbers"),
        ({"strategy": "constant", "fill_value": "none"}, "fill_value='none' was given"),
        ({"strategy": "middle"}, "The 'strategy' parameter of SimpleImputer must be"),
    ):
        with pytest.raises(ValueError, match=words):
            SimpleImputer(**wrong).fit(frame)
    with pytest.raises(ValueError, match="works only when 'SimpleImputer' is instantiated with 'add_indicator=True'"):
        SimpleImputer().fit(frame).inverse_transform(frame)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        SimpleImputer(missing_values=0).fit(frame)


_checks = parametrize_with_checks([SimpleImputer()])


@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)


_STRINGS = "strings and objects are refused, in other words"
CANNOT = {
    "test_imputation_const_mostf_error_invalid_types": _STRINGS,
    "test_imputation_constant_error_invalid_type": _STRINGS,
    "test_imputation_constant_object": _STRINGS,
    "test_imputation_constant_pandas": _STRINGS,
    "test_simple_imputation_string_list": _STRINGS,
    "test_simple_impute_pd_na": _STRINGS,
    "test_simple_imputer_constant_fill_value_casting": "whole numbers become float64",
}
_OURS = "simple_imput or imputation_mean or imputation_median or imputation_const or imputation_shape"
_SPARSE = "sparse or csr or csc or coo or lil or bsr"


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    run_suite(
        tmp_path,
        pair,
        ["sklearn.impute.tests.test_impute"],
        ["xpulab.impute:SimpleImputer"],
        least=12,
        cannot=CANNOT,
        only=f"({_OURS}) and not ({_SPARSE})",  # sparse rows are refused
    )
