"""Memory-mapped files that are larger than the memory: what fits goes in parts, and for the rest the advice helps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.model_selection

import xpulab
from xpulab.cluster import DBSCAN, BisectingKMeans, KMeans
from xpulab.decomposition import PCA
from xpulab.deploy.tasks.limits import Demand
from xpulab.ensemble import RandomForestClassifier
from xpulab.exceptions import NotEnoughMemoryError
from xpulab.linear_model import LinearRegression, LogisticRegression
from xpulab.mixture import GaussianMixture
from xpulab.model_selection import train_test_split
from xpulab.neighbors import KNeighborsClassifier
from xpulab.preprocessing import OneHotEncoder, StandardScaler

pytestmark = pytest.mark.cluster

SMALL = np.random.default_rng(0).integers(0, 4, (30_000, 4)).astype(np.float32)
FITTED: list[tuple[Any, str]] = [
    (KMeans(3, random_state=0, n_init=1), "predict"),
    (KMeans(3, random_state=0, n_init=1), "transform"),
    (BisectingKMeans(3, random_state=0), "predict"),
    (PCA(1), "transform"),
    (PCA(1), "score_samples"),
    (StandardScaler(), "transform"),
    (OneHotEncoder(), "transform"),
    (OneHotEncoder(sparse_output=False), "transform"),
    (LinearRegression(), "predict"),
    (LogisticRegression(), "predict_proba"),
    (GaussianMixture(2, random_state=0, max_iter=5, tol=1), "predict"),
    (RandomForestClassifier(3, random_state=0), "predict"),
    (KNeighborsClassifier(), "predict"),
]


@pytest.fixture
def large(tmp_path: Path) -> Iterator[np.memmap]:
    """A file of 37 GiB, which has no blocks on the disk."""
    yield np.lib.format.open_memmap(tmp_path / "X.npy", "w+", np.float32, (709_490_156, 14))
    (tmp_path / "X.npy").unlink()


@pytest.fixture
def small(tmp_path: Path) -> np.memmap:
    np.save(tmp_path / "X.npy", SMALL)
    return np.load(tmp_path / "X.npy", mmap_mode="r")


def free(monkeypatch: pytest.MonkeyPatch, nbytes: int, least: int) -> None:
    monkeypatch.setattr("xpulab.sharing.host_memory.available", lambda swap=False: nbytes)
    monkeypatch.setattr("xpulab.deploy.tasks.rows.LEAST", least)
    monkeypatch.setattr("xpulab.deploy.tasks.limits.LEAST", least)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda X, _: BisectingKMeans(3).fit(X), "with partial_fit, which MiniBatchKMeans has"),
        (lambda X, _: DBSCAN().fit(X), "with partial_fit, which MiniBatchKMeans has"),
        (lambda X, cluster: cluster.scatter(X), "with an estimator that has partial_fit"),
        (lambda X, _: StandardScaler().fit(X[:9]).transform(X), "pass parts of X, such as X"),
        (lambda X, _: StandardScaler().fit(X[:9]).inverse_transform(X), "pass parts of X, such as X"),
        (lambda X, _: train_test_split(X), r"train_test_split\(numpy\.arange\(len\(X\)\)\)"),
    ],
    ids=[
        "fit in passes",
        "fit of all rows",
        "scatter",
        "transform",
        "inverse_transform",
        "train_test_split",
    ],
)
def test_a_file_without_room_is_refused_at_once_with_the_same_words(
    on_pair: xpulab.XPUCluster, large: np.memmap, monkeypatch: pytest.MonkeyPatch, call: Any, advice: str
) -> None:
    free(monkeypatch, 8 << 30, 64 << 20)
    with pytest.raises(NotEnoughMemoryError) as raised:
        call(large, on_pair)
    said = str(raised.value)
    assert "709,490,156" in said
    assert "8.0 GiB are free; " in said
    assert "float64" not in said
    with pytest.raises(NotEnoughMemoryError, match=advice):
        raise raised.value


@pytest.mark.parametrize(("estimator", "method"), FITTED, ids=[f"{type(e).__name__}.{m}" for e, m in FITTED])
def test_methods_with_a_result_for_each_row_take_a_large_file_in_parts(
    on_pair: xpulab.XPUCluster, small: np.memmap, monkeypatch: pytest.MonkeyPatch, estimator: Any, method: str
) -> None:
    few = SMALL[:4000]
    fitted = estimator.fit(few, few[:, 0] > 1)
    right = getattr(fitted, method)(SMALL)
    sizes: list[int] = []

    def scarce(cluster: Any, rows: Demand) -> None:
        sizes.append(sum(rows.counts))
        if sizes[-1] > 12_000:
            raise NotEnoughMemoryError("too many rows")

    monkeypatch.setattr(xpulab.XPUCluster, "require_room", scarce)
    found = getattr(fitted, method)(small)
    assert sizes[0] == len(SMALL)
    assert sizes[-1] < 12_000
    if hasattr(found, "toarray"):
        found, right = found.toarray(), right.toarray()
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


def test_a_split_of_few_rows_of_a_large_file_is_that_of_scikit_learn(
    small: np.memmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, SMALL.nbytes // 2, 0)
    with pytest.raises(NotEnoughMemoryError, match="the split of arrays of 30,000 rows needs"):
        train_test_split(small)
    ours = train_test_split(small, train_size=100, test_size=0.1, random_state=0)
    theirs = sklearn.model_selection.train_test_split(SMALL, train_size=100, test_size=0.1, random_state=0)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
