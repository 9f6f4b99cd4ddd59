"""Forests of files that do not fit: the bins of all values, which the engines keep, are those of rows in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sent import nothing_sent

import xpulab
from xpulab.ensemble import ExtraTreesRegressor, RandomForestClassifier, RandomForestRegressor
from xpulab.exceptions import NotEnoughMemoryError
from xpulab.scanning import Scan

pytestmark = pytest.mark.cluster

N, D = 10_007, 12
ROWS = np.random.default_rng(0).normal(size=(N, D))
ROWS[np.random.default_rng(1).random((N, D)) < 0.02] = np.nan
Y = np.nan_to_num(ROWS) @ np.arange(D)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Scan:
    path = tmp_path_factory.mktemp("rows") / "x.parquet"
    columns = {f"c{f}": pa.array(ROWS[:, f], from_pandas=True) for f in range(D)}
    pq.write_table(pa.table(columns), path, row_group_size=1337)
    return xpulab.scan(path)


@pytest.mark.parametrize("n", [1, 3], ids=["1-engine", "3-engines"])
@pytest.mark.parametrize(
    ("kind", "in_file"),
    [
        (RandomForestClassifier, True),
        (RandomForestClassifier, False),
        (RandomForestRegressor, True),
        (ExtraTreesRegressor, True),
    ],
)
def test_the_trees_are_those_of_rows_in_memory(
    clusters: Callable[[int], xpulab.XPUCluster], rows: Scan, n: int, kind: Any, in_file: bool
) -> None:
    """Rows of this process are written to a file without a name."""
    y = Y > 0 if kind is RandomForestClassifier else Y
    cluster = clusters(n).activate()
    made = partial(kind, 30, random_state=0, max_depth=5, oob_score=True, bootstrap=True)
    same = made().fit(ROWS, y)
    cluster.memory = f"{int(0.4 * ROWS.nbytes)}B"
    try:
        ours = made().fit(rows if in_file else ROWS, y)
    finally:
        cluster.memory = None
    assert f"0 % of the rows were kept on the engines (0 of {N:,})" in "\n".join(ours.report_.notes)
    assert ours.oob_score_ == pytest.approx(same.oob_score_, rel=1e-12)  # a mean of numbers in parts
    for tree, expected in zip(ours.estimators_, same.estimators_, strict=True):
        np.testing.assert_array_equal(tree.tree_.threshold, expected.tree_.threshold)
        np.testing.assert_array_equal(tree.tree_.value, expected.tree_.value)


def test_bins_that_do_not_fit_are_refused_with_the_numbers(on_pair: xpulab.XPUCluster, rows: Scan) -> None:
    on_pair.memory = "200KB"
    try:
        with (
            nothing_sent(on_pair),
            pytest.raises(NotEnoughMemoryError, match=r"keeps of it .*, 36 bytes a row, takes 352 KiB; memory='200KB'"),
        ):
            RandomForestRegressor(2).fit(rows, Y)
    finally:
        on_pair.memory = None


def test_infinity_is_found_in_a_column(on_pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    X = np.nan_to_num(ROWS)
    X[9000, 5] = np.inf
    np.save(tmp_path / "x.npy", X)
    on_pair.memory = "1.5MB"  # the rows take more with what a growing tree needs
    try:
        with pytest.raises(ValueError, match="infinity"):
            RandomForestRegressor(2).fit(xpulab.scan(tmp_path / "x.npy"), Y)
    finally:
        on_pair.memory = None
