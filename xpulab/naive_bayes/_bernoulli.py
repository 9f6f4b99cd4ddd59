"""`BernoulliNB`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.naive_bayes

from xpulab.naive_bayes._counting import Counting

__all__ = ["BernoulliNB"]


class BernoulliNB(Counting, sklearn.naive_bayes.BernoulliNB):
    """Classification by which features occur in a class, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.naive_bayes.BernoulliNB`, for any number of engines. A
    fit is one pass over the rows, whose sums are float64. Sparse matrices stay sparse.

    Parameters
    ----------
    alpha : float or array-like of shape (n_features,), default=1.0
        What is added to each sum.
    force_alpha : bool, default=True
        Whether an `alpha` below 1e-10 stays as it is.
    binarize : float or None, default=0.0
        Numbers above it count as 1, and others as 0; with None, the input has only these.
    fit_prior : bool, default=True
        Whether the classes have the probabilities of their shares of the rows, and not all the same.
    class_prior : array-like of shape (n_classes,), optional
        Probabilities of the classes.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, in ascending order.
    class_count_ : ndarray of shape (n_classes,)
        Sum of the weights of the rows of each class.
    class_log_prior_ : ndarray of shape (n_classes,)
        Logarithm of the probability of each class.
    feature_count_ : ndarray of shape (n_classes, n_features)
        Sum of each column over the rows of each class.
    feature_log_prob_ : ndarray of shape (n_classes, n_features)
        Logarithm of the probability that a column is 1 in a class.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.naive_bayes.BernoulliNB : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.naive_bayes import BernoulliNB
    >>> with xpulab.XPUCluster(n=2):
    ...     BernoulliNB().fit([[2, 0], [1, 0], [0, 1], [0, 3]], ["a", "a", "b", "b"]).predict([[0, 2]])
    array(['b'], dtype='<U1')
    """

    _counts: ClassVar[bool] = False

    def _threshold(self) -> float | None:
        return None if self.binarize is None else float(self.binarize)

    def _functions(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        absent = np.log(1 - np.exp(self.feature_log_prob_))
        return self.feature_log_prob_ - absent, self.class_log_prior_ + absent.sum(axis=1)
