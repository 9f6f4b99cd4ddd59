"""Sums over rows that are read for one pass, by each kind of vector, against NumPy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from xpulab.kernels.on_cpu import passing
from xpulab.kernels.rows import Rows, copying
from xpulab.kernels.runtime.device import Device

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
WIDE = pytest.mark.parametrize("wide", [True, False])


def like(device: Device, wide: bool, cores: int) -> Any:
    """The device, as if it had other vectors and another number of cores."""
    names = ("check_dtype", "wait", "is_cpu", "kernel_seconds")
    return SimpleNamespace(**{name: getattr(device, name) for name in names}, wide=wide, compute_units=cores)


@pytest.fixture
def on_cpu(device: Device) -> Device:
    if not device.is_cpu or not device.shares_memory:
        pytest.skip("only a CPU device adds up rows as they are read")
    return device


@DTYPES
@WIDE
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("n", "d", "t"), [(0, 5, 1), (1, 3, 0), (1000, 7, 2), (5003, 50, 1), (3000, 77, 3), (900, 130, 0)]
)
def test_products(on_cpu: Device, dtype: Any, wide: bool, weighted: bool, n: int, d: int, t: int) -> None:
    random = np.random.default_rng(d)
    X, Y = ((random.normal(size=(n, k)) + 3).astype(dtype) for k in (d, t))
    weights = random.integers(0, 3, n).astype(dtype) if weighted else None
    targets = Rows.upload(on_cpu, Y) if t else None
    shift = np.full(d + t, 2.5)
    found, totals = passing.products_in_passing(
        like(on_cpu, wide, 3), (n, d), np.dtype(dtype), copying(X), shift[:d], targets, shift[d:], weights
    )
    z = np.hstack([X, Y]).astype(np.float64) - shift
    weighty = z if weights is None else z * weights[:, None]
    rtol, atol = (1e-4, 1e-2) if dtype == np.float32 else (1e-11, 1e-9)
    np.testing.assert_allclose(found, weighty.T @ z, rtol, atol)
    np.testing.assert_allclose(totals, weighty.sum(axis=0), rtol, atol)


@DTYPES
@WIDE
@pytest.mark.parametrize(("n", "d"), [(1, 16), (3001, 50), (2000, 64), (700, 131)])
def test_facts_of_columns(on_cpu: Device, dtype: Any, wide: bool, n: int, d: int) -> None:
    X = (np.random.default_rng(d).normal(size=(n, d)) + 3).astype(dtype)
    found = passing.facts_in_passing(like(on_cpu, wide, 2), (n, d), np.dtype(dtype), copying(X), np.full(d, 2.5))
    assert found is not None
    z, rtol = X.astype(np.float64) - 2.5, 1e-4 if dtype == np.float32 else 1e-11
    for one, expected in zip(found[:2], (z.sum(axis=0), np.square(z).sum(axis=0)), strict=True):
        np.testing.assert_allclose(one, expected, rtol, 100 * rtol)
    np.testing.assert_array_equal(found[2], X.min(axis=0))
    np.testing.assert_array_equal(found[3], X.max(axis=0))


def test_facts_of_rows_that_are_shorter_than_a_vector(on_cpu: Device) -> None:
    X = np.ones((9, 7), np.float64)
    assert passing.facts_in_passing(on_cpu, (9, 7), X.dtype, copying(X), np.zeros(7)) is None
