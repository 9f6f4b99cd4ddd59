"""Features of texts, under the names of `sklearn.feature_extraction.text`."""

from xpulab.feature_extraction._tfidf import TfidfTransformer

__all__ = ["TfidfTransformer"]
