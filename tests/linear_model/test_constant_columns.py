"""Columns that centring leaves nothing of but rounding: they have no coefficient, whatever the constant is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
from hypothesis import given, settings
from hypothesis import strategies as st

import xpulab
from xpulab.decomposition import PCA, IncrementalPCA, TruncatedSVD
from xpulab.linear_model import IncrementalLinearRegression, IncrementalRidge, LinearRegression, Ridge

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("current")]

Y = np.arange(40.0) % 7
REAL = np.random.default_rng(0).normal(size=(40, 2))
few = pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
three = pytest.mark.parametrize("cluster", [3], indirect=True, ids=["3-engines"])
MODELS = [
    LinearRegression(),
    LinearRegression(positive=True),
    Ridge(alpha=0),
    Ridge(alpha=0, solver="svd"),
    IncrementalLinearRegression(batch_size=7),
    IncrementalRidge(alpha=0, batch_size=40),
]


@pytest.mark.fraction(2)
@few
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_constant_columns_have_no_coefficient_and_the_others_keep_theirs(model: Any, dtype: Any) -> None:
    for constants in ([3.7], [0.1, 9.9, -1e6 / 3]):
        block = np.tile(np.array(constants, dtype), (40, 1))
        y = Y.astype(dtype)
        alone = model.fit(block, y)
        assert not alone.coef_.any()
        np.testing.assert_allclose(alone.predict(block), np.full(40, 2.875), rtol=1e-6)
        if isinstance(model, LinearRegression) and not model.positive:
            assert alone.rank_ == 0
        among = model.fit(np.hstack([block, REAL.astype(dtype)]), y)
        assert not among.coef_[: len(constants)].any()
        plain = sklearn.linear_model.LinearRegression(positive=getattr(model, "positive", False)).fit(REAL, Y)
        np.testing.assert_allclose(among.coef_[len(constants) :], plain.coef_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_columns_that_are_constant_where_rows_have_weight(dtype: Any) -> None:
    X, weights = np.full((40, 1), 3.7, dtype), np.arange(40.0)
    fitted = LinearRegression().fit(X, Y.astype(dtype), weights)
    assert fitted.coef_ == 0 == fitted.rank_
    weights[::3] = 0
    X[::3] = 1e6
    fitted = LinearRegression().fit(X, Y.astype(dtype), weights)
    assert fitted.coef_ == 0 == fitted.rank_
    assert fitted.intercept_ == pytest.approx(np.average(Y, weights=weights))
    assert Ridge(alpha=0).fit(X, Y.astype(dtype), weights).coef_ == 0


@three
@settings(max_examples=25, deadline=None)
@given(
    constant=st.floats(-1e9, 1e9).filter(lambda x: abs(x) > 1e-9),
    dtype=st.sampled_from([np.float32, np.float64]),
    n=st.integers(2, 90),
)
def test_any_constant(constant: float, dtype: Any, n: int) -> None:
    X, y = np.full((n, 1), constant, dtype), np.arange(n, dtype=dtype) % 5
    for model in (LinearRegression(), Ridge(alpha=0)):
        assert model.fit(X, y).coef_ == 0
        np.testing.assert_allclose(model.intercept_, y.mean(), rtol=1e-5)


@few
def test_a_constant_column_has_no_part_in_principal_components(current: xpulab.XPUCluster) -> None:
    X = np.column_stack([np.full(40, 3.7), REAL, np.full(40, 0.1)])
    for model in (PCA(), PCA(svd_solver="full"), PCA(svd_solver="covariance_eigh"), IncrementalPCA(batch_size=40)):
        model.fit(X)
        assert not model.components_[:2, [0, 3]].any()
        assert not model.singular_values_[2:].any()
    for rows in (X, current.scatter(X)):
        assert LinearRegression().fit(rows, Y).rank_ == 2


@three
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("solver", ["full", "covariance_eigh", "arpack", "randomized"])
def test_constant_columns_alone_have_no_variance_and_no_shares_of_it(solver: Any, dtype: Any) -> None:
    X = np.full((40, 3), 3.7, dtype)
    models = [PCA(2, svd_solver=solver, random_state=0)]
    if solver in ("arpack", "randomized"):
        models.append(TruncatedSVD(2, algorithm=solver, random_state=0))
    for model in models:
        with pytest.warns(RuntimeWarning, match="invalid value"):  # scikit-learn's of 0 / 0
            model.fit(X)
        assert not model.explained_variance_.any()
        assert np.isnan(model.explained_variance_ratio_).all()
