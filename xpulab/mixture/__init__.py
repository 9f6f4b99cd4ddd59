"""Mixture models on all engines of the active cluster, with scikit-learn's names."""

from xpulab.mixture._gaussian_mixture import GaussianMixture

__all__ = ["GaussianMixture"]
