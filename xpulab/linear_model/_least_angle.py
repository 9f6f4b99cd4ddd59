"""`Lars` and `LassoLars`: least angle regression on products that the engines compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.linear_model
from sklearn.linear_model import lars_path_gram
from sklearn.utils import check_random_state

from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.tasks.answers import Answer
from xpulab.linear_model._coordinate_descent import check_precomputed
from xpulab.linear_model._path import Sums, sums_of
from xpulab.linear_model._proxy import LinearProxy

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Lars", "LassoLars"]


class _LeastAngle(LinearProxy):
    """Base class of `Lars` and `LassoLars`."""

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}

    method: str
    precompute: Any
    verbose: Any
    eps: float
    fit_path: bool
    positive: bool
    jitter: float | None
    random_state: Any
    active_: Any
    coef_path_: Any

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, Xy: npt.ArrayLike | None = None) -> Self:
        """Fit the model by `sklearn.linear_model.lars_path_gram` on products, which the engines compute once.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_targets)
            Converted to the dtype of X. Several targets are fitted one after the other.
        Xy : array-like of shape (n_features,) or (n_features, n_targets), optional
            Accepted for compatibility with scikit-learn: the engines compute these products, too.

        Returns
        -------
        object
            This estimator, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for CSR matrices, for a handle of targets with `jitter`, and if X and y
            are handles with different numbers of rows per rank or different dtypes. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_ranks()
        X, y, _ = self._read(cluster, X, y, None)
        if self.jitter is not None:
            if isinstance(y, ShardedArray):
                raise TypeError(
                    f"jitter={self.jitter!r} was given, and y is a ShardedArray; expected an array of targets, "
                    "such as y.gather()"
                )
            noise = check_random_state(self.random_state).uniform(high=self.jitter, size=len(y))
            y = y + (noise if y.ndim == 1 else noise[:, None]).astype(y.dtype)

        def walk(answer: Answer) -> bool:
            sums = sums_of(answer.results[0]["products"], X.shape[0])
            check_precomputed(self.precompute, sums, X.shape[1], self.fit_intercept)
            self._walk(sums, y, X)
            return True

        with self._fitting(X, None):
            self._ask(cluster, "fit", "linear_products", X, y=y, centre=bool(self.fit_intercept), finish=walk)
        return self

    def _walk(self, sums: Sums, y: Any, X: Any) -> None:
        """Set the attributes from sums, centred if there is an intercept."""
        n = X.shape[1]
        n_targets = len(sums.mean) - n
        # A number of coefficients, where it is given, takes the place of a penalty.
        alpha, most = getattr(self, "alpha", 0.0), getattr(self, "max_iter", None)
        alpha, most = (alpha, most) if most is not None else (0.0, self.n_nonzero_coefs)
        paths = [
            lars_path_gram(
                np.ascontiguousarray(sums.products[:n, n + k]),
                np.asfortranarray(sums.products[:n, :n]),
                n_samples=sums.n_samples,
                max_iter=most,
                alpha_min=alpha,
                method=self.method,
                eps=self.eps,
                verbose=max(0, self.verbose - 1),
                return_path=self.fit_path,
                return_n_iter=True,
                positive=self.positive,
            )
            for k in range(n_targets)
        ]
        alphas, active, path, n_iter = map(list, zip(*paths, strict=True))
        alphas = [np.asarray(each, X.dtype) for each in alphas]
        coef = np.stack([each[:, -1] if self.fit_path else each for each in path], axis=1)
        one = n_targets == 1
        self.alphas_ = alphas[0] if one else alphas
        self.n_iter_ = n_iter[0] if one else n_iter
        if self.fit_path:
            steps = [np.asarray(each, X.dtype) for each in path]
            self.active_, self.coef_path_ = (active[0], steps[0]) if one else (active, steps)
        self._set_line(coef, sums.mean[:n], sums.mean[n:], y, X.dtype)
        if one and self.fit_path:
            self.coef_ = np.ravel(self.coef_)
        elif one:  # scikit-learn leaves the shape of several targets
            self.coef_ = np.atleast_2d(self.coef_)
            self.intercept_ = np.atleast_1d(self.intercept_) if self.fit_intercept else self.intercept_


