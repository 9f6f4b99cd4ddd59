"""`GaussianMixture`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import inspect
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.mixture
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context
from xpulab._sklearn import _gaussian_mixture as theirs
from xpulab.checks import check_array, place_named
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.resumable import FitInput, ResumableFit
from xpulab.estimator.sending import Result

__all__ = ["GaussianMixture"]

_NAMES = {"weights": "weights_", "means": "means_", "covariances": "covariances_", "factors": "precisions_cholesky_"}


@dataclass(frozen=True, kw_only=True)
class _Input(FitInput):
    random: np.random.RandomState
    arguments: dict[str, Any]


class GaussianMixture(ResumableFit[_Input], sklearn.mixture.GaussianMixture):
    """A mixture of normal distributions, fitted on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.mixture.GaussianMixture`, for any number of engines. The
    EM algorithm [1]_ passes over the rows once for each iteration. The rows stay on the devices; an iteration sends
    only sums. Sums over many rows, and all computations with the parameters, are in float64, also for float32 rows, and
    the variances are computed from the differences between the rows and the means.

    Parameters
    ----------
    n_components : int, default=1
        Number of components.
    covariance_type : {"full", "tied", "diag", "spherical"}, default="full"
        Whether each component has its own covariance matrix, all have the same, or each has its own variances, or one
        variance.
    tol : float, default=1e-3
        The fit has converged if the mean log-likelihood of a row changes by less.
    reg_covar : float, default=1e-6
        Added to all variances.
    max_iter : int, default=100
        Largest number of iterations of a run.
    n_init : int, default=1
        Number of runs from different first parameters; the run with the highest likelihood is kept.
    init_params : {"kmeans", "k-means++", "random", "random_from_data"}, default="kmeans"
        How the first responsibilities are chosen. "kmeans" and "k-means++" are those of `xpulab.cluster.KMeans`.
    weights_init : array-like of shape (n_components,), optional
    means_init : array-like of shape (n_components, n_features), optional
    precisions_init : array-like, optional
        First parameters. If all three are given, nothing else is chosen.
    random_state : int, RandomState instance or None, default=None
        The random numbers for the first responsibilities, used in scikit-learn's order; see `xpulab.cluster.KMeans`.
    warm_start : bool, default=False
        Whether a fit continues the previous fit.
    verbose : int, default=0
        Whether to print messages about the runs, after the fit.
    verbose_interval : int, default=10
        Number of iterations between two messages.

    Attributes
    ----------
    weights_ : ndarray of shape (n_components,)
        Weights of the components; they and all other parameters are in the dtype of X.
    means_ : ndarray of shape (n_components, n_features)
    covariances_, precisions_, precisions_cholesky_ : ndarray
        Of shape (n_components, n_features, n_features) for "full", (n_features, n_features) for "tied", (n_components,
        n_features) for "diag" and (n_components,) for "spherical".
    converged_ : bool
    n_iter_ : int
        Number of iterations of the best run.
    lower_bound_ : float
        Mean log-likelihood of a row, in the last iteration of the best run.
    lower_bounds_ : list of float
        The same for each iteration of the best run.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. Its iterations have the lower bound.

    See Also
    --------
    sklearn.mixture.GaussianMixture : The same in one process.

    References
    ----------
    .. [1] A. P. Dempster, N. M. Laird, D. B. Rubin, "Maximum likelihood from incomplete data via the EM algorithm",
       Journal of the Royal Statistical Society B 39 (1977), 1-38.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.mixture import GaussianMixture
    >>> with xpulab.XPUCluster(n=2):
    ...     GaussianMixture(n_components=2, random_state=0).fit([[1.0], [2.0], [1.5], [10.0], [11.0], [10.5]]).means_
    array([[10.5],
           [ 1.5]])
    """

    #: The largest extra memory is that of k-means, see `xpulab.cluster.KMeans`.
    _work_memory: ClassVar[tuple[float, float]] = (12.0, 1 / 30)
    _later_rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}
    _computes_as: ClassVar[str] = "means_"

    weights_: np.ndarray
    means_: np.ndarray
    covariances_: np.ndarray
    precisions_cholesky_: np.ndarray

    _task: ClassVar[str] = "GaussianMixture.fit"
    _left: ClassVar[tuple[str, str]] = ("parameters", "model.set_params(warm_start=True).fit(X)")
    _fitted: ClassVar[tuple[str, ...]] = (
        "weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_",
        "converged_", "n_iter_", "lower_bound_", "lower_bounds_",
    )  # fmt: skip

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> GaussianMixture:
        """Estimate the parameters with the EM algorithm.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array
            (``np.load(path, mmap_mode="r")``) is read by the engines themselves.
        y : None
            Ignored.

        Returns
        -------
        GaussianMixture
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, before rows are sent; and if a covariance is not positive definite.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit. All engines have stopped at the same iteration; the parameters are those of
            the last iteration. `resume` continues the fit, also as ``xpulab.interrupted().resume()``.
        """
        self._begin("fit", X, None)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def fit_predict(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> np.ndarray:
        """Call `fit`, and return the most probable component of each row. The rows are sent once.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        y : None
            Ignored.

        Returns
        -------
        ndarray of shape (n_samples,), int64

        Raises
        ------
        NoClusterError, ValueError, TypeError, HandleError, EngineError, EngineLostError, KeyboardInterrupt
            As `fit`.
        """
        labels = Result(None, np.int64)
        self._begin("fit_predict", X, labels)
        return labels.value

    def _begin(self, method: str, X: Any, labels: Result | None) -> None:
        """Check the input, and fit."""
        cluster = current_ranks()
        X = self._checked(cluster, X, reset=True, ensure_min_samples=2)
        if X.shape[0] < self.n_components:
            raise ValueError(
                "Expected n_samples >= n_components "
                f"but got n_components = {self.n_components}, n_samples = {X.shape[0]}"
            )
        self._check_parameters(X)
        continues = self.warm_start and hasattr(self, "converged_")
        arguments = {
            "covariance_type": self.covariance_type,
            "reg_covar": float(self.reg_covar),
            "init_params": self.init_params,
            "n_components": int(self.n_components),
            "n_init": 1 if continues else int(self.n_init),
            "max_iter": int(self.max_iter),
            "tol": float(self.tol),
            "given": self._parameters() if continues else self._given(),
            "before": float(self.lower_bound_) if continues else -math.inf,
        }
        checked = _Input(
            X=X,
            n_init=arguments["n_init"],
            max_iter=arguments["max_iter"],
            random=check_random_state(self.random_state),
            arguments=arguments,
            parameters=self.get_params(deep=False),
        )
        self._run(cluster, checked, method=method, labels=labels)

    def _check_parameters(self, X: Any, xp: Any = None) -> None:
        # Since scikit-learn 1.8 this method needs the namespace of the arrays.
        more = {"xp": np} if "xp" in inspect.signature(super()._check_parameters).parameters else {}
        for name in ("weights_init", "means_init", "precisions_init"):
            if (given := getattr(self, name)) is not None:
                with place_named(given):
                    check_array(given, ensure_2d=False, allow_nd=True, input_name=name)
        super()._check_parameters(X, **more)

    def _parameters(self) -> dict[str, np.ndarray]:
        """Return the fitted parameters in float64, under the names of the engines."""
        if vars(self).get("covariances_") is None:  # scikit-learn's attributes may have been set by hand
            self.covariances_ = _inverse(self.precisions_cholesky_, self.covariance_type)
        return {name: np.asarray(getattr(self, attribute), np.float64) for name, attribute in _NAMES.items()}

    def _given(self) -> dict[str, np.ndarray]:
        """Return the first parameters that the user has given, in float64, under the names of the engines."""
        given = {"weights": self.weights_init, "means": self.means_init}
        if self.precisions_init is not None:
            precisions = np.asarray(self.precisions_init, np.float64)
            factors = _factors(precisions, self.covariance_type)
            given |= {"factors": factors, "covariances": _inverse(factors, self.covariance_type)}
        return {name: np.asarray(value, np.float64) for name, value in given.items() if value is not None}

    def _room(self, checked: _Input) -> int:
        # Two sets of parameters and lower bounds, the generator, and small values.
        k, d = checked.arguments["n_components"], checked.X.shape[1]
        wide = {"full": k * d * d, "tied": d * d, "diag": k * d, "spherical": k}[checked.arguments["covariance_type"]]
        return 2 * 8 * (2 * wide + k * d + k + checked.max_iter) + (16 << 10)

    def _arguments(self, cluster: Ranks, checked: _Input, state: dict[str, Any] | None) -> dict[str, Any]:
        return {"random": checked.random.get_state(), **checked.arguments}

    def _keep_state(self, checked: _Input, state: dict[str, Any], labels: np.ndarray | None) -> None:
        self._set(checked, state)

    def _keep(self, checked: _Input, answer: dict[str, Any], labels: Any) -> None:
        checked.random.set_state(answer["random"])
        self._set(checked, answer)

    def _set(self, checked: _Input, found: dict[str, Any]) -> None:
        """Set the fitted attributes, in the dtype of the rows."""
        dtype, parameters = checked.X.dtype, found["parameters"]
        factors = parameters["factors"]
        full = checked.arguments["covariance_type"] in ("full", "tied")
        self.weights_, self.means_ = parameters["weights"].astype(dtype), parameters["means"].astype(dtype)
        self.covariances_, self.precisions_cholesky_ = parameters["covariances"].astype(dtype), factors.astype(dtype)
        self.precisions_ = (factors @ factors.swapaxes(-1, -2) if full else factors**2).astype(dtype)
        self.lower_bounds_ = found["lower_bounds"].tolist()
        self.n_iter_ = len(self.lower_bounds_)
        self.lower_bound_ = self.lower_bounds_[-1] if self.lower_bounds_ else -np.inf
        self.converged_ = bool(found["converged"])

    def _tell(self, checked: _Input, answer: dict[str, Any]) -> None:
        """Print and warn, as scikit-learn does."""
        if checked.parameters["verbose"]:
            print(*_words(checked, answer), sep="\n")
        if not self.converged_ and checked.max_iter > 0:
            warnings.warn(
                "Best performing initialization did not converge. Try different init parameters, or increase max_iter, "
                "tol, or check for degenerate data.",
                ConvergenceWarning,
                stacklevel=6,
            )

    def predict(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Return the most probable component of each row.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples,), int64

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
            return in_file(self.predict, X, out)
        return self._by_row("predict", "labels", X)

    def predict_proba(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Return the probability of each component for each row.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples, n_components), float64 if X or the fit is

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict`.
        """
        if out is not None:
            return in_file(self.predict_proba, X, out)
        return self._by_row("predict_proba", "shares", X)

    def score_samples(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Return the logarithm of the mixture's density for each row.

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
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict`.
        """
        if out is not None:
            return in_file(self.score_samples, X, out)
        return self._by_row("score_samples", "logarithms", X)

    def score(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> float:
        """Return the mean of `score_samples`. The engines return only a sum.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        y : None
            Ignored.

        Returns
        -------
        float

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict`.
        """
        total, n_samples = self._total("score", X)
        return total / n_samples

    def bic(self, X: npt.ArrayLike | ShardedArray) -> float:
        """Return the Bayesian information criterion: the lower, the better.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)

        Returns
        -------
        float

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict`.
        """
        total, n_samples = self._total("bic", X)
        return -2 * total + self._n_parameters() * math.log(n_samples)

    def aic(self, X: npt.ArrayLike | ShardedArray) -> float:
        """Return Akaike's information criterion: the lower, the better.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)

        Returns
        -------
        float

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict`.
        """
        return -2 * self._total("aic", X)[0] + 2 * self._n_parameters()

    def _total(self, method: str, X: Any) -> tuple[float, int]:
        """Return the log-likelihood of all rows, and their number."""
        check_is_fitted(self)
        cluster = self._cluster()
        X = self._checked(cluster, X, reset=False)
        asked = {"parameters": self._parameters(), "covariance_type": self.covariance_type, "kind": "logarithms"}
        answer = self._ask(cluster, method, "GaussianMixture.predict", X, **asked)
        return float(answer.results[0]["total"]), int(X.shape[0])

    def _by_row(self, method: str, kind: str, X: Any) -> np.ndarray:
        check_is_fitted(self)
        cluster = self._cluster()
        X = self._checked(cluster, X, reset=False)
        result = Result(len(self.means_) if kind == "shares" else None, np.int64 if kind == "labels" else X.dtype)
        asked = {"parameters": self._parameters(), "covariance_type": self.covariance_type, "kind": kind}
        self._ask(cluster, method, "GaussianMixture.predict", X, result=result, **asked)
        return result.value


def _factors(precisions: np.ndarray, covariance_type: str) -> np.ndarray:
    """Return upper triangular factors of precision matrices, or the roots of precisions."""
    function = theirs._compute_precision_cholesky_from_precisions
    return function(
        precisions, covariance_type, **({"xp": np} if "xp" in inspect.signature(function).parameters else {})
    )


def _inverse(factors: np.ndarray, covariance_type: str) -> np.ndarray:
    """Return the covariances of the factors."""
    if covariance_type in ("full", "tied"):
        inverse = np.linalg.inv(factors)
        return inverse.swapaxes(-1, -2) @ inverse
    return 1 / np.square(factors)


def _words(checked: _Input, result: dict[str, Any]) -> list[str]:
    """Return the lines that scikit-learn prints about the runs."""
    lines, tol, many = [], checked.arguments["tol"], checked.parameters["verbose"] > 1
    run, bound, then, begun = 0, checked.arguments["before"], 0.0, 0.0
    for i, (number, iteration, now, elapsed) in enumerate(result["history"]):
        if number != run:
            lines.append(f"Initialization {number - 1}")
            run, bound, begun = number, checked.arguments["before"], then
        change = now - bound
        if iteration % checked.parameters["verbose_interval"] == 0:
            lapse = f"\t time lapse {elapsed - then:.5f}s\t ll change {change:.5f}" if many else ""
            lines.append(f"  Iteration {iteration}{lapse}")
        bound, then = now, elapsed
        if i + 1 == len(result["history"]) or result["history"][i + 1][0] != run:
            ended = f" time lapse {elapsed - begun:.5f}s\t lower bound {now:.5f}." if many else ""
            lines.append(f"Initialization {'converged' if abs(change) < tol else 'did not converge'}.{ended}")
    return lines
