"""The estimators of `xpulab.basic_statistics` for code that runs on the ranks."""

from xpulab import basic_statistics
from xpulab.spmd._estimator import on_ranks

__all__ = [
    "BasicStatistics",
    "IncrementalBasicStatistics",
]

BasicStatistics = on_ranks(basic_statistics.BasicStatistics)
IncrementalBasicStatistics = on_ranks(basic_statistics.IncrementalBasicStatistics)
