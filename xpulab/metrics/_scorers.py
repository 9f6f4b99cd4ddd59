"""Scorers by name, whose metrics take rows on the engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sklearn.metrics

from xpulab._sklearn import metric_of_scorer, scorer_with_metric
from xpulab.calls import public_call
from xpulab.metrics import _agreement, _all_labels, _classification, _deviances, _precision, _ranking, _regression

__all__ = ["get_scorer"]

_MODULES = (_agreement, _all_labels, _classification, _deviances, _precision, _ranking, _regression)
_METRICS = {name: getattr(module, name) for module in _MODULES for name in module.__all__}


@public_call
def get_scorer(scoring: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return a scorer by its name, as `sklearn.metrics.get_scorer`, whose metric is that of `xpulab.metrics`.

    Pass it as `scoring` to functions of scikit-learn, such as `cross_val_score`, or call it with an estimator and
    handles: ``get_scorer("roc_auc")(model, X, y)``. The predictions come to this process; y stays on the engines.

    Parameters
    ----------
    scoring : str or callable
        One of `sklearn.metrics.get_scorer_names`, such as "roc_auc", "f1_macro" or "neg_mean_absolute_error". A
        callable is returned as it is.

    Returns
    -------
    callable
        Called with an estimator, X and y, it returns a float, which is larger for better predictions.

    Raises
    ------
    ValueError
        If there is no such name, or if `xpulab.metrics` does not have the metric.
    """
    if callable(scoring):
        return scoring
    scorer = sklearn.metrics.get_scorer(scoring)
    name = metric_of_scorer(scorer)
    if name not in _METRICS:
        raise ValueError(
            f"scoring={scoring!r} was given, and xpulab.metrics has no {name}; scikit-learn's works on arrays: "
            f"sklearn.metrics.get_scorer({scoring!r})"
        )
    return scorer_with_metric(scorer, _METRICS[name])
