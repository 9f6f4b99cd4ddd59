"""`TruncatedSVD`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import sklearn.decomposition
from sklearn.utils import check_random_state
from sklearn.utils.extmath import svd_flip

from xpulab._sklearn import _fit_context
from xpulab.decomposition._projecting import Projecting
from xpulab.decomposition._spectrum import of_triangle, random_start, rounded
from xpulab.deploy.cluster import XPUCluster, current_cluster

__all__ = ["TruncatedSVD"]


class TruncatedSVD(Projecting, sklearn.decomposition.TruncatedSVD):
    """Truncated singular value decomposition of the rows, without centring, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.decomposition.TruncatedSVD`, for any number of engines, to
    rounding. Sparse matrices raise an error.

    Parameters
    ----------
    n_components : int, default=2
        Number of components, at most the number of columns. For "arpack" it must be smaller than the numbers of rows
        and columns.
    algorithm : {"arpack", "randomized"}, default="randomized"
        "randomized" begins with scikit-learn's random matrix. "arpack" is computed without ARPACK, from the triangle of
        a QR decomposition of the rows, and is exact.
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

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> TruncatedSVD:
        """Find the components of the rows.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
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
            For input that scikit-learn rejects, and for sparse matrices. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_cluster()
        X = self._checked(cluster, X, reset=True, ensure_min_features=2)
        if self.algorithm == "randomized" and self.n_components > X.shape[1]:
            raise ValueError(f"n_components({self.n_components}) must be <= n_features({X.shape[1]}).")
        if self.algorithm == "arpack" and self.n_components >= min(X.shape):
            raise ValueError(
                f"n_components={self.n_components} must be strictly less than min(n_samples, n_features)="
                f"{min(X.shape)} with algorithm='arpack'"
            )
        with self._fitting(X):
            found = self._randomized(cluster, X) if self.algorithm == "randomized" else self._exact(cluster, X)
            for name, value in rounded(found, X.dtype).items():
                setattr(self, name, value)
        return self

    def _randomized(self, cluster: XPUCluster, X: Any) -> dict[str, Any]:
        start = random_start(
            X.shape,
            X.dtype,
            self.n_components,
            self.n_oversamples,
            self.n_iter,
            check_random_state(self.random_state),
        )
        found = self._ask(cluster, "fit", "randomized_svd", X, centre=False, **start).results[0]
        n_samples = X.shape[0]
        return _attributes(
            found["singular"], found["right"], found["explained"] / n_samples, found["squares"].sum() / n_samples
        )

    def _exact(self, cluster: XPUCluster, X: Any) -> dict[str, Any]:
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
