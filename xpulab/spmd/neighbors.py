"""The estimators of `xpulab.neighbors` for code that runs on the ranks."""

from xpulab import neighbors
from xpulab.spmd._estimator import on_ranks

__all__ = ["KNeighborsClassifier", "KNeighborsRegressor", "NearestNeighbors"]

NearestNeighbors = on_ranks(neighbors.NearestNeighbors)
KNeighborsClassifier = on_ranks(neighbors.KNeighborsClassifier)
KNeighborsRegressor = on_ranks(neighbors.KNeighborsRegressor)
