"""The estimators of `xpulab.preprocessing` for code that runs on the ranks."""

from xpulab import preprocessing
from xpulab.spmd._rank.estimator import estimators_of

__all__, __getattr__, __path__ = estimators_of(preprocessing)
