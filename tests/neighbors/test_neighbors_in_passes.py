"""Neighbours among rows of files of which the engines keep all, some or none are those of rows in memory."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from constants import constants, constants_here
from leftovers import files_without_names
from numpy.testing import assert_array_equal

import xpulab
from xpulab.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestNeighbors
from xpulab.scanning import Scan

pytestmark = pytest.mark.cluster

N, D = 451, 3
RNG = np.random.default_rng(0)
ROWS = np.rint(4 * RNG.normal(size=(N, D)))  # many distances are equal
QUERIES = np.rint(4 * RNG.normal(size=(75, D)))
#: Twice what is kept: an index is a copy of the rows, with two numbers for each.
BUDGETS: dict[str, str | float] = {"all": 1e9, "40 %": f"{int(0.4 * N * (2 * 8 * D + 16))}B", "nothing": 0}


def stored(path: Path, rows: np.ndarray, **columns: Any) -> Scan:
    names = {f"c{f}": rows[:, f] for f in range(rows.shape[1])}
    pq.write_table(pa.table(names | columns), path, row_group_size=87)
    return xpulab.scan(path)


@pytest.fixture(params=BUDGETS)
def budget(request: pytest.FixtureRequest, current: xpulab.XPUCluster) -> Iterator[str]:
    """Give the engines memory for these rows, and have parts of 128 rows."""
    current.memory = BUDGETS[request.param]
    with constants(current, "xpulab.kernels.streamed", PIECE_BYTES=128 * 8 * D):
        yield request.param
    current.memory = None


@pytest.mark.fraction(3)
@pytest.mark.parametrize("parameters", [{}, {"p": 1}, {"metric": "cosine"}, {"p": 3}], ids=str)
def test_the_neighbours_are_those_of_rows_in_memory(
    budget: str, current: xpulab.XPUCluster, tmp_path: Path, parameters: dict[str, Any]
) -> None:
    cosine = parameters.get("metric") == "cosine"
    X = ROWS + RNG.random(size=ROWS.shape) * cosine  # which takes those that are as near in the order of its rounding
    rows, queries = stored(tmp_path / "x.parquet", X), stored(tmp_path / "q.parquet", QUERIES)
    ours = NearestNeighbors(**parameters).fit(rows)
    assert ("the others were read again in 1 pass" in "\n".join(ours.report_.notes)) == (budget != "all")
    same = NearestNeighbors(algorithm="brute", **parameters).fit(X)
    handle = current.scatter(QUERIES)
    for asked, right in ((queries, QUERIES), (handle, QUERIES), (None, None)):
        with constants_here("xpulab.estimator.parts", AT_ONCE=16 * 5 * current.size * 250):  # 250 queries
            found, some = ours.kneighbors(asked), ours.radius_neighbors(asked, 0.001 if cosine else 2.0)
        for each, expected in zip(found, same.kneighbors(right), strict=True):
            assert_array_equal(each, expected)
        for each, expected in zip(some, same.radius_neighbors(right, 0.001 if cosine else 2.0), strict=True):
            assert_array_equal(np.concatenate(each), np.concatenate(expected))
            assert list(map(len, each)) == list(map(len, expected))


def _blocks() -> Iterator[Any]:
    return iter(pa.table({f"c{f}": part[:, f] for f in range(D)}) for part in np.array_split(ROWS, 7))


@pytest.mark.parametrize("form", ["array", "frame", "function"])
def test_rows_of_this_process_are_searched_in_a_file_that_lives_as_long(
    budget: str, current: xpulab.XPUCluster, clusters: Any, form: str
) -> None:
    frame = pd.DataFrame(ROWS, columns=[f"c{f}" for f in range(D)])
    forms = {"array": ROWS, "frame": frame, "function": xpulab.scan(_blocks)}
    X, other = forms[form], clusters(1)
    labels = np.arange(N) % 4
    current.activate().memory = None
    same, votes = NearestNeighbors(algorithm="brute").fit(ROWS), KNeighborsClassifier().fit(ROWS, labels)
    expected, others, voted = same.kneighbors(QUERIES)[1], same.kneighbors()[1], votes.predict(QUERIES)
    del same, votes
    current.memory, before = BUDGETS[budget], files_without_names()
    ours = NearestNeighbors().fit(X)
    notes = "\n".join(ours.report_.notes)
    assert ("of rows were written to a file without a name" in notes) == (budget != "all"), notes
    assert ("the others were read again in 1 pass" in notes) == (budget != "all")
    queries = QUERIES if form == "array" else pd.DataFrame(QUERIES, columns=frame.columns)
    with constants_here("xpulab.estimator.parts", AT_ONCE=16 * 5 * 250, LEAST=0):
        for each in (ours,) if form == "function" else (ours, pickle.loads(pickle.dumps(ours))):
            assert_array_equal(each.kneighbors(queries)[1], expected)
            assert_array_equal(each.kneighbors()[1], others)
    other.activate().memory = BUDGETS[budget]  # it gets the rows from the file
    try:
        assert_array_equal(ours.kneighbors(queries)[1], expected)
    finally:
        other.memory = None
    votes = KNeighborsClassifier().fit(X, labels)
    assert_array_equal(votes.predict(queries), voted)
    assert (files_without_names() > before) == (budget != "all")
    del ours, each, votes
    assert files_without_names() == before


class ByEngines(Scan):
    """A column that must not be read in this process."""

    def read(self) -> Any:
        pytest.fail("a column was read in this process")


@pytest.mark.fraction(2)
def test_votes_and_means_are_those_of_rows_in_memory(budget: str, tmp_path: Path) -> None:
    labels, numbers = np.arange(N) % 4, ROWS @ [1.0, 2, 3] + 0.5
    table = stored(tmp_path / "x.parquet", ROWS, label=labels, number=numbers)
    rows, queries = table[["c0", "c1", "c2"]], stored(tmp_path / "q.parquet", QUERIES)
    for kind, place, values in ((KNeighborsClassifier, D, labels), (KNeighborsRegressor, D + 1, numbers)):
        ours, same = kind().fit(rows, ByEngines(table.source, [place], flat=True)), kind().fit(ROWS, values)
        assert_array_equal(ours.predict(queries), same.predict(QUERIES))
        assert_array_equal(ours.predict(rows[:350], out=tmp_path / "out.npy"), same.predict(ROWS[:350]))
    plain = KNeighborsClassifier(1).fit(rows, table["label"]).to_sklearn()
    assert_array_equal(
        plain.predict(pd.DataFrame(ROWS[:9], columns=rows.columns)),
        KNeighborsClassifier(1).fit(ROWS, labels).predict(ROWS[:9]),
    )


@pytest.mark.fraction(2)
def test_rows_that_are_not_kept_are_looked_at(budget: str, tmp_path: Path) -> None:
    X = ROWS.copy()
    X[430, 1] = np.inf
    table = stored(tmp_path / "x.parquet", X)
    with pytest.raises(ValueError, match=r"X contains.* first such row is row 430, column 'c1'"):
        NearestNeighbors().fit(table)
    with pytest.raises(ValueError, match=r"y contains.* first such row is row 430, column 'c1'"):
        KNeighborsRegressor().fit(table[["c0"]], table["c1"])
    large = (ROWS * 1e25).astype(np.float32)  # whose squares float32 does not have
    np.save(tmp_path / "large.npy", large)
    ours = NearestNeighbors().fit(xpulab.scan(tmp_path / "large.npy"))
    assert_array_equal(ours.kneighbors(large[:9])[1], NearestNeighbors().fit(large).kneighbors(large[:9])[1])
