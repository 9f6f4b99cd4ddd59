"""Base class of the decompositions: projects rows on components, and back."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.proxy import TransformerProxy
from xpulab.estimator.results_in_files import in_file

__all__ = ["Projecting"]


class Projecting(TransformerProxy, TransformerMixin):
    """Implements `transform` and `inverse_transform` with `components_`, and with `mean_` and `whiten` if present."""

    _computes_as: ClassVar[str] = "components_"

    components_: np.ndarray

    def transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Project rows on the components.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            `TruncatedSVD` takes CSR matrices, too.
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_components), float64 if X or the fit is
            A handle if X is a handle; no rows move.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If no cluster is running.
        ValueError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if out is not None:
            return in_file(self.transform, X, out)
        check_is_fitted(self)
        if not len(self.components_):
            return self._without_components(X)
        scale = np.sqrt(self._variance())
        smallest = np.finfo(self.components_.dtype).eps
        matrix = self.components_.T / np.maximum(scale, smallest)
        return self._transformed("transform", "project", X, matrix.shape[1], matrix=matrix, shift=self._middle())

    def inverse_transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Return the rows whose projections on the components are X.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_components)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_features), float64 if X or the fit is
            A handle if X is a handle; no rows move.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If no cluster is running.
        ValueError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if out is not None:
            return in_file(self.inverse_transform, X, out)
        check_is_fitted(self)
        n_components, n_features = self.components_.shape
        matrix = np.sqrt(self._variance())[:, None] * self.components_
        return self._transformed(
            "inverse_transform", "project", X, n_features, n_given=n_components, matrix=matrix, offset=self._middle()
        )

    def __sklearn_is_fitted__(self) -> bool:
        # An interrupted first fit sets the number of columns, and nothing else.
        return hasattr(self, "components_")

    def _middle(self) -> np.ndarray | None:
        """Return the mean that is subtracted from rows before the projection; None if no mean is subtracted."""
        return getattr(self, "mean_", None)

    def _variance(self) -> np.ndarray:
        """Return the variances of the projections for whitening: (n_components,) in float64."""
        whitened = getattr(self, "whiten", False)
        found = self.explained_variance_ if whitened else np.ones(len(self.components_))
        return np.asarray(found, np.float64)

    def _without_components(self, X: Any) -> np.ndarray:
        if isinstance(X, ShardedArray):
            raise ValueError(
                f"this {type(self).__name__} has no components, and rows on engines need at least one column"
            )
        X = self._checked(current_ranks(), X, reset=False, look_now=True)
        return np.empty((X.shape[0], 0), X.dtype)
