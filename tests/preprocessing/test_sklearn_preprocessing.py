"""scikit-learn's own tests and checks, run against the scalers on two engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

pytestmark = pytest.mark.cluster

_HALF = "float16 becomes float64: the engines have float32 and float64"
CANNOT = {
    "test_scaler_2d_arrays": "with copy=False scikit-learn changes the input, which the engines never do",
    "test_standard_scaler_dtype[True-None]": _HALF,
    "test_standard_scaler_dtype[False-None]": _HALF,
}
#: Tests of sparse rows, which the engines do not take: all of them end with scikit-learn's own error.
_SPARSE = "csr or csc or sparse or scaler_return_identity or test_robust_scaler_attributes"
#: Tests that fit single rows one after the other, hundreds of times. One of them runs separately.
_SLOW = "scaler_partial_fit or transform_with_partial_fit"
_OURS = "scaler or robust_scale or minmax_scale or maxabs_scale"
#: Number of tests that call a proxy's fit, with scikit-learn 1.7 and 1.9. If there are fewer, the swap missed a name.
LEAST_CALLING = 50


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    run_suite(
        tmp_path,
        pair,
        ["sklearn.preprocessing.tests.test_data"],
        [f"xpulab.preprocessing:{name}" for name in ("StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler")],
        LEAST_CALLING,
        CANNOT,
        only=f"({_OURS}) and not ({_SPARSE} or {_SLOW} or array_api)",
    )


_checks = parametrize_with_checks([StandardScaler(), MinMaxScaler(clip=True), MaxAbsScaler(), RobustScaler()])


# The list of checks in scikit-learn 1.7 has a generator, and pytest warns about it.
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)
