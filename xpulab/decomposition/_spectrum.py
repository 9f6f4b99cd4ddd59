"""Fitted attributes of a PCA from singular values and vectors of centred rows. All arrays are float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg
from sklearn.utils.extmath import svd_flip

from xpulab._sklearn import _infer_dimension
from xpulab.estimator.blas import few_threads

__all__ = [
    "of_covariance",
    "of_triangle",
    "principal_components",
    "random_start",
    "rounded",
    "truncated_components",
]


def of_covariance(covariance: np.ndarray, n_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute the singular values and right vectors of centred rows from their covariance matrix."""
    with few_threads(len(covariance)):
        variances, vectors = linalg.eigh(covariance)
    variances = np.maximum(variances[::-1], 0.0)
    return np.sqrt(variances * (n_samples - 1)), np.ascontiguousarray(vectors[:, ::-1].T)


def of_triangle(r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the singular values and right vectors of rows from the triangle of their QR decomposition."""
    _, singular, right = linalg.svd(r, full_matrices=False)
    return singular, right


def principal_components(
    singular: np.ndarray, right: np.ndarray, n_components: Any, n_samples: int, n_features: int
) -> dict[str, Any]:
    """Compute fitted attributes from a full decomposition, as in scikit-learn's ``PCA._fit_full``.

    Parameters
    ----------
    singular : numpy.ndarray of shape (m,)
        Singular values in descending order.
    right : numpy.ndarray of shape (m, n_features)
        Right singular vectors.
    n_components : int, float between 0 and 1, or "mle"
    n_samples, n_features : int

    Returns
    -------
    dict
        Fitted attributes.
    """
    _, right = svd_flip(None, right, u_based_decision=False)
    variance, ratio = _variance(singular, n_samples), _shares(singular)
    if isinstance(n_components, str):
        n_components = _infer_dimension(variance, n_samples)
    elif 0 < n_components < 1.0:
        n_components = np.searchsorted(np.cumsum(ratio), n_components, side="right") + 1
    noise = variance[n_components:].mean() if n_components < min(n_features, n_samples) else 0.0
    return _attributes(
        singular[:n_components], right[:n_components], variance[:n_components], ratio[:n_components], noise
    )


def truncated_components(
    singular: np.ndarray, right: np.ndarray, total: float, n_samples: int, n_features: int
) -> dict[str, Any]:
    """Compute fitted attributes from a truncated decomposition and the total variance, as ``PCA._fit_truncated``."""
    _, right = svd_flip(None, right, u_based_decision=False)
    variance = _variance(singular, n_samples)
    least = min(n_features, n_samples)
    noise = float(total - variance.sum()) / (least - len(singular)) if len(singular) < least else 0.0
    return _attributes(singular, right, variance, variance / total, noise)


def _variance(singular: np.ndarray, n_samples: int) -> np.ndarray:
    with np.errstate(over="ignore"):  # infinity then
        return singular**2 / (n_samples - 1)


def _shares(lengths: np.ndarray) -> np.ndarray:
    """Return the share of each squared length in their sum, also if the squares are too large or small for float64."""
    _, exponent = np.frexp(lengths.max(initial=0.0))
    squares = np.square(np.ldexp(lengths, -exponent))
    return squares / squares.sum()


def _attributes(
    singular: np.ndarray, components: np.ndarray, variance: np.ndarray, ratio: np.ndarray, noise: float
) -> dict[str, Any]:
    return {
        "components_": components,
        "n_components_": len(components),
        "explained_variance_": variance,
        "explained_variance_ratio_": ratio,
        "singular_values_": singular,
        "noise_variance_": noise,
    }


def rounded(attributes: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """Return the attributes with all floating-point numbers converted to `dtype`; arrays are contiguous copies."""
    made = {}
    with np.errstate(over="ignore"):  # infinity then
        for name, value in attributes.items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                value = np.array(value, dtype, order="C")
            elif isinstance(value, np.floating):
                value = np.dtype(dtype).type(value)
            made[name] = value
    return made


def random_start(
    shape: tuple[int, int],
    dtype: Any,
    n_components: int,
    n_oversamples: int,
    n_iter: Any,
    random: np.random.RandomState,
) -> dict[str, Any]:
    """Return arguments of the task "randomized_svd", with the random matrix of scikit-learn's ``_randomized_svd``.

    scikit-learn's power_iteration_normalizer changes only the basis of a space, so the ranks always use orthonormal
    bases.
    """
    if n_iter == "auto":
        n_iter = 7 if n_components < 0.1 * min(shape) else 4
    start = random.normal(size=(min(shape), n_components + n_oversamples))
    return {"start": start.astype(dtype, copy=False), "n_components": n_components, "n_iter": n_iter}
