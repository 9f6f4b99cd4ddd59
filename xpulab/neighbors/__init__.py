"""Neighbours: scikit-learn's estimators on every device of the active cluster."""

from xpulab.neighbors._classification import KNeighborsClassifier
from xpulab.neighbors._regression import KNeighborsRegressor
from xpulab.neighbors._unsupervised import NearestNeighbors

__all__ = ["KNeighborsClassifier", "KNeighborsRegressor", "NearestNeighbors"]
