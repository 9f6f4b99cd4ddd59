"""Rows that the search skips have the same label as if they were compared with all centres."""

import numpy as np
import pytest

from xpulab.kernels.kmeans import nearest
from xpulab.kernels.kmeans.lloyd import labels_on_cpu, lloyd_step
from xpulab.kernels.kmeans.nearest import find_nearest
from xpulab.kernels.rows import Rows


@pytest.fixture(autouse=True)
def never_give_up(request, monkeypatch):
    """Use slacks from the first pass on, even if they save no time."""
    if "pause" not in request.node.name:
        monkeypatch.setattr(nearest, "_MOST_LISTED", 2)


def new_labels(device, n):
    state = nearest.new_labels(device, n)
    state._pause = 0
    return state


def data(n, d, k, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(dtype)
    return X, X[:k] + rng.normal(0, 0.01, (k, d)).astype(dtype)


def labels_of_all(device, rows, centers):
    """Return the labels of the kernel that compares every row."""
    state = new_labels(device, rows.n_samples)
    find_nearest(rows, None, centers, state, again=False)
    assert not state.span
    return labels_on_cpu(state, rows.n_samples)


def looked_at(device, state):
    """Return the number of rows that the last call compared."""
    n_spans = -(-state.current.size // state.span)
    return int(device.fetch(state.counts, stop=n_spans).sum())


@pytest.mark.fraction(3)
@pytest.mark.parametrize(
    ("n", "d", "k", "dtype"),
    [
        (10007, 14, 127, np.float32),
        (10007, 14, 127, np.float64),
        (63, 24, 60, np.float32),
        (1030, 600, 127, np.float32),
    ],
)
def test_forty_iterations_of_lloyd(device, n, d, k, dtype):
    X, centers = data(n, d, k, dtype)
    rows, state = Rows.upload(device, X), new_labels(device, n)
    counts = []
    for _ in range(40):
        sums, weights, _ = lloyd_step(rows, None, centers, state)
        np.testing.assert_array_equal(labels_on_cpu(state, n), labels_of_all(device, rows, centers))
        counts.append(looked_at(device, state))
        centers = np.where(weights[:, None] > 0, sums / np.maximum(weights, 1)[:, None], centers).astype(dtype)
    assert counts[0] == n
    assert counts[-1] < n / 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "d", "k"), [(150, 3, 20), (3, 20_000, 2), (16, 600, 3), (17, 600, 3), (70, 40, 20)])
def test_few_rows_have_the_labels_and_sums_of_the_kernel(device, n, d, k, dtype, weighted):
    X, centers = data(n, d, k, dtype)
    weights = np.random.default_rng(1).uniform(0.5, 2, n) if weighted else None
    rows, state = Rows.upload(device, X, weights), new_labels(device, n)
    assert rows.are_few(k) == device.shares_memory
    sums, weight, changed = lloyd_step(rows, X[0], centers - X[0], state)
    expected = new_labels(device, n)
    find_nearest(rows, X[0], centers - X[0], expected, again=False)
    labels = labels_on_cpu(expected, n)
    np.testing.assert_array_equal(labels_on_cpu(state, n), labels)
    w = np.ones(n) if weights is None else weights
    np.testing.assert_allclose(weight, np.bincount(labels, w, k), rtol=1e-6)
    added = np.stack([np.bincount(labels, w * column, k) for column in (X - X[0]).astype(np.float64).T], axis=1)
    np.testing.assert_allclose(sums, added, rtol=1e-5, atol=1e-5)
    assert changed == n
    assert lloyd_step(rows, X[0], centers - X[0], state)[2] == 0


def test_rows_are_skipped_if_the_centres_stand_still(device):
    X, centers = data(5000, 14, 127)
    rows, state = Rows.upload(device, X), new_labels(device, 5000)
    find_nearest(rows, None, centers, state)
    find_nearest(rows, None, centers, state)
    assert looked_at(device, state) < 10


