"""`TruncatedSVD`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.decomposition
from sklearn.utils import check_random_state
from sklearn.utils.extmath import svd_flip

from xpulab._sklearn import _fit_context
from xpulab.csr import is_sparse
from xpulab.data import ShardedArray
from xpulab.decomposition._projecting import Projecting
from xpulab.decomposition._spectrum import of_triangle, random_start, rounded
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.deploy.tasks.answers import Answer
from xpulab.estimator.sending import Result

__all__ = ["TruncatedSVD"]


class TruncatedSVD(Projecting, sklearn.decomposition.TruncatedSVD):
    """Truncated singular value decomposition of the rows, without centring, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.decomposition.TruncatedSVD`, for any number of engines, to
    rounding. Sparse matrices stay sparse.

    Parameters
    ----------
    n_components : int, default=2
        Number of components, at most the number of columns. For "arpack" it must be smaller than the numbers of rows
        and columns.
    algorithm : {"arpack", "randomized"}, default="randomized"
        "randomized" begins with scikit-learn's random matrix. "arpack" is computed without ARPACK, from the triangle of
        a QR decomposition of the rows, and is exact. For sparse rows, ARPACK multiplies the rows of all engines.
    n_iter : int, default=5
        Power iterations of "randomized".
    n_oversamples : int, default=10
        Additional random vectors of "randomized".
    power_iteration_normalizer : {"auto", "QR", "LU", "none"}, default="auto"
        Accepted for compatibility with scikit-learn: "randomized" always makes its bases orthonormal, which does not
        change the spaces that they span.
    random_state : int, RandomState instance or None, default=None
        The random numbers for "randomized".
    tol : float, default=0.0
        Accepted for compatibility with scikit-learn: "arpack" is exact.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Right singular vectors.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray of shape (n_components,)
        Variance of each component, its share of the total variance, and its singular value.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.decomposition.TruncatedSVD : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.decomposition import TruncatedSVD
    >>> with xpulab.XPUCluster(n=2):
    ...     TruncatedSVD(n_components=1).fit([[3.0, 0.0], [0.0, 1.0]]).singular_values_
    array([3.])
    """

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric", "accept_sparse": "csr"}
    _narrow: ClassVar[bool] = True
    _stored_work: ClassVar[float] = 2.0  # a copy of sparse rows by column, and its values in float64

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> TruncatedSVD:
        """Find the components of the rows.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array
            (``np.load(path, mmap_mode="r")``) is read by the engines themselves.
        y : None
            Ignored.

        Returns
        -------
        TruncatedSVD
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        self._fit_rows(X, projected=False)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def fit_transform(self, X: Any, y: Any = None) -> Any:  # type: ignore[override]
        """Call `fit`, and then `transform` for the same rows, which are sent once.

        The fit of sparse rows computes the projections, too.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        y : None
            Ignored.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_components), float64 if X or the fit is
            A handle if X is a handle.

        Raises
        ------
        NoClusterError, ValueError, TypeError, HandleError, EngineError, EngineLostError, KeyboardInterrupt
            As `fit`.
        """
        with self._sent_once(X):
            projections = self._fit_rows(X, is_sparse(X))
            return self.transform(X) if projections is None else projections

    def _fit_rows(self, X: Any, projected: bool) -> Any:
        """Fit the rows; return the projections if `projected`, and otherwise None."""
        cluster = current_ranks()
        rows: Any = self._checked(cluster, X, reset=True, ensure_min_features=2)
        if self.algorithm == "randomized" and self.n_components > rows.shape[1]:
            raise ValueError(f"n_components({self.n_components}) must be <= n_features({rows.shape[1]}).")
        if self.algorithm == "arpack" and self.n_components >= min(rows.shape):
            raise ValueError(
                f"n_components={self.n_components} must be strictly less than min(n_samples, n_features)="
                f"{min(rows.shape)} with algorithm='arpack'"
            )
        if self.algorithm == "arpack":  # whose start scikit-learn draws
            check_random_state(self.random_state).uniform(-1, 1, min(rows.shape))
        result = Result(self.n_components, rows.dtype, rows=True) if projected else None
        with self._fitting(rows):
            compute = self._randomized if self.algorithm == "randomized" else self._exact
            for name, value in rounded(compute(cluster, rows, result), rows.dtype).items():
                setattr(self, name, value)
        return None if result is None else result.value

    def _randomized(self, cluster: Ranks, X: Any, result: Result | None) -> dict[str, Any]:
        start = random_start(
            X.shape,
            X.dtype,
            self.n_components,
            self.n_oversamples,
            self.n_iter,
            check_random_state(self.random_state),
        )
        return self._of_answer(self._ask(cluster, "fit", "randomized_svd", X, result=result, centre=False, **start), X)

    def _of_answer(self, answer: Answer, X: Any) -> dict[str, Any]:
        found, n_samples = answer.results[0], X.shape[0]
        return _attributes(
            found["singular"], found["right"], found["explained"] / n_samples, found["squares"].sum() / n_samples
        )

    def _exact(self, cluster: Ranks, X: Any, result: Result | None) -> dict[str, Any]:
        if is_sparse(X):
            start = check_random_state(self.random_state).uniform(-1, 1, X.shape[1])
            limits: Any = {"k": self.n_components, "tol": self.tol}
            return self._of_answer(self._ask(cluster, "fit", "sparse_svd", X, result=result, start=start, **limits), X)
        found, n_samples = self._ask(cluster, "fit", "triangular", X).results[0], X.shape[0]
        r = found["r"]
        parts = of_triangle(np.vstack([np.sqrt(n_samples) * found["mean"], r]))
        singular, right = (part[: self.n_components] for part in parts)
        variance = np.square(r @ right.T).sum(axis=0) / n_samples
        return _attributes(singular, right, variance, np.square(r).sum() / n_samples)


def _attributes(singular: np.ndarray, right: np.ndarray, variance: np.ndarray, total: float) -> dict[str, Any]:
    _, components = svd_flip(None, right, u_based_decision=False)
    return {
        "components_": components,
        "explained_variance_": variance,
        "explained_variance_ratio_": variance / total,
        "singular_values_": singular,
    }
