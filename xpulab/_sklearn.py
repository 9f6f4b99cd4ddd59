"""The private names of scikit-learn that xpulab uses, and where they are. No other module imports one.

A release of scikit-learn may move, rename or remove a private name. What differs between the releases that
``pyproject.toml`` allows is settled here. A name is imported at its first use: ranks import this module, too, and need
few of them.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike
    from sklearn.preprocessing import KBinsDiscretizer

    _Method = TypeVar("_Method", bound=Callable[..., Any])

    def _fit_context(*, prefer_skip_nested_validation: bool) -> Callable[[_Method], _Method]:
        """scikit-learn's decorator has no types; for a type checker, a method is the same with it and without."""


_HOMES = {
    "ADAPTERS_MANAGER": "sklearn.utils._set_output",
    "MST_edge_dtype": "sklearn.cluster._hdbscan._linkage",
    "BaseSearchCV": "sklearn.model_selection._search",
    "Interval": "sklearn.utils._param_validation",
    "NODE_DTYPE": "sklearn.tree._tree",
    "NeighborsBase": "sklearn.neighbors._base",
    "NewtonCholeskySolver": "sklearn.linear_model._glm._newton_solver",
    "StrOptions": "sklearn.utils._param_validation",
    "Tree": "sklearn.tree._tree",
    "PREDICTOR_RECORD_DTYPE": "sklearn.ensemble._hist_gradient_boosting.common",
    "TreePredictor": "sklearn.ensemble._hist_gradient_boosting.predictor",
    "_BinMapper": "sklearn.ensemble._hist_gradient_boosting.binning",
    "_BisectingTree": "sklearn.cluster._bisect_k_means",
    "_IdentityClassifier": "sklearn.linear_model._ridge",
    "_IdentityRegressor": "sklearn.linear_model._ridge",
    "_average_path_length": "sklearn.ensemble._iforest",
    "_VALID_METRICS": "sklearn.metrics.pairwise",
    "_align_api_if_sparse": "sklearn.utils",
    "_check_chunk_size": "sklearn.metrics.pairwise",
    "_check_method_params": "sklearn.utils.validation",
    "_check_monotonic_cst": "sklearn.utils.validation",
    "_check_optimize_result": "sklearn.utils.optimize",
    "_check_partial_fit_first_call": "sklearn.utils.multiclass",
    "_fit_context": "sklearn.base",
    "_get_liblinear_solver_type": "sklearn.svm._base",
    "_get_output_config": "sklearn.utils._set_output",
    "_handle_zeros_in_scale": "sklearn.preprocessing._data",
    "_infer_dimension": "sklearn.decomposition._pca",
    "_is_arraylike_not_scalar": "sklearn.utils.validation",
    "_is_constant_feature": "sklearn.preprocessing._data",
    "_labels_inertia": "sklearn.cluster._kmeans",
    "_newton_cg": "sklearn.utils.optimize",
    "_num_samples": "sklearn.utils.validation",
    "_openmp_effective_n_threads": "sklearn.utils._openmp_helpers",
    "_raise_for_params": "sklearn.utils._metadata_requests",
    "_routing_enabled": "sklearn.utils.metadata_routing",
    "_safe_indexing": "sklearn.utils",
    "_to_object_array": "sklearn.utils.validation",
    "_validate_dual_parameter": "sklearn.svm._classes",
    "_validate_shuffle_split": "sklearn.model_selection._split",
    "callback_management_context": "sklearn.callback._callback_support",  # since scikit-learn 1.9
    "get_chunk_n_rows": "sklearn.utils._chunking",
    "get_columns": "sklearn.utils._set_output",
    "make_single_linkage": "sklearn.cluster._hdbscan._linkage",
    "remap_single_linkage_tree": "sklearn.cluster._hdbscan.hdbscan",
    "tree_to_labels": "sklearn.cluster._hdbscan._tree",
    "validate_parameter_constraints": "sklearn.utils._param_validation",
    "validate_params": "sklearn.utils._param_validation",
}
#: Modules whose names are used as they are.
_MODULES = {"_forest": "sklearn.ensemble._forest", "_gaussian_mixture": "sklearn.mixture._gaussian_mixture"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def _check_categorical_features(estimator: Any, X: Any) -> Any:
    """Return scikit-learn's mask of the columns with categories; before 1.9, a method of the estimators finds it."""
    if hasattr(estimator, "_check_categorical_features"):
        return estimator._check_categorical_features(X)
    check = importlib.import_module("sklearn.utils.validation")._check_categorical_features
    return check(X, estimator.categorical_features)


def balances_by_weight() -> bool:
    """Return whether ``class_weight="balanced"`` counts the weights of rows, as since 1.7, and not rows."""
    return (
        "sample_weight" in inspect.signature(importlib.import_module("sklearn.utils").compute_class_weight).parameters
    )


@functools.cache
def dtype_of_counts(kind: type, dtype: np.dtype[Any], weighted: bool, is_sparse: bool, **parameters: Any) -> Any:
    """Return the dtype of `n_samples_seen_` of a class of scikit-learn after a fit of rows of a dtype.

    It differs between releases, and from one way of the computation to another.
    """
    numpy, csr_matrix = importlib.import_module("numpy"), importlib.import_module("scipy.sparse").csr_matrix
    rows = numpy.array([[0], [1]], dtype)
    given = {"sample_weight": numpy.ones(2, dtype)} if weighted else {}
    return numpy.asarray(kind(**parameters).fit(csr_matrix(rows) if is_sparse else rows, **given).n_samples_seen_).dtype


def class_weights(
    class_weight: Mapping[object, float] | str | None, classes: np.ndarray, totals: np.ndarray
) -> np.ndarray:
    """Return the weight of each class; `totals` are sums over the rows of each, as `balances_by_weight` says."""
    compute = importlib.import_module("sklearn.utils").compute_class_weight
    if balances_by_weight():
        return compute(class_weight, classes=classes, y=classes, sample_weight=totals)
    balanced = isinstance(class_weight, str) and class_weight == "balanced"
    return totals.sum() / (len(totals) * totals) if balanced else compute(class_weight, classes=classes, y=classes)


@functools.cache
def divides_by_samples(kind: type) -> bool:
    """Return whether scikit-learn's `LinearDiscriminantAnalysis` divides the scatter by the number of rows, not less.

    Since 1.9, it does. Before, it subtracted the number of classes from it.
    """
    return bool(abs(kind().fit([[0.0], [2.0], [10.0], [12.0]], [0, 0, 1, 1]).coef_[0, 0] - 10.0) < 1.0)


@functools.cache
def quadratic_rules(kind: type) -> tuple[bool, bool]:
    """Return how scikit-learn's `QuadraticDiscriminantAnalysis` treats covariances; it differs between releases.

    Returns
    -------
    by_samples : bool
        Whether it divides by the number of rows, and not by one less.
    raises : bool
        Whether it raises an error for a covariance that has not the full rank, and does not only warn.
    """
    labels, numpy = [0, 0, 1, 1], importlib.import_module("numpy")
    by_samples = kind().fit([[0.0], [2.0], [10.0], [12.0]], labels).scalings_[0][0] < 1.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kind().fit([[0.0, 0.0], [2.0, 2.0], [10.0, 10.0], [12.0, 12.0]], labels)
        except numpy.linalg.LinAlgError:
            return bool(by_samples), True
    return bool(by_samples), False


def dtype_of_naive_bayes(dtype: DTypeLike) -> DTypeLike:
    """Return the dtype of the fitted attributes of `GaussianNB` for rows of a dtype: up to 1.7, it is float64."""
    return dtype if hasattr(importlib.import_module("sklearn.naive_bayes"), "_find_matching_floating_dtype") else float


def rows_of_bins(
    estimator: KBinsDiscretizer, n_samples: int, weights: np.ndarray | None
) -> tuple[np.ndarray | None, bool]:
    """Return the rows that `KBinsDiscretizer` draws, in ascending order, and whether their weights still count.

    None stands for all rows. Since 1.7, rows are drawn by weight, and may be drawn repeatedly.
    """
    resample, numpy = importlib.import_module("sklearn.utils").resample, importlib.import_module("numpy")
    if estimator.subsample is None or n_samples <= estimator.subsample:
        return None, True
    by_weight = "sample_weight" in inspect.signature(resample).parameters
    how = {"sample_weight": weights} if by_weight else {"replace": False}
    rows, n = numpy.arange(n_samples), estimator.subsample
    return numpy.sort(resample(rows, n_samples=n, random_state=estimator.random_state, **how)), not by_weight


def scorer_of_classes(scorer: Any, classes: np.ndarray) -> Any:
    """Return a scorer whose metric knows all classes, of which the test rows of a fold may lack some."""
    metric = getattr(scorer, "_score_func", None)
    names = {} if metric is None else inspect.signature(metric).parameters
    if "labels" not in names:
        return scorer
    known: dict[str, Any] = {"labels": classes}
    if len(classes) == 2 and "pos_label" in names:
        known["pos_label"] = classes[-1]
    made = copy.copy(scorer)
    made._kwargs = {**known, **scorer._kwargs}
    return made


def metric_of_scorer(scorer: Any) -> str:
    """Return the name of the metric of a scorer that scikit-learn's `get_scorer` has made."""
    return str(scorer._score_func.__name__)


def scorer_with_metric(scorer: Any, metric: Any) -> Any:
    """Return a copy of a scorer with another function in the place of its metric."""
    made = copy.copy(scorer)
    made._score_func = metric
    return made


def is_search(thing: Any) -> bool:
    """Return whether this is a search of scikit-learn's. None is if nobody has imported them, and this does not."""
    module = sys.modules.get(_HOMES["BaseSearchCV"])
    return module is not None and isinstance(thing, module.BaseSearchCV)


def without_results(search: Any) -> Any:
    """Return a search as it was before its fit. Since 1.9 a search passes itself to each fit of a fold."""
    made = copy.copy(search)
    for name in [each for each in vars(made) if each.endswith("_") and not each.startswith("_")]:
        delattr(made, name)
    return made


def folds_of_search(names: Mapping[str, Any]) -> int:
    """Return the number of folds of a search, of whose `fit` these are the variables; in 1.6 it is one of them."""
    return int(names["n_splits"] if "n_splits" in names else names["self"].n_splits_)


def keep_candidates(search: Any, names: Mapping[str, Any], candidates: list[Any], more: Mapping[str, Any]) -> None:
    """Give a search whose fit was interrupted the results of the candidates that have ended.

    Parameters
    ----------
    search : BaseSearchCV
    names : mapping of str to object
        The variables of its `fit`.
    candidates : list of (dict, list)
        Parameters and results of the folds, of candidates that the search does not know yet.
    more : mapping of str to list
        What the search notes of each of these beside.
    """
    parameters = [*names["all_candidate_params"], *(each for each, _ in candidates)]
    out = [*names["all_out"], *(result for _, results in candidates for result in results)]
    known = names["all_more_results"]
    noted = {name: [*known.get(name, []), *more.get(name, [])] for name in {*known, *more}}
    own, results = vars(search), search._format_results(parameters, folds_of_search(names), out, noted)
    for name in ("best_estimator_", "best_index_", "best_params_", "best_score_", "refit_time_"):
        own.pop(name, None)
    search.cv_results_ = results
    search.multimetric_ = isinstance(out[0]["test_scores"], dict)
    search.scorer_ = getattr(names["scorers"], "_scorers", names["scorers"])
    if search.refit or not search.multimetric_:
        metric = names["refit_metric"]
        search.best_index_ = search._select_best_index(search.refit, metric, results)
        search.best_params_ = results["params"][search.best_index_]
        if not callable(search.refit):
            search.best_score_ = results[f"mean_test_{metric}"][search.best_index_]
