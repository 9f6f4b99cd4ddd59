"""The scalers against those of scikit-learn: fitted numbers, rows, NaN, weights, parts, handles and mapped files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing
from presses import interrupted_calls
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags

import xpulab
from xpulab.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from xpulab.preprocessing._merging import interpolated, midway

pytestmark = pytest.mark.cluster
two_sizes = pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
three = pytest.mark.parametrize("cluster", [3], indirect=True, ids=["3-engines"])

SCALERS: list[Any] = [
    StandardScaler(),
    StandardScaler(with_mean=False),
    StandardScaler(with_std=False),
    StandardScaler(with_mean=False, with_std=False),
    MinMaxScaler(),
    MinMaxScaler(feature_range=(-3, 2), clip=True),
    MaxAbsScaler(),
    RobustScaler(),
    RobustScaler(with_centering=False, quantile_range=(5.0, 80.5), unit_variance=True),
    RobustScaler(with_scaling=False),
    RobustScaler(with_centering=False, with_scaling=False),
]
KINDS: list[Any] = [StandardScaler(), MinMaxScaler(), MaxAbsScaler(), RobustScaler()]
#: Largest errors: of means in standard deviations, and of variances relative to the variances.
TOLERANCES = {np.float32: 1e-6, np.float64: 1e-12}


def theirs(scaler: Any) -> Any:
    """Return scikit-learn's estimator with the same parameters."""
    return getattr(sklearn.preprocessing, type(scaler).__name__)(**scaler.get_params())


def made(n: int, dtype: Any, *, nan: bool = False) -> np.ndarray:
    """Return rows with columns far from 0, constant, tiny, sorted, and with equal values."""
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, 7)) * [1, 1, 1e-3, 0, 1, 1, 100] + [0, 1e4, 0, 3.7, 0, 0, -5]
    X[:, 4], X[:, 5] = np.sort(X[:, 4]), rng.integers(0, 3, n)
    X = X.astype(dtype)
    if nan:
        X[rng.random(X.shape) < 0.2] = np.nan
    return X


def fitted(estimator: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(estimator).items() if name.endswith("_") and name != "report_"}


def assert_same_fit(ours: Any, expected: Any, X: np.ndarray, tolerance: float) -> None:
    """Compare all fitted attributes: exactly if scikit-learn's are values of X or follow from them by one rounding."""
    assert fitted(ours).keys() == fitted(expected).keys()
    size, spread = np.nanmax(np.abs(X), axis=0).astype(np.float64), np.nanstd(X.astype(np.float64), axis=0)
    errors = {
        "mean_": tolerance * spread + 1e-14 * size,
        "var_": tolerance * spread**2 + 1e-28 * size**2,
        "scale_": tolerance * spread,
    }
    for name, value in fitted(expected).items():
        found = getattr(ours, name)
        assert (found is None) == (value is None), name
        if value is None:
            continue
        assert np.shape(found) == np.shape(value), name
        if name in errors and isinstance(ours, StandardScaler):
            assert found.dtype == value.dtype, name
            assert (np.abs(found - value) <= errors[name]).all(), (name, found, value)
        else:
            np.testing.assert_array_equal(found, value, err_msg=name)


@pytest.mark.fraction(2)
@two_sizes
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("scaler", SCALERS, ids=repr)
def test_fit_and_rows_are_those_of_scikit_learn(current: xpulab.XPUCluster, dtype: Any, scaler: Any) -> None:
    for nan, n in ((False, 2), (True, 1001)):
        X = made(n, dtype, nan=nan)
        ours = clone(scaler).fit(X)
        assert_same_fit(ours, theirs(scaler).fit(X), X, TOLERANCES[dtype])
        plain = ours.to_sklearn()
        assert type(plain) is type(theirs(scaler))
        assert not hasattr(plain, "report_")
        rows = ours.transform(X)
        back = ours.inverse_transform(rows)
        assert rows.dtype == back.dtype == dtype
        # scikit-learn's RobustScaler divides float32 by float64, and some releases round the mean to float32 before it
        # is subtracted. All else is done as it is here, to the last bit.
        inexact = isinstance(scaler, RobustScaler | StandardScaler) and dtype == np.float32
        rounding = 4e-7 if inexact else 0
        expected = plain.transform(X.astype(np.float64) if inexact else X)
        np.testing.assert_allclose(rows, expected, rtol=rounding, atol=rounding)
        np.testing.assert_allclose(back, plain.inverse_transform(rows), rtol=rounding, atol=rounding * 1e2)


