"""Principal components of rows that arrive in batches [1]_. All arrays are NumPy arrays of float64.

References
----------
.. [1] D. Ross, J. Lim, R. Lin, M. Yang, "Incremental Learning for Robust Visual Tracking", International Journal of
   Computer Vision 77 (2008), 125-141.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg
from sklearn.utils.extmath import svd_flip

from xpulab.centring import less_mean

__all__ = ["Batch", "State", "batch_of", "merged"]


@dataclass(frozen=True)
class Batch:
    """A batch of rows: their number, their mean (n_features,), and the triangle R of the centred rows."""

    n_samples: int
    mean: np.ndarray
    r: np.ndarray


@dataclass(frozen=True)
class State:
    """Principal components of all batches so far.

    Attributes
    ----------
    n_samples : int
        Number of rows of all batches.
    mean, variance : numpy.ndarray of shape (n_features,)
        Mean and variance of the columns.
    components : numpy.ndarray of shape (n_components, n_features)
        Principal axes.
    singular : numpy.ndarray of shape (n_components,)
        Singular values.
    explained : numpy.ndarray of shape (m,)
        Variances of all m >= n_components components of the last merge.
    """

    n_samples: int
    mean: np.ndarray
    variance: np.ndarray
    components: np.ndarray
    singular: np.ndarray
    explained: np.ndarray


def batch_of(triangles: Sequence[np.ndarray], shift: np.ndarray, n_samples: int) -> Batch:
    """Return a batch from the triangles of the ranks that have some of its rows.

    Parameters
    ----------
    triangles : sequence of numpy.ndarray of shape (m, 1 + n_features)
        The triangles of a column of ones and of the rows minus the shift.
    shift : numpy.ndarray of shape (n_features,)
    n_samples : int
        Number of rows of the batch.

    Returns
    -------
    Batch
    """
    r = np.asarray(np.linalg.qr(np.vstack(triangles), mode="r"))
    centred, mean = less_mean(r, shift)
    missing = min(n_samples, len(shift)) - len(centred)
    centred = np.vstack([centred, np.zeros((max(missing, 0), len(shift)))])
    return Batch(n_samples, mean, centred)


def merged(state: State | None, batch: Batch, n_components: int) -> State:
    """Return the principal components after one more batch, as in scikit-learn's ``IncrementalPCA.partial_fit``."""
    squares = np.square(batch.r).sum(axis=0)
    if state is None:
        n_samples, mean, stacked = batch.n_samples, batch.mean, batch.r
    else:
        n_samples = state.n_samples + batch.n_samples
        away = state.mean - batch.mean
        share = state.n_samples / n_samples * batch.n_samples
        mean = batch.mean + away * (state.n_samples / n_samples)
        squares = squares + state.variance * state.n_samples + share * away**2
        stacked = np.vstack([state.singular[:, None] * state.components, batch.r, np.sqrt(share) * away])
    _, singular, right = linalg.svd(stacked, full_matrices=False, check_finite=False)
    _, right = svd_flip(None, right, u_based_decision=False)
    explained = singular**2 / (n_samples - 1)
    return State(n_samples, mean, squares / n_samples, right[:n_components], singular[:n_components], explained)
