"""Linear support vector machines on all engines of the active cluster, with scikit-learn's names."""

from xpulab.svm._linear_svc import LinearSVC
from xpulab.svm._linear_svr import LinearSVR

__all__ = ["LinearSVC", "LinearSVR"]
