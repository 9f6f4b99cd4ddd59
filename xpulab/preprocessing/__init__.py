"""Scaling and encoding of columns, under the names of `sklearn.preprocessing`."""

from xpulab.preprocessing._encoder import OneHotEncoder
from xpulab.preprocessing._maxabs import MaxAbsScaler
from xpulab.preprocessing._minmax import MinMaxScaler
from xpulab.preprocessing._polynomial import PolynomialFeatures
from xpulab.preprocessing._quantile import QuantileTransformer
from xpulab.preprocessing._robust import RobustScaler
from xpulab.preprocessing._standard import StandardScaler

__all__ = [
    "MaxAbsScaler",
    "MinMaxScaler",
    "OneHotEncoder",
    "PolynomialFeatures",
    "QuantileTransformer",
    "RobustScaler",
    "StandardScaler",
]
