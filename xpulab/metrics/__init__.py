"""Metrics of `sklearn.metrics`, which the engines compute, of arrays and of rows on the engines."""

from xpulab.metrics._classification import accuracy_score, confusion_matrix, log_loss
from xpulab.metrics._regression import mean_squared_error, r2_score

__all__ = ["accuracy_score", "confusion_matrix", "log_loss", "mean_squared_error", "r2_score"]
