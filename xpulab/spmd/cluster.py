"""The estimators of `xpulab.cluster` for code that runs on the ranks."""

from xpulab import cluster
from xpulab.spmd._estimator import on_ranks

__all__ = ["DBSCAN", "KMeans"]

DBSCAN = on_ranks(cluster.DBSCAN)
KMeans = on_ranks(cluster.KMeans)
