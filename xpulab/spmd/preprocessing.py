"""The estimators of `xpulab.preprocessing` for code that runs on the ranks."""

from xpulab import preprocessing
from xpulab.spmd._estimator import on_ranks

__all__ = [
    "MaxAbsScaler",
    "MinMaxScaler",
    "OneHotEncoder",
    "PolynomialFeatures",
    "QuantileTransformer",
    "RobustScaler",
    "StandardScaler",
]

MaxAbsScaler = on_ranks(preprocessing.MaxAbsScaler)
MinMaxScaler = on_ranks(preprocessing.MinMaxScaler)
OneHotEncoder = on_ranks(preprocessing.OneHotEncoder)
PolynomialFeatures = on_ranks(preprocessing.PolynomialFeatures)
QuantileTransformer = on_ranks(preprocessing.QuantileTransformer)
RobustScaler = on_ranks(preprocessing.RobustScaler)
StandardScaler = on_ranks(preprocessing.StandardScaler)
