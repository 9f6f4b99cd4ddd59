"""Linear models on all engines of the active cluster, with scikit-learn's names."""

from xpulab.linear_model._bayes import BayesianRidge
from xpulab.linear_model._classifiers.logistic import LogisticRegression
from xpulab.linear_model._classifiers.logistic_cv import LogisticRegressionCV
from xpulab.linear_model._classifiers.ridge import RidgeClassifier
from xpulab.linear_model._classifiers.ridge_cv import RidgeClassifierCV
from xpulab.linear_model._coordinate_descent import ElasticNet, Lasso
from xpulab.linear_model._coordinate_descent_cv import ElasticNetCV, LassoCV
from xpulab.linear_model._generalized import GammaRegressor, PoissonRegressor, TweedieRegressor
from xpulab.linear_model._incremental import IncrementalLinearRegression, IncrementalRidge
from xpulab.linear_model._least_angle import Lars, LassoLars
from xpulab.linear_model._linear import LinearRegression
from xpulab.linear_model._ridge import Ridge
from xpulab.linear_model._ridge_cv import RidgeCV
from xpulab.linear_model._robust.huber import HuberRegressor
from xpulab.linear_model._robust.quantile import QuantileRegressor
from xpulab.linear_model._stochastic.classifier import SGDClassifier
from xpulab.linear_model._stochastic.regressor import SGDRegressor

__all__ = [
    "BayesianRidge",
    "ElasticNet",
    "ElasticNetCV",
    "GammaRegressor",
    "HuberRegressor",
    "IncrementalLinearRegression",
    "IncrementalRidge",
    "Lars",
    "Lasso",
    "LassoCV",
    "LassoLars",
    "LinearRegression",
    "LogisticRegression",
    "LogisticRegressionCV",
    "PoissonRegressor",
    "QuantileRegressor",
    "Ridge",
    "RidgeCV",
    "RidgeClassifier",
    "RidgeClassifierCV",
    "SGDClassifier",
    "SGDRegressor",
    "TweedieRegressor",
]
