"""Labels of a few rows, computed in the notebook's process where they are certain to be those of the engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MOST_PRODUCTS", "certain_labels"]

#: Multiply-adds up to which this process is faster than a message to the engines and back.
MOST_PRODUCTS = 2_000_000


def certain_labels(X: npt.NDArray[Any], centers: npt.NDArray[Any]) -> npt.NDArray[np.int32] | None:
    """Index of the nearest centre of each row, or None where rounding could give the engines another one.

    Squared distances are computed in float64. The engines compute them in the dtype of the rows; their error is at most
    ``2 (d + 8) eps (|x|^2 + 2 max |c|^2)``, the bound that their own search uses [1]_. A row is certain if its second
    nearest centre is further away than the nearest by more than twice that bound. Rows between two centres, and rows
    whose nearest centre exists twice, are not.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features), float32 or float64
    centers : ndarray of shape (n_clusters, n_features), of the same dtype

    Returns
    -------
    ndarray of int32 of shape (n_samples,), or None

    References
    ----------
    .. [1] N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, SIAM 2002, section 3.1: the
       error of inner products.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is not certain either
        return _certain_labels(X, centers)


def _certain_labels(X: npt.NDArray[Any], centers: npt.NDArray[Any]) -> npt.NDArray[np.int32] | None:
    d, eps = X.shape[1], np.finfo(X.dtype).eps
    exact, c = X.astype(np.float64), centers.astype(np.float64)
    middle = c.mean(axis=0)
    shifted = c - middle
    halves = np.einsum("ij,ij->i", shifted, shifted) / 2 - (exact - middle) @ shifted.T  # half of |x - c|^2 - |x|^2
    labels = halves.argmin(axis=1)
    least, second = np.partition(halves, 1, axis=1)[:, :2].T if len(c) > 1 else (halves[:, 0], np.inf)
    # The norms of the rows as they were given: the error is smaller where the engines subtract a mean first.
    norms = np.einsum("ij,ij->i", exact, exact) + 2 * max(np.einsum("ij,ij->i", c, c))
    error = 2 * (d + 8) * float(eps) * norms
    if not (second - least > error).all():
        return None
    return labels.astype(np.int32)
