"""Targets, labels and weights that are columns of scans: the engines read them, and scores and splits do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
import sklearn.model_selection
from numpy.testing import assert_allclose, assert_array_equal

import xpulab
from xpulab import metrics
from xpulab.cluster import KMeans
from xpulab.ensemble import RandomForestClassifier, RandomForestRegressor
from xpulab.linear_model import IncrementalLinearRegression, LinearRegression, LogisticRegression, Ridge
from xpulab.model_selection import train_test_split
from xpulab.naive_bayes import GaussianNB
from xpulab.scanning import Scan

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]

N = 1000
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(size=(N, 3)), columns=list("abc")).assign(
    number=lambda frame: 1e3 + frame["a"] - 2 * frame["c"] + RNG.normal(size=N),
    label=lambda frame: (frame["a"] + RNG.normal(size=N) > 0).astype(np.int64) * 7 - 2,
    weight=lambda frame: frame["b"].abs(),
    great=lambda frame: frame["label"] + 2**40,
)
X = FRAME[["a", "b", "c"]]


class ByEngines(Scan):
    """Rows that must not be read in this process."""

    def read(self) -> Any:
        pytest.fail("a column was read in this process")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Scan:
    folder = tmp_path_factory.mktemp("columns")
    FRAME[:700].to_parquet(folder / "0.parquet", row_group_size=90)
    FRAME[700:].to_parquet(folder / "1.parquet", row_group_size=300)
    return xpulab.scan(folder)


def column(table: Scan, name: str) -> Scan:
    assert table.columns is not None
    return ByEngines(table.source, [table.columns.index(name)], flat=True)


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (LinearRegression(), "number"),
        (Ridge(), "number"),
        (LogisticRegression(tol=1e-8), "label"),
        (GaussianNB(), "label"),
        (RandomForestClassifier(5, random_state=0), "label"),
        (RandomForestRegressor(5, random_state=0), "number"),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else each,
)
def test_targets_and_weights_do_not_pass_this_process(
    current: xpulab.XPUCluster, written: list[int], table: Scan, kind: Any, target: str
) -> None:
    forest = "Forest" in type(kind).__name__
    weights = FRAME["weight"] if forest else column(table, "weight")  # a tree draws rows by their weights
    here = kind.fit(X.to_numpy(), FRAME[target].to_numpy(), sample_weight=FRAME["weight"].to_numpy())
    expected, right = here.predict(X.to_numpy()), here.score(X.to_numpy(), FRAME[target].to_numpy())
    del written[:]
    ours = kind.fit(table[["a", "b", "c"]], column(table, target), sample_weight=weights)
    assert sum(written) <= forest * 8 * N * current.size
    assert_allclose(ours.predict(table[["a", "b", "c"]]), expected, rtol=1e-6)
    if hasattr(ours, "classes_"):
        assert ours.classes_.dtype == np.int64
        assert_array_equal(ours.classes_, [-2, 5])
    del written[:]
    assert ours.score(table[["a", "b", "c"]], table[target]) == pytest.approx(right)
    assert sum(written) == 0


def test_columns_beside_arrays_and_handles(current: xpulab.XPUCluster, table: Scan, written: list[int]) -> None:
    expected = LinearRegression().fit(X, FRAME["number"]).coef_
    rows = current.scatter(X, counts=[0] * (current.size - 1) + [N])
    del written[:]
    assert_allclose(LinearRegression().fit(rows, column(table, "number")).coef_, expected)
    assert sum(written) == 0
    assert_allclose(LinearRegression().fit(X, column(table, "number")).coef_, expected)
    batches = IncrementalLinearRegression(batch_size=300).fit(table[["a", "b", "c"]], column(table, "number"))
    assert_allclose(batches.coef_, expected)
    labels = KMeans(2, random_state=0, n_init=1).fit(table[["a"]], sample_weight=column(table, "weight")).labels_
    assert_array_equal(labels, KMeans(2, random_state=0, n_init=1).fit(X[["a"]], sample_weight=FRAME["weight"]).labels_)


def test_labels_that_float32_has_not_are_read_here(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    FRAME[["a", "great"]].astype({"a": np.float32}).to_parquet(tmp_path / "great.parquet")
    table = xpulab.scan(tmp_path)
    assert_array_equal(GaussianNB().fit(table[["a"]], table["great"]).classes_, 2**40 + np.array([-2, 5]))


def test_what_is_wrong_with_a_column_is_said(current: xpulab.XPUCluster, tmp_path: Path, table: Scan) -> None:
    rows = table[["a"]]
    bad = FRAME.assign(number=FRAME["number"].where(FRAME.index != 901), weight=FRAME["weight"].where(X["a"] < 9, -1))
    bad.loc[800, "weight"] = -0.5
    bad.to_parquet(tmp_path / "bad.parquet", row_group_size=100)
    wrong = xpulab.scan(tmp_path)
    with pytest.raises(ValueError, match=r"Input y contains null, NaN.* row 901, column 'number'"):
        LinearRegression().fit(rows, wrong["number"])
    with pytest.raises(ValueError, match=r"Input sample_weight contains null, NaN.* row 901, column 'number'"):
        LinearRegression().fit(rows, table["number"], sample_weight=wrong["number"])
    with pytest.raises(ValueError, match=r"Negative values in data passed to sample_weight: -0\.5 for row 800"):
        KMeans(2).fit(rows, sample_weight=wrong["weight"])
    FRAME.assign(weight=0.0).to_parquet(tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match="sample_weight is zero for all rows"):
        KMeans(2).fit(rows, sample_weight=xpulab.scan(tmp_path)["weight"])


def test_metrics_of_columns(current: xpulab.XPUCluster, table: Scan, written: list[int]) -> None:
    of, ours, theirs = FRAME, metrics, sklearn.metrics
    guess = of["label"].where(of["b"] < 1, 5).to_numpy()
    true, weight = column(table, "label"), column(table, "weight")
    assert ours.accuracy_score(true, guess, sample_weight=weight) == pytest.approx(
        theirs.accuracy_score(of["label"], guess, sample_weight=of["weight"])
    )
    assert_array_equal(ours.confusion_matrix(true, true), theirs.confusion_matrix(of["label"], of["label"]))
    assert ours.r2_score(column(table, "number"), column(table, "a"), sample_weight=weight) == pytest.approx(
        theirs.r2_score(of["number"], of["a"], sample_weight=of["weight"])
    )
    handle = current.scatter(of["a"].to_numpy(), counts=[N, *[0] * (current.size - 1)])
    del written[:]
    found = ours.mean_squared_error(column(table, "number"), handle)
    assert found == pytest.approx(theirs.mean_squared_error(of["number"], of["a"]))
    assert sum(written) == 0
    shares = np.clip(np.stack([1 - of["weight"] / 9, of["weight"] / 9], axis=1), 0.01, 0.99)
    assert ours.log_loss(true, shares) == pytest.approx(theirs.log_loss(of["label"], shares))
    found = ours.f1_score(true, true, average=None, sample_weight=weight)
    assert_array_equal(found, np.ones(of["label"].nunique()))
    few = (of["label"] == of["label"].max()).to_numpy()
    assert ours.roc_auc_score(few, column(table, "a")) == pytest.approx(theirs.roc_auc_score(few, of["a"]))
    assert ours.median_absolute_error(column(table, "number"), column(table, "a")) == pytest.approx(
        theirs.median_absolute_error(of["number"], of["a"])
    )


def test_metrics_of_columns_that_do_not_fit(current: xpulab.XPUCluster, table: Scan) -> None:
    current.memory = 0
    try:
        found = metrics.r2_score(column(table, "number"), column(table, "a"), sample_weight=column(table, "weight"))
        notes = "\n".join(current.last_report.notes)
        right = metrics.accuracy_score(column(table, "label"), column(table, "label"))
    finally:
        current.memory = None
    assert "0 % of the rows were kept" in notes
    assert right == 1
    assert found == pytest.approx(sklearn.metrics.r2_score(FRAME["number"], X["a"], sample_weight=FRAME["weight"]))


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_split_of_a_scan_is_lazy(
    current: xpulab.XPUCluster, table: Scan, written: list[int], shuffle: bool
) -> None:
    whole = ByEngines(table.source)
    train, test, y_train, y_test, numbers, _ = train_test_split(
        whole[["a", "b", "c"]], column(table, "number"), np.arange(N), test_size=0.3, random_state=5, shuffle=shuffle
    )
    right = sklearn.model_selection.train_test_split(X, FRAME["number"], test_size=0.3, random_state=5, shuffle=shuffle)
    for part, expected in zip((train, test, y_train, y_test), right, strict=True):
        assert isinstance(part, Scan)
        assert part.files == table.files
        assert part.shape == expected.shape
        assert_array_equal(part.read(), expected)
        assert_array_equal(part[10:40].read(), expected[10:40])
    assert_array_equal(FRAME["number"].to_numpy()[numbers], y_train.read())
    model = LinearRegression().fit(right[0], right[2])
    predicted, score = model.predict(right[1]), model.score(right[1], right[3])
    del written[:]
    ours = LinearRegression().fit(train, y_train)
    assert_allclose(ours.coef_, model.coef_)
    assert_allclose(ours.predict(test), predicted)
    assert ours.score(test, y_test) == pytest.approx(score)
    assert sum(written) == 0
    again = train_test_split(train, random_state=0)[0]
    assert_array_equal(again.read(), sklearn.model_selection.train_test_split(right[0], random_state=0)[0])
    stratified = train_test_split(table["label"], stratify=table["label"], random_state=0)[1]
    expected = sklearn.model_selection.train_test_split(FRAME["label"], stratify=FRAME["label"], random_state=0)[1]
    assert_array_equal(stratified.read(), expected)