@three
def test_weights(current: xpulab.XPUCluster) -> None:
    X = made(500, np.float64, nan=True)
    weights = np.random.default_rng(0).integers(0, 4, 500).astype(np.float64)
    ours = StandardScaler().fit(X, sample_weight=weights)
    assert_same_fit(ours, sklearn.preprocessing.StandardScaler().fit(X, sample_weight=weights), X, 1e-12)
    repeated = StandardScaler().fit(np.repeat(X, weights.astype(int), axis=0))
    np.testing.assert_allclose(ours.var_, repeated.var_, atol=1e-26)
    np.testing.assert_allclose(StandardScaler().fit(X, sample_weight=-weights).var_, ours.var_, rtol=1e-12)


@three
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("scaler", [s for s in SCALERS if hasattr(s, "partial_fit")], ids=repr)
def test_parts_are_merged_as_in_scikit_learn(current: xpulab.XPUCluster, scaler: Any, dtype: Any) -> None:
    X = made(600, dtype)
    X[300:310, 2] = np.nan
    weighted = isinstance(scaler, StandardScaler)
    ours, expected = clone(scaler), theirs(scaler)
    for number, part in enumerate(np.split(X, [100, 101, 400])):
        weights = {"sample_weight": np.arange(len(part)) % 3 + 1.0} if weighted and number == 3 else {}
        ours.partial_fit(part, **weights)
        expected.partial_fit(part, **weights)
        assert_same_fit(ours, expected, X, 3 * TOLERANCES[dtype])
    ours.fit(X)  # forgets the parts
    assert_same_fit(ours, theirs(scaler).fit(X), X, TOLERANCES[dtype])


@three
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of scikit-learn's fit
def test_a_column_of_nan_alone(current: xpulab.XPUCluster) -> None:
    X = made(40, np.float64)
    X[:, 0] = np.nan
    for scaler in KINDS:
        ours, expected = clone(scaler).fit(X), theirs(scaler).fit(X)
        for name, value in fitted(expected).items():
            np.testing.assert_allclose(getattr(ours, name), value, rtol=1e-10, atol=1e-25, err_msg=name)


@three
@pytest.mark.parametrize("scaler", KINDS, ids=repr)
def test_handles_stay_on_the_engines(current: xpulab.XPUCluster, scaler: Any) -> None:
    X = made(1000, np.float32)
    handle = current.scatter(pd.DataFrame(X, columns=list("abcdefg")), counts=[0, 997, 3])
    ours, of_rows = clone(scaler).fit(handle), clone(scaler).fit(X)
    for name, value in fitted(of_rows).items():
        np.testing.assert_allclose(getattr(ours, name), value, rtol=1e-5, atol=1e-7)
    rows = ours.transform(handle)
    assert isinstance(rows, xpulab.ShardedArray)
    assert rows.counts == (0, 997, 3)
    assert rows.columns is None  # as an array, in scikit-learn, has no names
    np.testing.assert_array_equal(rows.gather(), ours.transform(pd.DataFrame(X, columns=list("abcdefg"))))
    np.testing.assert_allclose(ours.inverse_transform(rows).gather(), X, rtol=1e-5, atol=1e-5)


@three
def test_mapped_files_with_nan_and_infinity(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    X = made(500, np.float64, nan=True)
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    for scaler in KINDS:
        ours = clone(scaler).fit(mapped)
        assert_same_fit(ours, theirs(scaler).fit(X), X, 1e-12)
        np.testing.assert_array_equal(ours.transform(mapped), ours.transform(X))
    X[450, 3] = -np.inf
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    for rows in (mapped, X):
        for scaler in KINDS:
            fresh = clone(scaler)
            with pytest.raises(ValueError, match="Input X contains infinity or a value too large for dtype"):
                fresh.fit(rows)
            with pytest.raises(NotFittedError):
                fresh.transform(X)


@three
def test_large_rows_with_nan_and_infinity(current: xpulab.XPUCluster) -> None:
    """Large rows are checked while they are copied."""
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(300_000, 4)), columns=list("abcd"))
    frame.iloc[7, 2] = np.nan
    assert StandardScaler().fit(frame).n_samples_seen_.tolist() == [300_000, 300_000, 299_999, 300_000]
    frame.iloc[8, 2] = np.inf
    with pytest.raises(ValueError, match="contains infinity"):
        MinMaxScaler().fit(frame)