def test_centres_that_jump_or_change_places(device):
    X, centers = data(5000, 14, 127)
    rows, state = Rows.upload(device, X), new_labels(device, 5000)
    for now in (centers, centers[::-1].copy(), np.roll(centers, 1, axis=0), centers + 5, centers * 0, centers):
        find_nearest(rows, None, now, state)
        np.testing.assert_array_equal(labels_on_cpu(state, 5000), labels_of_all(device, rows, now))


def test_with_other_rows_another_shift_or_another_k_all_rows_are_compared(device):
    X, centers = data(5000, 14, 127)
    state = new_labels(device, 5000)
    for rows in (Rows.upload(device, X), Rows.upload(device, -X)):
        for shift in (None, X[0]):
            for now in (centers, centers[:60]):
                find_nearest(rows, shift, now, state)
                assert looked_at(device, state) == 5000
                expected = new_labels(device, 5000)
                find_nearest(rows, shift, now, expected, again=False)
                np.testing.assert_array_equal(labels_on_cpu(state, 5000), labels_on_cpu(expected, 5000))


def test_ties_are_compared_and_go_to_the_first(device):
    X = np.repeat(data(500, 14, 1)[0], 3, axis=0)
    centers = np.concatenate([X[:90:3], X[:90:3], X[300:600:3]])
    rows, state = Rows.upload(device, X), new_labels(device, len(X))
    for _ in range(3):
        find_nearest(rows, None, centers, state)
        np.testing.assert_array_equal(labels_on_cpu(state, len(X)), labels_of_all(device, rows, centers))


@pytest.mark.parametrize("offset", [1e4, 1e18])
def test_rounding_and_overflow_never_skip_a_row_that_may_change(device, offset):
    X, centers = data(5000, 14, 127)
    rows, state = Rows.upload(device, X + np.float32(offset)), new_labels(device, 5000)
    for step in range(5):
        now = centers + np.float32(offset) + np.float32(step * 1e-3)
        find_nearest(rows, None, now, state)
        np.testing.assert_array_equal(labels_on_cpu(state, 5000), labels_of_all(device, rows, now))


def test_few_centres_are_compared_with_every_row(device):
    X, centers = data(5000, 14, 8)
    state = new_labels(device, 5000)
    find_nearest(Rows.upload(device, X), None, centers, state)
    assert not state.span


def test_slacks_that_save_no_time_pause_for_longer_and_longer(device):
    X, centers = data(5000, 14, 127)
    rows, state = Rows.upload(device, X), nearest.new_labels(device, 5000)
    bounded = []
    for step in range(40):
        now = np.roll(centers, step, axis=0)  # every centre goes far
        find_nearest(rows, None, now, state)
        bounded.append(state.span > 0)
        np.testing.assert_array_equal(labels_on_cpu(state, 5000), labels_of_all(device, rows, now))
    tried = np.flatnonzero(bounded)
    assert tried[:2].tolist() == [2, 3]
    assert np.diff(tried[::2]).tolist() == sorted(np.diff(tried[::2]).tolist())
    assert len(tried) <= 8


def test_after_a_pause_the_slacks_are_tried_again(device):
    X, centers = data(5000, 14, 127)
    rows, state = Rows.upload(device, X), nearest.new_labels(device, 5000)
    for _ in range(2):
        find_nearest(rows, None, centers, state)
        assert not state.span
    for _ in range(3):
        find_nearest(rows, None, centers + np.float32(1e-6), state)
        assert state.span
    assert looked_at(device, state) < 500


def test_a_pause_ends_once_the_centres_move_half_as_far(device):
    X, centers = data(5000, 14, 127)
    rows, state = Rows.upload(device, X), nearest.new_labels(device, 5000)
    for step in range(6):  # those with slacks list all rows, and so the last one pauses
        find_nearest(rows, None, np.roll(centers, step, axis=0), state)
    assert not state.span
    for step in (1e-3, 2e-3):
        now = np.roll(centers, 5, axis=0) + np.float32(step)
        find_nearest(rows, None, now, state)
        assert state.span
        np.testing.assert_array_equal(labels_on_cpu(state, 5000), labels_of_all(device, rows, now))
    assert looked_at(device, state) < 2500
