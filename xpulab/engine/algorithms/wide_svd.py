"""Principal components of fewer rows than columns, whose singular values and left vectors are those of few rows.

The randomized decomposition is that of a matrix M of rows x rows: the transposed rows are ``V @ M``, where V has
orthonormal columns, so that each orthonormal basis of the transposed rows times a matrix is V times one of M times the
matrix [1]_.

References
----------
.. [1] N. Halko, P.-G. Martinsson, J. A. Tropp, "Finding structure with randomness", SIAM Review 53 (2011), 217-288.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.qr import triangle_of
from xpulab.engine.algorithms.sparse_rows.svd import signs_of
from xpulab.engine.algorithms.wide_rows import Spectrum, WideRows, few_rows
from xpulab.engine.dataset import Data, PassedRows
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.sharing.answers import Components
from xpulab.sharing.sources import SharedArray, Source

__all__ = ["randomized_components"]

_Floats = npt.NDArray[np.float64]


def randomized_components(
    rows: WideRows, start: np.ndarray, n_components: int, n_iter: int
) -> tuple[_Floats, _Floats, _Floats] | None:
    """Compute a randomized decomposition of centred rows.

    Parameters
    ----------
    rows : WideRows
    start : numpy.ndarray of shape (n_samples, k)
        Random matrix.
    n_components : int
    n_iter : int
        Number of power iterations.

    Returns
    -------
    tuple of numpy.ndarray or None
        Singular values (n_components,), right vectors (n_components, n_features) and left vectors (n_samples,
        n_components), on rank 0; empty arrays on the others. None on all ranks if the numbers are out of the range of
        squares. The entry of largest magnitude in each right vector is positive.
    """
    spectrum = rows.spectrum()
    if spectrum is None:
        return None
    turn = None
    if rows.comm.rank == 0:
        if n_components > len(spectrum.values):
            spectrum = _with_the_last(rows, spectrum)
        matrix = spectrum.values[:, np.newaxis] * spectrum.vectors.T
        basis = start.astype(np.float64)
        for _ in range(n_iter):
            basis = np.linalg.qr(matrix.T @ np.linalg.qr(matrix @ basis)[0])[0]
        tall = np.linalg.qr(matrix @ basis)[0]
        turned, singular, left = np.linalg.svd(tall.T @ matrix, full_matrices=False)
        turn = (tall @ turned[:, :n_components]).T
    right = rows.right_vectors(spectrum, turn)
    if right is None:
        return np.empty(0), np.empty((0, 0)), np.empty((0, 0))
    signs = signs_of(right)
    return singular[:n_components], right * signs[:, np.newaxis], left[:n_components].T * signs


def _with_the_last(rows: WideRows, spectrum: Spectrum) -> Spectrum:
    """Return the decomposition with the singular value that centring has made zero; on rank 0."""
    last = rows.roots / np.sqrt(rows.weight)
    return Spectrum(np.column_stack([spectrum.vectors, last]), np.append(spectrum.values, 0.0), spectrum.exact)


def _as_many(values: _Floats, n_components: float) -> int:
    """Return how many right vectors are asked for: by a number, or by a share of the variance, and then one more."""
    if not 0 < n_components < 1:
        return max(int(n_components), 1)
    squares = np.square(values / values.max(initial=0.0))
    return int(np.searchsorted(np.cumsum(squares / squares.sum()), n_components, side="right")) + 2


@task("wide_svd")
def _wide_svd(task: Task, source: Source, weights: SharedArray | PassedRows | None, n_components: float) -> Components:
    """Return the singular values of centred rows and as many right vectors as are asked for, from rank 0.

    If rows are too many, or read in passes, or out of the range of their squares, the answer has the triangle ``r`` of
    the rows in place of both.
    """
    data = Data(task, source, weights)
    answer: Components = {"rows": data.n_own}
    if few_rows(data):
        rows = WideRows.of(task, data, True)
        found = rows.spectrum()
        if found is not None:
            mean, values = rows.mean, found.values
            if task.comm.rank == 0:
                found = _with_the_last(rows, found)
                values, some = found.values, _as_many(found.values, n_components)
                found = Spectrum(found.vectors[:, :some], values[:some], found.exact)
            right = rows.right_vectors(found)
            if right is not None:
                answer |= {"singular": values, "right": right, "mean": mean}
            return answer
    whole = triangle_of(task, data, True)
    if task.comm.rank == 0:
        answer |= {"r": whole.r, "mean": whole.mean}
    return answer
