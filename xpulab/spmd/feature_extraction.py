"""The estimators of `xpulab.feature_extraction` for code that runs on the ranks."""

from xpulab import feature_extraction
from xpulab.spmd._rank.estimator import estimators_of

__all__, __getattr__, __path__ = estimators_of(feature_extraction)
