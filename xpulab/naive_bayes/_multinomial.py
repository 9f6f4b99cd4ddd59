"""`MultinomialNB`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import sklearn.naive_bayes

from xpulab.naive_bayes._counting import Counting

__all__ = ["MultinomialNB"]


class MultinomialNB(Counting, sklearn.naive_bayes.MultinomialNB):
    """Classification by how often each feature occurs in a class, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.naive_bayes.MultinomialNB`, for any number of engines. A
    fit is one pass over the rows, whose sums are float64. Sparse matrices stay sparse.

    Parameters
    ----------
    alpha : float or array-like of shape (n_features,), default=1.0
        What is added to each sum.
    force_alpha : bool, default=True
        Whether an `alpha` below 1e-10 stays as it is.
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
        Logarithm of the share of each column in a class.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.naive_bayes.MultinomialNB : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.naive_bayes import MultinomialNB
    >>> with xpulab.XPUCluster(n=2):
    ...     MultinomialNB().fit([[2, 0], [1, 0], [0, 1], [0, 3]], ["a", "a", "b", "b"]).predict([[0, 2]])
    array(['b'], dtype='<U1')
    """
