"""Results with a 1 in some columns of each row, as a sparse matrix; and which results cannot be one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from xpulab._sklearn import _get_output_config

try:
    from xpulab._sklearn import _align_api_if_sparse
except ImportError:  # before 1.9
    _align_api_if_sparse = sparse.csr_matrix

__all__ = ["as_csr", "require_dense_output"]


def as_csr(places: npt.NDArray[Any], n_columns: int, dtype: Any) -> Any:
    """Return the matrix with a 1 at each place of each row, as scikit-learn makes it. Places of -1 are no places."""
    there = places >= 0
    starts = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    index = np.int32 if starts[-1] <= np.iinfo(np.int32).max else np.int64
    parts = np.ones(starts[-1], dtype), places[there].astype(index), starts.astype(index)
    return _align_api_if_sparse(sparse.csr_array(parts, shape=(len(places), n_columns)))


def require_dense_output(estimator: Any, asks: str, instead: str) -> None:
    """Raise ValueError if an estimator asks for a sparse matrix where its result is a data frame.

    Parameters
    ----------
    estimator : sklearn.base.BaseEstimator
    asks : str
        The parameter that asks for a sparse matrix; empty if none does.
    instead : str
        The parameter that asks for rows.
    """
    frames = _get_output_config("transform", estimator)["dense"]
    if not asks:
        return
    if frames != "default":
        raise ValueError(
            f"{frames.capitalize()} output does not support sparse data. Set {instead} to output {frames} dataframes "
            f'or disable {frames.capitalize()} output via `ohe.set_output(transform="default").'
        )
