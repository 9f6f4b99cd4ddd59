"""Gradient boosting of files that do not fit: the bins, which the engines keep, are those of rows in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal
from sent import nothing_sent

import xpulab
from xpulab.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from xpulab.exceptions import NotEnoughMemoryError
from xpulab.scanning import Scan

pytestmark = pytest.mark.cluster

N, D = 10_007, 60
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(N, D))
ROWS[RNG.random((N, D)) < 0.02] = np.nan
ROWS[:, 7] = np.rint(3 * ROWS[:, 7])
Y = np.nan_to_num(ROWS) @ np.arange(D)
TABLE = pd.DataFrame(ROWS, columns=[f"c{f}" for f in range(D)]).assign(
    kind=pd.Categorical(np.array(["blue", "green", "red"])[RNG.integers(0, 3, N)])
)


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scan]:
    folder = tmp_path_factory.mktemp("rows")
    for name, frame in (("numbers", TABLE.drop(columns="kind")), ("table", TABLE)):
        table = pa.Table.from_pandas(frame, preserve_index=False)
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=1337)
    return {name: xpulab.scan(folder / f"{name}.parquet") for name in ("numbers", "table")}


@pytest.mark.parametrize("n", [1, 3], ids=["1-engine", "3-engines"])
@pytest.mark.parametrize(
    ("kind", "parameters", "name"),
    [
        (HistGradientBoostingClassifier, {"early_stopping": True}, "numbers"),
        (HistGradientBoostingRegressor, {"categorical_features": [7], "max_features": 0.5}, ""),
        (HistGradientBoostingRegressor, {"categorical_features": ["kind", "c7"]}, "table"),
    ],
    ids=["file", "rows of this process", "strings in a file"],
)
def test_the_trees_are_those_of_rows_in_memory(
    clusters: Callable[[int], xpulab.XPUCluster],
    scans: dict[str, Scan],
    n: int,
    kind: Any,
    parameters: dict[str, Any],
    name: str,
) -> None:
    y = Y > 0 if kind is HistGradientBoostingClassifier else Y
    cluster = clusters(n).activate()
    rows: Any = {"table": TABLE, "numbers": TABLE.drop(columns="kind")}.get(name, ROWS)
    made = {"max_iter": 5, "random_state": 0} | parameters
    same = kind(**made).fit(rows, y)
    cluster.memory = f"{int(0.6 * ROWS.nbytes)}B"
    try:
        ours = kind(**made).fit(scans[name] if name else rows, y)
    finally:
        cluster.memory = None
    assert f"0 % of the rows were kept on the engines (0 of {N:,})" in "\n".join(ours.report_.notes)
    expected = same.to_sklearn()
    expected = expected.predict_proba(rows) if hasattr(expected, "predict_proba") else expected.predict(rows)
    found = ours.predict_proba(rows) if hasattr(ours, "predict_proba") else ours.predict(rows)
    assert_array_equal(found, expected)
    assert_array_equal(ours.validation_score_, same.validation_score_)


def test_bins_that_do_not_fit_are_refused_with_the_numbers(on_pair: xpulab.XPUCluster, scans: dict[str, Scan]) -> None:
    on_pair.memory = "1MB"
    try:
        with nothing_sent(on_pair), pytest.raises(NotEnoughMemoryError, match=r"216 bytes a row, takes 2.1 MiB"):
            HistGradientBoostingRegressor().fit(scans["numbers"], Y)
    finally:
        on_pair.memory = None
