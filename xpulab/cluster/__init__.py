"""Clustering, under the names of `sklearn.cluster`."""

from xpulab.cluster._kmeans import KMeans

__all__ = ["KMeans"]
