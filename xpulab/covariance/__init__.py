"""Covariance of columns, under the names of `sklearn.covariance` and `sklearnex.covariance`."""

from xpulab.covariance._empirical import EmpiricalCovariance
from xpulab.covariance._incremental import IncrementalEmpiricalCovariance

__all__ = ["EmpiricalCovariance", "IncrementalEmpiricalCovariance"]
