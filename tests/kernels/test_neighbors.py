import numpy as np
import pytest

from xpulab.kernels import neighbors as module
from xpulab.kernels.neighbors import Index, nearest, normalised, rounding_of, within
from xpulab.kernels.row_passes import in_order
from xpulab.kernels.rows import Rows

#: Rows, features, queries, room: no whole runs, a chunk of features and more, rooms up to all rows.
SHAPES = [(1, 1, 1, 1), (63, 3, 2, 5), (64, 16, 33, 64), (5003, 4, 70, 9), (1030, 300, 65, 20), (9001, 130, 3, 14)]
KINDS = ["product", "squares", "absolute", "largest", "powers"]
TOLERANCES = {np.float32: 1e-5, np.float64: 1e-13}


def table(n, d, m, dtype):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, d)).astype(dtype), rng.normal(size=(m, d)).astype(dtype)


def reference(X, Q, kind):
    X, Q = X.astype(np.float64), Q.astype(np.float64)
    if kind == "product":
        return (X**2).sum(axis=1) / 2 - Q @ X.T
    away = np.abs(Q[:, None] - X)
    return {
        "squares": lambda: (away**2).sum(axis=2),
        "absolute": lambda: away.sum(axis=2),
        "largest": lambda: away.max(axis=2),
        "powers": lambda: (away**1.5).sum(axis=2),
    }[kind]()


@pytest.mark.fraction(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "d", "m", "room", "dtype"),
    [(*shape, np.float32) for shape in SHAPES] + [(*shape, np.float64) for shape in SHAPES[::2]],
)
def test_the_nearest_against_numpy(device, n, d, m, room, kind, dtype):
    X, Q = table(n, d, m, dtype)
    index = Index.of(Rows.upload(device, X))
    scores, places = nearest(index, Q, room, kind, 1.5)
    assert (scores.dtype, places.dtype, places.shape) == (dtype, np.int64, (m, room))
    expected = reference(X, Q, kind)
    scale = TOLERANCES[dtype] * d
    np.testing.assert_allclose(scores[:, :n], np.sort(expected, axis=1)[:, :room], rtol=0, atol=scale)
    np.testing.assert_allclose(np.take_along_axis(expected, places, 1), scores, rtol=0, atol=scale)
    assert all(len(set(some)) == room for some in places.tolist())
    again = index.compare(Q.astype(np.float64), places, kind, 1.5)
    exact = expected - (X.astype(np.float64) ** 2).sum(axis=1) / 2 if kind == "product" else expected
    np.testing.assert_allclose(again, np.take_along_axis(exact, places, 1), rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("kind", ["product", "squares"])
def test_equal_rows_come_in_their_order_and_too_few_are_filled_up(device, kind):
    X = np.repeat(np.arange(3.0), [100, 5, 20_000])[:, None].astype(np.float32)  # over several spans
    index = Index.of(Rows.upload(device, X))
    _, places = nearest(index, np.array([[1.0], [2.0], [-1.0]], np.float32), 8, kind)
    np.testing.assert_array_equal(places[0], [100, 101, 102, 103, 104, 0, 1, 2])
    np.testing.assert_array_equal(places[1], 105 + np.arange(8))
    np.testing.assert_array_equal(places[2], np.arange(8))
    few = Index.of(Rows.upload(device, X[:3]))
    scores, places = nearest(few, np.zeros((1, 1), np.float32), 5, kind)
    np.testing.assert_array_equal(places, [[0, 1, 2, -1, -1]])
    assert np.isinf(scores[0, 3:]).all()
    assert np.isinf(few.compare(np.zeros((1, 1)), places, kind, 2.0)[0, 3:]).all()


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_within_a_limit_against_numpy(device, kind, dtype):
    X, Q = table(9001, 4, 70, dtype)
    expected = reference(X, Q, kind)
    limit = np.quantile(expected, 0.05, axis=1)  # for more than there is room for at first
    limit[3], limit[5] = expected[3].min() - 1, np.inf
    found = within(Index.of(Rows.upload(device, X)), Q, limit, kind, 1.5)
    clear = np.abs(expected - limit[:, None]) > 1e-4
    for i, some in enumerate(found):
        assert (np.diff(some) > 0).all()
        listed = np.isin(np.arange(len(X)), some)
        np.testing.assert_array_equal(listed[clear[i]], (expected[i] <= limit[i])[clear[i]])
    assert len(found[3]) == 0
    assert len(found[5]) == len(X)
    assert len(found[0]) > module._FIRST_ROOM


def test_long_lists_are_made_of_some_queries_after_the_others(device, request):
    X, Q = table(2000, 3, 5, np.float32)
    index = Index.of(Rows.upload(device, X))
    expected = within(index, Q, np.full(5, 4.0), "squares")
    request.getfixturevalue("least_memory")
    found = within(index, Q, np.full(5, 4.0), "squares")
    assert [some.tolist() for some in found] == [some.tolist() for some in expected]
    assert min(map(len, found)) > 0


def test_a_limit_counts_as_within(device):
    X = np.arange(100.0, dtype=np.float32)[:, None]
    (found,) = within(Index.of(Rows.upload(device, X)), X[50:51], np.array([4.0]), "squares")
    np.testing.assert_array_equal(found, [48, 49, 50, 51, 52])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_rows(device, dtype):
    index = Index.of(Rows.upload(device, np.empty((0, 3), dtype)))
    scores, places = nearest(index, np.zeros((2, 3), dtype), 4, "squares")
    assert (places == -1).all()
    assert np.isinf(scores).all()
    assert [len(some) for some in within(index, np.zeros((2, 3), dtype), np.ones(2), "squares")] == [0, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_directions_give_minus_the_cosine(device, dtype):
    X, Q = table(500, 7, 5, dtype)
    X[17] = 0
    index = Index.of(Rows.upload(device, X), directions=True)
    scores, places = nearest(index, normalised(Q), 500, "product")
    norms = np.linalg.norm(X.astype(np.float64), axis=1)
    cosine = (Q @ X.T.astype(np.float64)) / np.where(norms == 0, 1, norms) / np.linalg.norm(Q, axis=1)[:, None]
    np.testing.assert_allclose(scores, -np.take_along_axis(cosine, places, 1), atol=1e-6)
    assert (normalised(X)[17] == 0).all()


def test_rows_in_order(device):
    X, _ = table(70, 3, 1, np.float64)
    found = device.fetch(in_order(Rows.upload(device, X), 128)).reshape(128, 3)
    np.testing.assert_array_equal(found[:70], X)
    np.testing.assert_array_equal(found[70:], 0)


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 20, 300])
def test_rounding_is_bounded(device, d, dtype):
    """Far from the origin rounding is large. The bound is too large at most by the number of features as a factor."""
    X, Q = table(500, d, 4, np.float64)
    X, Q = (X + 50).astype(dtype), Q + 50  # queries that are rounded too
    scores, places = nearest(Index.of(Rows.upload(device, X)), Q.astype(dtype), 500, "product")
    X, Q = X.astype(np.longdouble), Q.astype(np.longdouble)
    exact = np.take_along_axis((X**2).sum(axis=1) / 2 - Q @ X.T, places, 1)
    error = np.abs(scores - exact).max(axis=1).astype(np.float64)
    norms = [np.sqrt((each**2).sum(axis=1)).astype(np.float64) for each in (Q, X)]
    bound = rounding_of(Index.of(Rows.upload(device, X.astype(dtype))), norms[0], np.full(4, norms[1].max()))
    assert (error <= bound).all()
    assert (bound <= 20 * (d + 2) * error).all()
