"""The estimators of `xpulab.ensemble` for code that runs on the ranks."""

from xpulab import ensemble
from xpulab.spmd._estimator import on_ranks

__all__ = ["RandomForestClassifier", "RandomForestRegressor"]

RandomForestClassifier = on_ranks(ensemble.RandomForestClassifier)
RandomForestRegressor = on_ranks(ensemble.RandomForestRegressor)
