"""Metrics of `sklearn.metrics`, computed by the engines, for arrays and for rows on the engines."""

from xpulab.metrics._classification import accuracy_score, confusion_matrix, log_loss
from xpulab.metrics._regression import mean_squared_error, r2_score

__all__ = ["accuracy_score", "confusion_matrix", "log_loss", "mean_squared_error", "r2_score"]
