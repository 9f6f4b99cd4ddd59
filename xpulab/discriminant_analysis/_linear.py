"""`LinearDiscriminantAnalysis`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
import warnings
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.linalg
import sklearn.discriminant_analysis
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context, divides_by_samples
from xpulab.checks import ONE_AT_A_TIME
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.discriminant_analysis._covariances import covariance_of, require_computed, shrunk
from xpulab.estimator.labels import Labels, checked_labels
from xpulab.estimator.proxy import TransformerProxy
from xpulab.estimator.results_in_files import in_file
from xpulab.linear_model._classifiers.linear import ProbableClassifier
from xpulab.sharing.linear_models import OfClasses, Scatter, ScatterOfClasses, ScattersOfClasses

__all__ = ["LinearDiscriminantAnalysis"]

_SMALL_TOL = 1e-6  # of singular values, which those of products of columns do not reach
_Floats = npt.NDArray[np.float64]


class _Covariances(NamedTuple):
    """Means of the classes, the covariance within them, and that of all rows, which "lsqr" does not need."""

    means: _Floats
    within: _Floats
    total: _Floats | None


class LinearDiscriminantAnalysis(
    ProbableClassifier, TransformerProxy, sklearn.discriminant_analysis.LinearDiscriminantAnalysis
):
    """Classification by normal distributions of one covariance, and the axes between classes, on every device.

    Parameters, attributes and results are those of `sklearn.discriminant_analysis.LinearDiscriminantAnalysis`, for any
    number of engines; the signs of axes may be others. A fit needs one pass over the rows, for the products of columns
    and classes; with `priors` and a covariance, or ``shrinkage="auto"``, one more. Of more columns than rows, and for a
    small `tol`, a QR factorization of the rows takes the place of the products.

    Parameters
    ----------
    solver : {"svd", "lsqr", "eigen"}, default="svd"
        As in scikit-learn: "lsqr" has no `transform`, and "svd" no shrinkage.
    shrinkage : float, "auto" or None, default=None
        Share of the scaled identity in the covariance, with "lsqr" and "eigen". With "auto", it is computed from the
        rows of each class, by the formula of Ledoit and Wolf for standardized columns.
    priors : array-like of shape (n_classes,), optional
        Probabilities of the classes; by default their shares of the rows.
    n_components : int, optional
        Number of axes of `transform`; by default, and at most, the smaller of n_classes - 1 and n_features.
    store_covariance : bool, default=False
        Whether "svd" computes `covariance_`, too.
    tol : float, default=1e-4
        Singular values up to `tol` count as zero, with "svd".
    covariance_estimator : None
        Any other value raises an error: scikit-learn's own estimator takes one.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients of the columns.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Constant terms.
    covariance_ : ndarray of shape (n_features, n_features)
        Covariance within the classes, weighted by their probabilities; only if it was computed.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        Share of each axis in the variance between the classes; not with "lsqr".
    means_ : ndarray of shape (n_classes, n_features)
        Means of the columns in each class.
    priors_ : ndarray of shape (n_classes,)
        Probabilities of the classes.
    scalings_ : ndarray of shape (n_features, n_axes)
        The axes, scaled to a variance of 1 within the classes; not with "lsqr".
    xbar_ : ndarray of shape (n_features,)
        Mean of the columns, with "svd".
    classes_ : ndarray of shape (n_classes,)
        The labels, in ascending order.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.discriminant_analysis.LinearDiscriminantAnalysis : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.discriminant_analysis import LinearDiscriminantAnalysis
    >>> X = [[-1.0, -1.0], [-2.0, -1.0], [-3.0, -2.0], [1.0, 1.0], [2.0, 1.0], [3.0, 2.0]]
    >>> with xpulab.XPUCluster(n=2):
    ...     LinearDiscriminantAnalysis().fit(X, ["a", "a", "a", "b", "b", "b"]).predict([[-0.8, -1.0]])
    array(['a'], dtype='<U1')
    """

    _computes_as: ClassVar[str] = "coef_"

    priors_: npt.NDArray[Any]
    means_: npt.NDArray[Any]
    scalings_: npt.NDArray[Any]
    xbar_: npt.NDArray[Any]

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: Any) -> LinearDiscriminantAnalysis:
        """Fit the model.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves.
        y : array-like or ShardedArray of shape (n_samples,)
            Labels: numbers or strings in an array, numbers in a handle.

        Returns
        -------
        LinearDiscriminantAnalysis
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError, NotImplementedError
            For input and parameters that scikit-learn rejects, for a `covariance_estimator`, and for sparse matrices.
            No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        require_computed(self, "covariance estimator is not supported with svd solver. Try another solver")
        cluster = current_ranks()
        rows: Any = self._checked(cluster, X, reset=True, ensure_min_samples=2)
        y = checked_labels(self, cluster, y, rows)
        labels = Labels.of(self, cluster, y, None)
        n_classes, n_samples = len(labels.classes), rows.shape[0]
        if n_classes == n_samples:
            raise ValueError("The number of samples must be more than the number of classes.")
        priors = self._checked_priors(labels, rows.dtype)
        most = min(n_classes - 1, rows.shape[1])
        if self.n_components is not None and self.n_components > most:
            raise ValueError(
                "n_components cannot be larger than min(n_features, n_classes - 1). "
                f"n_components={self.n_components} was given; expected at most {most}"
            )
        with self._fitting(rows, None):
            most = most if self.n_components is None else self.n_components
            made = self._solved(*self._asked(cluster, rows, labels, priors), priors, n_samples, most)
            self.classes_, self.priors_ = labels.classes, priors
            self._max_components = self._n_features_out = most
            self._set(made, rows.dtype)
        return self

    def _checked_priors(self, labels: Labels, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return the probabilities of the classes; raise and warn as scikit-learn does."""
        if self.priors is None:
            return (labels.totals / labels.totals.sum()).astype(dtype)
        priors = np.asarray(self.priors, dtype=dtype)
        if (priors < 0).any():
            raise ValueError("priors must be non-negative")
        if priors.shape != labels.classes.shape:
            raise ValueError(
                f"priors has the shape {priors.shape}; expected {labels.classes.shape}, one for each class"
            )
        if abs(priors.sum() - 1.0) > 1e-5:
            warnings.warn("The priors do not sum to 1. Renormalizing", UserWarning, stacklevel=4)
            priors = priors / priors.sum()
        return priors

    def _asked(
        self, cluster: Ranks, rows: Any, labels: Labels, priors: npt.NDArray[Any]
    ) -> tuple[Scatter | None, _Covariances | None]:
        """Ask for what the solver needs: the scatter of the rows for "svd", and covariances, where it has any."""
        if self.shrinkage == "auto":
            return None, self._shrunk_by_rows(cluster, rows, labels, priors)
        by_priors = priors.astype(np.float64) * rows.shape[0] / labels.totals
        evenly = bool(np.allclose(by_priors, 1.0))
        plain = self._scatter(cluster, rows, labels, None) if self.solver != "lsqr" or evenly else None
        if self.solver == "svd" and not self.store_covariance:
            return plain, None
        weighted = self._scatter(cluster, rows, labels, by_priors) if plain is None or not evenly else plain
        within = shrunk(_product(weighted.within, weighted.roots) / weighted.weight, self.shrinkage)
        total = None
        if plain is not None and self.solver == "eigen":
            total = shrunk(_product(plain.total, plain.roots) / plain.weight, self.shrinkage)
        return plain, _Covariances(weighted.means, within, total)

    def _shrunk_by_rows(self, cluster: Ranks, rows: Any, labels: Labels, priors: npt.NDArray[Any]) -> _Covariances:
        """Return covariances of which each, those of the classes and that of all rows, has a share of its own."""
        n_classes, whole = len(labels.classes), self.solver == "eigen"
        found: ScattersOfClasses = self._ask(
            cluster, "fit", "discriminant.each", rows, y=labels.targets, known=labels.known, n_classes=n_classes,
            lengths=True, whole=whole,
        ).results[0]  # fmt: skip
        each = found["scatters"]
        within = np.zeros(each.within.shape[1:])
        for k, prior in enumerate(priors.astype(np.float64)):
            within += prior * covariance_of(each, k, "auto")
        return _Covariances(each.means[:n_classes], within, covariance_of(each, n_classes, "auto") if whole else None)

    def _scatter(self, cluster: Ranks, rows: Any, labels: Labels, by_class: _Floats | None) -> Scatter:
        """Return the scatter of the rows, with a weight for the rows of each class."""
        found: ScatterOfClasses = self._ask(
            cluster,
            "fit",
            "discriminant.scatter",
            rows,
            y=labels.targets,
            of_classes=OfClasses(labels.known, np.eye(len(labels.classes)), by_class),
            exact=self.solver == "svd" and self.tol < _SMALL_TOL,
        ).results[0]
        return found["scatter"]

    def _solved(
        self,
        scatter: Scatter | None,
        covariances: _Covariances | None,
        priors: npt.NDArray[Any],
        n_samples: int,
        most: int,
    ) -> dict[str, _Floats]:
        """Return the fitted attributes as scikit-learn computes them, in float64, of at most so many components."""
        made, priors = {}, priors.astype(np.float64)
        if covariances is not None:
            means, within, total = covariances
            made["covariance_"] = within
        if self.solver == "svd":
            assert scatter is not None
            means = scatter.means
            middle = made["xbar_"] = priors @ means
            axes, ratios = self._axes_of_svd(scatter, means - middle, priors, n_samples)
            made["scalings_"], made["explained_variance_ratio_"] = axes, ratios[:most]
            along = (means - middle) @ axes
            coef = along @ axes.T
            intercept = np.log(priors) - 0.5 * np.square(along).sum(axis=1) - coef @ middle
        elif self.solver == "lsqr":
            coef = scipy.linalg.lstsq(within, means.T)[0].T
            intercept = np.log(priors) - 0.5 * (means * coef).sum(axis=1)
        else:
            assert total is not None
            values, axes = scipy.linalg.eigh(total - within, within)
            values, axes = values[::-1], axes[:, ::-1]
            made["scalings_"], made["explained_variance_ratio_"] = axes, (values / values.sum())[:most]
            coef = means @ axes @ axes.T
            intercept = np.log(priors) - 0.5 * (means * coef).sum(axis=1)
        made["means_"] = means
        if len(means) == 2:  # one function says which of two classes
            coef, intercept = coef[1:] - coef[:1], intercept[1:] - intercept[:1]
        return made | {"coef_": coef, "intercept_": intercept}

    def _set(self, made: dict[str, _Floats], dtype: np.dtype[Any]) -> None:
        """Set the fitted attributes in scikit-learn's dtypes."""
        exact = {"covariance_"}
        if self.solver != "svd":
            exact |= {"scalings_", "explained_variance_ratio_"}
            exact |= {"coef_", "intercept_"} if len(made["means_"]) > 2 else set()
        for name, values in made.items():
            setattr(self, name, np.ascontiguousarray(values if name in exact else values.astype(dtype)))

    def _axes_of_svd(self, scatter: Scatter, away: _Floats, priors: _Floats, n_samples: int) -> tuple[_Floats, _Floats]:
        """Return the axes (n_features, n_axes) on which the classes have a variance of 1, and differ most.

        Beside them are their shares of the variance between the classes; none for one class.
        """
        n_classes = len(priors)
        with ONE_AT_A_TIME:
            divisor = n_samples if divides_by_samples(self.sklearn_class()) else n_samples - n_classes
        squares = np.square(scatter.within).sum(axis=0) if scatter.roots else scatter.within.diagonal()
        std = np.sqrt(np.maximum(squares, 0.0) / n_samples)
        std[std == 0] = 1.0
        if scatter.roots:
            _, sizes, turned = scipy.linalg.svd(scatter.within / (np.sqrt(divisor) * std), full_matrices=False)
        else:
            values, vectors = np.linalg.eigh(scatter.within / (divisor * np.outer(std, std)))
            sizes, turned = np.sqrt(np.maximum(values[::-1], 0.0)), vectors.T[::-1]
        rank = int((sizes > self.tol).sum())
        axes: _Floats = (turned[:rank] / std).T / sizes[:rank]
        between = np.sqrt(n_samples * priors / max(n_classes - 1, 1))[:, None] * away
        _, sizes, turned = scipy.linalg.svd(between @ axes, full_matrices=False)
        ratios = np.square(sizes) / np.square(sizes).sum() if n_classes > 1 else np.empty(0)
        rank = int((sizes > self.tol * sizes[:1]).sum())
        return axes @ turned[:rank].T, ratios

    def transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Project rows on the axes between the classes.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_components), float64 if X or the fit is
            A handle if X is a handle; no rows move.

        Raises
        ------
        NotImplementedError
            With the solver "lsqr", which has no axes.
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If no cluster is running.
        ValueError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if self.solver == "lsqr":
            raise NotImplementedError("transform not implemented for 'lsqr' solver (use 'svd' or 'eigen').")
        if out is not None:
            return in_file(self.transform, X, out)
        check_is_fitted(self)
        axes = np.asarray(self.scalings_, np.float64)[:, : self._max_components]
        middle = np.asarray(self.xbar_, np.float64) if self.solver == "svd" else None
        dtype = np.float64 if self.scalings_.dtype == np.float64 else None  # also where coef_ is in float32
        return self._transformed("transform", "project", X, axes.shape[1], dtype=dtype, matrix=axes, shift=middle)

    def predict_log_proba(
        self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None
    ) -> npt.NDArray[Any]:
        """Return the logarithm of each class's probability, of the smallest normal number where it is zero.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), float64 if X or the fit is

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `decision_function`.
        """
        if out is not None:
            return in_file(self.predict_log_proba, X, out)
        chances = self._predicted("predict_log_proba", "proba", X)
        return np.log(np.where(chances == 0, np.finfo(chances.dtype).smallest_normal, chances))


def _product(scatter: _Floats, is_root: bool) -> _Floats:
    return scatter.T @ scatter if is_root else scatter
