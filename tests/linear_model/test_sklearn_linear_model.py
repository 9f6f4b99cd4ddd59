"""scikit-learn's own tests and checks, run against the linear models on two engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.linear_model import (
    BayesianRidge,
    ElasticNet,
    ElasticNetCV,
    GammaRegressor,
    HuberRegressor,
    IncrementalLinearRegression,
    IncrementalRidge,
    Lars,
    Lasso,
    LassoCV,
    LassoLars,
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
    RidgeClassifier,
    RidgeClassifierCV,
    RidgeCV,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)

pytestmark = pytest.mark.cluster

_DENSE = "not sparse and not csr and not csc and not coo_ and not array_api"
#: Estimators that xpulab does not have, and functions of scikit-learn that call no estimator.
_OTHERS = (
    "MultiTaskElastic or MultiTaskLasso or test_multitask or lbfgs_solver_consistency or primal_dual or set_order or "
    "enet_ridge_consistency and -3-"  # of three targets
)
#: Tests with many forms of rows for each solver of `Ridge`, of which these all do what "cholesky" and "sparse_cg" do.
_ALIKE = "(sample_weight_consistency or regularization_limits) and (sag or lsqr)"


@pytest.fixture(autouse=True)
def _on_the_pair(pair: xpulab.XPUCluster) -> None:
    pair.activate()


_NOT_ITERATED = {"check_non_transformer_estimators_n_iter": "nothing is iterated, and n_iter_ is None"}
_DEALT = "rows that are repeated are dealt to other batches"
_BATCHES = {
    "check_sample_weight_equivalence_on_dense_data": _DEALT,
    "check_sample_weight_equivalence_on_sparse_data": _DEALT,
}
_XFAILED = {Ridge: _NOT_ITERATED, RidgeClassifier: _NOT_ITERATED, SGDClassifier: _BATCHES, SGDRegressor: _BATCHES}
_checks = parametrize_with_checks(
    [
        LinearRegression(),
        Ridge(),
        IncrementalLinearRegression(),
        IncrementalRidge(),
        ElasticNet(),
        Lasso(),
        ElasticNetCV(cv=3, alphas=5, max_iter=100_000),
        LassoCV(cv=3, alphas=5, max_iter=100_000),
        RidgeCV(),
        BayesianRidge(),
        Lars(),
        LassoLars(),
        HuberRegressor(),
        SGDClassifier(),
        SGDRegressor(),
        QuantileRegressor(alpha=0.01),
        GammaRegressor(),
        PoissonRegressor(),
        PoissonRegressor(solver="newton-cholesky"),
        TweedieRegressor(power=1.5),
        # The checks are about the interface. `test_logistic` runs with every solver, too.
        LogisticRegression(max_iter=1000),
        LogisticRegression(solver="newton-cholesky"),
        LogisticRegressionCV(Cs=3, cv=3),
        RidgeClassifier(),
        RidgeClassifierCV(),
    ],
    expected_failed_checks=lambda estimator: _XFAILED.get(type(estimator), {}),
)


@pytest.mark.filterwarnings("ignore:The least populated class in y:UserWarning")  # of a check's own rows
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


#: A solver that raises an error, sparse rows that two solvers of scikit-learn do not take, and other models.
_OTHER_SOLVERS = "liblinear or test_logreg_l1[ or (large_sparse and sag)"
_OTHER_MODELS = "CV or _cv or path or test_n_iter or scores_attribute or l1_ratio_None or scoring_warns or get_default"
_EVERY = "it compares all solvers, of which some are refused"
_POSITIVE, _CSR, _YES = "positive=True takes dense rows", ("csr_matrix", "csr_array"), (True, False)
_COPY = "the input is never changed, copy_X=False or not"


@pytest.mark.parametrize(
    ("module", "names", "least", "only", "cannot"),
    [
        ("test_base", "LinearRegression", 19, _DENSE, {"test_inplace_data_preprocessing": _COPY}),
        (
            "test_ridge",
            "LinearRegression Ridge RidgeClassifier",
            70,
            f"not array_api and not cv and not CV and not test_ridge_regression and not ({_OTHERS} or ({_ALIKE}))",
            {
                "test_n_iter": "nothing is iterated, and n_iter_ is None",
                "test_ridge_fit_intercept_sparse_error": "every solver takes sparse rows",
                "test_ridge_fit_intercept_sparse_sag": "every solver takes sparse rows, without a warning",
                **{
                    f"test_ridge_fit_intercept_sparse[42-{kind}-{yes}-lbfgs]": _POSITIVE
                    for kind in _CSR
                    for yes in _YES
                },
                **{f"lbfgs-{form}-{kind}": _POSITIVE for kind in _CSR for form in ("tall", "wide")},
                "test_lbfgs_solver_error": "positive=True is solved by an active set, which converges on these data",
            },
        ),
        (
            "test_coordinate_descent",
            "ElasticNet ElasticNetCV Lasso LassoCV",
            70,
            f"{_DENSE} and not ({_OTHERS}) and not (grid_search and False)",  # 150 fits, again without weights
            {
                "test_check_input_false": "the input is checked, check_input=False or not",
                "test_enet_nonfinite_params": "the error is raised before the first iteration, and says what to divide",
                "test_enet_copy_X_False_check_input_False": _COPY,
                "test_lassoCV_does_not_set_precompute": "LassoCV fits no Lasso: the products of all rows are known",
            },
        ),
        (
            "test_logistic",
            "LogisticRegression",
            50,
            f"not array_api and not ({_OTHER_SOLVERS} or {_OTHER_MODELS})",
            {
                "test_logistic_regression_solvers[": _EVERY,
                "test_logistic_regression_class_weights": _EVERY,
                "test_warm_start_converge_LR": _EVERY,
                "test_check_solver_option": _EVERY,
                "test_logistic_regression_callback_fitted_estimator": "coefficients of iterations stay on the engines",
            },
        ),
        (
            "test_logistic",
            "LogisticRegression LogisticRegressionCV",
            15,
            f"not array_api and ({_OTHER_MODELS}) and not ({_OTHER_SOLVERS})",
            {
                "test_logistic_cv[": "it compares with liblinear",
                "test_logistic_regression_cv_refit[42-0": "two starts end 1e-7 from each other, of coefficients of 1",
            },
        ),
        (
            "test_least_angle",
            "Lars LassoLars",
            15,
            # On some processors only do the products of columns of 1e20 lose what 1 adds.
            f"{_DENSE} and not CV and not cv and not LassoLarsIC and not lasso_lars_ic and not test_estimatorclasses "
            "and not ill_conditioned2",
            {},
        ),
        ("test_huber", "HuberRegressor", 8, "", {}),
        (
            "test_quantile",
            "QuantileRegressor",
            10,
            "not test_quantile_toy_example",  # it asks for a slope of at least 1, which here is 1 - 2e-15
            {
                "test_linprog_failure": "no linear program fails",
                "test_error_interior_point_future": "the message is another",
            },
        ),
        ("test_bayes", "BayesianRidge", 5, "not ard and not ARD", {}),
        ("test_glm", "GammaRegressor PoissonRegressor TweedieRegressor", 20, "not array_api", {}),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("test_") else "",
)
def test_the_tests_of_scikit_learn(
    pair: xpulab.XPUCluster, tmp_path: Path, module: str, names: str, least: int, only: str, cannot: dict[str, str]
) -> None:
    """All tests pass, and enough of them call a proxy's fit."""
    proxies = [f"xpulab.linear_model:{name}" for name in names.split()]
    # The first has fifty fits. `test_logistic` has each solver with weights, also beside those of classes, and strings.
    dear = ["test_multinomial_logistic_regression_string_inputs", "test_logistic_regression_sample_weights"]
    home = "_glm.tests" if module == "test_glm" else "tests"
    run_suite(tmp_path, pair, [f"sklearn.linear_model.{home}.{module}"], proxies, least, cannot, only, dear=dear)
