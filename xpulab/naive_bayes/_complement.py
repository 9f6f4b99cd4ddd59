"""`ComplementNB`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.naive_bayes

from xpulab.naive_bayes._counting import Counting

__all__ = ["ComplementNB"]


class ComplementNB(Counting, sklearn.naive_bayes.ComplementNB):
    """Classification by how often each feature occurs in the other classes, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.naive_bayes.ComplementNB`, for any number of engines. A
    fit is one pass over the rows, whose sums are float64. Sparse matrices stay sparse.

    Parameters
    ----------
    alpha : float or array-like of shape (n_features,), default=1.0
        What is added to each sum.
    force_alpha : bool, default=True
        Whether an `alpha` below 1e-10 stays as it is.
    fit_prior : bool, default=True
        Whether the classes have the probabilities of their shares of the rows; used only if there is a single class.
    class_prior : array-like of shape (n_classes,), optional
        Probabilities of the classes.
    norm : bool, default=False
        Whether the weights of each class are divided by their sum.

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
    feature_all_ : ndarray of shape (n_features,)
        Sum of each column over all rows.
    feature_log_prob_ : ndarray of shape (n_classes, n_features)
        Weight of each column for a class.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.naive_bayes.ComplementNB : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.naive_bayes import ComplementNB
    >>> with xpulab.XPUCluster(n=2):
    ...     ComplementNB().fit([[2, 0], [1, 0], [0, 1], [0, 3]], ["a", "a", "b", "b"]).predict([[0, 2]])
    array(['b'], dtype='<U1')
    """

    feature_all_: npt.NDArray[Any]

    def _add_up(self) -> None:
        self.feature_all_ = self.feature_count_.sum(axis=0)

    def _functions(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        alone = len(self.classes_) == 1
        return self.feature_log_prob_, self.class_log_prior_ if alone else np.zeros(len(self.classes_))
