"""`QuadraticDiscriminantAnalysis`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.linalg
import sklearn.discriminant_analysis
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context, quadratic_rules
from xpulab.checks import ONE_AT_A_TIME
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.discriminant_analysis._covariances import covariance_of, require_computed
from xpulab.estimator.labels import Labels, checked_labels
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.sending import Result
from xpulab.naive_bayes._predicting import PredictingClasses
from xpulab.sharing.linear_models import ScatterOfEach, ScattersOfClasses

__all__ = ["QuadraticDiscriminantAnalysis"]

_Floats = npt.NDArray[np.float64]


class _Axes(NamedTuple):
    """Variances along the axes, the axes, and the covariance of each class."""

    scalings: list[npt.NDArray[Any]]
    rotations: list[npt.NDArray[Any]]
    covariances: list[npt.NDArray[Any]]


class QuadraticDiscriminantAnalysis(PredictingClasses, sklearn.discriminant_analysis.QuadraticDiscriminantAnalysis):
    """Classification by a normal distribution with a covariance for each class, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.discriminant_analysis.QuadraticDiscriminantAnalysis`, for
    any number of engines; the signs of axes may be others. A fit needs one pass over the rows, for the products of the
    columns in each class, and one more with ``shrinkage="auto"``. The signature is that of the installed version of
    scikit-learn.

    Parameters
    ----------
    solver : {"svd", "eigen"}, default="svd"
        Both compute the eigenvalues of the covariances; "eigen" takes a `shrinkage`, and "svd" a `reg_param`.
    shrinkage : float, "auto" or None, default=None
        Share of the scaled identity in the covariances, with "eigen". With "auto", it is computed from the rows of each
        class, by the formula of Ledoit and Wolf for standardized columns.
    priors : array-like of shape (n_classes,), optional
        Probabilities of the classes; by default their shares of the rows.
    reg_param : float, default=0.0
        Share of the identity in the covariances, with "svd".
    store_covariance : bool, default=False
        Whether to set `covariance_`.
    tol : float, default=1e-4
        Eigenvalues of a covariance up to `tol` count as zero.
    covariance_estimator : None
        Any other value raises an error: scikit-learn's own estimator takes one.

    Attributes
    ----------
    covariance_ : list of ndarray of shape (n_features, n_features)
        The covariance of each class; only if it was asked for.
    means_ : ndarray of shape (n_classes, n_features)
        Means of the columns in each class.
    priors_ : ndarray of shape (n_classes,)
        Probabilities of the classes.
    rotations_ : list of ndarray of shape (n_features, n_axes)
        The axes of each class.
    scalings_ : list of ndarray of shape (n_axes,)
        The variances along the axes, in descending order.
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
    sklearn.discriminant_analysis.QuadraticDiscriminantAnalysis : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.discriminant_analysis import QuadraticDiscriminantAnalysis
    >>> X = [[-1.0, -1.0], [-2.0, -1.0], [-3.0, -2.0], [1.0, 1.0], [2.0, 1.0], [3.0, 2.0]]
    >>> with xpulab.XPUCluster(n=2):
    ...     QuadraticDiscriminantAnalysis().fit(X, ["a", "a", "a", "b", "b", "b"]).predict([[-0.8, -1.0]])
    array(['a'], dtype='<U1')
    """

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}
    _computes_as: ClassVar[str] = "means_"
    _narrow: ClassVar[bool] = True

    classes_: npt.NDArray[Any]
    means_: npt.NDArray[Any]
    priors_: npt.NDArray[Any]
    scalings_: list[npt.NDArray[Any]]
    rotations_: list[npt.NDArray[Any]]

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: Any) -> QuadraticDiscriminantAnalysis:
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
        QuadraticDiscriminantAnalysis
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError, NotImplementedError
            For input and parameters that scikit-learn rejects, for a `covariance_estimator`, and for sparse matrices.
            No rows have been sent.
        numpy.linalg.LinAlgError
            If a covariance has not the full rank, as in scikit-learn since 1.8; before, it warns.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        solver = getattr(self, "solver", "svd")  # since 1.8, as shrinkage and covariance_estimator
        require_computed(self, "covariance_estimator is not supported with solver='svd'. Try solver='eigen' instead.")
        cluster = current_ranks()
        rows: Any = self._checked(cluster, X, reset=True)
        y = checked_labels(self, cluster, y, rows)
        labels = Labels.of(self, cluster, y, None)
        if len(labels.classes) < 2:
            raise ValueError(f"The number of classes has to be greater than one. Got {len(labels.classes)} class.")
        if (labels.totals == 1).any():
            alone = labels.classes[labels.totals == 1][0]
            raise ValueError(f"y has only 1 sample in class {alone}, covariance is ill defined.")
        priors = labels.totals / labels.totals.sum() if self.priors is None else np.array(self.priors)
        if priors.shape != labels.classes.shape:
            raise ValueError(
                f"priors has the shape {priors.shape}; expected one for each class: {labels.classes.shape}"
            )
        with self._fitting(rows, None):
            found: ScattersOfClasses = self._ask(
                cluster, "fit", "discriminant.each", rows, y=labels.targets, known=labels.known,
                n_classes=len(labels.classes), lengths=getattr(self, "shrinkage", None) == "auto", whole=False,
            ).results[0]  # fmt: skip
            axes = self._axes_of(labels.classes, found["scatters"], solver, rows.dtype)
            self.classes_, self.priors_ = labels.classes, priors
            self.means_ = found["scatters"].means.astype(rows.dtype)
            self.scalings_, self.rotations_ = axes.scalings, axes.rotations
            if self.store_covariance:
                self.covariance_ = axes.covariances
        return self

    def _axes_of(self, classes: npt.NDArray[Any], scatters: ScatterOfEach, solver: str, dtype: np.dtype[Any]) -> _Axes:
        """Return the axes of all classes, in scikit-learn's dtypes; raise or warn for one without the full rank."""
        with ONE_AT_A_TIME:
            by_samples, raises = quadratic_rules(self.sklearn_class())
        n, kind, made = scatters.means.shape[1], dtype if solver == "svd" else np.float64, _Axes([], [], [])
        for number, count in enumerate(scatters.counts.astype(int)):
            if solver == "eigen":
                kept = covariance_of(scatters, number, self.shrinkage)
                values, axes = (each[..., ::-1] for each in np.linalg.eigh(kept))
            else:
                covariance = scatters.within[number] / (count if by_samples else count - 1)
                values, axes, kept = self._regularized(covariance, min(count, n))
            if (values > self.tol).sum() < n:  # before 1.8, scikit-learn names the number of the class
                self._tell_of_rank(classes[number] if raises else number, count, n, solver, raises)
            made.scalings.append(values.astype(kind))
            made.rotations.append(axes.astype(kind))
            made.covariances.append(kept.astype(kind))
        return made

    def _regularized(self, covariance: _Floats, most: int) -> tuple[_Floats, _Floats, _Floats]:
        """Return the variances along the axes of a class, the axes, and the covariance, with `reg_param`."""
        values, axes = np.linalg.eigh(covariance)
        values, axes = np.maximum(values[::-1], 0.0)[:most], axes[:, ::-1][:, :most]
        values = (1 - self.reg_param) * values + self.reg_param
        return values, axes, axes * values @ axes.T

    def _tell_of_rank(self, label: Any, count: int, n_features: int, solver: str, raises: bool) -> None:
        """Raise or warn, as scikit-learn does, for a covariance that has not the full rank."""
        if not raises:
            warnings.warn(
                f"The covariance matrix of class {label} is not full rank. Increasing the value of parameter "
                "`reg_param` might help reducing the collinearity.",
                scipy.linalg.LinAlgWarning,
                stacklevel=6,
            )
            return
        if solver == "svd" and count <= n_features:
            raise np.linalg.LinAlgError(
                f"The covariance matrix of class {label} is not full rank. When using `solver='svd'` the number of "
                f"samples in each class should be more than the number of features, but class {label} has {count} "
                f"samples and {n_features} features. Try using `solver='eigen'` and setting the parameter `shrinkage` "
                "for regularization."
            )
        parameter = "shrinkage" if solver == "eigen" else "reg_param"
        raise np.linalg.LinAlgError(
            f"The covariance matrix of class {label} is not full rank. Increase the value of `{parameter}` to reduce "
            "the collinearity."
        )

    def decision_function(
        self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None
    ) -> npt.NDArray[Any]:
        """Return the logarithm of the joint probability of each row and each class, but for a constant.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or (n_samples,) for two classes
            For two classes, that of the second less that of the first. Errors are those of `predict`.
        """
        if out is not None:
            return in_file(self.decision_function, X, out)
        joint = self._predicted("decision_function", "joint", X)
        return joint[:, 1] - joint[:, 0] if len(self.classes_) == 2 else joint

    def _predicted(self, method: str, kind: str, X: Any) -> npt.NDArray[Any]:
        check_is_fitted(self)
        cluster = self._cluster()
        X = self._checked(cluster, X, reset=False)
        is_label = kind == "label"
        result = Result(None if is_label else len(self.classes_), np.dtype(np.int64 if is_label else np.float64))
        scalings = [np.asarray(each, np.float64) for each in self.scalings_]
        with np.errstate(divide="ignore"):
            constants = np.log(np.asarray(self.priors_, np.float64)) - [np.log(each).sum() / 2 for each in scalings]
            factors = np.stack(
                [_triangular(axes / np.sqrt(s)) for axes, s in zip(self.rotations_, scalings, strict=True)]
            )
        self._ask(
            cluster, method, "GaussianNB.predict", X, result=result, kind=kind, constants=constants,
            means=self.means_.astype(np.float64), factors=factors,
        )  # fmt: skip
        return result.value


def _triangular(matrix: _Floats) -> _Floats:
    """Return an upper triangular matrix T (n, n) with ``T @ T.T == matrix @ matrix.T``, for a matrix (n, m <= n)."""
    n, m = matrix.shape
    turned = np.zeros((n, n))
    turned[:, :m] = matrix[::-1]
    triangle = np.asarray(np.linalg.qr(turned.T, mode="r"))
    return np.ascontiguousarray(triangle.T[::-1, ::-1])
