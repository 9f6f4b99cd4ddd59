"""The parameters of normal distributions from sums about centres, against NumPy and scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

import xpulab
from xpulab.exceptions import EngineError

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 3)) @ RNG.normal(size=(3, 3)) + 5
SHARES = RNG.dirichlet(np.ones(2), size=len(X))


def parameters(here: Any, kind: str, X: np.ndarray, shares: np.ndarray, least: float) -> dict[str, np.ndarray]:
    """On an engine: return the parameters for shares of the rows; the sums are about points near the means."""
    from xpulab.engine.algorithms.gaussians import is_full, parameters_of
    from xpulab.kernels.mixture import Sums

    centers = np.array([X.mean(axis=0) + 0.1, X.mean(axis=0) - 0.2])
    away = X[None] - centers[:, None]
    first = np.einsum("nk,kni->ki", shares, away)
    if is_full(kind):
        second = np.einsum("nk,kni,knj->kij", shares, away, away)
    else:
        second = np.einsum("nk,kni->ki", shares, away**2)
    return vars(parameters_of(Sums(0.0, centers, shares.sum(axis=0), first, second), kind, least, X.dtype))


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_the_parameters_of_shares_are_those_of_scikit_learn(pair: xpulab.XPUCluster, kind: Any) -> None:
    found = pair.run(parameters, kind, X, SHARES, 1e-3)[0]
    # One step of scikit-learn's from these parameters has their shares, and so the parameters of the next step.
    model = GaussianMixture(
        2, covariance_type=kind, weights_init=found["weights"] / len(X), means_init=found["means"],
        precisions_init=np.linalg.inv(found["covariances"]) if kind in ("full", "tied") else 1 / found["covariances"],
        max_iter=1, reg_covar=1e-3,
    )  # fmt: skip
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    start = GaussianMixture(2, covariance_type=kind)
    start.weights_, start.means_ = found["weights"] / len(X), found["means"]
    start.covariances_, start.precisions_cholesky_ = found["covariances"], found["factors"]
    again = pair.run(parameters, kind, X, start.predict_proba(X), 1e-3)[0]
    np.testing.assert_allclose(again["means"], model.means_, rtol=1e-9)
    np.testing.assert_allclose(again["covariances"], model.covariances_, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(again["factors"], model.precisions_cholesky_, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(again["weights"] / again["weights"].sum(), model.weights_, rtol=1e-12)


def test_a_covariance_that_is_not_positive_definite_is_an_error(pair: xpulab.XPUCluster) -> None:
    flat = X.copy()
    flat[:, 1] = 2 * flat[:, 0]
    with pytest.raises(EngineError, match="ill-defined empirical covariance"):
        pair.run(parameters, "full", flat, SHARES, 0.0)
