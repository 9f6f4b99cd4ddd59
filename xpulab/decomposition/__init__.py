"""Principal components and truncated decompositions under scikit-learn's names."""

from xpulab.decomposition._pca import PCA

__all__ = ["PCA"]
