"""`IncrementalLinearRegression` and `IncrementalRidge` against one fit of all rows."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
from sklearn.base import clone
from tables import error, reference, table

import xpulab
from xpulab.linear_model import IncrementalLinearRegression, IncrementalRidge

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("current"),
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]


@pytest.mark.fraction(2)
@pytest.mark.parametrize("offset", [0, 1e4])
@pytest.mark.parametrize(("dtype", "condition", "most"), [(np.float64, 1e6, 1e-8), (np.float32, 1e3, 1e-4)])
def test_batches_are_as_good_as_all_rows(offset: float, dtype: Any, condition: float, most: float) -> None:
    X, y, _ = table(condition=condition, offset=offset, dtype=dtype)
    for alpha, ours in ((0.0, IncrementalLinearRegression()), (0.5, IncrementalRidge(alpha=0.5))):
        for first, last in ((0, 3), (3, 400), (400, 401), (401, 700)):
            ours.partial_fit(X[first:last], y[first:last])
        assert ours.n_samples_seen_ == 700
        expected = reference(X, y, None, alpha)
        assert error(ours.coef_, expected) < most
        assert error(ours.set_params(batch_size=90).fit(X, y).coef_, expected) < most
        assert (ours.n_samples_seen_, ours.batch_size_) == (700, 90)
        assert ours.coef_.dtype == dtype


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_targets_intercept_and_predictions(fit_intercept: bool, current: xpulab.XPUCluster, tmp_path: Path) -> None:
    X, y, _ = table(t=2)
    np.save(tmp_path / "X.npy", X)
    expected = sklearn.linear_model.LinearRegression(fit_intercept=fit_intercept).fit(X, y)
    ours = IncrementalLinearRegression(fit_intercept=fit_intercept)
    for data in (X, np.load(tmp_path / "X.npy", mmap_mode="r"), current.scatter(X)):
        ours.fit(data, y)
        assert ours.batch_size_ == 5 * X.shape[1]
        np.testing.assert_allclose(ours.coef_, expected.coef_, rtol=1e-9)
        np.testing.assert_allclose(ours.intercept_, expected.intercept_, atol=1e-9)
        np.testing.assert_allclose(ours.predict(data), expected.predict(X), atol=1e-9)
    ours.set_params(batch_size=111).fit(np.load(tmp_path / "X.npy", mmap_mode="r"), y)
    np.testing.assert_allclose(ours.coef_, expected.coef_, rtol=1e-9)
    assert ours.score(X, y) == pytest.approx(expected.score(X, y), abs=1e-12)
    plain = pickle.loads(pickle.dumps(ours)).to_sklearn()
    assert type(plain) is sklearn.linear_model.LinearRegression
    np.testing.assert_allclose(plain.predict(X), ours.predict(X), atol=1e-9)
    assert not hasattr(clone(ours), "coef_")
    assert type(IncrementalRidge().fit(X, y).to_sklearn()) is sklearn.linear_model.Ridge


def test_fit_forgets_and_partial_fit_does_not() -> None:
    X, y, _ = table()
    ours = IncrementalRidge().partial_fit(X, -y).fit(X[:300], y[:300]).partial_fit(X[300:], y[300:])
    np.testing.assert_allclose(ours.coef_, sklearn.linear_model.Ridge().fit(X, y).coef_, rtol=1e-9)
    with pytest.raises(ValueError, match="targets of shape"):
        ours.partial_fit(X, np.stack([y, y], 1))
    assert ours.n_samples_seen_ == 700


def test_fewer_rows_than_columns_have_the_shortest_coefficients() -> None:
    X, y, _ = table(5, 8)
    expected = sklearn.linear_model.LinearRegression().fit(X, y)
    ours = IncrementalLinearRegression(batch_size=2).fit(X, y)
    np.testing.assert_allclose(ours.coef_, expected.coef_, atol=1e-9)
