"""Models that need no cluster: scikit-learn's estimators in the place of this package's."""

from __future__ import annotations

import io
import pickle
from typing import Any

from sklearn.exceptions import NotFittedError

from xpulab.estimator.proxy import Proxy

__all__ = ["to_sklearn"]


def to_sklearn(model: Any) -> Any:
    """A copy of a model in which every estimator of xpulab is scikit-learn's, with what was fitted.

    Parameters
    ----------
    model : Any
        An estimator of this package or of scikit-learn, such as a `Pipeline`, a `ColumnTransformer` or a
        `GridSearchCV`, or a list or dict of such. It is copied as pickle does it.

    Returns
    -------
    Any
        Needs neither a cluster nor xpulab, also after it was saved and loaded elsewhere. Estimators that were not
        fitted have their parameters.

    Raises
    ------
    TypeError
        If scikit-learn has no such estimator.

    Examples
    --------
    >>> model = make_pipeline(StandardScaler(), KMeans(8)).fit(X)  # doctest: +SKIP
    >>> joblib.dump(xpulab.to_sklearn(model), "model.joblib")  # doctest: +SKIP
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
                plain = obj.sklearn_class()(**obj.get_params(deep=False))
            return _itself, (plain,)
        return NotImplemented


def _itself(obj: Any) -> Any:
    """What is pickled in the place of another object."""
    return obj
