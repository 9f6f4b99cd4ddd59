"""The estimators of `xpulab.ensemble` for code that runs on the ranks."""

from xpulab import ensemble
from xpulab.spmd._rank.estimator import estimators_of

__all__, __getattr__, __path__ = estimators_of(ensemble)