@three
@pytest.mark.parametrize("scaler", KINDS, ids=repr)
def test_data_frames_pickles_and_refusals(current: xpulab.XPUCluster, scaler: Any) -> None:
    frame = pd.DataFrame(made(50, np.float64), columns=list("abcdefg"))
    ours = clone(scaler).set_output(transform="pandas").fit(frame)
    rows = ours.transform(frame)
    assert isinstance(rows, pd.DataFrame)
    assert list(rows.columns) == list("abcdefg")
    # Other names, or none, do not count on the way back.
    back = ours.inverse_transform(rows.rename(columns=str.upper))
    np.testing.assert_allclose(back, frame, atol=1e-8)
    np.testing.assert_array_equal(ours.inverse_transform(rows.to_numpy()), back)
    with pytest.raises(ValueError, match=r"X has 3 features, but .* is expecting 7 features"):
        ours.inverse_transform(rows.to_numpy()[:, :3])
    again = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(again.transform(frame), rows)
    assert again.report_.to_dict() == ours.report_.to_dict()
    assert not hasattr(clone(ours), "scale_")
    if not get_tags(scaler).input_tags.sparse:
        refused = "Sparse data was passed for X, but dense data is required|Cannot center sparse matrices"
        with pytest.raises((TypeError, ValueError), match=refused):
            clone(scaler).fit(sparse.csr_matrix(frame.to_numpy()))
    with pytest.raises(NotFittedError):
        clone(scaler).to_sklearn()


@three
def test_parameters_that_are_refused(current: xpulab.XPUCluster) -> None:
    X = made(10, np.float64)
    with pytest.raises(ValueError, match="Minimum of desired feature range must be smaller than maximum"):
        MinMaxScaler(feature_range=(1, 0)).fit(X)
    with pytest.raises(ValueError, match="Invalid quantile range"):
        RobustScaler(quantile_range=(80, 20)).fit(X)
    with pytest.raises(ValueError, match="The 'with_mean' parameter of StandardScaler must be"):
        StandardScaler(with_mean="yes").fit(X)


@three
def test_an_interrupt_leaves_what_was_there(current: xpulab.XPUCluster) -> None:
    X = made(50, np.float64)
    ours = StandardScaler().fit(X)
    before = fitted(ours)

    with interrupted_calls():
        with pytest.raises(KeyboardInterrupt, match=r"its rows do not count: call it again"):
            ours.partial_fit(X)
        for name, value in before.items():
            np.testing.assert_array_equal(getattr(ours, name), value)
        for scaler in (ours, RobustScaler(), MinMaxScaler(), MaxAbsScaler()):
            with pytest.raises(KeyboardInterrupt, match=r"nothing was fitted: call it again"):
                scaler.fit(X)
            with pytest.raises(NotFittedError):
                scaler.transform(X)
    assert ours.fit(X).n_samples_seen_ == 50


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_quantiles_are_rounded_as_by_numpy(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 10, 101):
        X = np.sort((rng.normal(size=(n, 50)) * 10.0 ** rng.integers(-5, 5, 50)).astype(dtype), axis=0)
        for q in (0.0, 5.0, 25.0, 50.0, 80.5, 100.0):
            place = (n - 1) * (q / 100)
            lower = int(np.floor(place))
            pair = X[lower], X[min(lower + 1, n - 1)]
            between = np.full(50, place - lower)
            np.testing.assert_array_equal(interpolated(*pair, between), np.percentile(X, [q], axis=0)[0])
            if q == 50:
                np.testing.assert_array_equal(midway(*pair, between), np.median(X, axis=0))


@three
def test_squares_beyond_the_dtype(current: xpulab.XPUCluster) -> None:
    """float32 holds neither the square of 1e25 nor that of 1e-25; scikit-learn squares in float64."""
    X = np.random.default_rng(0).normal(size=(1000, 4)) * [1, 1e25, 1e-25, 0] + [0, 3e25, 0, 1e30]
    X = X.astype(np.float32)
    X[5, 1] = np.nan
    ours, expected = StandardScaler().fit(X), sklearn.preprocessing.StandardScaler().fit(X)
    np.testing.assert_allclose(ours.scale_, expected.scale_, rtol=1e-6)
    assert (np.abs(ours.mean_ - expected.mean_) <= 1e-6 * expected.scale_ + 1e-12 * np.abs(expected.mean_)).all()
