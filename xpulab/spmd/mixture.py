"""The estimators of `xpulab.mixture` for code that runs on the ranks."""

from xpulab import mixture
from xpulab.spmd._rank.estimator import estimators_of

__all__, __getattr__, __path__ = estimators_of(mixture)