class Lars(_LeastAngle, sklearn.linear_model.Lars):
    """Least angle regression on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.Lars`. The engines compute the products of the
    columns in one pass over the rows, in float64 where float32 is not exact enough; the path is computed from them in
    this process [1]_.

    Parameters
    ----------
    fit_intercept : bool, default=True
        Whether the columns and the targets are centred.
    verbose : bool or int, default=False
        Whether to print the steps.
    precompute : bool, "auto" or array-like of shape (n_features, n_features), default="auto"
        A Gram matrix is checked and not used; the engines compute the products in any case.
    n_nonzero_coefs : int, default=500
        Largest number of coefficients that are not zero.
    eps : float, default=np.finfo(float).eps
        Smallest diagonal of the Cholesky factor.
    copy_X : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    fit_path : bool, default=True
        Whether to set `coef_path_` and `active_`.
    jitter : float, optional
        Largest noise that is added to the targets, which must be an array then.
    random_state : int, RandomState instance or None, default=None
        Determines the noise.

    Attributes
    ----------
    alphas_ : ndarray of shape (n_alphas + 1,) or list of such arrays
        Largest absolute covariance of a column and the residuals, divided by the number of rows, at each step.
    active_ : list of int or list of such lists
        Columns in use at the end of the path.
    coef_path_ : ndarray of shape (n_features, n_alphas + 1) or list of such arrays
        Coefficients along the path.
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients of the columns.
    intercept_ : float or ndarray of shape (n_targets,)
        Constant term; one for each target.
    n_iter_ : int or list of int
        Number of steps.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.linear_model.Lars : The same in one process.

    References
    ----------
    .. [1] B. Efron, T. Hastie, I. Johnstone, R. Tibshirani, "Least angle regression", Annals of Statistics 32 (2004),
       407-499.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import Lars
    >>> with xpulab.XPUCluster(n=2):
    ...     Lars(n_nonzero_coefs=1).fit([[-1.0, 1.0], [0.0, 0.0], [1.0, 1.0]], [-1.1111, 0.0, -1.1111]).coef_
    array([ 0.    , -1.1111])
    """


class LassoLars(_LeastAngle, sklearn.linear_model.LassoLars):
    """`Lasso` by least angle regression on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.LassoLars`. The engines compute the products
    of the columns in one pass over the rows, in float64 where float32 is not exact enough; the path is computed from
    them in this process [1]_.

    Parameters
    ----------
    alpha : float, default=1.0
        Penalty on absolute coefficients.
    fit_intercept : bool, default=True
        Whether the columns and the targets are centred.
    verbose : bool or int, default=False
        Whether to print the steps.
    precompute : bool, "auto" or array-like of shape (n_features, n_features), default="auto"
        A Gram matrix is checked and not used; the engines compute the products in any case.
    max_iter : int, default=500
        Largest number of steps.
    eps : float, default=np.finfo(float).eps
        Smallest diagonal of the Cholesky factor.
    copy_X : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    fit_path : bool, default=True
        Whether to set `coef_path_` and `active_`.
    positive : bool, default=False
        Whether all coefficients must be at least 0.
    jitter : float, optional
        Largest noise that is added to the targets, which must be an array then.
    random_state : int, RandomState instance or None, default=None
        Determines the noise.

    Attributes
    ----------
    alphas_ : ndarray of shape (n_alphas + 1,) or list of such arrays
        Penalties along the path.
    active_ : list of int or list of such lists
        Columns in use at the end of the path.
    coef_path_ : ndarray of shape (n_features, n_alphas + 1) or list of such arrays
        Coefficients along the path.
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients of the columns.
    intercept_ : float or ndarray of shape (n_targets,)
        Constant term; one for each target.
    n_iter_ : int or list of int
        Number of steps.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.linear_model.LassoLars : The same in one process.

    References
    ----------
    .. [1] B. Efron, T. Hastie, I. Johnstone, R. Tibshirani, "Least angle regression", Annals of Statistics 32 (2004),
       407-499.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import LassoLars
    >>> with xpulab.XPUCluster(n=2):
    ...     LassoLars(alpha=0.01).fit([[-1.0, 1.0], [0.0, 0.0], [1.0, 1.0]], [-1.0, 0.0, -1.0]).coef_
    array([ 0.   , -0.955])
    """
