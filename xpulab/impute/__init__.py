"""Imputers of `sklearn.impute`, which run on all engines of the active cluster."""

from xpulab.impute._simple import SimpleImputer

__all__ = ["SimpleImputer"]
