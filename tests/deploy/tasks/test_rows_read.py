"""The engines read large arrays in the notebook's memory. Where they cannot, the arrays are copied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sklearn.preprocessing

import xpulab
from xpulab.cluster import KMeans
from xpulab.data import Outgoing
from xpulab.preprocessing import MinMaxScaler, StandardScaler
from xpulab.sharing.process_memory import ProcessMemory
from xpulab.sharing.sources import ProcessRows, SharedRows, Source

pytestmark = pytest.mark.cluster


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[type[Source]]:
    """How each array of rows was sent."""
    seen: list[type[Source]] = []
    send = Outgoing.send_rows

    def sending(outgoing: Outgoing, *arguments: Any) -> Source:
        source = send(outgoing, *arguments)
        seen.append(type(source))
        return source

    monkeypatch.setattr(Outgoing, "send_rows", sending)
    return seen


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    """Rows that are large enough for the engines to look for NaN themselves: 22.4 MB."""
    return np.random.default_rng(0).normal(size=(400_001, 7))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_ways_give_the_same(
    current: xpulab.XPUCluster, sources: list[type[Source]], monkeypatch: Any, dtype: Any
) -> None:
    X = np.random.default_rng(0).normal(size=(100_003, 5)).astype(dtype)
    counts = [0] * (current.size - 1) + [len(X)]
    read, handle = KMeans(5, random_state=0, max_iter=3).fit(X), current.scatter(X, counts=counts)
    assert sources == [ProcessRows] * 2
    monkeypatch.setattr(current.rows, "readable", False)
    copied = KMeans(5, random_state=0, max_iter=3).fit(X)
    assert sources[2:] == [SharedRows]
    np.testing.assert_array_equal(read.cluster_centers_, copied.cluster_centers_)
    np.testing.assert_array_equal(read.labels_, copied.labels_)
    np.testing.assert_array_equal(handle.gather(), X)


@pytest.mark.parametrize("kind", ["small", "columns first", "every second", "whole numbers"])
def test_other_arrays_are_copied(
    on_pair: xpulab.XPUCluster, sources: list[type[Source]], X: np.ndarray, kind: str
) -> None:
    rows: Any = {
        "small": X[:1000],
        "columns first": np.asfortranarray(X[:100_000]),
        "every second": X[:200_000:2],
        "whole numbers": (X[:100_000] * 10).astype(int),
    }[kind]
    handle = on_pair.scatter(rows)
    assert sources == [ProcessRows if kind == "whole numbers" else SharedRows]  # these become a new array of float64
    np.testing.assert_array_equal(handle.gather(), rows)


def test_engines_that_read_something_else_say_no(on_pair: xpulab.XPUCluster) -> None:
    proof = np.arange(4, dtype=np.uint8)
    memory = ProcessMemory.of(proof)

    def answers(memory: ProcessMemory, expected: bytes) -> list[bool]:
        return [result["read"] for result in on_pair.call("reads", {"memory": memory, "expected": expected}).results]

    assert answers(memory, proof.tobytes()) == [True, True]
    assert answers(memory, b"other") == [False, False]
    assert answers(replace(memory, pid=2**22 - 1), proof.tobytes()) == [False, False]
    assert answers(replace(memory, address=8), proof.tobytes()) == [False, False]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 199_999, 400_000])
def test_nan_and_infinity_raise_the_error_of_scikit_learn(
    on_pair: xpulab.XPUCluster, sources: list[type[Source]], X: np.ndarray, row: int, value: float
) -> None:
    X = X.copy()
    X[row, 3] = value
    word = "NaN" if np.isnan(value) else "infinity"
    with pytest.raises(ValueError, match=rf"Input X contains {word}(.|\n)*in row {row}, column 3") as caught:
        KMeans(2, n_init=1).fit(X)
    assert "engine" not in str(caught.value)
    with pytest.raises(ValueError, match=f"Input X contains {word}"):
        on_pair.scatter(X)
    assert sources == [ProcessRows] * 2
    assert KMeans(2, n_init=1, max_iter=1).fit(X[:150_000] if row else X[1:]).n_iter_ == 1


def test_nan_where_it_is_allowed(on_pair: xpulab.XPUCluster, sources: list[type[Source]], X: np.ndarray) -> None:
    X = X.copy()
    X[7, 2] = np.nan
    ours, theirs = StandardScaler().fit(X), sklearn.preprocessing.StandardScaler().fit(X)
    assert sources == [ProcessRows]
    np.testing.assert_allclose(ours.mean_, theirs.mean_, atol=1e-12)
    np.testing.assert_array_equal(ours.n_samples_seen_, theirs.n_samples_seen_)
    X[9, 1] = np.inf
    with pytest.raises(ValueError, match="Input X contains infinity"):
        StandardScaler().fit(X)


def test_large_numbers_whose_sum_is_infinite_are_no_error(on_pair: xpulab.XPUCluster, X: np.ndarray) -> None:
    large = np.where(X > 0, 1e308, 1e307)
    np.testing.assert_array_equal(MinMaxScaler().fit(large).data_max_, np.full(7, 1e308))
