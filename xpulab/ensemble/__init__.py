"""Random forests, extremely randomized trees and gradient boosting, under the names of `sklearn.ensemble`."""

from xpulab.ensemble._boosters import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from xpulab.ensemble._extra_trees import ExtraTreesClassifier, ExtraTreesRegressor
from xpulab.ensemble._forest import RandomForestClassifier, RandomForestRegressor
from xpulab.ensemble._isolation import IsolationForest

__all__ = [
    "ExtraTreesClassifier",
    "ExtraTreesRegressor",
    "HistGradientBoostingClassifier",
    "HistGradientBoostingRegressor",
    "IsolationForest",
    "RandomForestClassifier",
    "RandomForestRegressor",
]
