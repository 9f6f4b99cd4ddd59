"""Clustering, under the names of `sklearn.cluster`."""

from xpulab.cluster._bisecting import BisectingKMeans
from xpulab.cluster._dbscan import DBSCAN
from xpulab.cluster._hdbscan import HDBSCAN
from xpulab.cluster._kmeans import KMeans
from xpulab.cluster._minibatch import MiniBatchKMeans

__all__ = ["DBSCAN", "HDBSCAN", "BisectingKMeans", "KMeans", "MiniBatchKMeans"]
