"""The estimators of `xpulab.feature_extraction`, in the module that they have in scikit-learn."""

from xpulab.feature_extraction._tfidf import TfidfTransformer

__all__ = ["TfidfTransformer"]
