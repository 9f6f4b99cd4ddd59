"""Turns models with xpulab's estimators into models with scikit-learn's, which need no cluster."""

from __future__ import annotations

import io
import pickle
from typing import Any

from sklearn.exceptions import NotFittedError

from xpulab.estimator.proxy import Proxy

__all__ = ["to_sklearn"]


def to_sklearn(model: Any) -> Any:
    """Copy a model, and replace each estimator of xpulab by scikit-learn's, with the same fitted attributes.

    Parameters
    ----------
    model : Any
        An estimator of xpulab or of scikit-learn, such as a `Pipeline`, a `ColumnTransformer` or a `GridSearchCV`, or a
        list or dict of estimators. It is copied with pickle.

    Returns
    -------
    Any
        The copy, which needs neither a cluster nor xpulab, also after it was saved and loaded on another machine. An
        estimator that was not fitted keeps its parameters.

    Raises
    ------
    TypeError
        If scikit-learn has no class for an estimator in the model, such as `IncrementalRidge`.

    Examples
    --------
    >>> import xpulab
    >>> import pickle
    >>> from sklearn.pipeline import make_pipeline
    >>> from xpulab.cluster import KMeans
    >>> from xpulab.preprocessing import StandardScaler
    >>> X = [[1, 2], [1, 4], [10, 2], [10, 4]]
    >>> with xpulab.XPUCluster(n=2):
    ...     model = make_pipeline(StandardScaler(), KMeans(2, random_state=0)).fit(X)
    >>> saved = pickle.dumps(xpulab.to_sklearn(model))  # opens where xpulab is not installed
    >>> type(pickle.loads(saved)[-1]).__module__
    'sklearn.cluster._kmeans'
    """
    buffer = io.BytesIO()
    _Plainly(buffer, pickle.HIGHEST_PROTOCOL).dump(model)
    return pickle.loads(buffer.getbuffer())


class _Plainly(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Proxy):
            try:
                plain = obj.to_sklearn()
            except NotFittedError:
                plain = obj.unfitted_sklearn()
            return _itself, (plain,)
        return NotImplemented


def _itself(obj: Any) -> Any:
    """Return the object: pickle calls this function to rebuild an object from its replacement."""
    return obj
