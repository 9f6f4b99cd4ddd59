"""OneHotEncoder against scikit-learn: categories, rare and unknown ones, dtypes, handles, and scikit-learn's tests."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing
from scipy import sparse
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.fixes import parse_version
from suites import run_suite

import xpulab
from xpulab.preprocessing import OneHotEncoder

pytestmark = pytest.mark.cluster

CASES: list[dict[str, Any]] = [
    {},
    {"drop": "first"},
    {"drop": "if_binary", "handle_unknown": "ignore"},
    {"min_frequency": 40, "handle_unknown": "infrequent_if_exist", "drop": [0, 2, 1.5]},
    {"max_categories": 2, "handle_unknown": "ignore"},
    {"categories": [[-1, 0, 1, 2, 3, 4, 5, 9], [1, 2], [1.5, np.nan]], "min_frequency": 2, "handle_unknown": "ignore"},
]
if parse_version(sklearn.__version__) >= parse_version("1.8"):  # before, "warn" forgets rare categories
    CASES.append({"max_categories": 3, "min_frequency": 0.05, "handle_unknown": "warn"})


def table(dtype: Any) -> np.ndarray:
    """Return rows with a column of some numbers, one of two, and one with NaN."""
    rng = np.random.default_rng(0)
    X = np.column_stack(
        [rng.binomial(5, 0.3, 307), rng.integers(1, 3, 307), np.where(rng.random(307) < 0.2, 1.5, np.nan)]
    )
    return X.astype(dtype)


@pytest.mark.filterwarnings("ignore:Found unknown categories")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_against_scikit_learn(current: xpulab.XPUCluster, dtype: Any) -> None:
    X = table(dtype)
    other = np.vstack([X[::7], np.array([[7, 1, 2.5], [0, 3, np.nan]], dtype)])
    counts = [0] * (current.size - 1) + [307] if current.size < 3 else [0, 300, 7]
    handle, there = current.scatter(X, counts=counts, allow_nan=True), current.scatter(other, allow_nan=True)
    for case in CASES:
        theirs = sklearn.preprocessing.OneHotEncoder(sparse_output=False, **case).fit(X)
        given = other if "handle_unknown" in case else X[::7]
        expected = theirs.transform(given)
        ours = OneHotEncoder(sparse_output=False, **case).fit(handle)
        for mine, known in zip(ours.categories_, theirs.categories_, strict=True):
            assert mine.dtype == known.dtype
            np.testing.assert_array_equal(mine, known)
        np.testing.assert_array_equal(ours.drop_idx_, theirs.drop_idx_)
        np.testing.assert_array_equal(ours.get_feature_names_out(), theirs.get_feature_names_out())
        if "min_frequency" in case or "max_categories" in case:
            for mine, known in zip(ours.infrequent_categories_, theirs.infrequent_categories_, strict=True):
                np.testing.assert_array_equal(mine, known)
        kept = ours.transform(there if "handle_unknown" in case else handle)
        assert isinstance(kept, xpulab.ShardedArray)
        assert kept.dtype == np.float64
        assert not kept.nan
        kept = kept.gather() if "handle_unknown" in case else kept.gather()[::7]
        stored = OneHotEncoder(**case).fit(X).transform(given)
        assert type(stored) is type(sklearn.preprocessing.OneHotEncoder().fit_transform(X))
        assert stored.has_canonical_format
        for found in (kept, ours.transform(given), ours.to_sklearn().transform(given), stored.toarray()):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
        back, known = (pd.DataFrame(each.inverse_transform(expected)) for each in (ours, theirs))  # NaN equals NaN
        pd.testing.assert_frame_equal(back, known)


def test_dtypes_frames_and_pickles(on_pair: xpulab.XPUCluster) -> None:
    frame = pd.DataFrame(
        {"a": [3, 1, 3, 2], "b": [True, False, True, True], "c": np.array([0.1, 0.2, 0.1, 0.1], np.float32)}
    )
    for rows in (frame, frame.to_numpy(np.uint8), frame.to_numpy(np.float16), frame[["a", "b"]].to_numpy().tolist()):
        theirs = sklearn.preprocessing.OneHotEncoder(dtype=np.int32).fit(rows)
        ours = OneHotEncoder(dtype=np.int32)
        found = ours.fit_transform(rows)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found.toarray(), theirs.transform(rows).toarray())
        assert [each.dtype for each in ours.categories_] == [each.dtype for each in theirs.categories_]
    framed = OneHotEncoder(sparse_output=False, drop="first").set_output(transform="pandas").fit(frame)
    found = pickle.loads(pickle.dumps(framed)).transform(frame)
    assert list(found.columns) == ["a_2", "a_3", "b_True", found.columns[-1]]
    handle = on_pair.scatter(frame.to_numpy(np.float32))
    kept = OneHotEncoder(sparse_output=False, dtype=np.float32).fit_transform(handle)
    assert kept.dtype == np.float32
    np.testing.assert_array_equal(kept.gather(), theirs.fit_transform(frame).toarray())


def test_columns_without_categories_left(on_pair: xpulab.XPUCluster) -> None:
    X = np.full((5, 2), 3.0)
    assert OneHotEncoder(drop="first").fit_transform(X).shape == (5, 0)
    assert OneHotEncoder(drop="first", sparse_output=False).fit_transform(X).shape == (5, 0)


def test_many_categories(on_pair: xpulab.XPUCluster) -> None:
    """The hosts encode few rows at a time if there are many new columns."""
    X = np.random.default_rng(0).permutation(3000).astype(np.float64)[:, None]
    encoded = OneHotEncoder().fit_transform(X)
    assert encoded.shape == (3000, 3000)
    np.testing.assert_array_equal(encoded.indices, X[:, 0])
    dense = OneHotEncoder(sparse_output=False, dtype=np.uint8).fit_transform(X)
    np.testing.assert_array_equal(dense, encoded.toarray())


def test_unknown_numbers_and_refusals(on_pair: xpulab.XPUCluster) -> None:
    X = np.array([[1, 5], [2, 5], [2, 7]])
    ours = OneHotEncoder().fit(X)
    with pytest.raises(ValueError, match=r"Found unknown categories \[3, 9\] in column 1 during transform"):
        ours.transform([[1, 9], [1, 3], [2, 9]])
    with pytest.warns(UserWarning, match=r"in columns \[0\] during transform\. .* encoded as all zeros"):
        assert not OneHotEncoder(drop="first", handle_unknown="ignore").fit(X).transform([[4, 5]]).toarray().any()
    handle = on_pair.scatter(X.astype(np.float32))
    with pytest.raises(ValueError, match=r"dtype=numpy\.float32"):
        OneHotEncoder(dtype=int).fit(handle).transform(handle)
    dense = OneHotEncoder().fit(handle).transform(handle)  # the engines have dense rows
    np.testing.assert_array_equal(dense.gather(), ours.transform(X).toarray())
    for rows, words in (
        ([["a", 1]], "column 0 has the dtype <U.*sklearn.preprocessing.OneHotEncoder"),
        (np.array([[None, 1]], object), "the dtype object, and the engines encode numbers"),
        (pd.DataFrame({"a": [1, 2], "b": [["x"], ["y"]]}), r"column 'b' \(list.*\) has neither numbers nor strings"),
        ([[2**53 + 1]], "whole numbers below 2\\^53"),
    ):
        with pytest.raises(ValueError, match=words):
            OneHotEncoder().fit(rows)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="contains infinity"):
        OneHotEncoder().fit([[np.inf]])
    with pytest.raises(ValueError, match="Unsorted categories"):
        OneHotEncoder(categories=[[2, 1], [5, 7]]).fit(X)
    with pytest.raises(ValueError, match=r"Found unknown categories \[.*7.*\] in column 1 during fit"):
        OneHotEncoder(categories=[[1, 2], [5, 6]]).fit(X)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        OneHotEncoder().fit(sparse.csr_matrix(X))
    with pytest.raises(TypeError, match="gather"):
        ours.inverse_transform(handle)


_OBJECTS = "strings and other objects are refused, in other words"
_checks = parametrize_with_checks(
    [OneHotEncoder(sparse_output=False)], expected_failed_checks=lambda _: {"check_dtype_object": _OBJECTS}
)


@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)


_MORE_OBJECTS = (
    "ordinal or Ordinal or encoders_string or strings or object or mixed and not infrequent or infrequent_two or "
    "infrequent_three or ohe_drop or drop_reset or encoder_inverse and not raise or missing_value or user_cats or "
    "encoder_dtypes and not pandas"
)
CANNOT = [  # parts of the ids of tests with strings and other objects
    "test_categories",
    "test_drop_idx_infrequent_categories",
    "test_encoder_duplicate_specified_categories",
    "test_encoder_nan_ending_specified_categories",
    "test_invalid_drop_length",
    "test_mixed_string_bytes_categoricals",
    "test_ohe_handle_unknown_warn",
    "test_ohe_infrequent_handle_unknown_error",
    "test_ohe_infrequent_one_level_errors",
    "test_one_hot_encoder_categories[missing-float-nan",
    "test_one_hot_encoder_categories[missing-np.nan",
    "test_one_hot_encoder_categories[string]",
    "test_one_hot_encoder_custom_feature_name_combiner",
    "test_one_hot_encoder_drop_equals_if_binary",
    "test_one_hot_encoder_drop_manual",
    "test_one_hot_encoder_feature_names",
    "test_one_hot_encoder_inverse_if_binary",
    "test_one_hot_encoder_inverse_transform_raise_error_with_unknown[X1-X_trans1",
    "test_one_hot_encoder_specified_categories_mixed_columns",
    "test_one_hot_encoder_unsorted_categories",
    "test_one_hot_encoder_warning",
    "test_onehotencoder_handle_unknown_warn_maps_to_infrequent",
    "test_predefined_categories_dtype",
]


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    run_suite(
        tmp_path,
        pair,
        ["sklearn.preprocessing.tests.test_encoders"],
        ["xpulab.preprocessing:OneHotEncoder"],
        least=30,
        cannot=dict.fromkeys(CANNOT, _OBJECTS),
        only=f"not ({_MORE_OBJECTS})",
    )
