import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial.distance import cdist

from xpulab.kernels.kmeans import lloyd, nearest
from xpulab.kernels.kmeans.lloyd import assign, inertia, labels_on_cpu, lloyd_step, new_labels, own_distances
from xpulab.kernels.rows import Rows

FLOATS = [np.float32, np.float64]
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-10}
# Every d and every k of the list below appears with small and with large companions.
CASES = [
    (257, 1, 1), (10007, 1, 8), (5, 2, 3), (10007, 2, 8), (10007, 3, 127), (1, 14, 1), (257, 14, 8), (10007, 14, 127),
    (10007, 14, 1000), (10007, 64, 127), (257, 64, 2), (5, 130, 2), (10007, 130, 3), (1030, 300, 127), (257, 600, 8),
]  # fmt: skip


def problem(n, d, k, dtype, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(2, 1, (n, d)).astype(dtype)
    shift = X.mean(axis=0)
    centers = (X[rng.integers(0, n, k)] - shift + rng.normal(0, 0.01, (k, d))).astype(dtype)
    weights = rng.uniform(0.5, 2, n)
    return X, shift, centers, weights


def squared_distances(X, shift, centers):
    return cdist((X - shift).astype(np.float64), centers.astype(np.float64), "sqeuclidean")


def assert_nearest(labels, distances, dtype):
    """Check that each label is that of the nearest centre, except for near-ties."""
    chosen = np.take_along_axis(distances, labels[:, None].astype(np.int64), axis=1)[:, 0]
    best = distances.min(axis=1)
    slack = 200 * np.finfo(dtype).eps * (1 + distances.mean())
    assert (chosen <= best + slack).all()
    assert (labels == distances.argmin(axis=1)).mean() > 0.995


def sums_of(X, shift, labels, weights, k):
    """Compute sums and weights in float64."""
    sums = np.zeros((k, X.shape[1]))
    np.add.at(sums, labels, weights[:, None] * (X - shift).astype(np.float64))
    return sums, np.bincount(labels, weights, minlength=k)


@pytest.mark.fraction(3)
@pytest.mark.parametrize(
    "case",
    [(*case, np.float32, False) for case in CASES]
    + [(*case, np.float32, True) for case in CASES[::4]]
    + [(*case, np.float64, i % 4 == 0) for i, case in enumerate(CASES[::2])],
    ids=lambda case: "-".join(getattr(each, "__name__", str(each)) for each in case),
)
def test_lloyd_step_against_numpy(device, case):
    n, d, k, dtype, weighted = case
    X, shift, centers, weights = problem(n, d, k, dtype)
    rows = Rows.upload(device, X, weights if weighted else None)
    weights = weights.astype(dtype).astype(np.float64) if weighted else np.ones(n)
    state = new_labels(device, n)
    for _ in range(3):
        before = labels_on_cpu(state, n)
        sums, totals, changed = lloyd_step(rows, shift, centers, state)
        labels = labels_on_cpu(state, n)
        assert_nearest(labels, squared_distances(X, shift, centers), dtype)
        assert changed == np.count_nonzero(labels != before)
        expected_sums, expected_totals = sums_of(X, shift, labels, weights, k)
        scale = sums_of(np.abs(X - shift), 0, labels, weights, k)[0].max()
        np.testing.assert_allclose(sums, expected_sums, rtol=0, atol=TOLERANCE[dtype] / 10 * scale)
        np.testing.assert_allclose(totals, expected_totals, rtol=TOLERANCE[dtype])
        centers = np.where(totals[:, None] > 0, sums / np.maximum(totals, 1e-9)[:, None], centers).astype(dtype)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [8, 64])
def test_a_separate_kernel_computes_sums_that_do_not_fit_into_groups(device, monkeypatch, k, weighted):
    X, shift, centers, weights = problem(10007, 14, k, np.float32)
    rows = Rows.upload(device, X, weights if weighted else None)
    alone, together = new_labels(device, len(X)), new_labels(device, len(X))
    made, make = [], lloyd._moves
    monkeypatch.setattr(lloyd, "_moves", lambda *given: made.append(make(*given)) or made[-1])
    for i in range(5):
        expected = lloyd_step(rows, shift, centers, together)
        with monkeypatch.context() as no_room:
            no_room.setattr(nearest, "MAX_BYTES", 0)
            found = lloyd_step(rows, shift, centers, alone)
        assert len(made) == i + 1
        for ours, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, right, rtol=0, atol=1e-7 * len(X))
        np.testing.assert_array_equal(labels_on_cpu(alone, len(X)), labels_on_cpu(together, len(X)))
        centers = (expected[0] / np.maximum(expected[1], 1)[:, None]).astype(np.float32)


