"""The triangle of centred columns: constant columns are zeros, whatever the constant; all others keep their digits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpulab.centring import less_mean

numbers = st.floats(-1e12, 1e12, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-12)


@given(
    constants=st.lists(numbers, min_size=1, max_size=3),
    n=st.integers(1, 200),
    off=st.floats(-1, 1),
    weighted=st.booleans(),
)
def test_a_constant_column_is_zero_and_the_others_keep_their_products(
    constants: list[float], n: int, off: float, weighted: bool
) -> None:
    rng = np.random.default_rng(n)
    weights = rng.uniform(0.5, 2, n) if weighted else np.ones(n)
    X = np.column_stack([*(np.full(n, c) for c in constants), rng.normal(size=n)])
    shift = X.mean(axis=0) * (1 + off * 1e-15)
    r = np.asarray(np.linalg.qr(np.sqrt(weights)[:, None] * np.column_stack([np.ones(n), X - shift]), mode="r"))
    centred, mean = less_mean(r, shift)
    k = len(constants)
    assert not centred[:, :k].any()
    np.testing.assert_allclose(mean, weights @ X / weights.sum(), rtol=1e-13, atol=1e-13)
    if n > 1:
        x = X[:, k]
        squares = weights @ np.square(x - np.average(x, weights=weights))
        assert np.square(centred[:, k]).sum() == pytest.approx(squares, rel=1e-10)
