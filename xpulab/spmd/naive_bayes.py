"""The estimators of `xpulab.naive_bayes` for code that runs on the ranks."""

from xpulab import naive_bayes
from xpulab.spmd._rank.estimator import estimators_of

__all__, __getattr__, __path__ = estimators_of(naive_bayes)
