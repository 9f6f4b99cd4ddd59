"""What the parameters of forests mean for the engines, and which are refused."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

__all__ = ["require_computed", "require_monotone", "rules_of"]

_ANY_DEPTH = 2**31 - 1


def require_computed(forest: Any) -> None:
    """Raise ValueError for parameters that the engines do not support."""
    if not isinstance(forest.criterion, str):
        raise ValueError(f"criterion={forest.criterion!r} was given; expected the name of a criterion")


def require_monotone(forest: Any, counts: list[int]) -> None:
    """Raise scikit-learn's errors for constraints that do not fit the columns, or the targets.

    Parameters
    ----------
    forest : ForestProxy
        It knows the numbers of columns and of outputs.
    counts : list of int
        Number of classes of each output; 0 for numbers.
    """
    if forest.monotonic_cst is None:
        return
    if forest.n_outputs_ > 1:
        raise ValueError("Monotonicity constraints are not supported with multiple outputs.")
    given, n_features = np.asarray(forest.monotonic_cst), forest.n_features_in_
    if given.shape != (n_features,):
        raise ValueError(
            f"monotonic_cst has shape {given.shape[0] if given.ndim == 1 else given.shape} but the input data X has "
            f"{n_features} features."
        )
    if not np.isin(given, (-1, 0, 1)).all():
        raise ValueError(f"monotonic_cst must be None or an array-like of -1, 0 or 1, but got {np.unique(given)}")
    if max(counts) > 2:
        raise ValueError("Monotonicity constraints are not supported with multiclass classification")


def rules_of(forest: Any, n: int) -> dict[str, Any]:
    """Return the fields of `Rules`, with shares as numbers of rows and columns, as in scikit-learn's trees.

    Parameters
    ----------
    forest : ForestProxy
    n : int
        Number of rows.
    """
    d, leaf, split = forest.n_features_in_, forest.min_samples_leaf, forest.min_samples_split
    leaf = leaf if isinstance(leaf, numbers.Integral) else int(np.ceil(leaf * n))
    split = split if isinstance(split, numbers.Integral) else max(2, int(np.ceil(split * n)))
    features = {"sqrt": max(1, int(np.sqrt(d))), "log2": max(1, int(np.log2(d))), None: d}.get(forest.max_features)
    if features is None:
        whole = isinstance(forest.max_features, numbers.Integral)
        features = forest.max_features if whole else max(1, int(forest.max_features * d))
    signs = [] if forest.monotonic_cst is None else np.asarray(forest.monotonic_cst, np.int64).tolist()
    return {
        "criterion": forest.criterion,
        "splitter": forest._splitter,
        "max_features": int(features),
        "min_samples_split": max(int(split), 2 * int(leaf)),
        "min_samples_leaf": int(leaf),
        "min_weight_fraction_leaf": float(forest.min_weight_fraction_leaf),
        "max_depth": _ANY_DEPTH if forest.max_depth is None else int(forest.max_depth),
        "min_impurity_decrease": float(forest.min_impurity_decrease),
        "max_leaf_nodes": -1 if forest.max_leaf_nodes is None else int(forest.max_leaf_nodes),
        "monotonic_cst": tuple(signs),
    }
