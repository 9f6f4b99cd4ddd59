"""Scaling and encoding of columns, under the names of `sklearn.preprocessing`."""

from xpulab.preprocessing._binarizer import Binarizer
from xpulab.preprocessing._discretizer import KBinsDiscretizer
from xpulab.preprocessing._encoder import OneHotEncoder
from xpulab.preprocessing._labels import LabelEncoder
from xpulab.preprocessing._maxabs import MaxAbsScaler
from xpulab.preprocessing._minmax import MinMaxScaler
from xpulab.preprocessing._normalizer import Normalizer
from xpulab.preprocessing._ordinal import OrdinalEncoder
from xpulab.preprocessing._polynomial import PolynomialFeatures
from xpulab.preprocessing._quantile import QuantileTransformer
from xpulab.preprocessing._robust import RobustScaler
from xpulab.preprocessing._standard import StandardScaler
from xpulab.preprocessing._target import TargetEncoder

__all__ = [
    "Binarizer",
    "KBinsDiscretizer",
    "LabelEncoder",
    "MaxAbsScaler",
    "MinMaxScaler",
    "Normalizer",
    "OneHotEncoder",
    "OrdinalEncoder",
    "PolynomialFeatures",
    "QuantileTransformer",
    "RobustScaler",
    "StandardScaler",
    "TargetEncoder",
]
