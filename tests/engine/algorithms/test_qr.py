"""The triangle of all rows, against NumPy: weights, offsets, empty ranks, fewer rows than columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpulab import XPUCluster
from xpulab.sharing.sources import bounds_of

pytestmark = pytest.mark.cluster


def _found(
    here: Any,
    X: np.ndarray,
    y: np.ndarray | None,
    weights: np.ndarray | None,
    bounds: list[int],
    centre: bool,
) -> Any:
    """On an engine: return the triangle of blocks of these rows."""
    from xpulab.engine.algorithms.qr import centred_triangle, triangular
    from xpulab.kernels.rows import Rows

    mine = slice(*bounds[here.task.comm.rank : here.task.comm.rank + 2])
    rows = Rows.upload(here.device, X[mine], None if weights is None else weights[mine])
    targets = None if y is None else Rows.upload(here.device, y[mine])
    if centre:
        return vars(centred_triangle(here.task, rows, targets))
    return triangular(here.task, rows, targets=targets)


def _ask(cluster: XPUCluster, X: np.ndarray, y: Any, weights: Any, counts: Any, centre: bool) -> Any:
    found = cluster.run(_found, X, y, weights, bounds_of(len(X), cluster.size, counts), centre)
    return found[0] if isinstance(found, list) else found


@pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "d", "t"), [(1, 3, 0), (5, 8, 0), (8, 8, 1), (9, 8, 2), (3000, 7, 3), (4100, 130, 0)])
def test_the_triangle_of_all_rows(cluster: XPUCluster, dtype: Any, weighted: bool, n: int, d: int, t: int) -> None:
    random = np.random.default_rng(n + d)
    X = (random.normal(size=(n, d)) * np.logspace(0, -4, d) + 1e4).astype(dtype)
    X[:, 0] = 3.25
    y = random.normal(size=(n, t)).astype(dtype) if t else None
    weights = random.uniform(0, 3, n).astype(dtype) if weighted else None
    counts = None if cluster.size == 1 or n < 9 else [n - 5, 0, 5]
    w = np.ones(n) if weights is None else weights.astype(np.float64)
    Z = X.astype(np.float64) if y is None else np.hstack([X, y]).astype(np.float64)
    found = _ask(cluster, X, y, weights, counts, True)
    mean = (w[:, None] * Z).sum(axis=0) / w.sum()
    assert found["weight"] == pytest.approx(w.sum())
    np.testing.assert_allclose(np.concatenate([found["mean"], found["target_mean"]]), mean, rtol=1e-12, atol=1e-12)
    assert found["r"].shape == (min(n, d + t), d + t)
    # A shift is subtracted, so that the reference is at least as precise as the result.
    about = Z - Z[0] - ((w[:, None] * (Z - Z[0])).sum(axis=0) / w.sum())
    expected = np.linalg.svd(np.sqrt(w)[:, None] * about, compute_uv=False)
    np.testing.assert_allclose(
        np.linalg.svd(found["r"], compute_uv=False), expected, rtol=1e-9, atol=1e-12 * max(expected.max(), 1)
    )
    assert (np.tril(found["r"][:, : min(n, d)], -1) == 0).all()
    plain = _ask(cluster, X, y, weights, counts, False)
    assert plain.shape == (min(n, d + t), d + t)
    assert (np.diagonal(plain) >= 0).all()
    gram = (Z.T * w) @ Z
    np.testing.assert_allclose(plain.T @ plain, gram, rtol=1e-10, atol=1e-10 * abs(gram).max())


def test_the_least_singular_value_is_that_of_the_rows(pair: XPUCluster) -> None:
    """Products of the columns would not contain it, because its square is below their rounding error."""
    random = np.random.default_rng(0)
    left, right = (np.linalg.qr(random.normal(size=shape))[0] for shape in [(2000, 12), (12, 12)])
    wanted = np.logspace(0, -11, 12)
    found = _ask(pair, left * wanted @ right.T, None, None, None, False)
    np.testing.assert_allclose(np.linalg.svd(found, compute_uv=False), wanted, rtol=1e-3)
