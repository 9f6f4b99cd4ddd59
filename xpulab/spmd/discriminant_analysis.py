"""The estimators of `xpulab.discriminant_analysis` for code that runs on the ranks."""

from xpulab import discriminant_analysis
from xpulab.spmd._rank.estimator import estimators_of

__all__, __getattr__, __path__ = estimators_of(discriminant_analysis)
