"""scikit-learn's own tests of metrics, on two engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import run_suite

import xpulab
from xpulab import metrics

pytestmark = pytest.mark.cluster

_NAMES = ("silhouette_score", "silhouette_samples", "davies_bouldin_score", "calinski_harabasz_score")
_PRECOMPUTED = "it passes precomputed distances, which are refused"
CANNOT = {
    "test_silhouette[": _PRECOMPUTED,
    "test_silhouette_paper_example": _PRECOMPUTED,
    "test_silhouette_nonzero_diag": _PRECOMPUTED,
    "test_silhouette_samples_precomputed_sparse": _PRECOMPUTED,
    "test_silhouette_score_integer_precomputed": _PRECOMPUTED,
    "test_silhouette_samples_euclidean_sparse": "sparse rows are refused",
}


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    run_suite(
        tmp_path,
        pair,
        ["sklearn.metrics.cluster.tests.test_unsupervised"],
        [f"xpulab.metrics:{name}" for name in _NAMES],
        least=6,
        cannot=CANNOT,
        only="not test_silhouette_reduce",  # tests a private function of scikit-learn
    )


def test_the_tests_of_scikit_learn_of_errors_clusterings_and_ranks(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    run_suite(
        tmp_path,
        pair,
        [
            "sklearn.metrics.cluster.tests.test_supervised",
            "sklearn.metrics.tests.test_regression",
            "sklearn.metrics.tests.test_ranking",
        ],
        [f"xpulab.metrics:{name}" for name in metrics.__all__ if name not in _NAMES],
        least=150,
        only="not det_curve and not label_ranking",  # many tests of few rows
        # A hundred calls each, of scores that `test_every_score` compares with scikit-learn's.
        dear=[
            "test_adjustment_for_chance",
            "test_exactly_zero_info_score",
            "test_mean_pinball_loss_on_constant_predictions",
            "test_perfect_imperfect_chance_multiclass_roc_auc",
        ],
    )
