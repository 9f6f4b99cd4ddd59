"""A fit that needs one pass reads the rows of a file or an array for this pass only, and gives the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import sklearn.preprocessing

import xpulab
from xpulab.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]
N = 3001


@pytest.fixture
def passes(current: xpulab.XPUCluster) -> Iterator[Callable[[], int]]:
    """A function that returns how many tasks since the last call passed over rows that were not kept."""

    def watch(task: Any) -> None:
        from xpulab.engine.algorithms import passes as module

        real, task.engine.passed = module._moments_in_passing, 0

        def counting(*arguments: Any) -> Any:
            found = real(*arguments)
            task.engine.passed += found is not None
            return found

        task.engine.counted = mock.patch.object(module, "_moments_in_passing", counting)
        task.engine.counted.start()

    def count(task: Any) -> int:
        found, task.engine.passed = int(task.engine.passed), 0
        return found

    def leave(task: Any) -> None:
        task.engine.counted.stop()
        del task.engine.counted, task.engine.passed

    current.run(watch)
    yield lambda: max(current.run(count))
    current.run(leave)


def columns(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5)) * [1, 1e-3, 0, 1, 100] + [0, 1e3, 3.7, 0, -5]
    if kind == "sorted":
        X[:, 3] = np.sort(X[:, 3])
    elif kind == "drifting":
        X[:, 3] += np.where(np.arange(N) % 97 == 0, 0, 1e4)  # the first rows say little about the others
    elif kind == "huge":
        X[:, 3] *= 1e30  # its squares have no float32
    elif kind == "missing":
        X[rng.random(X.shape) < 0.1] = np.nan
    return X.astype(np.float32)


@pytest.mark.fraction(2)
@pytest.mark.parametrize(
    ("kind", "passing"), [("plain", True), ("sorted", True), ("drifting", None), ("huge", False), ("missing", False)]
)
@pytest.mark.parametrize("scaler", [StandardScaler(), MinMaxScaler(), MaxAbsScaler()], ids=str)
def test_scalers_of_a_file(
    passes: Callable[[], int], tmp_path: Path, kind: str, passing: bool | None, scaler: Any
) -> None:
    X = columns(kind)
    np.save(tmp_path / "rows.npy", X)
    ours = scaler.fit(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    if passing is not None:
        assert passes() == passing
    theirs = getattr(sklearn.preprocessing, type(scaler).__name__)().fit(X.astype(np.float64))
    np.testing.assert_allclose(ours.scale_, theirs.scale_, rtol=2e-5)
    for name in ("mean_", "data_min_", "data_max_", "max_abs_"):
        if hasattr(theirs, name):
            spread = np.nanstd(X.astype(np.float64), axis=0)
            assert (
                np.abs(getattr(ours, name) - getattr(theirs, name))
                <= 1e-5 * spread + 1e-7 * np.nanmax(np.abs(X), axis=0)
            ).all()
    assert np.all(ours.n_samples_seen_ == theirs.n_samples_seen_)


def test_weights(passes: Callable[[], int], tmp_path: Path) -> None:
    X, weights = columns("plain"), np.random.default_rng(1).integers(0, 3, N)
    np.save(tmp_path / "rows.npy", X)
    ours = StandardScaler().fit(np.load(tmp_path / "rows.npy", mmap_mode="r"), sample_weight=weights)
    assert passes() == 1
    theirs = sklearn.preprocessing.StandardScaler().fit(X.astype(np.float64), sample_weight=weights)
    np.testing.assert_allclose(ours.var_, theirs.var_, rtol=1e-5)
    np.testing.assert_allclose(ours.n_samples_seen_, theirs.n_samples_seen_)


def test_rows_in_the_notebooks_memory(current: xpulab.XPUCluster, passes: Callable[[], int]) -> None:
    X = np.random.default_rng(0).normal(5, 2, (100_003, 6))
    ours, held = MinMaxScaler().fit(X), MinMaxScaler().fit(current.scatter(X))
    assert passes() == 1
    np.testing.assert_array_equal(ours.data_min_, X.min(axis=0))
    np.testing.assert_array_equal(ours.data_max_, held.data_max_)


def test_infinity_is_refused(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    X = columns("plain")
    X[N - 2, 1] = np.inf
    np.save(tmp_path / "rows.npy", X)
    with pytest.raises(ValueError, match="Input X contains infinity"):
        StandardScaler().fit(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    assert current.run(lambda task: task.comm.allgather(1)) == [[1] * current.size] * current.size
