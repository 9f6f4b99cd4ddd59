"""The explorer's model on real engines: against NumPy, scikit-learn and `KMeans`, for any number of engines."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.cluster
from matplotlib.path import Path
from scipy.spatial.distance import cdist
from sent import nothing_sent
from strikes import meetings, pressed_when, strike, wait_for_stop
from waiting import until

import xpulab
from xpulab.cluster import KMeans
from xpulab.explorer.mixture import MixtureExplorer
from xpulab.explorer.session import Explorer

pytestmark = pytest.mark.cluster


def groups(dtype: Any = np.float32, grid: bool = False) -> np.ndarray:
    """3,000 rows of 3 features; on a grid float32 distances are exact, and ties go to the first centre everywhere."""
    rng = np.random.default_rng(0)
    middles = rng.uniform(-8, 8, (5, 3))
    rows = middles[rng.integers(0, 5, 3000)] + rng.normal(size=(3000, 3))
    return (np.round(rows * 8) / 8 if grid else rows).astype(dtype)


def counted(X: np.ndarray, centers: np.ndarray, explorer: Explorer) -> np.ndarray:
    """Count with NumPy what the picture must show."""
    labels = cdist(X.astype(np.float64), centers.astype(np.float64), "sqeuclidean").argmin(axis=1)
    picture = explorer.picture()
    lines, columns = picture.counts.shape[1:]
    edges = [np.arange(len(centers) + 1) - 0.5]
    for axis, pixels in ((1, lines), (0, columns)):
        edges.append(np.linspace(picture.low[axis], picture.high[axis], pixels + 1))
    x, y = explorer.features
    return np.histogramdd(np.column_stack([labels, X[:, y], X[:, x]]), edges)[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_picture_counts_every_row_at_its_pixel_and_cluster(current: xpulab.XPUCluster, dtype: Any) -> None:
    X = groups(dtype, grid=True)
    explorer = Explorer(X, 5, features=(2, 0), shape=(30, 40))
    assert explorer.centers.dtype == dtype
    centers = explorer.centers.copy()  # the centres are rows, so they are on the grid
    np.testing.assert_array_equal(explorer.picture().counts, counted(X, centers, explorer))
    explorer.features = (0, 1)
    np.testing.assert_array_equal(explorer.picture().counts, counted(X, centers, explorer))
    explorer.move_center(3, 1.25, -0.5)
    centers[3, :2] = 1.25, -0.5
    np.testing.assert_array_equal(explorer.centers, centers)
    np.testing.assert_array_equal(explorer.picture().counts, counted(X, centers, explorer))
    assert explorer.picture().counts.sum() > 0.99 * len(X)


@pytest.mark.parametrize("cluster", [1], indirect=True, ids=["1-engine"])
def test_one_and_two_engines_count_the_same(cluster: xpulab.XPUCluster, pair: xpulab.XPUCluster) -> None:
    # The mean is rounded, and some rows are almost equally near to two centres.
    X = np.random.default_rng(0).normal(1e3, 1, (20001, 2)).astype(np.float32)

    def counts(engines: xpulab.XPUCluster) -> list[np.ndarray]:
        explorer = Explorer(engines.scatter(X), 7, random_state=3)
        seen = [explorer.picture().counts]
        explorer.points = 1234
        explorer.move_center(0, 1000, 1000)
        return [*seen, explorer.picture().counts, explorer.centers]

    for one, two in zip(counts(cluster), counts(pair), strict=True):
        np.testing.assert_array_equal(one, two)


def test_the_start_is_that_of_kmeans(current: xpulab.XPUCluster) -> None:
    X = groups()
    explorer = Explorer(X, 6, random_state=4)
    for start in (4, 5):
        centers, _ = sklearn.cluster.kmeans_plusplus(X, 6, random_state=start)
        np.testing.assert_array_equal(explorer.centers, centers)
        inertia = cdist(X, centers, "sqeuclidean").min(axis=1).sum()
        assert explorer.inertias == pytest.approx([inertia], rel=1e-6)
        explorer.restart()


def test_a_step_is_one_iteration_of_kmeans(current: xpulab.XPUCluster) -> None:
    X = groups()
    explorer = Explorer(X, 6)
    for turn in range(1, 4):
        fitted = KMeans(6, init=explorer.centers, n_init=1, max_iter=1).fit(X)
        theirs = sklearn.cluster.KMeans(6, init=explorer.centers, n_init=1, max_iter=1).fit(X)
        explorer.step()
        for each in (fitted, theirs):
            np.testing.assert_allclose(explorer.centers, each.cluster_centers_, rtol=1e-5, atol=1e-5)
            assert explorer.inertias[-1] == pytest.approx(each.inertia_, rel=1e-5)
        assert len(explorer.trails) == len(explorer.inertias) == turn + 1
        np.testing.assert_array_equal(explorer.picture().sizes, np.bincount(fitted.labels_))


def test_steps_converge_where_kmeans_does(current: xpulab.XPUCluster) -> None:
    X = groups()
    explorer = Explorer(X, 4)
    while not explorer.converged:
        explorer.step()
    fitted = KMeans(4, random_state=0, n_init=1).fit(X)
    assert len(explorer.inertias) - 1 == fitted.n_iter_
    assert explorer.inertias[-1] == pytest.approx(fitted.inertia_, rel=1e-5)
    assert (np.diff(explorer.inertias) <= 0).all()


def test_an_empty_cluster_is_filled_by_a_step(pair: xpulab.XPUCluster) -> None:
    X = groups()
    explorer = Explorer(pair.scatter(X), 3)
    explorer.move_center(1, 1e4, 1e4)
    assert explorer.picture().sizes[1] == 0
    explorer.step()
    assert explorer.picture().sizes[1] > 0


def test_reset_goes_back_to_where_the_trails_begin(pair: xpulab.XPUCluster) -> None:
    explorer = Explorer(pair.scatter(groups()), 4)
    explorer.move_center(2, 0.5, 0.5)
    start, counts, inertia = explorer.centers.copy(), explorer.picture().counts.copy(), explorer.inertias[0]
    explorer.step()
    explorer.step()
    explorer.reset()
    np.testing.assert_array_equal(explorer.trails, [start])
    np.testing.assert_array_equal(explorer.picture().counts, counts)
    assert explorer.inertias == [inertia]


def test_a_zoom_counts_the_rows_of_a_part_of_the_plane(pair: xpulab.XPUCluster) -> None:
    X = groups()
    explorer = Explorer(pair.scatter(X), 3)
    whole, centers = explorer.picture(), explorer.centers
    x, y = (-2.0, 3.0), (-4.0, 4.0)
    explorer.zoom(x, y)
    picture = explorer.picture()
    assert (picture.low, picture.high) == ((-2.0, -4.0), (3.0, 4.0))
    inside = (X[:, 0] >= x[0]) & (X[:, 0] < x[1]) & (X[:, 1] >= y[0]) & (X[:, 1] < y[1])
    assert 0 < inside.sum() < len(X)
    assert picture.counts.sum() == inside.sum()
    np.testing.assert_array_equal(explorer.centers, centers)
    explorer.step()  # an iteration of all points
    fitted = KMeans(3, init=centers, n_init=1, max_iter=1).fit(X)
    np.testing.assert_allclose(explorer.centers, fitted.cluster_centers_, rtol=1e-5, atol=1e-5)
    assert explorer.picture().counts.sum() == inside.sum()
    for wrong in ((3.0, -2.0), (0.0, np.nan), (1.0,), 5):
        with pytest.raises(ValueError, match=r"x=.* was given; expected two finite numbers in ascending order"):
            explorer.zoom(wrong)  # type: ignore[arg-type]
    assert explorer.picture().low == (-2.0, -4.0)
    explorer.zoom()
    assert (explorer.picture().low, explorer.picture().high) == (whole.low, whole.high)
    explorer.zoom(x, y)
    explorer.features = (1, 2)
    assert explorer.picture().low != (-2.0, -4.0)


def nearest(X: np.ndarray, x: float, y: float, explorer: Explorer) -> tuple[int, int] | None:
    """Find the first row of the pixel nearest to a place with NumPy, and how many rows are in this pixel."""
    picture = explorer.picture()
    lines, columns = picture.counts.shape[1:]
    low, high, pixels = np.array(picture.low), np.array(picture.high), np.array([columns, lines])
    drawn = (X[:, list(explorer.features)].astype(float) - low) / (high - low) * pixels
    middles = np.where(((drawn >= 0) & (drawn < pixels)).all(axis=1)[:, None], np.floor(drawn) + 0.5, np.inf)
    away = np.hypot(*(middles - (np.array([x, y]) - low) / (high - low) * pixels).T)
    if away.min() > 12:
        return None
    same = (middles == middles[away.argmin()]).all(axis=1)
    return int(np.flatnonzero(same)[0]), int(same.sum())


def test_the_row_at_a_place_is_the_nearest_that_is_drawn(pair: xpulab.XPUCluster) -> None:
    X = groups(grid=True)
    explorer = Explorer(pair.scatter(pd.DataFrame(X, columns=["a", "b", "c"])), 5, features=("c", "a"))
    explorer.step()
    labels = cdist(X.astype(np.float64), explorer.centers.astype(np.float64), "sqeuclidean").argmin(axis=1)
    rng, near = np.random.default_rng(1), 0
    for window in ((None, None), ((-4.0, 1.0), (-5.0, 0.0))):
        explorer.zoom(*window)
        for place in rng.choice(X, 40):
            x, y = place[[2, 0]] + rng.normal(0, 0.2, 2)
            row, expected = explorer.row_at(x, y), nearest(X, x, y, explorer)
            assert (row is None) == (expected is None)
            if row is not None and expected is not None:
                near += 1
                if row.number == expected[0]:  # else two pixels are equally near
                    assert row.n_rows == expected[1]
                own = nearest(X, row.x, row.y, explorer)
                assert own is not None
                assert own[0] == row.number
                assert row.values == dict(zip("abc", X[row.number].tolist(), strict=True))
                assert (row.x, row.y) == (X[row.number, 2], X[row.number, 0])
                assert row.cluster == labels[row.number]
    assert 20 < near < 80
    for wrong in ((np.nan, 0.0), ("a", 0.0)):
        with pytest.raises(ValueError, match="expected two finite numbers"):
            explorer.row_at(*wrong)
    assert explorer.row_at(1e9, 1e9) is None


def test_the_number_of_a_row_is_its_index_in_all_rows(pair: xpulab.XPUCluster) -> None:
    X = groups()
    explorer = Explorer(pair.scatter(X), 3, points=200)
    seen = set()
    for place in X[::50, :2].tolist():
        row = explorer.row_at(*place)
        if row is not None:
            assert list(row.values.values()) == X[row.number].tolist()
            seen.add(row.number)
    assert max(seen) > 2000 > 1000 > min(seen)


def test_rows_inside_of_a_shape_are_selected_and_counted_by_cluster(pair: xpulab.XPUCluster) -> None:
    X = groups()
    explorer = Explorer(pair.scatter(X), 4, features=(1, 2))
    assert explorer.selected.dtype == np.int64
    assert explorer.selected.size == 0
    angle = np.linspace(0, 2 * np.pi, 41)[:-1]
    radius = 6 + 3 * np.cos(5 * angle)  # a star
    shape = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)]) + X[:, 1:].mean(axis=0)
    explorer.zoom((0.0, 1.0), (0.0, 1.0))  # also those outside of the picture
    found = explorer.select(shape)
    expected = np.flatnonzero(Path(shape).contains_points(X[:, 1:]))
    assert 100 < len(expected) < 2900
    np.testing.assert_array_equal(found, expected)
    assert found is explorer.selected
    explorer.zoom()
    for change in (lambda: None, explorer.step, lambda: explorer.move_center(0, 0.0, 0.0), explorer.step):
        change()
        labels = cdist(X.astype(np.float64), explorer.centers.astype(np.float64), "sqeuclidean").argmin(axis=1)
        sizes = np.bincount(labels[expected], minlength=4)
        selection = explorer.snapshot().selection
        assert selection is not None
        np.testing.assert_array_equal(selection.sizes, sizes)
    assert f"{len(expected):,} rows selected: {sizes[0]:,} of cluster 0" in str(explorer.snapshot())
    assert 'class="xpu-lasso"' in explorer.snapshot().html()
    explorer.features = (0, 1)  # the rows stay selected, and the shape belongs to another plane
    np.testing.assert_array_equal(explorer.selected, expected)
    assert 'class="xpu-lasso"' not in explorer.snapshot().html()
    explorer.points = 1000
    assert explorer.selected.size == 0
    assert explorer.snapshot().selection is None
    within = explorer.select([(-99, -99), (99, -99), (99, 99), (-99, 99)])
    assert len(within) == 1000
    assert len(explorer.select()) == 0
    assert explorer.snapshot().selection is None
    for wrong in ([(0, 0), (1, 1)], [(0, 0, 0)] * 3, [(0, 0), (1, np.nan), (2, 2)], "ab", 5):
        with pytest.raises(ValueError, match="expected at least three corners"):
            explorer.select(wrong)


def test_the_curve_stays_while_a_centre_is_dragged(pair: xpulab.XPUCluster) -> None:
    explorer = Explorer(pair.scatter(groups()), 3)
    for _ in range(2):
        explorer.step()
    before, curve = list(explorer.inertias), "Inertia by iteration, before the last move: 0: "
    for x in (0.0, 0.1, 0.2):
        explorer.move_center(0, x, 0.0)
        assert explorer.snapshot().past == tuple(before)
        assert curve in explorer.snapshot().html()
    explorer.step()
    assert curve not in explorer.snapshot().html()
    explorer.k = 4
    assert explorer.snapshot().past == ()


def test_the_elbow_falls_and_is_the_inertia_of_kmeans(current: xpulab.XPUCluster) -> None:
    X = groups()
    explorer = Explorer(X, 2, random_state=1)
    explorer.step()
    explorer.restart()  # the elbow is that of the first start
    counts = explorer.picture().counts
    elbow = explorer.elbow(range(1, 6))
    assert list(elbow) == [1, 2, 3, 4, 5]
    assert (np.diff(list(elbow.values())) < 0).all()
    for k, inertia in elbow.items():
        assert inertia == pytest.approx(KMeans(k, random_state=1, n_init=1).fit(X).inertia_, rel=1e-5)
    explorer.features = (0, 1)  # the labels are still those of the centres shown
    np.testing.assert_array_equal(explorer.picture().counts, counts)


@pytest.mark.parametrize("points", [1, 2, 999, 2999])
def test_as_many_points_as_chosen_are_spread_over_all_rows(current: xpulab.XPUCluster, points: int) -> None:
    X = np.arange(3000.0)[:, None] * [1, 0]  # the index of a row is its position
    explorer = Explorer(X, 1, points=points, shape=(1, 30000))
    low, high = explorer.limits
    assert (low[0], high[0]) < (0, 2999)
    places = np.flatnonzero(explorer.picture().counts[0, 0])
    assert explorer.picture().counts.sum() == len(places) == points
    # The points are spread over all rows: no gap is much larger than another one.
    rows = np.round(low[0] + (places + 0.5) * (high[0] - low[0]) / 30000)
    if points == 999:
        assert np.diff(rows).max() <= 8


def test_more_points_include_the_former_points(pair: xpulab.XPUCluster) -> None:
    explorer = Explorer(pair.scatter(groups()), 1)
    seen = []
    for points in (100, 1000, 3000):
        explorer.points = points
        seen.append(explorer.picture().counts.copy())
    assert [int(counts.sum()) for counts in seen] == [100, 1000, 3000]
    assert (seen[0] <= seen[1]).all()
    assert (seen[1] <= seen[2]).all()


def test_fewer_points_than_clusters_take_clusters_away(pair: xpulab.XPUCluster) -> None:
    explorer = Explorer(pair.scatter(groups()), 8)
    explorer.elbow([2])
    explorer.points = 5
    assert (explorer.k, explorer.points, explorer.elbows) == (5, 5, {})
    explorer.points = 3000
    assert explorer.k == 5
    explorer.elbow([2])
    assert explorer.elbow(range(1, 3)).keys() == {1, 2}


def test_data_frames_give_the_features_their_names(pair: xpulab.XPUCluster) -> None:
    frame = pd.DataFrame(groups(), columns=["height", "width", "depth"])
    explorer = Explorer(pair.scatter(frame), 2, features=("depth", "height"))
    assert explorer.features == (2, 0)
    assert explorer.picture().names == ("depth", "height")
    assert (frame["depth"].between(explorer.picture().low[0], explorer.picture().high[0])).all()


def test_rows_of_one_feature_and_of_one_value_are_in_the_picture(pair: xpulab.XPUCluster) -> None:
    explorer = Explorer(pair.scatter(np.full((100, 1), 7.0)), 1)
    assert explorer.features == (0, 0)
    assert explorer.picture().counts.sum() == 100
    explorer.step()
    assert explorer.inertias == [0, 0]
    assert explorer.converged


def test_a_far_row_does_not_shrink_all_others(pair: xpulab.XPUCluster) -> None:
    X = np.random.default_rng(0).normal(size=(10000, 2))
    X[0] = 1e3
    explorer = Explorer(pair.scatter(X), 3)
    assert explorer.picture().counts.sum() == 9999
    assert explorer.picture().high[0] < 100


def test_impossible_values_are_refused_and_change_nothing(pair: xpulab.XPUCluster) -> None:
    rows = pair.scatter(groups())
    explorer = Explorer(rows, 4)
    before = explorer.picture().counts

    def refused(name: str, value: Any) -> str:
        with pytest.raises(ValueError, match="expected") as caught:
            setattr(explorer, name, value)
        return str(caught.value)

    assert refused("k", 0) == "k=0 was given; expected a whole number from 1 to 3,000"
    assert refused("points", 3001) == "points=3001 was given; expected a whole number from 1 to 3,000"
    assert refused("features", (0, 3)) == (
        "features=(0, 3) was given; expected two of 0 to 2, or of feature 0, feature 1, feature 2"
    )
    with pytest.raises(ValueError, match="j=4 was given; expected a whole number from 0 to 3"):
        explorer.move_center(4, 0, 0)
    with pytest.raises(ValueError, match="k=9 was given; expected a whole number from 1 to 5"):
        Explorer(rows, 9, points=5)
    assert (explorer.k, explorer.points, explorer.features) == (4, 3000, (0, 1))
    assert explorer.picture().counts is before


def test_more_counters_than_32_bits_reach_are_refused_early(pair: xpulab.XPUCluster) -> None:
    rows = pair.scatter(groups())
    explorer = Explorer(rows, 1, shape=(2, 3))
    with nothing_sent(pair):
        with pytest.raises(ValueError, match=r"k=8 with shape=\(20000, 20000\) is 3,200,000,000 counters.*: k=5, or a"):
            Explorer(rows, shape=(20_000, 20_000))
        explorer.shape = (40_000, 40_000)
        with pytest.raises(ValueError, match=r"k=2 with shape=\(40000, 40000\) .* at most 2,147,483,616: k=1, or a"):
            explorer.k = 2
    explorer.shape = (2, 3)
    explorer.step()
    assert explorer.picture().counts.shape == (1, 2, 3)


def test_rows_that_another_client_freed_are_not_used_any_more(pair: xpulab.XPUCluster) -> None:
    # Their memory is a block of the process that freed them, which may put other rows into it.
    rows = pair.scatter(np.repeat(groups(), 100, axis=0))
    explorer, part = Explorer(rows, 3), Explorer(rows, 3, points=500)
    held = sum(engine.device_bytes or 0 for engine in pair.status().engines)
    pair.tasks.exchange("release", {"handles": [rows.id]}, None)
    assert sum(engine.device_bytes or 0 for engine in pair.status().engines) <= held - rows.nbytes
    for look in (explorer, part):
        with pytest.raises(xpulab.exceptions.HandleError, match="gone from the engines"):
            look.step()


@pytest.mark.parametrize("kind", [Explorer, MixtureExplorer])
def test_an_interrupted_change_can_be_repeated(on_pair: xpulab.XPUCluster, tmp_path: Any, kind: Any) -> None:
    explorer = kind(on_pair.scatter(groups()), 4)
    on_pair.run(strike)
    explorer.k = 7
    last = on_pair.run(meetings)[0]
    explorer.k = 4
    counts, centers = explorer.picture().counts, explorer.centers
    on_pair.run(strike, last, wait_for_stop, str(tmp_path / "waits"))  # the engines have other labels by then
    with pressed_when(tmp_path / "waits"), pytest.raises(KeyboardInterrupt):
        explorer.k = 7
    np.testing.assert_array_equal(explorer.centers, centers)
    explorer.features = (0, 1)
    np.testing.assert_array_equal(explorer.picture().counts, counts)


def test_the_engines_free_the_state_of_a_deleted_explorer(pair: xpulab.XPUCluster) -> None:
    def held() -> set[str]:
        return set.union(*pair.run(lambda task: set(task.engine.handles)))

    rows = pair.scatter(groups())
    before = held()
    explorer = Explorer(rows, 4, points=100)
    assert held() - before
    del explorer
    gc.collect()
    until(lambda: not held() - before)


def test_without_a_cluster_the_error_says_what_to_type(pair: xpulab.XPUCluster, no_cluster: None) -> None:
    with pytest.raises(xpulab.exceptions.NoClusterError, match=r"xpulab\.XPUCluster\(\)\.start\(\)"):
        Explorer(groups())


def test_an_interrupted_elbow_leaves_the_explorer_usable(pair: xpulab.XPUCluster) -> None:
    pair.activate()
    X = np.random.default_rng(0).normal(size=(200_000, 14))
    explorer = Explorer(pair.scatter(X), 3, points=len(X))
    rows = pair.engines.board.ranks[0]  # type: ignore[union-attr]
    before = int(rows["task"])

    def iterates() -> bool:
        return rows["task"] not in (0, before) and rows["iteration"] >= 2

    with pytest.raises(KeyboardInterrupt), pressed_when(iterates):
        explorer.elbow(range(12, 60))  # without the interrupt this would take a minute, mostly for iterations
    assert np.isfinite(explorer.elbow([2])[2])
