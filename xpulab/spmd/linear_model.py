"""The estimators of `xpulab.linear_model` for code that runs on the ranks."""

from xpulab import linear_model
from xpulab.spmd._rank.estimator import estimators_of

__all__, __getattr__, __path__ = estimators_of(linear_model)
