"""k-means of few rows on a CPU device: passes by machine code in place of kernels, see `Rows.are_few`.

The results are those of the kernels up to rounding. Where one rank has all rows, whole runs take one call: with a call
for each iteration, those of a fit of 1,500 x 2 took 80 µs, of which 20 were computations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.kmeans.nearest import Labels
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.on_cpu.host import at, functions
from xpulab.kernels.rows import SPAN, Rows

__all__ = ["inertia", "iterations", "nearest", "potentials", "seed"]

_FLOAT64, _INT64 = np.dtype(np.float64), np.dtype(np.int64)
_AT_ONCE = 1 << 21  # multiply-adds, which take about a millisecond: so soon is a request to stop seen


def nearest(
    rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels
) -> tuple[npt.NDArray[np.float64], int]:
    """Label each row with its nearest centre; return the sums and weights of each centre, and the changed labels.

    The parameters are those of `xpulab.kernels.kmeans.lloyd.lloyd_step`. The sums are of shape (n_clusters,
    n_features + 1).
    """
    (k, d), dtype, data = centers.shape, rows.dtype, rows.data.pointer
    sums, room = np.zeros((k, d + 1)), np.empty(k + 3 * BLOCK, dtype)
    middle, centers = rows.shift_or_zero(shift), np.ascontiguousarray(centers, dtype)
    with rows.device.computing():
        changed = functions(dtype).nearest_of_few(
            data, rows.n_samples, d, at(middle, dtype), at(centers, dtype), k,
            *_weights(rows), at(room, dtype), labels.current.pointer, at(sums, _FLOAT64),
        )  # fmt: skip
    _compared(labels, k)
    return sums, int(changed)


def iterations(
    rows: Rows,
    shift: npt.NDArray[Any],
    centers: npt.NDArray[Any],
    labels: Labels,
    squares: float,
    most: int,
    tolerance: float,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64], npt.NDArray[np.float64], int]:
    """Run iterations of Lloyd's algorithm over all rows, as many as take about a millisecond.

    They end early if no label changes, if the centres move by at most the tolerance, or if a cluster is empty.

    Parameters
    ----------
    rows, shift, centers, labels
        As for `nearest`.
    squares : float
        Weighted sum of the squared norms of the rows less the shift.
    most : int
        Largest number of iterations.
    tolerance : float
        On the squared movement of the centres.

    Returns
    -------
    centers : numpy.ndarray of shape (n_clusters, n_features)
        The new centres. The last iteration has not moved them if a cluster was empty in it.
    totals : numpy.ndarray of float64 of shape (n_clusters, n_features + 1)
        The sums and weights of each centre of the last iteration.
    course : numpy.ndarray of float64 of shape (n_iterations, 2)
        For each iteration the inertia of the centres before it, and their squared movement, which is -1 if a cluster
        was empty.
    changed : int
        The labels that the last iteration has changed.
    """
    (k, d), dtype, data = centers.shape, rows.dtype, rows.data.pointer
    most = min(most, max(1, _AT_ONCE // (rows.n_blocks * BLOCK * k * d)))
    middle, centers = rows.shift_or_zero(shift), np.array(centers, dtype, order="C")
    totals, room, moved = np.empty((k, d + 1)), np.empty(k + 3 * BLOCK, dtype), np.empty_like(centers)
    course, ended = np.empty(2 * most + 1), np.empty(2)
    with rows.device.computing():
        n = functions(dtype).lloyd_of_few(
            data, rows.n_samples, d, at(middle, dtype), at(centers, dtype), k,
            *_weights(rows), at(room, dtype), labels.current.pointer, squares, most, tolerance, at(moved, dtype),
            at(totals, _FLOAT64), at(ended, _FLOAT64), at(course, _FLOAT64),
        )  # fmt: skip
    _compared(labels, k)
    return centers, totals, course[: 2 * n].reshape(n, 2), int(course[-1])


def seed(
    rows: Rows, shift: npt.NDArray[Any], first: npt.NDArray[Any], uniforms: npt.NDArray[np.float64]
) -> npt.NDArray[Any]:
    """Draw centres by greedy k-means++, see `xpulab.kernels.kmeans.plusplus`.

    Parameters
    ----------
    rows : Rows
        All rows, not those of one rank of several.
    shift, first : numpy.ndarray of shape (n_features,)
        The shift, and the first centre less it.
    uniforms : numpy.ndarray of float64 of shape (n_clusters - 1, t)
        Uniform numbers, which draw the t candidates for each of the other centres.

    Returns
    -------
    numpy.ndarray of shape (n_clusters, n_features)
        The centres, less the shift.
    """
    (others, t), dtype, data = uniforms.shape, rows.dtype, rows.data.pointer
    middle, centers = rows.shift_or_zero(shift), np.empty((others + 1, rows.n_features), dtype)
    centers[0] = first
    closest, tried, targets = np.empty(rows.n_samples, dtype), np.empty(t, np.int64), np.empty(t)
    with rows.device.computing():
        functions(dtype).seed_of_few(
            data, rows.n_samples, rows.n_features, at(middle, dtype), at(centers, dtype), others + 1,
            at(np.ascontiguousarray(uniforms), _FLOAT64), t, *_weights(rows), at(closest, dtype), at(tried, _INT64),
            at(targets, _FLOAT64),
        )  # fmt: skip
    return centers


def inertia(rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels) -> float:
    """Compute `xpulab.kernels.kmeans.lloyd.inertia`."""
    dtype, data = rows.dtype, rows.data.pointer
    middle, centers = rows.shift_or_zero(shift), np.ascontiguousarray(centers, dtype)
    with rows.device.computing():
        total: float = functions(dtype).inertia_of_few(
            data, rows.n_samples, rows.n_features, at(middle, dtype), at(centers, dtype), *_weights(rows),
            labels.current.pointer,
        )  # fmt: skip
    return total


def potentials(
    rows: Rows, shift: npt.NDArray[Any], last: npt.NDArray[Any], tried: npt.NDArray[Any], closest: int
) -> npt.NDArray[np.float64]:
    """Return the potential of each span of rows with each of the candidates as a further centre: (t, n_spans).

    See `xpulab.kernels.kmeans.plusplus.Seeding`; `closest` is the address of its distances, which are changed.
    """
    dtype, data, t = rows.dtype, rows.data.pointer, len(tried)
    centers = np.concatenate([last[None], tried])
    sums = np.zeros((t, rows.n_spans))
    with rows.device.computing():
        functions(dtype).potentials_of_few(
            data, rows.n_samples, rows.n_features, at(shift, dtype), at(centers, dtype), t,
            *_weights(rows), closest, SPAN, rows.n_spans, at(sums, _FLOAT64),
        )  # fmt: skip
    return sums


def _compared(labels: Labels, k: int) -> None:
    """Note that all rows were compared with k centres, and that their sums are not kept."""
    labels.drop_sums()
    labels.forget()
    labels.n_clusters, labels.span, labels.counts = k, 0, None


def _weights(rows: Rows) -> tuple[int, bool]:
    """Return the address of the weights, and whether there are any."""
    weights = rows.sample_weight
    return (rows.data.pointer, False) if weights is None else (weights.pointer, True)
