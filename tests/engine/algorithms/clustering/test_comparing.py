"""Rows compared with given centres, on a rank alone, with numbers whose squares float32 does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from xpulab.engine.algorithms.clustering.comparing import parts
from xpulab.engine.engine import Task
from xpulab.kernels.kmeans import dense
from xpulab.kernels.rows import Rows

ROWS = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
CENTERS = ROWS[:5] + np.float32(0.1)


@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_labels_inertia_and_distances(ask: Callable[..., Any], unit: float) -> None:
    expected = cdist(ROWS, CENTERS)
    X, centers = ROWS * np.float32(unit), CENTERS * np.float32(unit)
    _, labels = ask("KMeans.predict", X, shape=(300,), dtype=np.int32, centers=centers)
    np.testing.assert_array_equal(labels, expected.argmin(axis=1))
    _, distances = ask("KMeans.transform", X, shape=(300, 5), dtype=np.float32, centers=centers)
    np.testing.assert_allclose(distances, expected * unit, rtol=1e-5)
    nearest = np.square(expected.min(axis=1)).sum()
    found = ask("KMeans.predict", X, target=None, centers=centers)
    assert found["inertia"] == pytest.approx(nearest * unit * unit, rel=1e-5)


def test_labels_come_in_parts(task: Task) -> None:
    rows = Rows.upload(task.device, ROWS)
    labels = dense.new_labels(task.device, len(ROWS))
    dense.assign(rows, np.zeros(3, np.float32), CENTERS, labels, again=False)
    np.testing.assert_array_equal(np.concatenate(list(parts(rows, labels))), cdist(ROWS, CENTERS).argmin(axis=1))
