"""The base class of scalers: a fit ignores NaN, `transform` keeps it, and the engines scale the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from xpulab.estimator.proxy import TransformerProxy

__all__ = ["Scaler"]


class Scaler(TransformerProxy):
    """Base class of the estimators that scale each column. Rows may have NaN."""

    _rules: ClassVar[Mapping[str, Any]] = {"ensure_all_finite": "allow-nan"}
    _keeps: ClassVar[str] = "f"

    n_features_in_: int

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether the estimator is fitted: an interrupted first fit sets only the number of columns."""
        return hasattr(self, "scale_")

    def _stretched(self, method: str, X: Any, factor: Any, **arguments: Any) -> Any:
        """Multiply the columns of sparse rows on the engines, where the result stays."""
        n = None if method == "transform" else self.n_features_in_
        return self._transformed(method, "scale_stored", X, n, n_given=n, as_sparse=True, factor=factor, **arguments)

    def _forward(self, X: Any, **arguments: Any) -> Any:
        """Scale the rows of X. The result is a handle if X is a handle."""
        return self._transformed("transform", "scale", X, **arguments)

    def _backward(self, X: Any, **arguments: Any) -> Any:
        """Scale the rows of X back. As in scikit-learn, the names of the columns are not checked."""
        n = self.n_features_in_
        return self._transformed("inverse_transform", "scale", X, n, n_given=n, **arguments)
