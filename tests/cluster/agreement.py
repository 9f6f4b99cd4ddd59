"""Assertions that a fit agrees with scikit-learn's."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_same_labels(X: np.ndarray, centers: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Check that the labels agree. At most 1 row in 1000, about as near to one centre as to another, may differ."""
    differ = np.flatnonzero(ours != theirs)
    assert len(differ) <= max(1, len(X) // 1000)
    rows = X[differ].astype(np.float64)
    a = ((rows - centers[ours[differ]]) ** 2).sum(axis=1)
    b = ((rows - centers[theirs[differ]]) ** 2).sum(axis=1)
    eps = float(np.finfo(X.dtype).eps)
    scale = float((X.astype(np.float64) ** 2).sum(axis=1).max())
    np.testing.assert_allclose(a, b, rtol=0, atol=float(100 * eps * scale))


def assert_same_fit(X: np.ndarray, ours: Any, theirs: Any) -> None:
    """Check that labels, centres, inertia and number of iterations are scikit-learn's."""
    rtol = 1e-5 if X.dtype == np.float32 else 1e-10
    assert ours.n_iter_ == theirs.n_iter_
    assert_same_labels(X, theirs.cluster_centers_, ours.labels_, theirs.labels_)
    scale = float(np.abs(theirs.cluster_centers_).max())
    np.testing.assert_allclose(
        ours.cluster_centers_,
        theirs.cluster_centers_,
        rtol=rtol,
        atol=rtol * scale,
    )
    # If every row is a centre, the inertia is the square of a rounding error.
    zero: float = len(X) * (float(np.finfo(X.dtype).eps) * float(np.abs(X).max())) ** 2
    np.testing.assert_allclose(ours.inertia_, theirs.inertia_, rtol=rtol, atol=zero)
    assert ours.labels_.dtype == theirs.labels_.dtype
    assert ours.cluster_centers_.dtype == theirs.cluster_centers_.dtype
