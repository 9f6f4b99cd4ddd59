"""Discriminant analysis, under the names of `sklearn.discriminant_analysis`."""

from xpulab.discriminant_analysis._linear import LinearDiscriminantAnalysis

__all__ = ["LinearDiscriminantAnalysis"]
