"""Forests: scikit-learn's estimators on every device of the active cluster."""

from xpulab.ensemble._forest import RandomForestClassifier, RandomForestRegressor

__all__ = ["RandomForestClassifier", "RandomForestRegressor"]
