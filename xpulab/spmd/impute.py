"""The estimators of `xpulab.impute` for code that runs on the ranks."""

from xpulab import impute
from xpulab.spmd._estimator import on_ranks

__all__ = ["SimpleImputer"]

SimpleImputer = on_ranks(impute.SimpleImputer)
