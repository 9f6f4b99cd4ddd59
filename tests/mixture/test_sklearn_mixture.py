"""scikit-learn's own tests and checks, run against the mixture on two engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.mixture import GaussianMixture

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("on_pair")]

#: Tests of scikit-learn that cannot pass -> why.
CANNOT = {
    "test_gaussian_mixture_all_init_does_not_estimate_gaussian_parameters": (
        "it counts the calls of a function of scikit-learn, and the engines compute the parameters"
    ),
    "test_score[float32]": "it compares with a mean that is rounded to float32, and the engines add in float64",
}


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    """All tests pass, and enough of them call the proxy's fit."""
    modules, proxies = ["sklearn.mixture.tests.test_gaussian_mixture"], ["xpulab.mixture:GaussianMixture"]
    # The dear ones have 2,400 fits of an iteration, and more starts than `test_multiple_init`. `test_gaussian_mixture`
    # compares the bounds of all iterations, and the numbers of each kind of covariances.
    dear = ["test_monotonic_likelihood", "test_init", "test_gaussian_mixture_fit"]
    dear += ["test_gaussian_mixture_fit_best_params"]
    run_suite(tmp_path, pair, modules, proxies, 55, CANNOT, only="not array_api", dear=dear)


_checks = parametrize_with_checks([GaussianMixture()])


@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: GaussianMixture, check: Any) -> None:
    check(estimator)
