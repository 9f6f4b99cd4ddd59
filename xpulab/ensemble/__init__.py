"""Random forests, under the names of `sklearn.ensemble`."""

from xpulab.ensemble._forest import RandomForestClassifier, RandomForestRegressor

__all__ = ["RandomForestClassifier", "RandomForestRegressor"]
