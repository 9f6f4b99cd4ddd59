"""Metrics of `sklearn.metrics` over rows that are on the engines, or go there."""

from xpulab.metrics._classification import accuracy_score, confusion_matrix, log_loss
from xpulab.metrics._regression import mean_squared_error, r2_score

__all__ = ["accuracy_score", "confusion_matrix", "log_loss", "mean_squared_error", "r2_score"]
