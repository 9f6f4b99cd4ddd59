"""Trees of gradient boosting as engines take and return them, and as scikit-learn has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab._sklearn import PREDICTOR_RECORD_DTYPE, TreePredictor

__all__ = ["as_scikit_learns", "as_sent", "packed"]

#: Fields of a tree's nodes, as engines and scikit-learn have them.
_FIELDS = (
    "value", "gain", "num_threshold", "count", "feature_idx", "left", "right", "depth", "bin_threshold",
    "missing_go_to_left", "is_leaf",
)  # fmt: skip
_SENT = np.dtype(list(zip(_FIELDS, ("f8", "f8", "f8", "i8", "i8", "i4", "i4", "i4", "u1", "u1", "u1"), strict=True)))
_SENT_WITH_SETS = np.dtype([*_SENT.descr, ("left_bins", "u1", (32,))])
_WORDS = np.dtype("<u4")  # of 32 bins, as scikit-learn has sets of bins


def as_sent(tree: Any) -> npt.NDArray[Any]:
    """Return the nodes of scikit-learn's tree as engines have them."""
    nodes, sets = tree.nodes, np.ascontiguousarray(tree.binned_left_cat_bitsets, _WORDS)
    found = np.zeros(len(nodes), _SENT_WITH_SETS if len(sets) else _SENT)
    for name in _FIELDS:
        found[name] = nodes[name]
    if len(sets):
        with_set = nodes["is_categorical"] != 0
        found["left_bins"][with_set] = sets.view(np.uint8)[nodes["bitset_idx"][with_set]]
    return found


def as_scikit_learns(tree: npt.NDArray[Any], missing: int) -> Any:
    """Return scikit-learn's tree; `missing` is the bin of missing values, which is no category."""
    nodes, sets = np.zeros(len(tree), PREDICTOR_RECORD_DTYPE), np.zeros((0, 8), np.uint32)
    for name in _FIELDS:
        nodes[name] = tree[name]
    if tree.dtype == _SENT_WITH_SETS:
        with_set = tree["left_bins"].any(axis=1)
        sets = np.ascontiguousarray(tree["left_bins"][with_set]).view(_WORDS).astype(np.uint32)
        nodes["is_categorical"], nodes["bitset_idx"][with_set] = with_set, np.arange(len(sets))
    of_categories = sets.copy()
    of_categories[:, missing // 32] &= ~np.uint32(1 << missing % 32)
    return TreePredictor(nodes, sets, of_categories)


def packed(trees: list[Any]) -> dict[str, np.ndarray]:
    """Return nodes, sets, thresholds, values and first nodes of trees, as `add_by_rows` on the engines takes them."""
    sizes = [len(tree.nodes) for tree in trees]
    roots = np.cumsum([0, *sizes])
    every = np.concatenate([tree.nodes for tree in trees]) if trees else np.zeros(0, PREDICTOR_RECORD_DTYPE)
    sets = [np.ascontiguousarray(tree.raw_left_cat_bitsets, _WORDS) for tree in trees]
    first_sets = np.repeat(np.cumsum([0, *map(len, sets)])[:-1], sizes)
    leaf, own = every["is_leaf"] != 0, np.arange(len(every))
    firsts = np.repeat(roots[:-1], sizes)
    nodes = np.zeros((len(every), 4), np.int32)
    nodes[:, 0] = np.where(leaf, own, every["left"] + firsts)
    nodes[:, 1] = np.where(leaf, own, every["right"] + firsts)
    nodes[:, 2] = np.where(leaf, 0, 2 * every["feature_idx"] + every["missing_go_to_left"])
    nodes[:, 3] = np.where(every["is_categorical"], -1 - first_sets - every["bitset_idx"].astype(np.int64), 0)
    return {
        "nodes": nodes,
        "sets": np.concatenate([np.zeros((1, 8), _WORDS), *sets])[1:].view(np.uint8),
        "thresholds": np.ascontiguousarray(every["num_threshold"], np.float64),
        "values": np.ascontiguousarray(every["value"], np.float64),
        "roots": roots[:-1].astype(np.int64),
    }
