"""Statistics of columns, under the names of `sklearnex.basic_statistics`."""

from xpulab.basic_statistics._basic import BasicStatistics
from xpulab.basic_statistics._incremental import IncrementalBasicStatistics

__all__ = ["BasicStatistics", "IncrementalBasicStatistics"]
