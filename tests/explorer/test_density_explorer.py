"""The explorer of DBSCAN on real engines: against scikit-learn, for any number of engines."""

from __future__ import annotations

import io
import json
from typing import Any

import matplotlib
import numpy as np
import PIL.Image
import pytest
import sklearn.cluster

import xpulab
from xpulab.explorer.counting import LARGEST
from xpulab.explorer.density import DensityExplorer
from xpulab.explorer.picture import INKS, PALETTE, DensityPicture
from xpulab.explorer.view import ExploreView

matplotlib.use("Agg")


def groups(dtype: Any = np.float64) -> np.ndarray:
    """2,000 rows of 3 features, in groups of different sizes, and some between them."""
    rng = np.random.default_rng(0)
    middles = rng.uniform(-8, 8, (6, 3))
    which = rng.choice(6, 1900, p=[0.3, 0.25, 0.2, 0.13, 0.08, 0.04])
    return np.concatenate([middles[which] + rng.normal(size=(1900, 3)), rng.uniform(-10, 10, (100, 3))]).astype(dtype)


def kinds(explorer: DensityExplorer) -> tuple[int, int, int]:
    """Count cores, border rows and noise in the picture."""
    sizes, n = explorer.picture().sizes, LARGEST + 1
    return int(sizes[:n].sum()), int(sizes[n : 2 * n].sum()), int(sizes[2 * n])


