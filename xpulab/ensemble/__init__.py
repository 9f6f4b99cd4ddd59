"""Random forests and gradient boosting, under the names of `sklearn.ensemble`."""

from xpulab.ensemble._boosters import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from xpulab.ensemble._forest import RandomForestClassifier, RandomForestRegressor
from xpulab.ensemble._isolation import IsolationForest

__all__ = [
    "HistGradientBoostingClassifier",
    "HistGradientBoostingRegressor",
    "IsolationForest",
    "RandomForestClassifier",
    "RandomForestRegressor",
]
