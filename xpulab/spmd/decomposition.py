"""The estimators of `xpulab.decomposition` for code that runs on the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from xpulab import decomposition
from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.decomposition._merging import Batch, State, merged
from xpulab.spmd._rank.estimator import estimators_of


class ExactIncrementalPCA(decomposition.IncrementalPCA):
    """The components of all rows of all batches.

    `var_` is the sample variance, with the divisor n_samples - 1, as in sklearnex.
    scikit-learn's estimator keeps n_components between batches, and so is right only if these explain all variance.
    This one keeps all components, and shows n_components of them.
    """

    _own = (*decomposition.IncrementalPCA._own, "_all")
    _all: State

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None
    ) -> ExactIncrementalPCA:
        self.__dict__.pop("components_", None)  # an interrupted fit gives it back
        self._add("fit", X)
        self.batch_size_ = self.batch_size or 5 * self.n_features_in_
        return self

    fit.__doc__ = decomposition.IncrementalPCA.fit.__doc__

    def to_sklearn(self) -> Any:
        plain = super().to_sklearn()
        plain.var_ = self._all.variance  # its own has the divisor n_samples
        return plain

    to_sklearn.__doc__ = decomposition.IncrementalPCA.to_sklearn.__doc__

    def _with(self, state: State | None, batch: Batch) -> State:
        return merged(state, batch, len(batch.mean))

    def _n_components(self, state: State | None, n_samples: int, n_features: int) -> int:
        shown = None if state is None else replace(state, components=self.components_)
        return super()._n_components(shown, n_samples, n_features)

    def _state(self) -> State:
        return self._all

    def _absorb(self, others: Sequence[Any]) -> None:
        """Add the rows that other estimators have seen."""
        state = self._all if hasattr(self, "components_") else None
        for other in others:
            seen = other._all
            state = self._with(state, Batch(seen.n_samples, seen.mean, seen.singular[:, None] * seen.components))
        assert state is not None
        self._keep(state, state.n_samples, others[0].components_.dtype)

    def _keep(self, state: State, n_samples: int, dtype: Any) -> None:
        before = getattr(self, "components_", None)
        k = self._n_components(None if before is None else self._all, state.n_samples, len(state.mean))
        if k > (most := min(state.n_samples, len(state.mean))):
            raise ValueError(f"n_components={k} is more than there are rows or columns so far; expected at most {most}")
        self._all = state
        shown = replace(state, components=state.components[:k], singular=state.singular[:k])
        super()._keep(shown, state.n_samples, dtype if before is None else before.dtype)
        self.var_ = state.variance * (state.n_samples / max(state.n_samples - 1, 1))


__all__, __getattr__, __path__ = estimators_of(decomposition, IncrementalPCA=ExactIncrementalPCA)