@pytest.mark.cluster
@pytest.mark.fraction(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_clusters_are_those_of_scikit_learn(current: xpulab.XPUCluster, dtype: Any) -> None:
    X = groups(dtype)[::2]
    explorer = DensityExplorer(X, eps=0.3, min_samples=4)
    explorer.zoom((-99, 99), (-99, 99))  # all rows are in the picture
    for eps, min_samples in ((0.3, 4), (0.6, 4), (0.6, 9), (1.2, 9), (50.0, 5), (1e-9, 2), (1e-9, 1)):
        explorer.eps = eps
        explorer.min_samples = min_samples
        theirs = sklearn.cluster.DBSCAN(eps=eps, min_samples=min_samples).fit(X)
        cores = len(theirs.core_sample_indices_)
        noise = int((theirs.labels_ < 0).sum())
        np.testing.assert_array_equal(explorer.sizes, np.bincount(theirs.labels_[theirs.labels_ >= 0]))
        assert (explorer.cores, explorer.borders, explorer.noise) == (cores, len(X) - cores - noise, noise)
        assert kinds(explorer) == (cores, len(X) - cores - noise, noise)
        order = np.argsort(-explorer.sizes, kind="stable")
        by_cluster = explorer.picture().sizes.astype(int)
        of_clusters = by_cluster[: LARGEST + 1] + by_cluster[LARGEST + 1 : -1]
        largest = explorer.sizes[order[:LARGEST]]
        np.testing.assert_array_equal(of_clusters[: len(largest)], largest)
        assert of_clusters[LARGEST] == explorer.sizes.sum() - largest.sum()


@pytest.mark.cluster
def test_rows_and_shapes_have_the_clusters_of_dbscan(pair: xpulab.XPUCluster) -> None:
    X = groups()
    explorer = DensityExplorer(pair.scatter(X), eps=0.7, min_samples=6, features=(0, 2))
    labels = sklearn.cluster.DBSCAN(eps=0.7, min_samples=6).fit(X).labels_
    seen = set()
    for place in X[::20, [0, 2]]:
        row = explorer.row_at(*place)
        if row is not None:
            assert row.cluster == labels[row.number]
            assert explorer.colour_of(row.cluster) in ("#808080", *PALETTE)
            seen.add(row.cluster)
    assert -1 in seen
    assert len(seen) > 3
    chosen = explorer.select([(-5, -5), (5, -5), (5, 5), (-5, 5)])
    np.testing.assert_array_equal(chosen, np.flatnonzero((np.abs(X[:, [0, 2]]) < 5).all(axis=1)))
    selection = explorer.snapshot().selection
    assert selection is not None
    sizes = np.bincount(labels[chosen][labels[chosen] >= 0])
    np.testing.assert_array_equal(selection.sizes, sizes)
    assert selection.noise == (labels[chosen] < 0).sum() > 0
    assert f"{selection.noise:,} of noise" in str(explorer.snapshot())
    explorer.eps = 0.2
    np.testing.assert_array_equal(explorer.selected, chosen)
    changed = explorer.snapshot().selection
    assert changed is not None
    assert sum(changed.sizes) + changed.noise == len(chosen)
    explorer.points = 500
    assert explorer.selected.size == 0
    assert explorer.cores + explorer.borders + explorer.noise == 500


@pytest.mark.cluster
def test_the_default_eps_is_a_twentieth_of_the_spread_and_wrong_values_change_nothing(pair: xpulab.XPUCluster) -> None:
    X = groups()
    explorer = DensityExplorer(pair.scatter(X))
    assert explorer.eps == pytest.approx(X.std(axis=0).mean() / 20)
    before, sizes = explorer.eps, explorer.sizes
    for wrong in (0, -1.0, np.inf, np.nan, "a"):
        with pytest.raises(ValueError, match=r"eps=.* was given; expected a finite number greater than 0"):
            explorer.eps = wrong  # type: ignore[assignment]
    with pytest.raises(ValueError, match="min_samples=0 was given; expected a whole number from 1"):
        explorer.min_samples = 0
    assert (explorer.eps, explorer.sizes) == (before, sizes)
    assert DensityExplorer(pair.scatter(np.ones((50, 2)))).sizes.tolist() == [50]
    pair.activate()
    with pytest.raises(ValueError, match="k=3 was given; DBSCAN finds the number of clusters: set eps and min_samples"):
        xpulab.explore(X, 3, algorithm="dbscan")


@pytest.mark.cluster
def test_a_view_of_dbscan_has_its_controls(pair: xpulab.XPUCluster) -> None:
    pair.activate()
    view = xpulab.explore(groups(), algorithm="dbscan", eps=0.5)
    assert isinstance(view, ExploreView)
    view.widget = view._make_widget()
    choices = view.widget.choices
    assert (choices["title"], choices["elbow"], choices["iterates"]) == ("DBSCAN explorer", False, False)
    assert 0.5 in choices["eps"]
    assert "clusters" not in choices
    for name, value in [("eps", choices["eps"][20]), ("min_samples", 3), ("x", 2), ("points", 1000)]:
        view.ask(name, value)
        assert view.wait(120)
        assert "Error" not in view.message
    json.dumps(view.widget.state)
    assert (view.widget.state["eps"], view.widget.state["min_samples"]) == (choices["eps"][20], 3)
    assert view.widget.state["line"].startswith("DBSCAN of 1,000 of 2,000 rows x 3, eps=1, min_samples=3: ")
    view.ask("play", True)
    assert view.wait(120)
    said = "DBSCAN has no iterations; to see some, type: xpulab.explore(X, algorithm='kmeans')"
    assert view.message == f"ValueError: {said}"
    shown = view.snapshot()
    assert "Largest clusters" in shown.html()
    assert "<polyline" not in shown.html()
    assert str(shown).splitlines()[1].split() == ["cluster", "rows"]
    assert [axes.get_visible() for axes in shown.plot().axes] == [True]
    figure, given = matplotlib.pyplot.subplots(ncols=3)  # as for the explorers of iterations
    assert shown.plot(given) is figure
    assert [axes.get_visible() for axes in figure.axes] == [True, False, False]
    matplotlib.pyplot.close("all")
    assert not hasattr(shown, "trails")  # nothing of iterations
    assert PIL.Image.open(io.BytesIO(shown.image())).size == (584, 434)
    view.close()


def test_few_rows_are_discs_rings_and_crosses_and_many_are_opaque_pale_and_grey() -> None:
    counts = np.zeros((2 * LARGEST + 3, 100, 100), np.int32)
    for kind, x in ((2, 20), (LARGEST + 1 + 2, 50), (2 * LARGEST + 2, 80)):
        counts[kind, 40, x] = 1
    few = DensityPicture(counts, ("a", "b"), (0.0, 0.0), (1.0, 1.0)).pixels[::-1]
    forms = [few[38:43, x - 2 : x + 3] > 0 for x in (20, 50, 80)]
    assert [int(form.sum()) for form in forms] == [21, 12, 9]
    assert [bool(form[2, 2]) for form in forms] == [True, False, True]
    assert INKS[few[40, 20]].tolist() == [*bytes.fromhex(PALETTE[2][1:]), 255]
    assert INKS[few[40, 80]].tolist() == [128, 128, 128, 255]
    counts[2, :30], counts[LARGEST + 1 + 2, 30:60], counts[2 * LARGEST + 2, 60:] = 3, 3, 3
    many = INKS[DensityPicture(counts, ("a", "b"), (0.0, 0.0), (1.0, 1.0)).pixels[::-1]]
    assert many[10, 5, 3] == 255 > many[45, 5, 3] >= 100
    assert (many[10, 5, :3] == many[45, 5, :3]).all()
    assert many[80, 5].tolist() == [128, 128, 128, 255]
