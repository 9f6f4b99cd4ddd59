"""The mixture against scikit-learn's: all types of covariance, starts and dtypes, and any cut of the rows."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.mixture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import xpulab
from xpulab.mixture import GaussianMixture

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("current")]

TYPES = ["full", "tied", "diag", "spherical"]
STARTS = ["kmeans", "k-means++", "random", "random_from_data"]
NAMES = ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_")
K, D = 4, 3


def made(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shapes = rng.normal(size=(K, D, D)) + np.eye(D)
    component = rng.integers(K, size=n)
    return rng.normal(0, 4, size=(K, D))[component] + np.einsum(
        "ni,nij->nj", rng.normal(size=(n, D)), shapes[component]
    )


X = made(1500)


def both(rows: Any = X, reference: np.ndarray = X, **parameters: Any) -> tuple[GaussianMixture, Any]:
    """Return our fit and scikit-learn's."""
    parameters = {"n_components": K, "random_state": 1, "max_iter": 15, **parameters}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        ours = GaussianMixture(**parameters).fit(rows)
        theirs = sklearn.mixture.GaussianMixture(**parameters).fit(reference)
    return ours, theirs


def alike(ours: Any, theirs: Any, rtol: float = 1e-7) -> None:
    for name in NAMES:
        expected = getattr(theirs, name)
        np.testing.assert_allclose(getattr(ours, name), expected, rtol=rtol, atol=rtol * np.abs(expected).max())
    assert (ours.n_iter_, ours.converged_) == (theirs.n_iter_, theirs.converged_)
    np.testing.assert_allclose(ours.lower_bounds_, theirs.lower_bounds_, rtol=rtol)
    assert ours.lower_bound_ == pytest.approx(theirs.lower_bound_, rel=rtol)


@pytest.mark.fraction(3)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("covariance_type", TYPES)
def test_the_parameters_of_scikit_learn(covariance_type: str, start: str) -> None:
    alike(*both(covariance_type=covariance_type, init_params=start))


@pytest.mark.parametrize("covariance_type", TYPES)
def test_float32_rows_against_a_float64_reference(covariance_type: str) -> None:
    """The reference fits the same rounded rows. Far from the origin, sums of squares would have no right digit."""
    rows = (X + 300).astype(np.float32)
    exact = rows.astype(np.float64)
    _, first = both(X[:50], exact, covariance_type=covariance_type, max_iter=2)
    start = {"weights_init": first.weights_, "means_init": first.means_, "precisions_init": first.precisions_}
    ours, theirs = both(rows, exact, covariance_type=covariance_type, **start)
    alike(ours, theirs, 3e-4)
    assert {getattr(ours, name).dtype for name in NAMES} == {np.dtype(np.float32)}
    assert ours.predict_proba(rows).dtype == ours.score_samples(rows).dtype == np.float32


