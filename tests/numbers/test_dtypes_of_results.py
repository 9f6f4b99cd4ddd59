"""Results have scikit-learn's dtypes, for fits and later rows of any, and rows far from zero keep their digits."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pandas as pd
import pytest
from exported import exported, outcome, theirs_of, with_known
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.base import is_classifier, is_regressor

import xpulab
from xpulab.decomposition import IncrementalPCA
from xpulab.linear_model import Ridge
from xpulab.preprocessing import Binarizer, MinMaxScaler, StandardScaler

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("on_pair")]

N = 60
RNG = np.random.default_rng(0)
X = np.abs(np.rint(3 * RNG.normal(size=(N, 3)))) + 1
CLASSES, LINE = np.arange(N) % 3, X @ [1.0, 2.0, 3.0]
METHODS = (
    "transform", "inverse_transform", "predict", "predict_proba", "predict_log_proba", "decision_function",
    "score_samples", "mahalanobis", "kneighbors", "apply",
)  # fmt: skip
DTYPES = ["f2", "f4", "f8", "i4", "i8", "u8", "u1", "?"]
#: Classes that keep their attributes in float64 after a fit of float16, and compute later rows with them. Those of
#: scikit-learn are float16, which has no number above 65504 and counts to 2048.
WIDER = {"LinearRegression", "RidgeCV", "RidgeClassifierCV", "GaussianNB", "Lars", "LassoLars"}
KINDS = [kind for kind in exported() if theirs_of(kind)]
of_each = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def made(kind: Any) -> tuple[Any, Any]:
    ours = with_known(
        kind, random_state=0, n_clusters=2, n_quantiles=10, alphas=[0.1, 1.0], sparse_output=False, encode="ordinal"
    )
    known = ours.get_params(deep=False)
    theirs = theirs_of(kind)
    return ours, theirs(**{name: known[name] for name in known if name in inspect.signature(theirs).parameters})


def targets(kind: Any, classes: Any = CLASSES, line: Any = LINE) -> tuple[Any, ...]:
    estimator = kind()
    return (classes,) if is_classifier(estimator) else (line,) if is_regressor(estimator) else ()


def as_dtype(rows: np.ndarray, dtype: str) -> np.ndarray:
    return rows > 2 if dtype == "?" else rows.astype(dtype)


def called(estimator: Any, method: str, rows: Any) -> Any:
    """Return a result as an array, or an exception."""
    found = outcome(getattr(estimator, method), rows)
    found = found[0] if isinstance(found, tuple) else found
    return found.toarray() if sparse.issparse(found) else found


@of_each
def test_results_for_later_rows_have_the_dtype_of_scikit_learn(kind: Any) -> None:
    turn = KINDS.index(kind)
    for fit in ("f4", "f8", DTYPES[turn % len(DTYPES)]):
        ours, theirs = made(kind)
        fits = [outcome(each.fit, as_dtype(X, fit), *targets(kind)) for each in (ours, theirs)]
        if any(isinstance(each, Exception) for each in fits):
            continue
        for later in ("f2", "f4", *DTYPES[turn % 3 + 2 :: 3]):
            for method in filter(lambda name: all(hasattr(each, name) for each in (ours, theirs)), METHODS):
                rows = as_dtype(X, later)
                if method == "inverse_transform":
                    rows = called(theirs, "transform", as_dtype(X, "f4" if later == "f2" else later))
                    if isinstance(rows, Exception):  # categories of rows that another dtype has rounded
                        continue
                    rows = rows.astype(later)
                found, expected = (called(each, method, rows) for each in (ours, theirs))
                if isinstance(expected, Exception) or isinstance(found, Exception):
                    continue
                wider = (fit == "f2" and kind.__name__ in WIDER) or kind.__name__ == "GaussianMixture"
                if not (wider and found.dtype == np.float64):
                    assert found.dtype == expected.dtype, (fit, later, method)


@of_each
def test_counters_have_the_types_of_scikit_learn(kind: Any) -> None:
    for fit in ("f4", "f8"):
        ours, theirs = made(kind)
        for each in (ours, theirs):
            outcome(each.fit, as_dtype(X, fit), *targets(kind))
        for name, value in vars(theirs).items():
            counts = (name.startswith("n_") and name.endswith("_")) or name in ("class_count_", "counts_", "classes_")
            if counts and hasattr(ours, name):
                found = getattr(ours, name)
                assert (type(found), np.asarray(found).dtype) == (type(value), np.asarray(value).dtype), (fit, name)


@pytest.mark.parametrize("given_", [{}, {"with_mean": False, "with_std": False}, {"with_mean": False}])
def test_counts_of_scalers_have_the_type_of_scikit_learn_in_each_way(given_: dict[str, Any]) -> None:
    for rows in (X, X.astype("f4"), *([] if given_.get("with_mean", True) else [sparse.csr_matrix(X)])):
        for weights in (None, np.ones(N)):
            for_each = []
            for kind in (StandardScaler, theirs_of(StandardScaler)):
                scaler = kind(**given_).fit(rows, sample_weight=weights)
                for_each.append((type(scaler.n_samples_seen_), scaler.n_samples_seen_))
            assert for_each[0] == for_each[1], (rows.dtype, weights is None)
    parts = [each.partial_fit(X).partial_fit(X).n_samples_seen_ for each in made(IncrementalPCA)]
    assert (type(parts[0]), parts[0]) == (type(parts[1]), 2 * N)


NEAR = RNG.normal(size=(200, 4)) * [1, 2, 3, 4] + 1e5
ALONG = NEAR @ [1.0, 2.0, 3.0, 4.0]
ABOVE = (ALONG.mean() < ALONG).astype(int)


@pytest.mark.filterwarnings("ignore:lbfgs failed:sklearn.exceptions.ConvergenceWarning")  # scikit-learn's, too
@of_each
def test_later_float32_rows_far_from_zero_have_the_digits_of_float64(kind: Any) -> None:
    ours = made(kind)[0].fit(NEAR, *targets(kind, ABOVE, ALONG))
    rows = NEAR.astype(np.float32)
    for method in ("transform", "predict_proba", "decision_function", "score_samples", "mahalanobis", "predict"):
        if hasattr(ours, method):
            found, expected = (called(ours, method, each) for each in (rows, rows.astype(np.float64)))
            if isinstance(found, np.ndarray) and found.dtype.kind == "f":
                exact: Any = 4 * np.finfo(found.dtype).eps
                size = max(1.0, np.abs(expected).max()) if found.dtype == np.float32 else np.abs(expected).max() * 1e4
                assert_allclose(found, expected, rtol=exact, atol=exact * size, err_msg=method)


def test_rows_on_the_engines_and_frames_keep_their_dtype(on_pair: xpulab.XPUCluster) -> None:
    scaler = MinMaxScaler().fit(NEAR)
    rows = NEAR.astype(np.float32)
    found = scaler.transform(on_pair.scatter(rows))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.gather(), scaler.transform(rows))
    frame = pd.DataFrame(X.astype(np.float16))
    assert MinMaxScaler().fit(frame).transform(frame).dtype == np.float16
    assert Binarizer(threshold=2).fit_transform(X.astype(int).tolist()).dtype == np.int64
    assert MinMaxScaler().set_output(transform="pandas").fit_transform(frame).iloc[:, 0].dtype == np.float16


@examples(max_examples=30)
@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.sampled_from([Ridge, MinMaxScaler, Binarizer]))
def test_any_dtypes_of_a_fit_and_of_later_rows(fit: str, later: str, kind: Any) -> None:
    ours, theirs = made(kind)
    for each in (ours, theirs):
        each.fit(as_dtype(X, fit), *targets(kind))
    method = "predict" if kind is Ridge else "transform"
    found, expected = (called(each, method, as_dtype(X, later)) for each in (ours, theirs))
    assert found.dtype == expected.dtype
    assert_allclose(found, expected, rtol=5e-3, atol=5e-3)
