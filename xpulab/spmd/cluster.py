"""The estimators of `xpulab.cluster` for code that runs on the ranks."""

from xpulab import cluster
from xpulab.spmd._estimator import on_ranks

__all__ = [
    "KMeans",
]

KMeans = on_ranks(cluster.KMeans)
