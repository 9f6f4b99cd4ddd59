"""QuantileTransformer against scikit-learn: both distributions, NaN, drawn rows, and handles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing
from scipy import sparse
from sklearn.utils.estimator_checks import parametrize_with_checks

import xpulab
from xpulab.preprocessing import QuantileTransformer

pytestmark = pytest.mark.cluster

CASES: list[dict[str, Any]] = [
    {"n_quantiles": 100},
    {"n_quantiles": 50, "subsample": 120, "output_distribution": "normal"},
    {"n_quantiles": 307, "subsample": None, "output_distribution": "normal"},
]


def table(dtype: Any) -> np.ndarray:
    """Return rows with equal numbers, NaN, and a column of NaN only."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=307), rng.integers(0, 4, 307), rng.exponential(9, 307), np.full(307, np.nan)])
    X[rng.random(307) < 0.1, 2] = np.nan
    return X.astype(dtype)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_against_scikit_learn(current: xpulab.XPUCluster, dtype: Any) -> None:
    X = table(dtype)
    other = X * dtype(1.5) - dtype(0.2)
    exact: Any = {"rtol": 1e-5, "atol": 1e-6} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-12}
    counts = [0] * (current.size - 1) + [307] if current.size < 3 else [0, 300, 7]
    handles = [current.scatter(rows, counts=counts, allow_nan=True) for rows in (X, other)]
    for case in CASES:
        theirs = sklearn.preprocessing.QuantileTransformer(random_state=3, **case).fit(X)
        for rows, more in ((X, other), handles):
            ours = QuantileTransformer(random_state=3, **case).fit(rows)
            assert ours.n_quantiles_ == theirs.n_quantiles_
            assert ours.quantiles_.dtype == theirs.quantiles_.dtype
            np.testing.assert_allclose(ours.quantiles_, theirs.quantiles_, **exact)
            np.testing.assert_array_equal(ours.references_, theirs.references_)
            found = ours.transform(more)
            back = ours.inverse_transform(found)
            assert isinstance(found, xpulab.ShardedArray) == (rows is not X)
            if rows is not X:
                assert back.counts == tuple(counts)
                found, back = found.gather(), back.gather()
            expected = theirs.transform(other)
            assert found.dtype == back.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, **exact)
            np.testing.assert_allclose(back, theirs.inverse_transform(expected), **exact)
            np.testing.assert_allclose(ours.to_sklearn().transform(other), expected, **exact)


def test_handles_frames_and_refusals(on_pair: xpulab.XPUCluster) -> None:
    X = table(np.float64)
    frame = pd.DataFrame(X[:, :3], columns=list("abc"))
    model = QuantileTransformer(n_quantiles=9).set_output(transform="pandas")
    assert list(model.fit_transform(frame).columns) == list("abc")
    fitted = QuantileTransformer(n_quantiles=9).fit(X)
    finite = on_pair.scatter(np.nan_to_num(X))
    assert fitted.transform(finite).nan  # because of the column of NaN in the fit
    assert not QuantileTransformer(n_quantiles=9).fit_transform(finite).nan
    theirs, ours = (
        each(n_quantiles=9, subsample=100, random_state=np.random.RandomState(0)).fit(X[:, :3])
        for each in (sklearn.preprocessing.QuantileTransformer, QuantileTransformer)
    )
    np.testing.assert_array_equal(ours.quantiles_, theirs.quantiles_)
    with pytest.warns(UserWarning, match=r"n_quantiles \(1000\) is greater than the total number of samples \(307\)"):
        assert QuantileTransformer().fit(X).n_quantiles_ == 307
    with pytest.warns(UserWarning, match="'ignore_implicit_zeros' takes effect only with sparse matrix"):
        QuantileTransformer(n_quantiles=9, ignore_implicit_zeros=True).fit(X)
    with pytest.raises(ValueError, match=r"the number of samples used\. Got 20 quantiles and 10 samples"):
        QuantileTransformer(n_quantiles=20, subsample=10).fit(X)
    with pytest.raises(ValueError, match="X has 2 features, but QuantileTransformer is expecting 4"):
        fitted.inverse_transform(X[:, :2])
    with pytest.raises(ValueError, match="infinity"):
        fitted.transform(np.where(X > 1, np.inf, X))
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        QuantileTransformer().fit(sparse.csr_matrix(np.nan_to_num(X)))


_checks = parametrize_with_checks([QuantileTransformer(n_quantiles=5)])


@pytest.mark.filterwarnings("ignore:n_quantiles")
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)
