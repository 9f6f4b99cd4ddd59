"""What scripts for `sklearnex.spmd` rely on beyond the results, in cells on two engines."""

from __future__ import annotations

import pytest

import xpulab
from xpulab.console.cells import run_cell

pytestmark = pytest.mark.cluster

ROWS = """
import numpy as np
X = np.random.default_rng(0).normal(size=(60, 4)) + 1
weights = np.random.default_rng(1).uniform(0.5, 2, 60)
mine = slice(*[(0, 20), (20, 60)][rank])
alike = np.testing.assert_allclose
"""


def test_arguments_by_position_and_parameters_of_sklearnex(on_pair: xpulab.XPUCluster) -> None:
    run_cell(
        on_pair,
        f"""{ROWS}
from xpulab.spmd import basic_statistics, decomposition, linear_model
weighted = (weights[:, None] * X).mean(axis=0)
alike(basic_statistics.IncrementalBasicStatistics(n_jobs=1).partial_fit(X[mine], weights[mine]).mean_, weighted)
alike(basic_statistics.BasicStatistics().fit(X[mine], None, weights[mine], None).mean_, weighted)
column = basic_statistics.BasicStatistics("sum").fit(X[mine, 0])
alike(column.sum_, X[:, 0].sum())
assert np.ndim(column.sum_) == 0
try:
    basic_statistics.IncrementalBasicStatistics().partial_fit(X[mine, 0])
except ValueError as error:
    assert "Expected 2D array" in str(error)
else:
    raise AssertionError
line = linear_model.IncrementalLinearRegression(n_jobs=1).fit(X[mine], X[mine, 0])
alike(line.predict(X[mine], None, None), X[mine, 0], atol=1e-9)
numbers = decomposition.PCA.get_hyperparameters("fit")
numbers.cpu_macro_block = 5
assert decomposition.PCA.get_hyperparameters("fit").to_dict()["cpu_macro_block"] == 5
decomposition.PCA.reset_hyperparameters("fit")
assert decomposition.PCA.get_hyperparameters("fit").cpu_macro_block == 140
for wrong in (lambda: setattr(numbers, "macro", 5), lambda: decomposition.PCA.get_hyperparameters("transform")):
    try:
        wrong()
    except ValueError as error:
        assert "expected" in str(error)
    else:
        raise AssertionError
""",
    )
