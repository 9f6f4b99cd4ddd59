"""The estimators of `xpulab.impute` for code that runs on the ranks."""

from xpulab import impute
from xpulab.spmd._rank.estimator import estimators_of

__all__, __getattr__, __path__ = estimators_of(impute)
