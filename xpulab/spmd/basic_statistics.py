"""The estimators of `xpulab.basic_statistics` for code that runs on the ranks."""

from xpulab import basic_statistics
from xpulab.spmd._rank.estimator import estimators_of

__all__, __getattr__, __path__ = estimators_of(basic_statistics)
