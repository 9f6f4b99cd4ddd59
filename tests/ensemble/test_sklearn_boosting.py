"""scikit-learn's own tests of histogram gradient boosting, run against the proxies on two engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import run_suite

import xpulab

pytestmark = pytest.mark.cluster

#: Parts of the names of tests whose input raises an error: CSR matrices, a loss of the user's, and numbers that are
#: strings, in a table with categories.
REFUSED = ["csr", "custom_loss", "categorical_results_same_as_ndarray"]
CANNOT = {
    "test_early_stopping_with_sample_weights": "counts calls of the scorer, which are made on an engine",
    "test_raw_predict_is_called_with_custom_scorer": "counts calls of a method, which are made on an engine",
    "test_different_bitness_pickle": "the class that counts calls of fit cannot be pickled",
    "test_different_bitness_joblib_pickle": "the class that counts calls of fit cannot be pickled",
}
#: Fits of a hundred trees with losses, weights, missing values and constraints with which `test_boosting` compares all
#: trees, also those of stages, with scikit-learn's.
DEAR = (
    *("test_absolute_error", "test_absolute_error_sample_weight", "test_gamma", "test_poisson", "test_class_weights"),
    *("test_interaction_cst_numerically", "test_missing_values_minmax_imputation", "test_missing_values_resilience"),
    *("test_sample_weight_effect", "test_staged_predict"),
)
PROXIES = [f"xpulab.ensemble:HistGradientBoosting{kind}" for kind in ("Classifier", "Regressor")]


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    """All tests pass except those that cannot, and enough of them call a proxy's fit."""
    module = "sklearn.ensemble._hist_gradient_boosting.tests.test_gradient_boosting"
    only = " and ".join(f"not {part}" for part in REFUSED)
    run_suite(tmp_path, pair, [module], PROXIES, 60, CANNOT, only, dear=DEAR)
