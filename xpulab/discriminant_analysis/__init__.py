"""Discriminant analysis, under the names of `sklearn.discriminant_analysis`."""

from xpulab.discriminant_analysis._linear import LinearDiscriminantAnalysis
from xpulab.discriminant_analysis._quadratic import QuadraticDiscriminantAnalysis

__all__ = ["LinearDiscriminantAnalysis", "QuadraticDiscriminantAnalysis"]
