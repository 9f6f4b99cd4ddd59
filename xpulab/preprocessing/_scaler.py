"""What all scalers share: NaN is left out of the fit and stays in the rows, which are made on the engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from xpulab.estimator.proxy import TransformerProxy

__all__ = ["Scaler"]


class Scaler(TransformerProxy):
    """Base of the scalers: their rows may hold NaN, and they make rows from rows column by column."""

    _rules: ClassVar[Mapping[str, Any]] = {"ensure_all_finite": "allow-nan"}

    n_features_in_: int

    def __sklearn_is_fitted__(self) -> bool:
        """An interrupted first fit leaves the number of columns, and nothing else."""
        return hasattr(self, "scale_")

    def _forward(self, X: Any, **arguments: Any) -> Any:
        """The rows of X scaled; a handle for a handle."""
        return self._transformed("transform", "scale", X, self.n_features_in_, **arguments)

    def _backward(self, X: Any, **arguments: Any) -> Any:
        """The rows of X scaled back; the names of the columns do not count, as in scikit-learn."""
        n = self.n_features_in_
        return self._transformed("inverse_transform", "scale", X, n, n_given=n, **arguments)
