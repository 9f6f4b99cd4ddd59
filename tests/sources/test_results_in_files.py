"""Results with an entry for each row go to a file, a part of the rows at a time."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exported import exported, rows_for, targets_for, with_known
from scipy import sparse
from sklearn.base import clone, is_classifier

import xpulab
from xpulab.cluster import KMeans
from xpulab.ensemble import RandomForestClassifier
from xpulab.estimator import results_in_files
from xpulab.naive_bayes import GaussianNB
from xpulab.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder
from xpulab.scanning import Scan

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("on_pair")]

ROWS = np.random.default_rng(0).normal(size=(10_007, 5)).astype(np.float32)

LABELS = np.array(["no", "yes"])[(ROWS[:, 0] > ROWS[:, 1]).astype(int)]
METHODS = ("predict", "predict_proba", "decision_function", "transform", "score_samples", "mahalanobis")
INTEGRAL = (OneHotEncoder, OrdinalEncoder)  # of which few categories are made of the rows


def with_out() -> list[Any]:
    """Return every estimator that has a method with `out`, and the method."""
    return [
        pytest.param(kind, method, id=f"{kind.__name__}.{method}")
        for kind in [*exported(), TargetEncoder]
        for method in METHODS
        if method in dir(kind) and "out" in inspect.signature(getattr(kind, method)).parameters
    ]


def made(kind: Any) -> Any:
    return with_known(kind, random_state=0, n_clusters=2, n_quantiles=10)


@contextlib.contextmanager
def parts_of(nbytes: int) -> Iterator[None]:
    """Have parts of a result of so many bytes in this process meanwhile."""
    usual, results_in_files.PART = results_in_files.PART, nbytes
    try:
        yield
    finally:
        results_in_files.PART = usual


@functools.cache
def fitted(kind: Any) -> tuple[Any, np.ndarray]:
    """Return a fitted estimator, the same for each of its methods, and rows."""
    rows = rows_for(kind, np.rint(ROWS) if kind in INTEGRAL else ROWS)
    y = LABELS if is_classifier(kind()) else targets_for(kind, ROWS[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return made(kind).fit(rows, y), rows


@pytest.mark.fraction(2)
@pytest.mark.parametrize(("kind", "method"), with_out())
@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_the_file_has_the_result(kind: Any, method: str, suffix: str, tmp_path: Path, received: list[int]) -> None:
    estimator, rows = fitted(kind)
    np.save(tmp_path / "x.npy", rows)
    received.clear()
    right = getattr(estimator, method)(rows)
    right = right.toarray() if sparse.issparse(right) else right
    whole = max(received, default=0)
    received.clear()
    array = np.load(tmp_path / "x.npy", mmap_mode="r") if suffix == ".npy" else rows
    for X in (xpulab.scan(tmp_path / "x.npy"), array):
        with parts_of(right.nbytes // 4):
            found = getattr(estimator, method)(X, out=tmp_path / f"out{suffix}")
        assert isinstance(found, np.memmap if suffix == ".npy" else Scan)
        values = found if suffix == ".npy" else pq.read_table(tmp_path / "out.parquet").to_pandas().to_numpy()
        values = np.asarray(values).reshape(right.shape)
        if right.dtype.kind == "U":
            np.testing.assert_array_equal(values, right)
        else:
            np.testing.assert_allclose(values, right, rtol=1e-4, atol=1e-5)
    assert max(received, default=0) <= whole / 3  # in this process
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"out{suffix}", "x.npy"]


def test_columns_of_a_file_have_names(on_pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    table = pa.table({"word": LABELS, "number": np.rint(ROWS[:, 1])})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=1337)
    scan = xpulab.scan(tmp_path / "x.parquet")
    encoder = OneHotEncoder().fit(scan)
    found = encoder.transform(scan, out=tmp_path / "encoded.parquet")
    assert found.columns == list(encoder.get_feature_names_out())
    assert found.columns[:2] == ["word_no", "word_yes"]
    scaler = StandardScaler().fit(scan[["number"]])
    scaled = scaler.transform(scan[["number"]], out=tmp_path / "scaled.parquet")
    back = scaler.inverse_transform(scaled, out=tmp_path / "back.parquet")
    assert scaled.columns == back.columns == ["number"]
    np.testing.assert_allclose(back.read(), scan[["number"]].read(), atol=1e-9)
    model: Any = GaussianNB().fit(scan[["number"]], LABELS)
    assert model.predict_proba(scaled, out=tmp_path / "p.parquet").columns == ["no", "yes"]
    assert model.predict(scaled, out=tmp_path / "labels.parquet").columns == ["predict"]
    with pytest.raises(ValueError, match=r"makes data frames, and out= writes files"):
        clone(scaler).set_output(transform="pandas").fit(scan[["number"]]).transform(scan[["number"]], out="x.parquet")
    both = np.stack([ROWS[:, 0] > 0, ROWS[:, 1] > 0], axis=1)
    forest = RandomForestClassifier(2, max_depth=2).fit(ROWS, both)
    with pytest.raises(ValueError, match=r"2 arrays, one for each output; out= holds one"):
        forest.predict_proba(ROWS, out=tmp_path / "both.npy")
    with pytest.raises(ValueError, match=r"entries of str, which .npy files do not hold; pass out= with"):
        GaussianNB().fit(ROWS, LABELS.astype(object)).predict(ROWS, out=tmp_path / "words.npy")


def test_a_file_can_take_the_place_of_its_rows_and_nothing_is_left_of_an_error(
    on_pair: xpulab.XPUCluster, tmp_path: Path
) -> None:
    path = tmp_path / "x.npy"
    np.save(path, ROWS)
    scaler = StandardScaler().fit(ROWS)
    scaler.transform(np.load(path, mmap_mode="r"), out=path)
    np.testing.assert_allclose(np.load(path).mean(axis=0), 0, atol=1e-5)
    ROWS_WITH_NAN = ROWS.copy()
    ROWS_WITH_NAN[9000] = np.inf
    np.save(tmp_path / "wrong.npy", ROWS_WITH_NAN)
    with pytest.raises(ValueError, match="infinity"):
        scaler.transform(np.load(tmp_path / "wrong.npy", mmap_mode="r"), out=path)
    np.testing.assert_allclose(np.load(path).mean(axis=0), 0, atol=1e-5)  # as it was
    assert sorted(each.name for each in tmp_path.iterdir()) == ["wrong.npy", "x.npy"]
    with pytest.raises(ValueError, match=r"labels.csv. was given; expected .* ends with .npy or .parquet"):
        KMeans(3).fit(ROWS).predict(ROWS, out="labels.csv")
    with pytest.raises(TypeError, match="X is a ShardedArray; leave out= away"):
        scaler.transform(on_pair.scatter(ROWS), out=path)


def test_rows_beyond_the_memory_are_scored_in_passes(on_pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ROWS)
    model = KMeans(4, random_state=0).fit(ROWS)
    right, labels = model.score(ROWS), model.predict(ROWS)
    on_pair.memory = "50KB"
    try:
        np.testing.assert_allclose(model.score(xpulab.scan(tmp_path / "x.npy")), right, rtol=1e-6)
        assert "were read again in" in "\n".join(on_pair.last_report.notes)
        np.testing.assert_array_equal(model.predict(xpulab.scan(tmp_path / "x.npy")), labels)
    finally:
        on_pair.memory = None
