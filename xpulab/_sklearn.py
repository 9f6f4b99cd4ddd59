"""The private names of scikit-learn that xpulab uses, and where they are. No other module imports one.

A release of scikit-learn may move, rename or remove a private name. What differs between the releases that
``pyproject.toml`` allows is settled here. A name is imported at its first use: ranks import this module, too, and need
few of them.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "BaseSearchCV": "sklearn.model_selection._search",
    "Interval": "sklearn.utils._param_validation",
    "NODE_DTYPE": "sklearn.tree._tree",
    "NeighborsBase": "sklearn.neighbors._base",
    "NewtonCholeskySolver": "sklearn.linear_model._glm._newton_solver",
    "StrOptions": "sklearn.utils._param_validation",
    "Tree": "sklearn.tree._tree",
    "_BisectingTree": "sklearn.cluster._bisect_k_means",
    "_IdentityRegressor": "sklearn.linear_model._ridge",
    "_align_api_if_sparse": "sklearn.utils",
    "_check_optimize_result": "sklearn.utils.optimize",
    "_fit_context": "sklearn.base",
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
    "_to_object_array": "sklearn.utils.validation",
    "_validate_shuffle_split": "sklearn.model_selection._split",
    "callback_management_context": "sklearn.callback._callback_support",  # since scikit-learn 1.9
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
