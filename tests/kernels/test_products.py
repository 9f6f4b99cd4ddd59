import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xpulab.kernels import products as module
from xpulab.kernels.products import cross, gram
from xpulab.kernels.rows import Rows

SHAPES = [(1, 1), (64, 16), (65, 17), (5003, 3), (10007, 70), (1030, 300)]
TOLERANCES = [(np.float32, 4e-7), (np.float64, 1e-14)]


def tables(n, d, t, dtype, weighted):
    rng = np.random.default_rng(0)
    X, Y = (rng.normal(100, 1, (n, size)).astype(dtype) for size in (d, t))
    return X, Y, rng.integers(0, 5, n).astype(np.float64) if weighted else None


def reference(X, Y, a, b, w):
    X, Y = X.astype(np.float64) - a, Y.astype(np.float64) - b
    w = np.ones(len(X)) if w is None else w
    norms = [np.sqrt((w[:, None] * Z * Z).sum(axis=0)) for Z in (X, Y)]
    return (w[:, None] * X).T @ Y, np.outer(*norms) + 1e-300


@pytest.mark.fraction(3)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("n", "d"), SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shifted", [False, True])
def test_gram_against_numpy(device, n, d, weighted, shifted, dtype, tolerance):
    X, _, w = tables(n, d, 1, dtype, weighted)
    shift = np.full(d, 100, dtype) if shifted else None
    found, totals = gram(Rows.upload(device, X, w), shift)
    expected, scale = reference(X, X, 100 * shifted, 100 * shifted, w)
    weights = np.ones(n) if w is None else w
    away = weights[:, None] * (X.astype(np.float64) - 100 * shifted)
    assert (np.abs(totals - away.sum(axis=0)) <= 10 * tolerance * np.abs(away).sum(axis=0) + 1e-300).all()
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, found.T)
    assert (np.abs(found - expected) / scale).max() < tolerance


@pytest.mark.fraction(3)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("n", "d"), SHAPES)
@pytest.mark.parametrize("t", [1, 7])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_against_numpy(device, n, d, t, weighted, dtype, tolerance):
    X, Y, w = tables(n, d, t, dtype, weighted)
    a, b = np.full(d, 100, dtype), np.full(t, 99, dtype)
    found = cross(Rows.upload(device, X, w), Rows.upload(device, Y), a, b)
    expected, scale = reference(X, Y, a, b, w)
    assert found.dtype == np.float64
    assert found.shape == (d, t)
    assert (np.abs(found - expected) / scale).max() < tolerance


@pytest.mark.fraction(3)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("n", "d"), [(1, 1), (64, 16), (10007, 70), (1030, 300)])
@pytest.mark.parametrize("t", [1, 7])
@pytest.mark.parametrize("weighted", [False, True])
def test_gram_with_targets_against_numpy(device, n, d, t, weighted, dtype, tolerance):
    X, Y, w = tables(n, d, t, dtype, weighted)
    a, b = np.full(d, 100, dtype), np.full(t, 99, dtype)
    found, totals = gram(Rows.upload(device, X, w), a, Rows.upload(device, Y), b)
    Z, shift = np.hstack([X, Y]), np.concatenate([a, b]).astype(np.float64)
    expected, scale = reference(Z, Z, shift, shift, w)
    assert (np.abs(found - expected) / scale).max() < tolerance
    np.testing.assert_array_equal(found, found.T)
    away = (np.ones(n) if w is None else w)[:, None] * (Z - shift)
    assert (np.abs(totals - away.sum(axis=0)) <= 10 * tolerance * np.abs(away).sum(axis=0) + 1e-300).all()


@pytest.mark.fraction(3)
@pytest.mark.parametrize(("n", "d"), SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_precise_products_of_float32_are_those_of_float64(device, n, d, weighted):
    X, Y, w = tables(n, d, 2, np.float32, weighted)
    a, b = np.full(d, 100.1), np.full(2, 99.9)  # no numbers of float32
    found, _ = gram(Rows.upload(device, X, w), a, Rows.upload(device, Y), b, precise=True)
    Z, shift = np.hstack([X, Y]), np.concatenate([a, b])
    expected, scale = reference(Z, Z, shift, shift, w)
    assert (np.abs(found - expected) / scale).max() < 1e-13


def test_cross_with_the_same_rows_is_the_whole_gram_matrix(device):
    X, _, w = tables(1030, 17, 1, np.float32, True)
    rows = Rows.upload(device, X, w)
    np.testing.assert_allclose(cross(rows, rows), gram(rows)[0], rtol=1e-6)


@pytest.mark.usefixtures("least_memory")
def test_products_of_some_tiles_and_chunks_at_a_time(device, monkeypatch):
    monkeypatch.setattr(module, "_MOST_ROWS", {"few": 512, "many": 64, "vectors": 128})
    X, Y, w = tables(10_007, 12, 6, np.float32, True)
    rows = Rows.upload(device, X, w)
    for found, other in ((gram(rows)[0], X), (cross(rows, Rows.upload(device, Y)), Y)):
        expected, scale = reference(X, other, 0, 0, w)
        assert (np.abs(found - expected) / scale).max() < 3e-7


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_of_no_rows(device, dtype):
    rows = Rows.upload(device, np.empty((0, 3), dtype))
    np.testing.assert_array_equal(gram(rows, np.ones(3))[0], np.zeros((3, 3)))
    np.testing.assert_array_equal(cross(rows, rows), np.zeros((3, 3)))


def test_rows_that_do_not_fit_are_refused(device):
    rows = Rows.upload(device, np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match="4 other rows of float32 were given, 3 of float32 expected"):
        cross(rows, Rows.upload(device, np.zeros((4, 2), np.float32)))
    with pytest.raises(ValueError, match="3 other rows of float64"):
        cross(rows, Rows.upload(device, np.zeros((3, 2), np.float64)))


@pytest.mark.parametrize("kind", ["few", "many", "vectors"])
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(0, 3000), d=st.integers(1, 80), t=st.integers(1, 20), seed=st.integers(0, 1000))
def test_small_integers_give_exact_products(device, monkeypatch, kind, n, d, t, seed):
    if (kind == "vectors") != device.is_cpu and kind != "few":
        pytest.skip("a CPU has no use for this kernel, or a GPU")
    monkeypatch.setattr(module, "_kind", lambda *_: kind)
    rng = np.random.default_rng(seed)
    X, Y = (rng.integers(-9, 10, (n, size)).astype(np.float32) for size in (d, t))
    w = rng.integers(0, 3, n) ** 2.0
    rows, others = Rows.upload(device, X, w), Rows.upload(device, Y)
    Z = np.hstack([X, Y]).astype(np.float64)
    found, totals = gram(rows, None, others)
    np.testing.assert_array_equal(found, (w[:, None] * Z).T @ Z)
    np.testing.assert_array_equal(totals, w @ Z)
    np.testing.assert_array_equal(cross(rows, others), (w[:, None] * X).T @ Y.astype(np.float64))
