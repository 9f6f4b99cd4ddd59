"""Scans of files to every estimator: the results are those of the array, and X does not pass this process."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
import sklearn.neighbors
from exported import exported
from numpy.testing import assert_allclose
from sklearn.base import is_classifier, is_regressor
from test_every_estimator import METHODS, called, made, theirs_of

import xpulab
from xpulab.cluster import KMeans
from xpulab.ensemble import RandomForestRegressor
from xpulab.impute import SimpleImputer
from xpulab.linear_model import LinearRegression, LogisticRegression, LogisticRegressionCV
from xpulab.metrics import r2_score, silhouette_score
from xpulab.naive_bayes import GaussianNB
from xpulab.neighbors import NearestNeighbors
from xpulab.preprocessing import StandardScaler
from xpulab.scanning import Scan

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = np.abs(np.rint(3 * RNG.normal(size=(60, 3)))) + 0.5
FRAME = pd.DataFrame(X, columns=list("abc")).assign(
    classes=np.arange(60) % 3, number=X @ [1, 2, 3.0], word=np.array(["no", "yes"])[np.arange(60) % 2]
)


class OnEngines(Scan):
    """Rows that must not be read in this process."""

    def read(self) -> Any:
        pytest.fail("X was read in this process")


@pytest.fixture
def files(tmp_path: Path) -> Scan:
    for number, part in enumerate((FRAME[:25], FRAME[25:25], FRAME[25:])):
        part.to_parquet(tmp_path / f"{number}.parquet", row_group_size=7)
    return xpulab.scan(tmp_path)


def targets(kind: Any, rows: Any) -> tuple[Any, ...]:
    """Targets, which must not be read in this process if they are those of a scan."""
    if not is_classifier(kind()) and not is_regressor(kind()):
        return ()
    name = "classes" if is_classifier(kind()) else "number"
    if not isinstance(rows, Scan):
        return (rows[name],)
    assert rows.columns is not None
    if kind is LogisticRegressionCV:  # whose folds have the same share of each class
        return (rows[name],)
    return (OnEngines(rows.source, [rows.columns.index(name)], flat=True),)


@pytest.mark.usefixtures("on_pair")
@pytest.mark.parametrize("kind", list(filter(theirs_of, exported())), ids=lambda kind: kind.__name__)
def test_every_method_takes_a_scan_as_it_takes_the_frame(kind: Any, files: Scan) -> None:
    scan, frame = files[["a", "b", "c"]], FRAME[["a", "b", "c"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = made(kind).fit(frame, *targets(kind, FRAME))
        ours = made(kind).fit(OnEngines(files.source, [0, 1, 2]), *targets(kind, files))
        assert list(ours.feature_names_in_) == ["a", "b", "c"]
        for method in METHODS:
            if hasattr(expected, method):
                found, right = called(ours, method, scan), called(expected, method, frame)
                assert_allclose(found, right, rtol=1e-6, atol=1e-9, err_msg=method)


@pytest.mark.parametrize("suffix", ["parquet", "feather", "csv", "npy"])
def test_files_of_each_kind_give_the_results_of_the_array(
    current: xpulab.XPUCluster, tmp_path: Path, suffix: str
) -> None:
    rows = RNG.normal(size=(3001, 4)).astype(np.float32)
    frame = pd.DataFrame(rows, columns=list("abcd"))
    for number, part in enumerate((frame[:1300], frame[1300:])):
        path = tmp_path / f"{number}.{suffix}"
        if suffix == "parquet":
            part.to_parquet(path, row_group_size=400)
        elif suffix == "feather":
            part.reset_index(drop=True).to_feather(path)
        elif suffix == "csv":
            part.to_csv(path, index=False)
        else:
            np.save(path, part.to_numpy())
    scan = xpulab.scan(tmp_path)
    same = rows.astype(scan.dtype)
    a, b = (KMeans(5, random_state=0).fit(each) for each in (scan, same))
    np.testing.assert_array_equal(a.labels_, b.labels_)
    assert_allclose(a.cluster_centers_, b.cluster_centers_, rtol=1e-5)
    np.testing.assert_array_equal(a.predict(scan[100:2000]), b.labels_[100:2000])
    assert_allclose(a.score(scan), b.score(same), rtol=1e-5)
    np.testing.assert_allclose(current.scatter(scan).gather(), same)
    assert silhouette_score(scan, b.labels_) == pytest.approx(silhouette_score(same, b.labels_), rel=1e-5)


@pytest.mark.usefixtures("on_pair")
def test_a_column_of_the_same_or_another_scan_is_y(files: Scan) -> None:
    scan, frame = files[["a", "b"]], FRAME[["a", "b"]]
    found, right = LinearRegression().fit(scan, files["c"]), LinearRegression().fit(frame, FRAME["c"])
    assert_allclose(found.coef_, right.coef_)
    assert found.score(scan, files["c"]) == pytest.approx(right.score(frame, FRAME["c"]))
    assert r2_score(files["c"], found.predict(scan)) == pytest.approx(right.score(frame, FRAME["c"]))
    words = LogisticRegression().fit(scan, xpulab.scan(files.files)["word"], sample_weight=files["number"])
    assert list(words.classes_) == ["no", "yes"]
    assert LinearRegression().fit(X[:, :2], files["c"]).coef_ == pytest.approx(right.coef_)
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[60, 59\]"):
        LinearRegression().fit(scan, files["c"][1:])


@pytest.mark.usefixtures("on_pair")
def test_what_is_wrong_with_a_scan_is_said(files: Scan, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No numbers in X: column 'word' \(.*string\)\. Leave out.*OneHotEncoder"):
        KMeans(2).fit(files)
    with pytest.raises(ValueError, match=r"got a Scan of shape \(60,\) instead; pass X\[\['name'\]\]"):
        KMeans(2).fit(files["a"])
    with pytest.raises(ValueError, match="feature names should match"):
        KMeans(2, random_state=0).fit(files[["a", "b"]]).predict(files[["a", "c"]])
    with pytest.raises(TypeError, match=r"init=function\(X\.read\(\)"):
        KMeans(2, init=lambda *_: None).fit(files[["a"]])
    FRAME.assign(a=[None if row == 41 else 1.5 for row in range(60)]).to_parquet(tmp_path / "nulls", row_group_size=9)
    (tmp_path / "nulls").rename(tmp_path / "nulls.parquet")
    nulls = xpulab.scan(tmp_path / "nulls.parquet")
    with pytest.raises(ValueError, match="contains null, NaN or infinity; the first such row is row 41, column 'a'"):
        KMeans(2).fit(nulls[["b", "a"]])
    assert SimpleImputer().fit(nulls[["a"]]).statistics_[0] == 1.5
    assert StandardScaler().fit(nulls[["a"]]).mean_[0] == 1.5
    FRAME[:50].to_parquet(files.files[0], row_group_size=7)
    with pytest.raises(ValueError, match=r"0\.parquet has changed since it was scanned: it was .* bytes"):
        KMeans(2).fit(files[["a"]])


@pytest.mark.usefixtures("on_pair")
def test_scores_are_those_of_all_blocks(tmp_path: Path) -> None:
    """Of more than 2^20 rows, the predictions of some are in this process at a time."""
    n = (1 << 20) + 50
    frame = pd.DataFrame({"a": RNG.normal(size=n).astype(np.float32), "weight": np.arange(n) % 5 + np.float32(0.5)})
    frame = frame.assign(label=frame["a"].abs() > 1, number=1e6 + frame["a"] + RNG.normal(size=n))
    frame.to_parquet(tmp_path / "rows.parquet")
    scan, tree = xpulab.scan(tmp_path), RandomForestRegressor(1, max_depth=2, max_samples=500, random_state=0)
    for kind, name in ((GaussianNB(), "label"), (tree, "number")):
        kind.fit(scan[["a"]][:5000], scan[name][:5000])
        for weights in (None, "weight"):
            share = () if weights is None else (frame[weights].to_numpy(),)
            expected = kind.score(frame[["a"]], frame[name].to_numpy(), *share)
            assert kind.score(scan[["a"]], scan[name], *(scan[each] for each in (weights,) if each)) == pytest.approx(
                expected, rel=1e-9
            )


def test_x_never_passes_this_process(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    pair.activate()
    rows = pd.DataFrame(RNG.normal(size=(400_000, 8)).astype(np.float32), columns=list("abcdefgh"))
    rows.to_parquet(tmp_path / "x.parquet", row_group_size=50_000)
    init = rows.to_numpy()[:4].copy()
    size = rows.memory_usage().sum()
    del rows
    scan = xpulab.scan(tmp_path)
    KMeans(4, init=init, n_init=1, max_iter=1).fit(scan[:1000])  # imports what a fit needs
    me = psutil.Process(os.getpid())
    before = me.memory_full_info().uss
    km = KMeans(4, init=init, n_init=1, max_iter=2).fit(scan)
    assert me.memory_full_info().uss - before - km.labels_.nbytes < 0.05 * size


@pytest.mark.usefixtures("on_pair")
@pytest.mark.parametrize("of", ["files", "a table"])
def test_neighbours_of_the_rows_of_a_scan_are_found(files: Scan, of: str) -> None:
    """Warnings are errors here: the queries have the names of the rows."""
    scan = files[["a", "b", "c"]] if of == "files" else xpulab.scan(FRAME[["a", "b", "c"]])
    theirs = sklearn.neighbors.NearestNeighbors(n_neighbors=4).fit(FRAME[["a", "b", "c"]])
    model = NearestNeighbors(n_neighbors=4).fit(scan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for queries in ((), (scan,)):
            assert_allclose(
                model.kneighbors(*queries)[0], theirs.kneighbors(*(FRAME[["a", "b", "c"]] for _ in queries))[0]
            )
        assert_allclose(model.to_sklearn().kneighbors()[0], theirs.kneighbors()[0])
    with pytest.raises(ValueError, match="feature names should match"):
        model.kneighbors(scan[["b", "a", "c"]])
