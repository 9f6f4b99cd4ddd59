"""The base class of `Normalizer` and `Binarizer`, whose fit computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import numpy.typing as npt

from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.proxy import TransformerProxy
from xpulab.scanning import scanned

__all__ = ["RowWise"]

RowWiseT = TypeVar("RowWiseT", bound="RowWise")


class RowWise(TransformerProxy):
    """Base class of the estimators that transform each row by itself."""

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}
    _keeps: ClassVar[str] = "f"

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self: RowWiseT, X: npt.ArrayLike | ShardedArray, y: None = None) -> RowWiseT:
        """Check the parameters, and note the columns.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        y : None
            Ignored.

        Returns
        -------
        self
            This object.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, and for sparse matrices.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        cluster = current_ranks()
        rows = self._checked(cluster, X, reset=True, look_now=True)
        if scanned(rows) is not None:  # the engines read the file, and refuse NaN and infinity
            self._ask(cluster, "fit", "moments", rows)
        return self
