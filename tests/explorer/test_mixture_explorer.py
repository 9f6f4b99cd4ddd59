"""The explorer of mixtures on real engines: against `GaussianMixture` and scikit-learn, for any number of engines."""

from __future__ import annotations

import json
import warnings
from typing import Any

import matplotlib
import numpy as np
import pytest
import sklearn.mixture
from reports import Document
from sklearn.exceptions import ConvergenceWarning

import xpulab
from xpulab.explorer.mixture import MixtureExplorer
from xpulab.explorer.view import ExploreView
from xpulab.mixture import GaussianMixture

matplotlib.use("Agg")
pytestmark = pytest.mark.cluster

TYPES = ("full", "tied", "diag", "spherical")


def groups(dtype: Any = np.float64) -> np.ndarray:
    """3,000 rows of 3 features, in groups of different forms that touch each other."""
    rng = np.random.default_rng(0)
    middles, factors = rng.uniform(-4, 4, (4, 3)), rng.normal(size=(4, 3, 3))
    which = rng.integers(0, 4, 3000)
    return (middles[which] + np.einsum("nd,nde->ne", rng.normal(size=(3000, 3)), factors[which])).astype(dtype)


def fitted(kind: Any, X: np.ndarray, **parameters: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return kind(4, init_params="k-means++", **{"tol": 0, "max_iter": 5, "random_state": 0, **parameters}).fit(X)


@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_iterations_are_those_of_the_estimator(current: xpulab.XPUCluster, covariance_type: str, dtype: Any) -> None:
    X = groups(dtype)
    explorer = MixtureExplorer(X, 4, covariance_type=covariance_type)
    for _ in range(5):
        explorer.step()
    assert len(explorer.trails) == len(explorer.lower_bounds) == 6
    near: dict[str, Any] = {"rtol": 2e-3, "atol": 2e-3} if dtype == np.float32 else {"rtol": 1e-6, "atol": 1e-6}
    ours = fitted(GaussianMixture, X, covariance_type=covariance_type)
    # scikit-learn computes variances of float32 rows in float32, from sums of squares.
    exact = fitted(sklearn.mixture.GaussianMixture, X.astype(np.float64), covariance_type=covariance_type)
    for each in (ours, exact):
        np.testing.assert_allclose(explorer.centers, each.means_, **near)
        np.testing.assert_allclose(explorer.weights, each.weights_, **near)
    np.testing.assert_allclose(explorer.lower_bounds[:5], ours.lower_bounds_, rtol=1e-5)
    assert explorer.lower_bounds[5] == pytest.approx(ours.score(X), rel=1e-5)
    labels = ours.predict(X)
    # Some rows are almost equally probable in two components, and the parameters are rounded to the dtype of the rows.
    counts = explorer.picture().counts.sum(axis=(1, 2))
    assert np.abs(counts - np.bincount(labels, minlength=4)).sum() <= 0.02 * len(X)
    of_type = {
        "full": lambda: ours.covariances_,
        "tied": lambda: np.repeat(ours.covariances_[None], 4, axis=0),
        "diag": lambda: ours.covariances_[:, :, None] * np.eye(3),
        "spherical": lambda: ours.covariances_[:, None, None] * np.eye(3),
    }
    np.testing.assert_allclose(explorer.covariances, of_type[covariance_type](), **near)


def test_it_converges_where_the_estimator_does(current: xpulab.XPUCluster) -> None:
    X = groups()
    explorer = MixtureExplorer(X, 4, random_state=2)
    while not explorer.converged:
        explorer.step()
    ours = fitted(GaussianMixture, X, random_state=2, tol=1e-3, max_iter=100)
    assert ours.converged_
    assert len(explorer.lower_bounds) - 1 == ours.n_iter_
    assert (np.diff(explorer.lower_bounds) > -1e-9).all()


def test_a_moved_mean_keeps_its_weight_and_its_covariance(pair: xpulab.XPUCluster) -> None:
    explorer = MixtureExplorer(pair.scatter(groups()), 3, features=(2, 0))
    explorer.step()
    means, weights, covariances = explorer.centers.copy(), explorer.weights, explorer.covariances
    explorer.move_center(1, 0.5, -1.5)
    means[1, [2, 0]] = 0.5, -1.5
    np.testing.assert_array_equal(explorer.centers, means)
    np.testing.assert_array_equal(explorer.weights, weights)
    np.testing.assert_array_equal(explorer.covariances, covariances)
    counts = explorer.picture().counts.copy()
    explorer.step()
    explorer.step()
    explorer.reset()
    np.testing.assert_array_equal(explorer.trails, [means])
    np.testing.assert_array_equal(explorer.covariances, covariances)
    np.testing.assert_array_equal(explorer.picture().counts, counts)
    explorer.features = (0, 1)
    assert explorer.picture().sizes.sum() == pytest.approx(counts.sum(), rel=0.01)
    explorer.points = 500
    np.testing.assert_array_equal(explorer.centers, means)
    assert explorer.picture().sizes.sum() <= 500


def test_rows_and_shapes_have_the_labels_of_the_mixture(pair: xpulab.XPUCluster) -> None:
    X = groups()
    explorer = MixtureExplorer(pair.scatter(X), 4)
    for _ in range(5):
        explorer.step()
    labels = fitted(GaussianMixture, X).predict(X)
    row = explorer.row_at(*X[7, :2])
    assert row is not None
    assert row.cluster == labels[row.number]
    chosen = explorer.select([(-2, -2), (2, -2), (2, 2), (-2, 2)])
    np.testing.assert_array_equal(chosen, np.flatnonzero((np.abs(X[:, :2]) < 2).all(axis=1)))
    selection = explorer.snapshot().selection
    assert selection is not None
    np.testing.assert_array_equal(selection.sizes, np.bincount(labels[chosen], minlength=4))


def test_a_snapshot_has_the_ellipses_of_two_iterations(pair: xpulab.XPUCluster) -> None:
    X = np.random.default_rng(0).normal(size=(5000, 2)) * [3.0, 1.0] + [5.0, 0.0]
    explorer = MixtureExplorer(pair.scatter(X), 1)
    assert 'class="xpu-before"' not in explorer.snapshot().html()
    for _ in range(3):
        explorer.step()
    shown = explorer.snapshot()
    assert str(shown).startswith("Gaussian mixture of 5,000 rows x 2, k=1, start 0: 3 iterations, converged, lower ")
    lines = [each for each in Document(shown.html()).attributes("polyline") if each.get("class") != "xpu-halo"]
    assert [each["class"] for each in lines if each["class"] != "xpu-line"].count("xpu-before") == 1
    ellipse = next(each for each in lines if len(str(each["points"]).split()) == 49 and each["class"] == "xpu-trail")
    places = np.array([point.split(",") for point in str(ellipse["points"]).split()], float)
    # Two standard deviations to each side, in pixels of the picture.
    size = 2 * 2 * X.std(axis=0) / (np.array(shown.picture.high) - shown.picture.low) * (512, 384)
    np.testing.assert_allclose(np.ptp(places, axis=0), size, rtol=0.02)
    assert "Lower bound by iteration: 1: " in shown.html()
    figure = shown.plot()
    assert figure.axes[1].get_ylabel() == "lower bound"
    matplotlib.pyplot.close(figure)
    assert len(shown.image()) > 1000


def test_a_view_of_a_mixture_has_its_controls(pair: xpulab.XPUCluster) -> None:
    pair.activate()
    view = xpulab.explore(groups(), 3, algorithm="mixture", covariance_type="diag", points=2000)
    assert isinstance(view, ExploreView)
    view.widget = view._make_widget()
    assert (view.widget.choices["title"], view.widget.choices["elbow"]) == ("Gaussian mixture explorer", False)
    json.dumps(view.widget.state)
    view.pace = 100
    for name, value in [("k", 4), ("x", 2), ("points", 3000), ("step", None), ("move", [1, 0.0, 0.0]), ("play", True)]:
        view.ask(name, value)
        assert view.wait(120)
        assert "Error" not in view.message
    assert isinstance(view.explorer, MixtureExplorer)
    assert view.explorer.converged
    assert "Gaussian mixture of 3,000 rows x 3, k=4" in view.widget.state["line"]
    view.ask("elbow")
    assert view.wait(120)
    said = "only k-means has an elbow curve; to see it, type: xpulab.explore(X, algorithm='kmeans')"
    assert view.message == f"ValueError: {said}"
    view.close()


def test_impossible_parameters_are_refused(pair: xpulab.XPUCluster) -> None:
    rows = pair.scatter(groups())
    for parameters, message in (
        (
            {"covariance_type": "round"},
            "covariance_type='round' was given; expected one of 'full', 'tied', 'diag', 'sph",
        ),
        (
            {"init_params": None},
            "init_params=None was given; expected one of 'kmeans', 'k-means[+][+]', 'random', 'random",
        ),
        ({"reg_covar": -1.0}, "reg_covar=-1.0 was given; expected a finite number of at least 0"),
        ({"k": 0}, "k=0 was given; expected a whole number from 1 to 3,000"),
    ):
        with pytest.raises(ValueError, match=message):
            MixtureExplorer(rows, **parameters)
    with pytest.raises(ValueError, match="algorithm='em' was given; expected one of 'kmeans', 'mixture', 'dbscan'"):
        xpulab.explore(rows, algorithm="em")
