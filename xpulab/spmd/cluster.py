"""The estimators of `xpulab.cluster` for code that runs on the ranks."""

from xpulab import cluster
from xpulab.spmd._rank.estimator import estimators_of

__all__, __getattr__, __path__ = estimators_of(cluster)