@pytest.mark.parametrize("dtype", FLOATS)
def test_many_steps_do_not_drift(device, dtype):
    X, shift, centers, _ = problem(10007, 14, 127, dtype)
    rows, state = Rows.upload(device, X), new_labels(device, len(X))
    for _ in range(60):
        sums, totals, _ = lloyd_step(rows, shift, centers, state)
        centers = (sums / totals[:, None]).astype(dtype)
    again = new_labels(device, len(X))
    lloyd_step(rows, shift, centers, again)
    sums, totals, _ = lloyd_step(rows, shift, centers, state)
    fresh_sums, fresh_totals, changed = lloyd_step(rows, shift, centers, again)
    assert changed == 0
    np.testing.assert_array_equal(totals, fresh_totals)
    np.testing.assert_allclose(sums, fresh_sums, rtol=0, atol=1e-9 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("dtype", FLOATS)
def test_shards_add_up_to_the_whole(device, dtype):
    X, shift, centers, weights = problem(10007, 14, 127, dtype)
    sums, totals, _ = lloyd_step(Rows.upload(device, X, weights), shift, centers, new_labels(device, len(X)))
    parts = [
        lloyd_step(Rows.upload(device, X[a:b], weights[a:b]), shift, centers, new_labels(device, b - a))
        for a, b in [(0, 3), (3, 3), (3, 5000), (5000, 10007)]
    ]
    tolerance = 1e-11 if dtype == np.float32 else 1e-14
    np.testing.assert_allclose(sum(part[0] for part in parts), sums, rtol=0, atol=tolerance * np.abs(totals).sum())
    np.testing.assert_allclose(sum(part[1] for part in parts), totals, rtol=1e-9)


def test_no_shift_is_a_shift_of_zero(device):
    X, shift, centers, _ = problem(1000, 14, 8, np.float32)
    rows = Rows.upload(device, X)
    one = lloyd_step(rows, None, centers, new_labels(device, 1000))
    two = lloyd_step(rows, np.zeros_like(shift), centers, new_labels(device, 1000))
    np.testing.assert_array_equal(one[0], two[0])


def test_another_shift_or_k_starts_the_sums_anew(device):
    X, shift, centers, _ = problem(1000, 3, 8, np.float32)
    rows, state = Rows.upload(device, X), new_labels(device, 1000)
    lloyd_step(rows, shift, centers, state)
    lloyd_step(rows, None, centers[:5] + shift, state)
    sums, totals, changed = lloyd_step(rows, None, centers[:5] + shift, state)
    expected, counts = sums_of(X, np.zeros(3, np.float32), labels_on_cpu(state, 1000), np.ones(1000), 5)
    assert changed == 0
    np.testing.assert_allclose(sums, expected, rtol=1e-6)
    np.testing.assert_array_equal(totals, counts)


def test_ties_go_to_the_first_centre(device):
    X = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
    centers = np.repeat(X[:2], 20, axis=0)
    state = new_labels(device, 300)
    lloyd_step(Rows.upload(device, X), None, centers, state)
    assert set(labels_on_cpu(state, 300)) == {0, 20}


def test_no_rows(device):
    rows, state = Rows.upload(device, np.empty((0, 3), np.float32)), new_labels(device, 0)
    centers = np.zeros((4, 3), np.float32)
    sums, totals, changed = lloyd_step(rows, None, centers, state)
    assert (sums.shape, totals.shape, changed) == ((4, 3), (4,), 0)
    assert not sums.any()
    assert not totals.any()
    assign(rows, None, centers, state)
    assert inertia(rows, None, centers, state) == 0.0
    assert own_distances(rows, None, centers, state).shape == (0,)
    assert labels_on_cpu(state, 0).shape == (0,)


def test_new_labels_are_unset(device):
    np.testing.assert_array_equal(labels_on_cpu(new_labels(device, 70), 70), np.full(70, -1))


@pytest.mark.parametrize("dtype", FLOATS)
def test_assign_gives_the_labels_of_a_step_and_may_come_between_steps(device, dtype):
    X, shift, centers, _ = problem(5000, 14, 20, dtype)
    rows, stepped, assigned = Rows.upload(device, X), new_labels(device, 5000), new_labels(device, 5000)
    lloyd_step(rows, shift, centers, stepped)
    assign(rows, shift, centers, assigned)
    np.testing.assert_array_equal(labels_on_cpu(assigned, 5000), labels_on_cpu(stepped, 5000))
    moved = centers[::-1].copy()
    assign(rows, shift, moved, assigned)
    sums, totals, changed = lloyd_step(rows, shift, moved, assigned)
    assert changed == 0
    expected, counts = sums_of(X, shift, labels_on_cpu(assigned, 5000), np.ones(5000), 20)
    np.testing.assert_allclose(sums, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_array_equal(totals, counts)


@pytest.mark.fraction(2)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("n", "d", "k"), CASES[::3])
def test_inertia_and_own_distances(device, n, d, k, dtype):
    X, shift, centers, weights = problem(n, d, k, dtype)
    state = new_labels(device, n)
    plain, weighted = Rows.upload(device, X), Rows.upload(device, X, weights)
    assign(plain, shift, centers, state)
    labels = labels_on_cpu(state, n)
    own = ((X - shift).astype(np.float64) - centers.astype(np.float64)[labels]) ** 2
    tolerance = 1e-6 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(own_distances(weighted, shift, centers, state), own.sum(axis=1), rtol=50 * tolerance)
    assert inertia(plain, shift, centers, state) == pytest.approx(own.sum(), rel=tolerance)
    assert inertia(weighted, shift, centers, state) == pytest.approx(weights @ own.sum(axis=1), rel=tolerance)


def test_distances_to_centres_that_no_label_was_chosen_from(device):
    rows, state = Rows.upload(device, np.zeros((5, 2), np.float32)), new_labels(device, 5)
    with pytest.raises(ValueError, match="call assign or lloyd_step with them first"):
        inertia(rows, None, np.zeros((3, 2), np.float32), state)
    assign(rows, None, np.zeros((3, 2), np.float32), state)
    with pytest.raises(ValueError, match="2 centres were given for labels of 3"):
        own_distances(rows, None, np.zeros((2, 2), np.float32), state)


def test_a_far_offset_that_is_the_shift_loses_no_precision(device):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(2000, 4)) + 1000).astype(np.float32)
    shift = X.mean(axis=0)
    centers = X[:10] - shift
    rows, state = Rows.upload(device, X), new_labels(device, 2000)
    lloyd_step(rows, shift, centers, state)
    assert_nearest(labels_on_cpu(state, 2000), squared_distances(X, shift, centers), np.float32)


