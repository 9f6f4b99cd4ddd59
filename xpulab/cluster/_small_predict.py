"""Computes the labels of a few rows in the notebook's process, if they are certainly those of the engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MOST_PRODUCTS", "certain_labels"]

#: Largest number of multiply-adds for which this process is faster than a message to the engines and back.
MOST_PRODUCTS = 2_000_000


def certain_labels(X: npt.NDArray[Any], centers: npt.NDArray[Any]) -> npt.NDArray[np.int32] | None:
    """Find the nearest centre of each row; return None if the engines could find another one because of rounding.

    This function computes squared distances in float64. The engines compute them in the dtype of the rows, with an
    error of at most ``2 (d + 8) eps (|x|^2 + 2 max |c|^2)``, the bound that their search uses, too [1]_. The label of a
    row is certain if the squared distance to the second nearest centre is larger than that to the nearest by more than
    twice this bound. It is not certain for rows halfway between two centres, nor if the nearest centre exists twice.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features), float32 or float64
    centers : ndarray of shape (n_clusters, n_features), of the same dtype

    Returns
    -------
    ndarray of int32 of shape (n_samples,), or None
        None if the label of any row is not certain.

    References
    ----------
    .. [1] N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, SIAM 2002, section 3.1: the
       error of inner products.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # labels are not certain if distances are not finite
        return _certain_labels(X, centers)


def _certain_labels(X: npt.NDArray[Any], centers: npt.NDArray[Any]) -> npt.NDArray[np.int32] | None:
    d, eps = X.shape[1], np.finfo(X.dtype).eps
    exact, c = X.astype(np.float64), centers.astype(np.float64)
    middle = c.mean(axis=0)
    shifted = c - middle
    halves = np.einsum("ij,ij->i", shifted, shifted) / 2 - (exact - middle) @ shifted.T  # half of |x - c|^2 - |x|^2
    labels = halves.argmin(axis=1)
    least, second = np.partition(halves, 1, axis=1)[:, :2].T if len(c) > 1 else (halves[:, 0], np.inf)
    # The bound uses the norms of the rows as given. If the engines subtract a mean first, their error is smaller.
    norms = np.einsum("ij,ij->i", exact, exact) + 2 * max(np.einsum("ij,ij->i", c, c))
    error = 2 * (d + 8) * float(eps) * norms
    if not (second - least > error).all():
        return None
    return labels.astype(np.int32)
