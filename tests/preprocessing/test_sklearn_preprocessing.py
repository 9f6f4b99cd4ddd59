"""scikit-learn's own tests of its largest module of them, and checks of the scalers, on two engines."""

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
_REFUSED = "sparse rows are refused"
CANNOT = {
    "test_scaler_2d_arrays": "with copy=False scikit-learn changes the input, which the engines never do",
    "test_standard_scaler_dtype[True-None]": _HALF,
    "test_standard_scaler_dtype[False-None]": _HALF,
    "test_quantile_transform_bounds": _REFUSED,
    "test_quantile_transform_check_error": _REFUSED,
    "test_quantile_transform_iris": _REFUSED,
    "test_quantile_transform_sparse": _REFUSED,
    "test_quantile_transformer_sorted_quantiles[sparse]": _REFUSED,
    "test_normalizer_l1": _REFUSED,
    "test_normalizer_l2": _REFUSED,
    "test_normalizer_max": _REFUSED,
    "test_binarizer[array]": "copy=False changes no input",
    "test_binarizer[cs": _REFUSED,
}
#: Tests of sparse rows, which the engines do not take: all of them end with scikit-learn's own error.
_SPARSE = "csr or csc or sparse or scaler_return_identity or test_robust_scaler_attributes"
#: Tests that fit single rows one after the other, hundreds of times. One of them runs separately.
_SLOW = "scaler_partial_fit or transform_with_partial_fit"
_SCALERS = f"(scaler or robust_scale or minmax_scale or maxabs_scale) and not ({_SPARSE} or {_SLOW})"
#: Tests of the other classes; one subsamples a million rows, and then sparse ones.
_OTHERS = "ormalize or inariz or quantile_transform and not subsampling or subsampling_disabled"
#: Number of tests that call a proxy's fit, with scikit-learn 1.7 and 1.9. If there are fewer, the swap missed a name.
LEAST_CALLING = {
    "StandardScaler": 30, "MinMaxScaler": 6, "MaxAbsScaler": 5, "RobustScaler": 10, "QuantileTransformer": 5,
    "Normalizer": 1, "Binarizer": 1,
}  # fmt: skip


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    run_suite(
        tmp_path,
        pair,
        ["sklearn.preprocessing.tests.test_data", "sklearn.preprocessing.tests.test_common"],
        [f"xpulab.preprocessing:{name}" for name in LEAST_CALLING],
        LEAST_CALLING,
        CANNOT,
        only=f"({_SCALERS} or {_OTHERS}) and not (array_api or missing_value_handling)",
        whole="test_one_to_one_features",  # each class has one
    )


_checks = parametrize_with_checks([StandardScaler(), MinMaxScaler(clip=True), MaxAbsScaler(), RobustScaler()])


# The list of checks in scikit-learn 1.7 has a generator, and pytest warns about it.
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)
