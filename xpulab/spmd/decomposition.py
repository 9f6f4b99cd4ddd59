"""The estimators of `xpulab.decomposition` for code that runs on the ranks."""

from xpulab import decomposition
from xpulab.spmd._estimator import on_ranks

__all__ = [
    "PCA",
    "IncrementalPCA",
    "TruncatedSVD",
]

PCA = on_ranks(decomposition.PCA)
IncrementalPCA = on_ranks(decomposition.IncrementalPCA)
TruncatedSVD = on_ranks(decomposition.TruncatedSVD)
