"""`PCA`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.decomposition
from sklearn.covariance import log_likelihood
from sklearn.utils import check_random_state
from sklearn.utils.extmath import fast_logdet
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context
from xpulab.covariance._products import about
from xpulab.data import ShardedArray
from xpulab.decomposition._projecting import Projecting
from xpulab.decomposition._spectrum import (
    of_covariance,
    of_triangle,
    principal_components,
    random_start,
    rounded,
    truncated_components,
)
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.sending import Result
from xpulab.scanning import scanned
from xpulab.sharing.answers import Products

__all__ = ["PCA"]


class PCA(Projecting, sklearn.decomposition.PCA):
    """Principal component analysis on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.decomposition.PCA`, for any number of engines, to rounding.
    The fitted attributes are computed in float64, and rounded to the dtype of the rows once.

    Parameters
    ----------
    n_components : int, float, "mle" or None, default=None
        Number of components, or the share of the variance that they must explain. "mle" uses Minka's method.
    copy : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    whiten : bool, default=False
        Whether `transform` scales the projections to unit variance.
    svd_solver : {"auto", "full", "covariance_eigh", "arpack", "randomized"}, default="auto"
        "covariance_eigh" computes the eigenvectors of the covariance matrix. "full" computes the singular vectors of
        the triangle of a QR decomposition of the rows, with which small singular values are accurate. "arpack" is
        computed in the same way. "randomized" begins with scikit-learn's random matrix. "auto" chooses as scikit-learn
        does. If there are more columns than rows, all of them begin with the products of the rows, or with the triangle
        of the transposed rows if these are not accurate enough.
    tol : float, default=0.0
        Accepted for compatibility with scikit-learn: "arpack" is exact.
    iterated_power : int or "auto", default="auto"
        Power iterations of "randomized".
    n_oversamples : int, default=10
        Additional random vectors of "randomized".
    power_iteration_normalizer : {"auto", "QR", "LU", "none"}, default="auto"
        Accepted for compatibility with scikit-learn: "randomized" always makes its bases orthonormal, which does not
        change the spaces that they span.
    random_state : int, RandomState instance or None, default=None
        The random numbers for "randomized".

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Principal axes, by descending variance.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray of shape (n_components,)
        Variance of each component, its share of the total variance, and its singular value.
    mean_ : ndarray of shape (n_features,)
        Mean of each column.
    n_components_, n_samples_ : int
        Numbers of components and of rows.
    noise_variance_ : float
        Mean variance of the components that were left out.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.decomposition.PCA : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.decomposition import PCA
    >>> with xpulab.XPUCluster(n=2):
    ...     PCA(n_components=1).fit([[-1, -1], [-2, -1], [1, 1], [2, 1]]).explained_variance_
    array([4.56940131])
    """

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> PCA:
        """Find the principal components of the rows.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array
            (``np.load(path, mmap_mode="r")``) is read by the engines themselves.
        y : None
            Ignored.

        Returns
        -------
        PCA
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
        self._fit_rows(X, False)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def fit_transform(  # type: ignore[override]
        self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None
    ) -> Any:
        """Call `fit`, and return the projections of the same rows.

        With svd_solver="randomized" the projections are the left singular vectors times the singular values, as in
        scikit-learn. Otherwise they are the result of `transform`.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
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
            projections = self._fit_rows(X, True)
            return self.transform(X) if projections is None else projections

    def _fit_rows(self, X: Any, projected: bool) -> Any:
        """Fit the rows; return the projections if `projected`, and if the fit computes them, and otherwise None."""
        cluster = current_ranks()
        X = self._checked(cluster, X, reset=True)
        solver, n_components = self._decided(X.shape)
        with_fit = projected and solver == "randomized" and scanned(X) is None  # files may not fit
        result = Result(n_components, X.dtype, rows=True) if with_fit else None
        with self._fitting(X):
            found = self._found(cluster, X, solver, n_components, result)
            self._fit_svd_solver = solver
            self.n_samples_ = X.shape[0]
            for name, value in rounded(found, X.dtype).items():
                setattr(self, name, value)
        return None if result is None else result.value

    def score_samples(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Return the log-likelihood of each row under the fitted model.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples,), float64 if X or the fit is

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
            return in_file(self.score_samples, X, out)
        check_is_fitted(self)
        cluster = self._cluster()
        rows: Any = self._checked(cluster, X, reset=False)
        precision = self._in_float64().get_precision()
        factors, vectors = np.linalg.eigh((precision + precision.T) / 2)
        constant = -0.5 * (rows.shape[1] * np.log(2.0 * np.pi) - fast_logdet(precision))
        result = Result(None, rows.dtype)
        self._ask(
            cluster,
            "score_samples",
            "quadratic_forms",
            rows,
            result=result,
            shift=self.mean_,
            matrix=vectors,
            factors=-0.5 * factors,
            constant=constant,
        )
        return result.value

    def score(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> float:
        """Return the mean log-likelihood of the rows under the fitted model.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        y : None
            Ignored.

        Returns
        -------
        float
        """
        check_is_fitted(self)
        cluster = self._cluster()
        rows: Any = self._checked(cluster, X, reset=False)
        # The mean likelihood depends on the mean and the covariance of the rows only.
        found: Products = self._ask(cluster, "score", "products", rows, centre=True).results[0]["products"]
        covariance = about(self.mean_.astype(np.float64), found.weight, found.mean, found.gram)
        return float(log_likelihood(covariance, self._in_float64().get_precision()))

    def _in_float64(self) -> PCA:
        """Return a copy of this estimator with fitted attributes in float64."""
        precise = copy.copy(self)
        for name, value in rounded(dict(vars(self)), np.float64).items():
            setattr(precise, name, value)
        return precise

    def _decided(self, shape: tuple[int, int]) -> tuple[str, Any]:
        """Return the solver and the number of components, chosen and checked as in scikit-learn."""
        (n_samples, n_features), least = shape, min(shape)
        solver, n_components = self.svd_solver, self.n_components
        if n_components is None:
            n_components = least - (solver == "arpack")
        if solver == "auto":
            if n_features <= 1_000 and n_samples >= 10 * n_features:
                solver = "covariance_eigh"
            elif max(shape) <= 500 or n_components == "mle":
                solver = "full"
            else:
                solver = "randomized" if 1 <= n_components < 0.8 * least else "full"
        truncated = solver in ("arpack", "randomized")
        between = f"min(n_samples, n_features)={least} with svd_solver={solver!r}"
        if isinstance(n_components, str):
            if truncated:
                raise ValueError(f"n_components={n_components!r} cannot be a string with svd_solver={solver!r}")
            if n_samples < n_features:
                raise ValueError("n_components='mle' is only supported if n_samples >= n_features")
        elif not int(truncated) <= n_components <= least:
            raise ValueError(f"n_components={n_components} must be between {int(truncated)} and {between}")
        elif solver == "arpack" and n_components == least:
            raise ValueError(f"n_components={n_components} must be strictly less than {between}")
        return solver, n_components

    def _found(self, cluster: Ranks, X: Any, solver: str, n_components: Any, result: Result | None) -> dict[str, Any]:
        """Return the fitted attributes in float64."""
        n_samples, n_features = X.shape
        if solver == "randomized":
            start = random_start(
                X.shape,
                X.dtype,
                n_components,
                self.n_oversamples,
                self.iterated_power,
                check_random_state(self.random_state),
            )
            start |= {"centre": True, "whiten": self.whiten}
            found = self._ask(cluster, "fit", "randomized_svd", X, result=result, **start).results[0]
            total = found["squares"].sum() / (n_samples - 1)
            truncated = truncated_components(found["singular"], found["right"], total, n_samples, n_features)
            return {"mean_": found["mean"], **truncated}
        if solver == "arpack":  # whose start scikit-learn draws
            check_random_state(self.random_state).uniform(-1, 1, min(X.shape))
        if n_samples < n_features:
            found = self._ask(cluster, "fit", "wide_svd", X, n_components=n_components).results[0]
            singular, right = of_triangle(found["r"]) if "r" in found else (found["singular"], found["right"])
            if solver == "covariance_eigh":  # which has a variance for each column
                singular = np.pad(singular, (0, n_features - n_samples))
        elif solver == "covariance_eigh":
            answer = self._ask(cluster, "fit", "products", X, centre=True).results[0]
            found, r = vars(answer["products"]), answer.get("r")
            singular, right = of_covariance(found["gram"] / (n_samples - 1), n_samples) if r is None else of_triangle(r)
        else:
            found = self._ask(cluster, "fit", "triangular", X, or_gram=True).results[0]
            if "gram" in found:
                singular, right = of_covariance(found["gram"] / (n_samples - 1), n_samples)
            else:
                singular, right = of_triangle(found["r"])
        return {"mean_": found["mean"], **principal_components(singular, right, n_components, n_samples, n_features)}