@pytest.mark.parametrize("covariance_type", TYPES)
def test_methods_of_rows(current: xpulab.XPUCluster, covariance_type: str, tmp_path: Path) -> None:
    ours, theirs = both(covariance_type=covariance_type)
    np.save(tmp_path / "X.npy", X)
    for rows in (X, current.scatter(X), np.load(tmp_path / "X.npy", mmap_mode="r")):
        labels = ours.predict(rows)
        assert type(labels) is np.ndarray
        np.testing.assert_array_equal(labels, theirs.predict(X))
        np.testing.assert_allclose(ours.predict_proba(rows), theirs.predict_proba(X), atol=1e-9)
        np.testing.assert_allclose(ours.score_samples(rows), theirs.score_samples(X), rtol=1e-9)
        assert ours.score(rows) == pytest.approx(theirs.score(X), rel=1e-9)
        assert (ours.bic(rows), ours.aic(rows)) == pytest.approx((theirs.bic(X), theirs.aic(X)), rel=1e-9)
    for found, expected in zip(ours.sample(50), theirs.sample(50), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


@given(st.integers(1, 150), st.sampled_from(TYPES), st.sampled_from(STARTS), st.integers(0, 99))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cut_of_the_rows(current: xpulab.XPUCluster, n: int, covariance_type: str, start: str, seed: int) -> None:
    """Shards may be uneven and empty, and have fewer rows than there are components."""
    rows, size = made(n + K, seed), current.size
    cuts = np.sort(np.random.default_rng(seed).integers(0, len(rows) + 1, size - 1))
    counts = np.diff([0, *cuts, len(rows)]).tolist()
    parameters = {"covariance_type": covariance_type, "init_params": start, "reg_covar": 0.1, "max_iter": 5}
    handle = current.scatter(rows, counts=counts)
    ours, theirs = both(handle, rows, **parameters)
    alike(ours, theirs, 1e-6)
    assert ours.score(handle) == pytest.approx(theirs.score(rows), rel=1e-6)


def test_given_parameters() -> None:
    for covariance_type in ("full", "spherical"):
        _, first = both(X[:50], covariance_type=covariance_type, max_iter=2)
        start = {"weights_init": first.weights_, "means_init": first.means_, "precisions_init": first.precisions_}
        alike(*both(covariance_type=covariance_type, **start))
        for name, value in start.items():
            alike(*both(covariance_type=covariance_type, max_iter=2, **{name: value}))
        without = GaussianMixture(K, covariance_type=covariance_type, max_iter=0, **start).fit(X)
        np.testing.assert_allclose(without.covariances_, first.covariances_)
        np.testing.assert_allclose(without.means_, first.means_)
        assert (without.n_iter_, without.lower_bound_, without.lower_bounds_) == (0, -np.inf, [])
        np.testing.assert_array_equal(without.predict(X), first.predict(X))


def test_several_runs_and_a_generator() -> None:
    """The best run is kept, and the generator is left as scikit-learn leaves it."""
    states = np.random.RandomState(5), np.random.RandomState(5)
    parameters = {"n_components": K, "n_init": 3, "init_params": "random_from_data", "max_iter": 8}
    with pytest.warns(ConvergenceWarning, match="Best performing initialization did not converge"):
        ours = GaussianMixture(**parameters, random_state=states[0]).fit(X)
    with pytest.warns(ConvergenceWarning):
        theirs = sklearn.mixture.GaussianMixture(**parameters, random_state=states[1]).fit(X)
    alike(ours, theirs)
    assert states[0].uniform() == states[1].uniform()
    assert {each.init for each in ours.report_.iterations} == {1, 2, 3}
    assert ours.report_.objective == ("lower_bound", ours.lower_bound_)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_warm_start_goes_on() -> None:
    whole = GaussianMixture(K, random_state=0, max_iter=6, tol=0).fit(X)
    model = GaussianMixture(K, random_state=0, max_iter=3, tol=0, warm_start=True).fit(X)
    labels = model.fit_predict(X)
    for name in NAMES:
        np.testing.assert_allclose(getattr(model, name), getattr(whole, name), rtol=1e-9)
    np.testing.assert_allclose(model.lower_bounds_, whole.lower_bounds_[3:])
    np.testing.assert_array_equal(labels, whole.predict(X))
    assert model.set_params(tol=1.0, max_iter=9).fit(X).n_iter_ == 1  # compared with the bound of the last fit


def test_input_that_is_refused(current: xpulab.XPUCluster) -> None:
    with pytest.raises(NotFittedError):
        GaussianMixture().predict(X)
    with pytest.raises(ValueError, match=r"n_samples >= n_components but got n_components = 9, n_samples = 8"):
        GaussianMixture(9).fit(X[:8])
    with pytest.raises(ValueError, match="minimum of 2 is required"):
        GaussianMixture().fit(current.scatter(X[:1]))
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        GaussianMixture(2).fit(sparse.csr_matrix(X))
    with pytest.raises(ValueError, match="should have the shape of"):
        GaussianMixture(2, means_init=X[:3]).fit(X)
    missing = np.where(np.arange(X[:2].size).reshape(X[:2].shape) == X.shape[1] + 1, np.nan, X[:2])
    with pytest.raises(ValueError, match=r"Input means_init contains NaN\.\n.*in row 1, column 1\."):
        GaussianMixture(2, means_init=missing).fit(X)
    with pytest.raises(ValueError, match="should be positive"):
        GaussianMixture(1, covariance_type="diag", precisions_init=[[1, 1, -1]]).fit(X)
    holed = X.copy()
    holed[7, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        GaussianMixture(2).fit(holed)
    for covariance_type in TYPES:
        with pytest.raises(ValueError, match=r"ill-defined empirical covariance.*pass.* float64"):
            GaussianMixture(2, reg_covar=0, covariance_type=covariance_type).fit(np.ones((10, 2), np.float32))


def test_the_report_and_the_messages(capsys: pytest.CaptureFixture[str]) -> None:
    model = GaussianMixture(K, random_state=1, verbose=2, verbose_interval=1).fit(X)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "Initialization 0"
    assert printed[1].startswith("  Iteration 1\t time lapse ")
    assert printed[-1].startswith("Initialization converged. time lapse ")
    report = model.report_
    assert (report.status, report.converged) == ("finished", True)
    assert [each.metrics["lower_bound"] for each in report.iterations] == model.lower_bounds_
    assert sum(engine.rows for engine in report.engines) == len(X)
    assert "lower bound" in str(report)


def test_clones_pickles_and_to_sklearn() -> None:
    model = GaussianMixture(K, random_state=1).fit(X)
    assert not hasattr(clone(model), "means_")
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    plain = model.to_sklearn()
    assert type(plain) is sklearn.mixture.GaussianMixture
    np.testing.assert_array_equal(plain.predict(X), model.predict(X))
    assert plain.bic(X) == pytest.approx(model.bic(X))
