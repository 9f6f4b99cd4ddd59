"""Tables with a given condition number, and coefficients of least squares from means in extended precision."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

__all__ = ["error", "leaving_one_out", "reference", "table"]


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


def leaving_one_out(X: Any, y: Any, alpha: float, centre: bool) -> tuple[np.ndarray, float]:
    """Return ridge coefficients, and the mean squared leave-one-out error, by exact arithmetic."""
    rows, right = [[Fraction(float(x)) for x in row] for row in X], [Fraction(float(value)) for value in y]
    n, d = len(rows), len(rows[0])
    columns = [*zip(*rows, strict=True), right]
    means = [sum(column) / n if centre else Fraction(0) for column in columns]
    rows = [[x - mean for x, mean in zip(row, means[:d], strict=True)] for row in rows]
    right = [value - means[d] for value in right]
    gram = [[sum(row[i] * row[j] for row in rows) + (i == j) * Fraction(alpha) for j in range(d)] for i in range(d)]
    unit = [[Fraction(i == j) for j in range(d)] for i in range(d)]
    inverse = _solved(gram, unit)
    coef = [
        sum(a * sum(row[j] * t for row, t in zip(rows, right, strict=True)) for j, a in enumerate(line))
        for line in inverse
    ]
    squares = []
    for row, value in zip(rows, right, strict=True):
        leverage = sum(row[i] * inverse[i][j] * row[j] for i in range(d) for j in range(d)) + Fraction(centre, n)
        squares.append(((value - sum(a * b for a, b in zip(row, coef, strict=True))) / (1 - leverage)) ** 2)
    return np.array(coef, np.float64), float(sum(squares) / n)


def _solved(left: list[list[Fraction]], right: list[list[Fraction]]) -> list[list[Fraction]]:
    """Solve equations by Gauss and Jordan's elimination; the matrix is positive definite."""
    joined = [[*a, *b] for a, b in zip(left, right, strict=True)]
    for i in range(len(joined)):
        joined[i] = [value / joined[i][i] for value in joined[i]]
        for k in range(len(joined)):
            if k != i:
                joined[k] = [a - joined[k][i] * b for a, b in zip(joined[k], joined[i], strict=True)]
    return [row[len(left) :] for row in joined]
