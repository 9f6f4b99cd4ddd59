"""The numbers of the classes of a rank's rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xpulab

pytestmark = pytest.mark.cluster


def codes(here: Any, labels: np.ndarray, classes: np.ndarray | None) -> np.ndarray:
    """On an engine: return the codes of labels."""
    from xpulab.engine.algorithms.labels import codes_of
    from xpulab.kernels.rows import Rows

    return codes_of(Rows.upload(here.device, labels.reshape(-1, 1)), classes)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_labels_become_places_among_the_classes(pair: xpulab.XPUCluster, dtype: Any) -> None:
    labels = np.array([3, -1, 7, 3, 5, 9], dtype)
    found = pair.run(codes, labels, np.array([-1, 3, 7], dtype))[0]
    np.testing.assert_array_equal(found, [1, 0, 2, 1, -1, -1])
    np.testing.assert_array_equal(pair.run(codes, labels, None)[0], labels)
    assert len(pair.run(codes, labels[:0], np.array([-1, 3, 7], dtype))[0]) == 0
