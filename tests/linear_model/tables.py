"""Tables with a given condition number, and coefficients of least squares from means in extended precision."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["error", "reference", "table"]


def table(
    n: int = 700, d: int = 8, t: int = 0, *, condition: float = 10, offset: float = 0, dtype: Any = np.float64
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X with this condition number and columns near `offset`, y with `t` targets (0: 1-d array), weights."""
    rng = np.random.default_rng(n + d + t)
    U = np.linalg.qr(rng.normal(size=(n, d)))[0] * np.geomspace(1, 1 / condition, min(n, d))
    X = (U @ np.linalg.qr(rng.normal(size=(d, d)))[0][: min(n, d)] * np.sqrt(n) + offset).astype(dtype)
    y = X.astype(np.float64) @ rng.normal(size=(d, t or 1)) + 0.1 * rng.normal(size=(n, t or 1))
    return X, (y if t else y[:, 0]).astype(dtype), rng.uniform(0.1, 2, n).astype(dtype)


def reference(X: Any, y: Any, weights: Any = None, alpha: float = 0.0) -> np.ndarray:
    """Return the coefficients of centred least squares with a penalty."""
    X, y = X.astype(np.longdouble), y.reshape(len(y), -1).astype(np.longdouble)
    weights = np.ones(len(X), np.longdouble) if weights is None else weights.astype(np.longdouble)
    X, y = (a - weights @ a / weights.sum() for a in (X, y))
    root = np.sqrt(weights)[:, None]
    rows = np.vstack([(X * root).astype(np.float64), np.sqrt(alpha) * np.eye(X.shape[1])])
    right = np.vstack([(y * root).astype(np.float64), np.zeros((X.shape[1], y.shape[1]))])
    return np.linalg.lstsq(rows, right, rcond=1e-15)[0].T.squeeze()


def error(coef: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference, relative to the largest coefficient."""
    return float(np.abs(coef - expected).max() / np.abs(expected).max())
