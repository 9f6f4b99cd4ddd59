import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xpulab.kernels import rows as rows_module
from xpulab.kernels.moments import column_facts, streamed_column_facts
from xpulab.kernels.rows import Rows, copying

SHAPES = [(1, 1), (63, 3), (64, 16), (65, 17), (5003, 3), (10007, 70), (1030, 300)]


def reference(X, shift, w):
    X = X.astype(np.float64)
    there = ~np.isnan(X)
    z = np.where(there, X - shift.astype(np.float64), 0)
    w = np.ones(len(X)) if w is None else w
    return {
        "count": there.sum(axis=0),
        "weight": (w[:, None] * there).sum(axis=0),
        "total": (w[:, None] * z).sum(axis=0),
        "squares": (w[:, None] * z * z).sum(axis=0),
        "minimum": np.where(there, X, np.inf).min(axis=0, initial=np.inf),
        "maximum": np.where(there, X, -np.inf).max(axis=0, initial=-np.inf),
    }


def compare(found, expected, tolerance, size):
    for name in ("count", "minimum", "maximum"):
        np.testing.assert_array_equal(getattr(found, name), expected[name])
    for name in ("weight", "squares"):
        np.testing.assert_allclose(getattr(found, name), expected[name], rtol=tolerance, atol=1e-300)
    np.testing.assert_allclose(found.total, expected["total"], atol=tolerance * size)
    assert all(getattr(found, name).dtype == np.float64 for name in expected)


@pytest.mark.fraction(3)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-13)])
@pytest.mark.parametrize(("n", "d"), SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("missing", [False, True])
def test_facts_against_numpy(device, n, d, weighted, missing, dtype, tolerance):
    rng = np.random.default_rng(0)
    X = rng.normal(100, 1, (n, d)).astype(dtype)
    if missing:
        X[rng.random((n, d)) < 0.2] = np.nan
        X[:, d // 2] = np.nan
    w = rng.integers(0, 5, n).astype(np.float64) if weighted else None
    shift = np.nan_to_num(X[0], nan=100)
    rows = Rows.upload(device, X, w)
    compare(column_facts(rows, shift), reference(X, shift, w), tolerance, 5 * n)


@pytest.mark.usefixtures("least_memory")
@pytest.mark.parametrize("extremes", [False, True])
def test_facts_some_groups_at_a_time(device, extremes):
    X = np.random.default_rng(0).normal(size=(30_011, 5)).astype(np.float32)
    found = column_facts(Rows.upload(device, X), extremes=extremes)
    expected = reference(X, np.zeros(5), None)
    if not extremes:
        expected.update(minimum=np.full(5, np.inf), maximum=np.full(5, -np.inf))
    compare(found, expected, 1e-6, 30_011)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_facts_of_no_rows(device, dtype):
    found = column_facts(Rows.upload(device, np.empty((0, 3), dtype)))
    compare(found, reference(np.empty((0, 3), dtype), np.zeros(3), None), 0, 0)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    X=hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 200), st.integers(1, 4)),
        elements=st.floats(-1000, 1000, width=32) | st.just(np.nan) | st.just(np.float32(np.inf)),
    )
)
def test_extremes_and_counts_of_any_numbers(device, X):
    found = column_facts(Rows.upload(device, X))
    with np.errstate(invalid="ignore"):
        expected = reference(X, np.zeros(X.shape[1]), None)
    for name in ("count", "minimum", "maximum"):
        np.testing.assert_array_equal(getattr(found, name), expected[name])


@pytest.mark.fraction(3)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-13)])
@pytest.mark.parametrize(("n", "d"), SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_streamed_facts_against_numpy(device, monkeypatch, n, d, weighted, dtype, tolerance):
    monkeypatch.setattr(rows_module, "_READ_BYTES", 1 << 14)  # many pieces
    rng = np.random.default_rng(0)
    X = rng.normal(100, 1, (n, d)).astype(dtype)
    w = rng.integers(0, 5, n).astype(np.float64) if weighted else None
    found = streamed_column_facts(device, X.shape, X.dtype, copying(X), X[0], w)
    compare(found, reference(X, X[0], w), tolerance, 5 * n)


def test_streamed_facts_of_no_rows(device):
    found = streamed_column_facts(device, (0, 3), np.float32, copying(np.empty((0, 3), np.float32)), np.zeros(3))
    compare(found, reference(np.empty((0, 3), np.float32), np.zeros(3), None), 0, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 4711, 9999])
def test_streamed_facts_find_nan_and_infinity(device, bad, row):
    X = np.zeros((10_000, 20), np.float32)
    assert streamed_column_facts(device, X.shape, X.dtype, copying(X), X[0]) is not None
    X[row, 19] = bad
    assert streamed_column_facts(device, X.shape, X.dtype, copying(X), np.zeros(20)) is None


def test_reading_ends_soon_after_nan(device):
    X = np.zeros((500_000, 20), np.float32)
    X[:, 3] = np.nan  # in the first rows of each thread
    read = []

    def fill(first, part):
        read.append(first)
        part[...] = X[first : first + len(part)]

    assert streamed_column_facts(device, X.shape, X.dtype, fill, np.zeros(20)) is None
    assert max(read) < len(X) // 2
