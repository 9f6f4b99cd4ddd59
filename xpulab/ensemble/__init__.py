"""Random forests and gradient boosting, under the names of `sklearn.ensemble`."""

from xpulab.ensemble._boosters import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from xpulab.ensemble._forest import RandomForestClassifier, RandomForestRegressor

__all__ = [
    "HistGradientBoostingClassifier",
    "HistGradientBoostingRegressor",
    "RandomForestClassifier",
    "RandomForestRegressor",
]
