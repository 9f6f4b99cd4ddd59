import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.cluster import kmeans_plusplus

from xpulab.kernels.kmeans import dense, sparse
from xpulab.kernels.kmeans.plusplus import accept, candidate_potentials, index_reaching, search, start
from xpulab.kernels.kmeans.sparse import SparseRows
from xpulab.kernels.row_passes import take
from xpulab.kernels.rows import Rows

FLOATS = [np.float32, np.float64]
TOLERANCE = {np.float32: 2e-6, np.float64: 1e-13}


def contributions(X, shift, centers, weights):
    centred = (X - shift).astype(np.float64)
    distances = [((centred - center.astype(np.float64)) ** 2).sum(axis=1) for center in centers]
    return weights * np.min(distances, axis=0)


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "d"), [(1, 14), (5, 1), (257, 300), (10007, 2), (10007, 14), (5000, 130)])
def test_potentials_against_numpy(device, n, d, dtype, weighted):
    rng = np.random.default_rng(0)
    X = rng.normal(2, 1, (n, d)).astype(dtype)
    shift, w = X.mean(axis=0), rng.uniform(0.5, 2, n).astype(dtype) if weighted else np.ones(n)
    rows = Rows.upload(device, X, w if weighted else None)
    centers = [X[0] - shift]
    state, potential = start(rows, shift, centers[0])
    assert potential == pytest.approx(contributions(X, shift, centers, w).sum(), rel=TOLERANCE[dtype], abs=1e-9)
    for t in (1, 6, 3):
        candidates = X[rng.integers(0, n, t)] - shift
        found = candidate_potentials(state, candidates)
        expected = [contributions(X, shift, [*centers, c], w).sum() for c in candidates]
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE[dtype], atol=1e-9)
        accept(state, t - 1)
        centers.append(candidates[t - 1])


@pytest.mark.fraction(2)
@pytest.mark.parametrize("n_centers", [1, 2, 3, 4, 19, 40])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kernels", [dense, sparse])
def test_a_choice_that_goes_on_has_the_same_numbers(device, kernels, weighted, dtype, n_centers):
    rng, trials = np.random.default_rng(0), 7
    X = rng.normal(2, 1, (10_007, 5)).astype(dtype)
    w = rng.uniform(0.5, 2, len(X)).astype(dtype) if weighted else None
    rows = SparseRows.upload(device, *_csr(X), 5, w) if kernels is sparse else Rows.upload(device, X, w)
    shift = None if kernels is sparse else X.mean(axis=0)
    centers = X[rng.integers(0, len(X), n_centers)] - (0 if shift is None else shift)
    state, potential = kernels.start(rows, shift, centers[0])
    for center in centers[1:]:
        tried = np.concatenate([X[rng.integers(0, len(X), trials - 1)], center[None]])
        potential = kernels.candidate_potentials(state, tried)[-1]
        kernels.accept(state, trials - 1)
    again, same = kernels.go_on(rows, shift, centers, trials)
    assert same == potential
    np.testing.assert_array_equal(again.span_sums, state.span_sums)
    np.testing.assert_array_equal(*(kernels.candidate_potentials(each, X[:trials]) for each in (state, again)))
    for value in (0.1, 0.5, 0.9):
        assert kernels.search(again, value * same) == kernels.search(state, value * same)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weighted", [False, True])
def test_search_is_searchsorted(device, dtype, weighted):
    rng = np.random.default_rng(1)
    n = 5000
    X = rng.normal(size=(n, 3)).astype(dtype)
    w = rng.integers(0, 3, n).astype(dtype) if weighted else np.ones(n)
    state, _ = start(Rows.upload(device, X, w if weighted else None), None, X[7])
    candidate_potentials(state, X[[20, 4000]])
    accept(state, 1)
    running = np.cumsum(contributions(X, np.zeros(3), [X[7], X[4000]], w))
    # Values in the middle of a step: float32 sums of a span do not move them into the next.
    inside = np.flatnonzero(np.diff(running) > 1e-2)[::17] + 1
    for i in inside:
        assert search(state, (running[i] + running[i - 1]) / 2) == i
    assert search(state, 0.0) == np.flatnonzero(running)[0]
    assert search(state, running[-1] * 1.1) == np.flatnonzero(np.diff(running))[-1] + 1


def test_a_search_for_the_whole_potential_finds_the_last_row(device):
    X = np.random.default_rng(2).normal(size=(3000, 3)).astype(np.float32)
    state, potential = start(Rows.upload(device, X), None, X[0])
    assert search(state, potential) == 2999


def test_rows_without_weight_are_never_found(device):
    X = np.random.default_rng(3).normal(size=(3000, 2)).astype(np.float32)
    w = np.zeros(3000)
    w[[100, 2500]] = 1
    state, potential = start(Rows.upload(device, X, w), None, X[0])
    assert {search(state, v) for v in np.linspace(0, 1.1, 40) * potential} == {100, 2500}


@pytest.mark.parametrize("is_sparse", [False, True])
def test_rows_equal_to_a_centre_are_never_found(device, is_sparse):
    kernels = sparse if is_sparse else dense
    X = np.repeat(np.array([[0, 2], [1, 0], [0, 2]], np.float32), [1500, 2, 1500], axis=0)
    rows = SparseRows.upload(device, *_csr(X), 2) if is_sparse else Rows.upload(device, X)
    state, potential = kernels.start(rows, None, X[0])
    assert {kernels.search(state, v) for v in np.linspace(0, 1.1, 40) * potential} == {1500, 1501}


def _csr(X):
    matrix = csr_matrix(X)
    return matrix.data, matrix.indices, matrix.indptr


def test_the_place_in_running_sums_is_never_that_of_a_0():
    running = np.array([0.0, 0.0, 1.0, 1.0, 3.0, 3.0])
    assert [index_reaching(running, v) for v in (0, 0.5, 1, 1.5, 3, 3.1, np.inf)] == [2, 2, 2, 4, 4, 4, 4]
    assert index_reaching(np.zeros(3), 0.0) == 0


def test_no_rows(device):
    rows = Rows.upload(device, np.empty((0, 3), np.float32))
    state, potential = start(rows, None, np.zeros(3, np.float32))
    assert potential == 0.0
    np.testing.assert_array_equal(candidate_potentials(state, np.ones((4, 3), np.float32)), np.zeros(4))
    accept(state, 2)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_same_picks_as_scikit_learn(device, weighted):
    """scikit-learn's loop over these functions chooses the rows that scikit-learn chooses."""
    rng = np.random.default_rng(4)
    X, k = rng.normal(size=(4000, 5)), 20
    w = rng.uniform(0.5, 2, 4000) if weighted else np.ones(4000)
    _, expected = kmeans_plusplus(X, k, sample_weight=w, random_state=11)

    rows, random = Rows.upload(device, X, w), np.random.RandomState(11)
    trials = 2 + int(np.log(k))
    picked = [random.choice(4000, p=w / w.sum())]
    state, potential = start(rows, None, take(rows, picked)[0])
    for _ in range(1, k):
        candidates = [search(state, value) for value in random.uniform(size=trials) * potential]
        potentials = candidate_potentials(state, take(rows, candidates))
        best = int(potentials.argmin())
        accept(state, best)
        potential = potentials[best]
        picked.append(candidates[best])
    np.testing.assert_array_equal(picked, expected)
