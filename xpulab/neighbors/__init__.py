"""Nearest neighbours, under the names of `sklearn.neighbors`."""

from xpulab.neighbors._classification import KNeighborsClassifier
from xpulab.neighbors._regression import KNeighborsRegressor
from xpulab.neighbors._unsupervised import NearestNeighbors

__all__ = ["KNeighborsClassifier", "KNeighborsRegressor", "NearestNeighbors"]
