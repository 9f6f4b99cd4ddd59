"""The estimators of `xpulab.mixture` for code that runs on the ranks."""

from xpulab import mixture
from xpulab.spmd._estimator import on_ranks

__all__ = ["GaussianMixture"]

GaussianMixture = on_ranks(mixture.GaussianMixture)