@settings(max_examples=15, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_any_small_table(device, data, dtype):
    n, d, k = data.draw(st.integers(1, 200)), data.draw(st.sampled_from([1, 2, 5])), data.draw(st.integers(1, 20))
    number = st.integers(-50, 50).map(lambda i: i / 8)  # exact in float32, with many ties
    X = data.draw(hnp.arrays(dtype, (n, d), elements=number))
    centers = data.draw(hnp.arrays(dtype, (k, d), elements=number))
    weights = data.draw(hnp.arrays(np.float64, n, elements=st.integers(0, 4).map(float)))
    state = new_labels(device, n)
    sums, totals, changed = lloyd_step(Rows.upload(device, X, weights), None, centers, state)
    labels = labels_on_cpu(state, n)
    zero = np.zeros(d, dtype)
    np.testing.assert_array_equal(labels, squared_distances(X, zero, centers).argmin(axis=1))
    expected, counts = sums_of(X, zero, labels, weights, k)
    np.testing.assert_array_equal(sums, expected)
    np.testing.assert_array_equal(totals, counts)
    assert changed == n


def test_trimmed_labels_can_be_used_again(device):
    X = np.random.default_rng(0).normal(size=(3000, 14)).astype(np.float32)
    rows, centers = Rows.upload(device, X), X[:64]
    state, other = new_labels(device, 3000), new_labels(device, 3000)
    for step in range(5):
        for labels in (state, other):
            found = lloyd_step(rows, None, centers + np.float32(0.001 * step), labels)
        state.trim()
        np.testing.assert_array_equal(labels_on_cpu(state, 3000), labels_on_cpu(other, 3000))
    expected, counts = sums_of(X, np.zeros(14, np.float32), labels_on_cpu(state, 3000), np.ones(3000), 64)
    np.testing.assert_allclose(found[0], expected, atol=1e-3)
    np.testing.assert_array_equal(found[1], counts)
