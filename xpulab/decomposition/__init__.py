"""Principal components and truncated decompositions under scikit-learn's names."""

from xpulab.decomposition._incremental_pca import IncrementalPCA
from xpulab.decomposition._pca import PCA
from xpulab.decomposition._truncated_svd import TruncatedSVD

__all__ = ["PCA", "IncrementalPCA", "TruncatedSVD"]
