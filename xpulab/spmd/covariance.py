"""The estimators of `xpulab.covariance` for code that runs on the ranks."""

from xpulab import covariance
from xpulab.spmd._rank.estimator import estimators_of

__all__, __getattr__, __path__ = estimators_of(covariance)
