"""Clustering, under the names of `sklearn.cluster`."""

from xpulab.cluster._dbscan import DBSCAN
from xpulab.cluster._kmeans import KMeans

__all__ = ["DBSCAN", "KMeans"]
