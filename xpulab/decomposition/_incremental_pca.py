"""`IncrementalPCA`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.decomposition
from sklearn.utils import gen_batches

from xpulab._sklearn import _fit_context, dtype_of_counts
from xpulab.data import ShardedArray
from xpulab.decomposition._merging import Batch, State, batch_of, merged
from xpulab.decomposition._projecting import Projecting
from xpulab.decomposition._spectrum import rounded
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks

__all__ = ["IncrementalPCA"]

_ANSWER_BYTES = 32 << 20  # largest number of bytes of triangles in one answer of the ranks


class IncrementalPCA(Projecting, sklearn.decomposition.IncrementalPCA):
    """Principal component analysis of batches of rows, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.decomposition.IncrementalPCA`, for any number of engines,
    to rounding. The engines decompose many batches at once, and this process merges their triangles one by one.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components; by default the smaller of the numbers of rows and columns of the first batch.
    whiten : bool, default=False
        Whether `transform` scales the projections to unit variance.
    copy : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    batch_size : int or None, default=None
        Number of rows of a batch in `fit`; by default five times the number of columns.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Principal axes, by descending variance.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray of shape (n_components,)
        Variance of each component, its share of the total variance, and its singular value.
    mean_, var_ : ndarray of shape (n_features,)
        Mean and variance of each column.
    noise_variance_ : float
        Mean variance of the components that were left out.
    n_components_, n_samples_seen_, batch_size_ : int
        Numbers of components, of rows so far, and of rows of a batch.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        Report on the last rows that were sent: what each engine did, and how long each phase took.

    See Also
    --------
    sklearn.decomposition.IncrementalPCA : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.decomposition import IncrementalPCA
    >>> pca = IncrementalPCA(n_components=1)
    >>> with xpulab.XPUCluster(n=2):
    ...     for part in ([[-1, -1], [-2, -1]], [[1, 1], [2, 1]]):
    ...         pca = pca.partial_fit(part)
    >>> print(int(pca.n_samples_seen_))
    4
    """

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> IncrementalPCA:
        """Find the principal components of the rows, batch by batch.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array
            (``np.load(path, mmap_mode="r")``) is read by the engines themselves. The batches of a handle follow the
            order of its rows; a batch may have rows of several engines.
        y : None
            Ignored.

        Returns
        -------
        IncrementalPCA
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, and for sparse matrices. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_ranks()
        rows: Any = self._checked(cluster, X, reset=True)
        n_samples, n_features = rows.shape
        self._require_columns(n_features)
        batch_size = 5 * n_features if self.batch_size is None else self.batch_size
        slices = list(gen_batches(n_samples, batch_size, min_batch_size=self.n_components or 0))
        with self._fitting(rows):
            self.batch_size_ = batch_size
            state, last = None, n_samples
            for batch in self._batches(cluster, "fit", rows, [(each.start, each.stop) for each in slices]):
                state, last = self._with(state, batch), batch.n_samples
            assert state is not None
            self._keep(state, last, rows.dtype if len(slices) == 1 else np.float64)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None, check_input: bool = True
    ) -> IncrementalPCA:
        """Update the components with one batch of rows.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        y : None
            Ignored.
        check_input : bool, default=True
            Accepted for compatibility with scikit-learn: the input is always checked.

        Returns
        -------
        IncrementalPCA
            This object.

        Raises
        ------
        NoClusterError, ValueError, TypeError, HandleError, EngineError, EngineLostError
            As `fit`.
        KeyboardInterrupt
            If the user interrupted the call; the components stay as they were.
        """
        self._add("partial_fit", X)
        return self

    def _add(self, method: str, X: npt.ArrayLike | ShardedArray) -> None:
        """Update the components with one batch of rows."""
        cluster = current_ranks()
        first = not hasattr(self, "components_")
        rows: Any = self._checked(cluster, X, reset=first)
        n_samples, n_features = rows.shape
        self._require_columns(n_features)
        if first and self.n_components is not None and self.n_components > n_samples:
            raise ValueError(
                f"n_components={self.n_components} must be less or equal to the batch number of samples {n_samples} "
                "for the first partial_fit call."
            )
        state = None if first else self._state()
        self._n_components(state, n_samples, n_features)  # raises before anything is sent
        with self._fitting(rows):
            (batch,) = self._batches(cluster, method, rows, [(0, n_samples)])
            self._keep(self._with(state, batch), n_samples, rows.dtype if first else np.float64)

    def _require_columns(self, n_features: int) -> None:
        if self.n_components is not None and self.n_components > n_features:
            raise ValueError(
                f"n_components={self.n_components} invalid for n_features={n_features}, need more rows than columns "
                "for IncrementalPCA processing"
            )

    def _n_components(self, state: State | None, n_samples: int, n_features: int) -> int:
        if self.n_components is None:
            return min(n_samples, n_features) if state is None else len(state.components)
        if state is not None and len(state.components) != self.n_components:
            raise ValueError(
                f"Number of input features has changed from {len(state.components)} to {self.n_components} between "
                "calls to partial_fit! Try setting n_components to a fixed value."
            )
        return int(self.n_components)

    def _with(self, state: State | None, batch: Batch) -> State:
        return merged(state, batch, self._n_components(state, batch.n_samples, len(batch.mean)))

    def _batches(self, cluster: Ranks, method: str, X: Any, bounds: list[tuple[int, int]]) -> Iterator[Batch]:
        """Get the batches from the engines. Each task asks for as many triangles as `_ANSWER_BYTES` allows."""
        columns = X.shape[1] + 1
        most = max(stop - start for start, stop in bounds)
        at_once = max(1, _ANSWER_BYTES // (min(most, columns) * columns * 8))
        for first in range(0, len(bounds), at_once):
            some = bounds[first : first + at_once]
            if isinstance(X, ShardedArray):
                rows = X
            else:
                rows = X[some[0][0] : some[-1][1]]
                some = [(start - some[0][0], stop - some[0][0]) for start, stop in some]
            answers = self._ask(cluster, method, "batch_triangles", rows, batches=some).results
            parts = sorted(
                itertools.chain.from_iterable(answer["parts"] for answer in answers), key=lambda part: part[0]
            )
            for number, group in itertools.groupby(parts, key=lambda part: part[0]):
                start, stop = some[number]
                yield batch_of([r for _, r in group], answers[0]["shift"], stop - start)

    def _state(self) -> State:
        """Return the fitted attributes in float64."""
        found = [self.mean_, self.var_, self.components_, self.singular_values_, self.explained_variance_]
        return State(int(self.n_samples_seen_), *(np.asarray(array, np.float64) for array in found))

    def _keep(self, state: State, n_samples: int, dtype: Any) -> None:
        """Set the attributes after a last batch of `n_samples` rows."""
        k = len(state.components) if self.n_components is None else int(self.n_components)
        noise = state.explained[k:].mean() if k not in (n_samples, len(state.mean)) else 0.0
        found = {
            "components_": state.components,
            "singular_values_": state.singular,
            "explained_variance_": state.explained[:k],
            "explained_variance_ratio_": state.singular**2 / (state.variance * state.n_samples).sum(),
            "noise_variance_": noise,
        }
        for name, value in rounded(found, dtype).items():
            setattr(self, name, value)
        self.mean_, self.var_, self.n_components_ = state.mean, state.variance, k
        kind = dtype_of_counts(self.sklearn_class(), np.dtype(dtype), False, False)
        self.n_samples_seen_ = kind.type(state.n_samples)
