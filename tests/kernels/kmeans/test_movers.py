"""Where few centres move far, rows are compared with these, and keep the labels that all centres would give them."""

import numpy as np
import pytest

from xpulab.kernels.kmeans import nearest
from xpulab.kernels.kmeans.lloyd import labels_on_cpu, lloyd_step
from xpulab.kernels.kmeans.movers import choose, most_movers
from xpulab.kernels.kmeans.nearest import find_nearest
from xpulab.kernels.rows import Rows


def groups(n, d, k, dtype=np.float32, seed=0):
    """Return rows around k places, and the places."""
    rng = np.random.default_rng(seed)
    places = 2 * rng.normal(size=(k, d))
    return (places[rng.integers(0, k, n)] + rng.normal(size=(n, d))).astype(dtype), places.astype(dtype)


def labels_of_all(device, rows, centers):
    """Return the labels of the kernel that compares every row."""
    state = nearest.new_labels(device, rows.n_samples)
    find_nearest(rows, None, centers, state, again=False)
    return labels_on_cpu(state, rows.n_samples)


def walk(centers, steps, travellers, seed=0):
    """Yield the centres after each step: a few travel to other centres, the others tremble."""
    rng = np.random.default_rng(seed)
    places = rng.permutation(len(centers))[: 2 * travellers].reshape(2, -1)
    for step in range(steps):
        now = centers + rng.normal(0, 1e-3, centers.shape).astype(centers.dtype)
        share = centers.dtype.type(step / steps)
        now[places[0]] = (1 - share) * centers[places[0]] + share * centers[places[1]]
        yield now


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d", "k"), [(5000, 14, 127), (4163, 3, 200), (3001, 70, 64)])
def test_labels_are_those_of_all_centres(device, n, d, k, dtype):
    if dtype == np.float64 and not device.has_float64:
        pytest.skip("the device has no float64")
    X, centers = groups(n, d, k, dtype)
    rows, state, passes, listed = Rows.upload(device, X), nearest.new_labels(device, n), 0, []
    for now in walk(centers, 24, 3):
        lloyd_step(rows, None, now, state)
        np.testing.assert_array_equal(labels_on_cpu(state, n), labels_of_all(device, rows, now))
        if state.movers is not None:
            passes += 1
            assert state.counts is not None
            listed.append(int(device.fetch(state.counts, stop=-(-n // state.span)).sum()) / n)
    if device.is_cpu:
        assert passes > 4
        assert np.median(listed) < 0.5
    else:
        assert passes == 0


def test_sums_are_those_of_the_labels(device):
    X, centers = groups(5000, 14, 127)
    rows, state = Rows.upload(device, X), nearest.new_labels(device, 5000)
    for now in walk(centers, 24, 3):
        sums, weights, _ = lloyd_step(rows, None, now, state)
        labels = labels_on_cpu(state, 5000)
        np.testing.assert_array_equal(weights, np.bincount(labels, minlength=127))
        expected = np.zeros((127, 14))
        np.add.at(expected, labels, X.astype(np.float64))
        np.testing.assert_allclose(sums, expected, rtol=1e-6, atol=1e-3)


def test_centres_that_coincide_with_a_traveller_give_the_first_label(device):
    X, centers = groups(5000, 14, 127)
    rows, state = Rows.upload(device, X), nearest.new_labels(device, 5000)
    for now in walk(centers, 24, 3):
        now[126] = now[5]  # all rows of the last are those of the sixth
        lloyd_step(rows, None, now, state)
        np.testing.assert_array_equal(labels_on_cpu(state, 5000), labels_of_all(device, rows, now))


def test_centres_are_chosen_only_if_their_steps_are_much_longer_and_many_rows_are_listed():
    steps = np.full(127, 0.01)
    assert choose(steps, 1.0) == 0
    steps[[3, 50, 90]] = 1
    assert choose(steps, 1.0) == 8
    assert choose(steps, 0.01) == 0
    steps[:12] = 1
    assert choose(steps, 1.0) == 16
    steps[:60] = 1
    assert choose(steps, 1.0) == 0
    assert most_movers(127) == 24
    assert choose(np.ones(16), 1.0) == 0
