"""The estimators of `xpulab.cluster` for code that runs on the ranks."""

from xpulab import cluster
from xpulab.spmd._estimator import on_ranks

__all__ = ["DBSCAN", "BisectingKMeans", "KMeans", "MiniBatchKMeans"]

BisectingKMeans = on_ranks(cluster.BisectingKMeans)
DBSCAN = on_ranks(cluster.DBSCAN)
KMeans = on_ranks(cluster.KMeans)
MiniBatchKMeans = on_ranks(cluster.MiniBatchKMeans)
