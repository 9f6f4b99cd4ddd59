"""Metrics of `sklearn.metrics`, computed by the engines, for arrays and for rows on the engines."""

from xpulab.metrics._classification import accuracy_score, confusion_matrix, log_loss
from xpulab.metrics._clustering import (
    calinski_harabasz_score,
    davies_bouldin_score,
    silhouette_samples,
    silhouette_score,
)
from xpulab.metrics._regression import mean_squared_error, r2_score

__all__ = [
    "accuracy_score",
    "calinski_harabasz_score",
    "confusion_matrix",
    "davies_bouldin_score",
    "log_loss",
    "mean_squared_error",
    "r2_score",
    "silhouette_samples",
    "silhouette_score",
]
