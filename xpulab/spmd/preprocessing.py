"""The estimators of `xpulab.preprocessing` for code that runs on the ranks."""

from xpulab import preprocessing
from xpulab.spmd._estimator import on_ranks

__all__ = [
    "MaxAbsScaler",
    "MinMaxScaler",
    "RobustScaler",
    "StandardScaler",
]

MaxAbsScaler = on_ranks(preprocessing.MaxAbsScaler)
MinMaxScaler = on_ranks(preprocessing.MinMaxScaler)
RobustScaler = on_ranks(preprocessing.RobustScaler)
StandardScaler = on_ranks(preprocessing.StandardScaler)
