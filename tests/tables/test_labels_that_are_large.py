"""Whole numbers as labels, also beyond 2**53: features may be rounded, and labels are exact, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn.metrics
import sklearn.model_selection

import xpulab
from xpulab import metrics
from xpulab.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor, RandomForestClassifier
from xpulab.linear_model import LinearRegression, LogisticRegression
from xpulab.model_selection import train_test_split
from xpulab.naive_bayes import GaussianNB
from xpulab.neighbors import KNeighborsClassifier
from xpulab.preprocessing import LabelEncoder, TargetEncoder

pytestmark = pytest.mark.cluster

N = 60
RNG = np.random.default_rng(0)
FIRST = {"int64": 2**60, "uint64": 2**64 - 9}
SAID = "labels of column 'id' .* may have become others"
CLASSIFIERS = [
    GaussianNB(),
    KNeighborsClassifier(3),
    LogisticRegression(),
    RandomForestClassifier(3, random_state=0),
    HistGradientBoostingClassifier(max_iter=3, max_leaf_nodes=4, min_samples_leaf=5),
]
by_kind = pytest.mark.parametrize("kind", [pd.DataFrame, pl.from_pandas, pa.Table.from_pandas])


def frame_of(dtype: str) -> pd.DataFrame:
    codes = np.arange(N) % 3
    ids = np.array([FIRST[dtype] + int(code) for code in codes], dtype)
    return pd.DataFrame({"a": codes + 0.1 * RNG.normal(size=N), "b": RNG.normal(size=N), "id": ids})


def uses(y: Any, X: Any) -> list[Callable[[], Any]]:
    """Return calls with y as labels of the rows X."""
    scores = RNG.dirichlet(np.ones(3), N)
    return [
        *(lambda model=model: model.fit(X, y) for model in CLASSIFIERS),
        lambda: LabelEncoder().fit(y),
        lambda: TargetEncoder().fit(X, y),
        lambda: metrics.accuracy_score(y, np.arange(N)),
        lambda: metrics.accuracy_score(np.arange(N), y),
        lambda: metrics.confusion_matrix(y, np.arange(N)),
        lambda: metrics.f1_score(y, np.arange(N), average="macro"),
        lambda: metrics.log_loss(y, scores),
        lambda: metrics.roc_auc_score(y, scores, multi_class="ovr"),
        lambda: metrics.adjusted_rand_score(y, np.arange(N)),
        lambda: metrics.silhouette_score(X, y),
    ]


@by_kind
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_a_column_of_a_table_on_the_engines_is_refused_as_labels(
    on_pair: xpulab.XPUCluster, kind: Callable[[Any], Any], dtype: str
) -> None:
    frame = frame_of(dtype)
    table = on_pair.scatter(kind(frame))
    for use in [*uses(table["id"], table[["a", "b"]]), lambda: train_test_split(table, stratify=table["id"])]:
        with pytest.raises(ValueError, match=SAID):
            use()
    assert LinearRegression().fit(table[["b", "id"]], table["a"]).coef_.shape == (2,)
    HistGradientBoostingRegressor(max_iter=1).fit(table[["a", "b"]], table["id"])
    classes = GaussianNB().fit(table[["a", "b"]], frame["id"].to_numpy()).classes_
    np.testing.assert_array_equal(classes, np.unique(frame["id"]))
    words = on_pair.scatter(kind(frame.astype({"id": str})))
    assert GaussianNB().fit(words[["a", "b"]], words["id"]).classes_.tolist() == [str(each) for each in classes]


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_a_column_of_a_scan_is_exact_or_refused(on_pair: xpulab.XPUCluster, tmp_path: Path, dtype: str) -> None:
    frame = frame_of(dtype)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=17)
    expected = np.unique(frame["id"])
    for scan in (xpulab.scan(tmp_path), xpulab.scan(frame)):
        X, y = scan[["a", "b"]], scan["id"]
        for model in CLASSIFIERS:
            np.testing.assert_array_equal(model.fit(X, y).classes_, expected)
            assert model.score(X, y) == model.score(X, frame["id"].to_numpy())
        for read in (y.read(), np.asarray(y), y[np.arange(N)]):
            assert read.dtype == dtype
            np.testing.assert_array_equal(read, frame["id"])
        assert metrics.accuracy_score(y.read(), frame["id"]) == 1
        split = train_test_split(X, stratify=y, random_state=0)
        right = sklearn.model_selection.train_test_split(frame[["a", "b"]], stratify=frame["id"], random_state=0)
        np.testing.assert_array_equal(split[0].read(), right[0])
        assert LinearRegression().fit(scan[["b", "id"]], scan["a"]).coef_.shape == (2,)
    files = xpulab.scan(tmp_path)["id"]
    for use in (lambda: metrics.accuracy_score(files, files), lambda: metrics.confusion_matrix(files, files)):
        with pytest.raises(ValueError, match=SAID):
            use()


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_labels_of_arrays_stay_apart(on_pair: xpulab.XPUCluster, dtype: str) -> None:
    frame = frame_of(dtype)
    ids, scores = frame["id"].to_numpy(), RNG.dirichlet(np.ones(3), N)
    handle = on_pair.scatter(frame[["a", "b"]].to_numpy())
    ours = train_test_split(handle, stratify=ids, random_state=0)
    right = sklearn.model_selection.train_test_split(frame[["a", "b"]], stratify=ids, random_state=0)
    np.testing.assert_array_equal(ours[0].gather(), right[0])
    more = np.unique(ids).tolist()
    for name, given in (("log_loss", {"labels": more}), ("roc_auc_score", {"multi_class": "ovr", "labels": more})):
        expected = getattr(sklearn.metrics, name)(ids, scores, **given)
        assert getattr(metrics, name)(ids, scores, **given) == pytest.approx(expected)


@pytest.mark.parametrize("model", CLASSIFIERS[:3:2], ids=lambda each: type(each).__name__)
def test_labels_of_a_handle_are_not_rounded_to_the_float32_of_the_rows(on_pair: xpulab.XPUCluster, model: Any) -> None:
    labels = 2.0**24 + np.arange(N) % 3
    X = (np.stack([labels - 2.0**24, RNG.normal(size=N)], axis=1)).astype(np.float32)
    model.fit(on_pair.scatter(X), on_pair.scatter(labels))
    np.testing.assert_array_equal(model.classes_, np.unique(labels))
    assert model.score(on_pair.scatter(X), labels) == 1


def fits(model: Any, each: tuple[Any, ...], y: Any) -> Iterator[Any]:
    return (model.fit(X, y) for X in each)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int32, np.int64, np.uint64, ">i8"], ids=str)
def test_labels_of_a_handle_keep_the_dtype_of_the_array(on_pair: xpulab.XPUCluster, dtype: Any) -> None:
    labels = (np.arange(N) % 2).astype(dtype)
    X = np.stack([labels + 0.1 * RNG.normal(size=N), RNG.normal(size=N)], axis=1)
    rows, y = on_pair.scatter(X), on_pair.scatter(labels, name="labels")
    assert (y.dtype, y.columns, repr(y).partition("(")[0]) == (np.float64, None, "ShardedArray")
    own = np.dtype(dtype).newbyteorder("=")
    for given in (y, on_pair.handles()["labels"], y[np.arange(N)]):
        for model in (*CLASSIFIERS, LabelEncoder()):
            for fitted in [model.fit(given)] if isinstance(model, LabelEncoder) else fits(model, (rows, X), given):
                assert (fitted.classes_.dtype, fitted.classes_.tolist()) == (own, [0, 1]), fitted
        assert CLASSIFIERS[0].predict(X).dtype == own
        assert TargetEncoder().fit(rows, given).classes_.dtype == own
    left, right = train_test_split(y, random_state=0)
    assert GaussianNB().fit(rows[: len(left)], left).classes_.dtype == own
    assert metrics.accuracy_score(y, CLASSIFIERS[0].predict(X)) == CLASSIFIERS[0].score(rows, labels)
    assert metrics.confusion_matrix(right, right).trace() == len(right)
    on_pair.release(y)


def test_labels_beyond_2_to_53_that_float64_has_exactly_are_labels(on_pair: xpulab.XPUCluster) -> None:
    labels = 2**60 + 2**20 * (np.arange(N) % 2)
    X = RNG.normal(size=(N, 2))
    classes = GaussianNB().fit(X, on_pair.scatter(labels)).classes_
    assert (classes.dtype, classes.tolist()) == (np.int64, np.unique(labels).tolist())
