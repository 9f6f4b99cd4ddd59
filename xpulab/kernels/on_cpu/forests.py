"""Grows decision trees on the CPU, and follows rows through them, by the machine code of `forest_functions`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.on_cpu.absolute_functions import ABSOLUTE, ranking_sizes
from xpulab.kernels.on_cpu.host import at, function_of
from xpulab.kernels.on_cpu.split_functions import WHOLE

__all__ = ["CRITERIA", "NODE", "Edges", "Grown", "Rules", "Workspace", "add_unsampled", "add_values", "grow_tree"]

#: Names of scikit-learn's criteria -> their numbers in the machine code.
CRITERIA = {
    "gini": 0, "entropy": 1, "log_loss": 1, "squared_error": 2, "friedman_mse": 2, "poisson": 3,
    "absolute_error": ABSOLUTE,
}  # fmt: skip
_MOST_BINS = 255
_NEAR_BYTES = 1 << 17  # of the bins of a node's rows that are copied side by side, in a core's L2 cache
#: A node as scikit-learn has it in memory.
NODE = np.dtype(
    {
        "names": [
            "left_child", "right_child", "feature", "threshold", "impurity", "n_node_samples",
            "weighted_n_node_samples", "missing_go_to_left",
        ],
        "formats": ["<i8", "<i8", "<i8", "<f8", "<f8", "<i8", "<f8", "u1"],
        "offsets": list(range(0, 64, 8)),
        "itemsize": 64,
    }
)  # fmt: skip
_F8, _I8, _I4, _F4, _U1 = (np.dtype(name) for name in ("f8", "i8", "i4", "f4", "u1"))


@dataclass(frozen=True)
class Edges:
    """The edges between the bins of each column: bin b has the values above edge b - 1, up to edge b.

    Attributes
    ----------
    values : numpy.ndarray of float64
        Those of all columns, ascending in each.
    ends : numpy.ndarray of int64 of shape (n_features,)
        Where those of each column end.
    limits : numpy.ndarray of float64 of shape (n_bins, 2)
        The least and the largest value of each bin, of which a column has one more than edges.
    """

    values: npt.NDArray[np.float64]
    ends: npt.NDArray[np.int64]
    limits: npt.NDArray[np.float64]

    @classmethod
    def between(cls, columns: list[npt.NDArray[np.float64]]) -> Edges:
        """Join the edges of all columns, in the middle between the limits of their bins."""
        middles = [np.empty(0)]
        for limits in columns:
            below, above = limits[:-1, 1], limits[1:, 0]
            middle = (below + above) / 2
            middles.append(np.where(np.isfinite(middle), middle, below))
        ends = np.cumsum([len(each) for each in middles[1:]], dtype=_I8)
        return cls(np.concatenate(middles), ends, np.concatenate([*columns, np.empty((0, 2))]))

    @staticmethod
    def of_column(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Choose the limits of at most 255 bins with about equally many rows each.

        Parameters
        ----------
        values : numpy.ndarray of float32 of shape (n_samples,)
            NaN is left out. The array is sorted in place.

        Returns
        -------
        numpy.ndarray of float64 of shape (n_bins, 2)
            The least and the largest value of each bin; zeros if there is no value.
        """
        values.sort()
        values = values[: len(values) - np.count_nonzero(np.isnan(values))]
        if len(values) == 0:
            return np.zeros((1, 2))
        changes = np.flatnonzero(values[1:] != values[:-1])  # the last row of each value but the greatest
        if len(changes) >= _MOST_BINS:
            wanted = np.arange(1, _MOST_BINS) * len(values) / _MOST_BINS
            nearest = np.searchsorted(changes + 1, wanted)
            changes = np.unique(changes[np.minimum(nearest, len(changes) - 1)])
        first, last = np.append(0, changes + 1), np.append(changes, len(values) - 1)
        return values[np.stack([first, last], axis=1)].astype(np.float64)

    def bins(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Return the bins of values of shape (n, n_features); 255 stands for NaN."""
        bins = np.empty(rows.shape, np.uint8)
        counts = np.diff(self.ends, prepend=0)
        steps = np.where(counts > 0, 1 << np.ceil(np.log2(np.maximum(counts, 1))).astype(_I8), 0)
        function_of("bin_values")(
            at(rows, _F4), *rows.shape, at(self.values, _F8), at(self.ends, _I8), at(steps, _I8),
            at(bins, _U1),
        )  # fmt: skip
        return bins


@dataclass(frozen=True)
class Rules:
    """How trees are grown, in scikit-learn's words; all numbers are absolute, and 0 leaves stand for any number.

    With the splitter "random", the splits of a node are drawn, one for each column, and the best of these is taken.
    `monotonic_cst` has 1, 0 or -1 for each column, or nothing.
    """

    criterion: str
    splitter: str
    max_features: int
    min_samples_split: int
    min_samples_leaf: int
    min_weight_fraction_leaf: float
    max_depth: int
    min_impurity_decrease: float
    max_leaf_nodes: int
    monotonic_cst: tuple[int, ...] = ()

    def numbers(self, seed: int) -> npt.NDArray[np.float64]:
        """Return the settings as the machine code takes them."""
        return np.array(
            [
                CRITERIA[self.criterion], self.max_features, self.min_samples_split, self.min_samples_leaf,
                self.min_weight_fraction_leaf, self.max_depth, self.min_impurity_decrease, self.max_leaf_nodes,
                seed % 0xFFFFFFFE + 1, self.splitter == "random",
                any(self.monotonic_cst),
            ],
            np.float64,
        )  # fmt: skip


@dataclass(frozen=True)
class Grown:
    """A tree.

    Attributes
    ----------
    nodes : numpy.ndarray of NODE of shape (n_nodes,)
        The last bin on the left of each split is in bytes that scikit-learn does not use.
    values : numpy.ndarray of float64 of shape (n_nodes, n_outputs, width)
        Shares of the classes, or means, or medians.
    depth : int
    """

    nodes: npt.NDArray[Any]
    values: npt.NDArray[np.float64]
    depth: int


class Workspace:
    """Memory for one tree at a time.

    Parameters
    ----------
    n_samples, n_features : int
    classes : tuple of int
        Number of classes of each output; 0 for numbers.
    criterion : str
        "absolute_error" needs more memory than the others.
    """

    def __init__(self, n_samples: int, n_features: int, classes: tuple[int, ...], criterion: str) -> None:
        outputs = len(classes)
        widths = [max(1, n) for n in classes]
        self.n_samples, self.classes = n_samples, max(classes)
        self.shape = outputs, max(widths)
        self.offsets = np.concatenate([[0], np.cumsum(widths)]).astype(_I8)
        self.rows = np.empty(2 * n_samples, _I8)
        self.weights = np.empty(2 * n_samples)
        self.targets = np.empty(2 * n_samples * outputs)
        self.near = np.empty(max(_NEAR_BYTES, n_features), np.uint8)
        # Four histograms, both sides of a split, the node, and the best split.
        self.sums = np.zeros((WHOLE + 1) * (2 + int(self.offsets[-1])) + 8)
        self.listed = np.empty(256, _I8)
        self.order = np.empty(n_features, _I8)
        self.opened = np.empty(12 * (n_samples + 1))
        self.nodes = np.empty(2 * n_samples + 1, NODE)
        self.values = np.empty((2 * n_samples + 1, *self.shape))
        integers, numbers = ranking_sizes(n_samples, outputs) if CRITERIA[criterion] == ABSOLUTE else (1, 1)
        self.ranked, self.ranked_numbers = np.empty(integers, _I8), np.empty(numbers)


def grow_tree(
    bins: npt.NDArray[np.uint8],
    weights: npt.NDArray[np.float64],
    edges: Edges,
    y: npt.NDArray[np.float64],
    rules: Rules,
    seed: int,
    workspace: Workspace,
) -> Grown:
    """Grow a tree.

    Parameters
    ----------
    bins : numpy.ndarray of uint8 of shape (n_samples, n_features)
        Those of `Edges.bins`.
    weights : numpy.ndarray of float64 of shape (n_samples,)
        Not negative; rows of weight 0 are left out.
    edges : Edges
    y : numpy.ndarray of float64 of shape (n_samples, n_outputs)
        Targets, or the numbers of the classes.
    rules : Rules
    seed : int
        Decides which columns a node looks at, and which splits are drawn.
    workspace : Workspace

    Returns
    -------
    Grown
    """
    n, d = bins.shape
    workspace.order[:] = np.arange(d)
    integers, numbers = workspace.nodes.view(_I8), workspace.nodes.view(_F8)
    # With names, so that they live during the call.
    settings, width = rules.numbers(seed), int(np.prod(workspace.shape))
    signs = np.array([*rules.monotonic_cst, 0], _I8)
    sizes = np.array([n, d, y.shape[1], workspace.classes, width, len(workspace.near) // d], _I8)
    count = function_of("grow_tree")(
        at(bins, _U1), at(weights, _F8), at(y, _F8), at(sizes, _I8), at(settings, _F8), at(signs, _I8),
        at(edges.values, _F8), at(edges.limits, _F8), at(edges.ends, _I8), at(workspace.offsets, _I8),
        at(workspace.rows, _I8), at(workspace.weights, _F8), at(workspace.targets, _F8), at(workspace.sums, _F8),
        at(workspace.listed, _I8), at(workspace.order, _I8), at(workspace.opened, _F8), at(workspace.near, _U1),
        at(integers, _I8), at(numbers, _F8), at(workspace.values, _F8), at(workspace.ranked, _I8),
        at(workspace.ranked_numbers, _F8),
    )  # fmt: skip
    kept = integers[: 8 * count].copy().view(NODE)  # with the bytes that scikit-learn does not use
    return Grown(kept, workspace.values[:count].copy(), int(workspace.opened[0]))


def add_unsampled(
    bins: npt.NDArray[np.uint8],
    weights: npt.NDArray[np.float64],
    tree: Grown,
    sums: npt.NDArray[np.float64],
    counts: npt.NDArray[np.float64],
) -> None:
    """Add a tree's values to the sums (n_samples, n_outputs, width) of the rows of weight 0, and 1 to their counts."""
    function_of("add_unsampled")(
        at(bins, _U1), *bins.shape, at(weights, _F8), at(tree.nodes.view(_I8), _I8),
        at(tree.values, _F8), tree.values[0].size, at(sums, _F8), at(counts, _F8),
    )  # fmt: skip


def add_values(
    rows: npt.NDArray[np.float32],
    nodes: npt.NDArray[Any],
    roots: npt.NDArray[np.int64],
    values: npt.NDArray[np.float64],
    sums: npt.NDArray[np.float64],
) -> None:
    """Add the values of the leaves that rows come to, in the order of the trees.

    Parameters
    ----------
    rows : numpy.ndarray of float32 of shape (n_samples, n_features)
    nodes : numpy.ndarray of int32 of shape (n_nodes, 4)
        Left and right child, twice the column plus 1 if missing values go to the left, and the threshold in float32. A
        leaf has itself as its children, and its number instead of the threshold.
    roots : numpy.ndarray of int64 of shape (n_trees,)
    values : numpy.ndarray of float64 of shape (n_leaves, width)
    sums : numpy.ndarray of float64 of shape (n_samples, width)
    """
    abreast = np.empty(8, _I8)  # with a name, so that it lives during the call
    function_of("add_values")(
        at(rows, _F4), *rows.shape, at(nodes, _I4), at(nodes.view(_F4), _F4),
        at(roots, _I8), len(roots), at(values, _F8), values.shape[1], at(abreast, _I8), at(sums, _F8),
    )  # fmt: skip
