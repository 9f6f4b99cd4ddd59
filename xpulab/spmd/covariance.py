"""The estimators of `xpulab.covariance` for code that runs on the ranks."""

from xpulab import covariance
from xpulab.spmd._estimator import on_ranks

__all__ = [
    "EmpiricalCovariance",
    "IncrementalEmpiricalCovariance",
]

EmpiricalCovariance = on_ranks(covariance.EmpiricalCovariance)
IncrementalEmpiricalCovariance = on_ranks(covariance.IncrementalEmpiricalCovariance)
