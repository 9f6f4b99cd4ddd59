"""The kernels for CSR rows give the same results as the kernels for dense rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from xpulab.kernels.kmeans import dense
from xpulab.kernels.kmeans import sparse as ours
from xpulab.kernels.kmeans.sparse import SparseRows
from xpulab.kernels.rows import Rows

FLOATS = [np.float32, np.float64]
SHAPES = [(2500, 30, 20, 0.2), (1030, 14, 150, 0.5), (5, 3, 2, 0.5), (300, 400, 8, 0.01), (70, 6, 3, 0.0)]


def problem(n, d, k, density, dtype, seed=0):
    matrix = sparse.random(n, d, density, "csr", dtype, np.random.default_rng(seed))
    centers = matrix[np.random.default_rng(1).integers(0, n, k)].toarray() + np.float32(0.01) * np.eye(k, d)
    return matrix, centers.astype(dtype)


def uploaded(device, matrix, weights=None):
    return (
        SparseRows.upload(device, matrix.data, matrix.indices, matrix.indptr, matrix.shape[1], weights),
        Rows.upload(device, matrix.toarray(), weights),
    )


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("with_weights", [False, True])
@pytest.mark.parametrize(("n", "d", "k", "density"), SHAPES)
def test_lloyd(device, n, d, k, density, dtype, with_weights):
    matrix, centers = problem(n, d, k, density, dtype)
    weights = np.random.default_rng(2).uniform(0.5, 2, n).astype(dtype) if with_weights else None
    mine, theirs = uploaded(device, matrix, weights)
    labels, expected = ours.new_labels(device, n), dense.new_labels(device, n)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    for _ in range(4):
        sums, totals, changed = ours.lloyd_step(mine, None, centers, labels)
        dense_sums, dense_totals, dense_changed = dense.lloyd_step(theirs, None, centers, expected)
        np.testing.assert_array_equal(ours.labels_on_cpu(labels, n), dense.labels_on_cpu(expected, n))
        assert changed == dense_changed
        np.testing.assert_allclose(sums, dense_sums, rtol=0, atol=tolerance)
        np.testing.assert_allclose(totals, dense_totals, rtol=tolerance)
        own = ours.own_distances(mine, None, centers, labels)
        np.testing.assert_allclose(own, dense.own_distances(theirs, None, centers, expected), rtol=0, atol=tolerance)
        total = dense.inertia(theirs, None, centers, expected)
        assert ours.inertia(mine, None, centers, labels) == pytest.approx(total, rel=tolerance, abs=n * tolerance)
        centers = np.where(totals[:, None] > 0, sums / np.maximum(totals, 1e-9)[:, None], centers).astype(dtype)


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("n", "d", "k", "density"), SHAPES)
def test_columns_rows_and_distances(device, n, d, k, density, dtype):
    matrix, centers = problem(n, d, k, density, dtype)
    mine, theirs = uploaded(device, matrix)
    tolerance = 1e-4 if dtype == np.float32 else 1e-10
    mean = dense.column_sums(theirs) / n
    np.testing.assert_allclose(ours.column_sums(mine), matrix.sum(axis=0).A1, rtol=tolerance)
    for squared in (False, True):
        np.testing.assert_allclose(
            ours.column_sums(mine, mean, squared),
            dense.column_sums(theirs, mean, squared),
            rtol=tolerance,
            atol=n * 1e-6,
        )
    chosen = np.arange(n)[:: max(1, n // 7)]
    np.testing.assert_array_equal(ours.take(mine, chosen), matrix[chosen].toarray())
    for first, last in [(0, n), (n // 2, n), (2, 3), (3, 3)]:
        np.testing.assert_array_equal(ours.consecutive(mine, first, last), matrix[first:last].toarray())
    # The root of a difference near zero is the root of a rounding error.
    near = 2e-3 if dtype == np.float32 else 1e-7
    np.testing.assert_allclose(
        np.concatenate(list(ours.transform(mine, centers))),
        np.concatenate(list(dense.transform(theirs, centers))),
        rtol=tolerance,
        atol=near,
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_without_stored_values_are_zeros_whatever_the_memory_holds(device, dtype):
    anything = np.full(1, np.nan, dtype)
    rows = SparseRows.upload(device, anything, np.zeros(1, np.int32), np.zeros(6, np.int64), 3)
    centers = np.array([[0, 3, 4], [0, 0, 1]], dtype)
    np.testing.assert_array_equal(np.concatenate(list(ours.transform(rows, centers))), np.tile([[5, 1]], (5, 1)))
    labels = ours.new_labels(device, 5)
    ours.lloyd_step(rows, None, centers, labels)
    np.testing.assert_array_equal(ours.labels_on_cpu(labels, 5), np.ones(5))
    assert ours.inertia(rows, None, centers, labels) == 5


@pytest.mark.fraction(3)
@pytest.mark.parametrize("with_weights", [False, True])
@pytest.mark.parametrize("trials", [1, 6, 20])
def test_seeding(device, trials, with_weights):
    matrix, _ = problem(2500, 30, 8, 0.2, np.float64)
    weights = np.random.default_rng(2).uniform(0.5, 2, 2500) if with_weights else None
    mine, theirs = uploaded(device, matrix, weights)
    rng = np.random.default_rng(3)
    first = matrix[7].toarray()[0]
    state, potential = ours.start(mine, None, first)
    expected, total = dense.start(theirs, None, first)
    assert potential == pytest.approx(total)
    for _ in range(5):
        candidates = matrix[rng.integers(0, 2500, trials)].toarray()
        potentials = ours.candidate_potentials(state, candidates)
        np.testing.assert_allclose(potentials, dense.candidate_potentials(expected, candidates), rtol=1e-10)
        best = int(potentials.argmin())
        ours.accept(state, best)
        dense.accept(expected, best)
        for value in rng.uniform(0, potentials[best], 9):
            assert ours.search(state, value) == dense.search(expected, value)


def test_no_rows(device):
    matrix = sparse.csr_matrix((0, 4), dtype=np.float32)
    rows, _ = uploaded(device, matrix)
    labels, centers = ours.new_labels(device, 0), np.ones((2, 4), np.float32)
    sums, totals, changed = ours.lloyd_step(rows, None, centers, labels)
    assert (sums.shape, totals.tolist(), changed) == ((2, 4), [0, 0], 0)
    assert ours.labels_on_cpu(labels, 0).size == ours.own_distances(rows, None, centers, labels).size == 0
    assert ours.inertia(rows, None, centers, labels) == 0
    assert list(ours.transform(rows, centers)) == []
    assert not ours.column_sums(rows).any()
    state, potential = ours.start(rows, None, centers[0])
    assert (potential, state.span_sums.size) == (0.0, 0)


def test_a_row_that_is_not_there(device):
    rows, _ = uploaded(device, problem(70, 6, 3, 0.5, np.float32)[0])
    with pytest.raises(IndexError, match="row 70 was asked for, of 70"):
        ours.take(rows, [0, 70])


def test_a_part_of_a_matrix(device):
    """`indptr` may begin anywhere, as it does for the second rank."""
    matrix, _ = problem(300, 6, 3, 0.5, np.float32)
    a, b = matrix.indptr[100], matrix.indptr[200]
    rows = SparseRows.upload(device, matrix.data[a:b], matrix.indices[a:b], matrix.indptr[100:201], 6)
    np.testing.assert_array_equal(ours.take(rows, np.arange(100)), matrix[100:200].toarray())
    np.testing.assert_array_equal(ours.consecutive(rows, 0, 100), matrix[100:200].toarray())


@settings(max_examples=30, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_any_small_matrix_ties_and_all(device, data, dtype):
    n, d, k = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 40))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    table = (rng.integers(-2, 3, (n, d)) * (rng.random((n, d)) < 0.5)).astype(dtype)
    centers = rng.integers(-2, 3, (k, d)).astype(dtype)
    rows, _ = uploaded(device, sparse.csr_matrix(table))
    labels = ours.new_labels(device, n)
    sums, totals, changed = ours.lloyd_step(rows, None, centers, labels)
    found = ours.labels_on_cpu(labels, n)
    distances = ((table[:, None].astype(float) - centers[None]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(found, distances.argmin(axis=1))
    expected = np.zeros((k, d))
    np.add.at(expected, found, table)
    np.testing.assert_array_equal(sums, expected)
    np.testing.assert_array_equal(totals, np.bincount(found, minlength=k))
    assert changed == n
