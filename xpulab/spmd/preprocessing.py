"""The estimators of `xpulab.preprocessing` for code that runs on the ranks."""

from xpulab import preprocessing
from xpulab.spmd._estimator import on_ranks

__all__ = [
    "MaxAbsScaler",
    "MinMaxScaler",
    "PolynomialFeatures",
    "RobustScaler",
    "StandardScaler",
]

MaxAbsScaler = on_ranks(preprocessing.MaxAbsScaler)
MinMaxScaler = on_ranks(preprocessing.MinMaxScaler)
PolynomialFeatures = on_ranks(preprocessing.PolynomialFeatures)
RobustScaler = on_ranks(preprocessing.RobustScaler)
StandardScaler = on_ranks(preprocessing.StandardScaler)
