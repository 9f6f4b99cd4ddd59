"""The estimators of `xpulab.linear_model` for code that runs on the ranks."""

from xpulab import linear_model
from xpulab.spmd._estimator import on_ranks

__all__ = [
    "ElasticNet",
    "ElasticNetCV",
    "IncrementalLinearRegression",
    "IncrementalRidge",
    "Lasso",
    "LassoCV",
    "LinearRegression",
    "LogisticRegression",
    "Ridge",
    "RidgeCV",
]

LinearRegression = on_ranks(linear_model.LinearRegression)
Ridge = on_ranks(linear_model.Ridge)
IncrementalLinearRegression = on_ranks(linear_model.IncrementalLinearRegression)
IncrementalRidge = on_ranks(linear_model.IncrementalRidge)
Lasso = on_ranks(linear_model.Lasso)
ElasticNet = on_ranks(linear_model.ElasticNet)
LogisticRegression = on_ranks(linear_model.LogisticRegression)
RidgeCV = on_ranks(linear_model.RidgeCV)
LassoCV = on_ranks(linear_model.LassoCV)
ElasticNetCV = on_ranks(linear_model.ElasticNetCV)
