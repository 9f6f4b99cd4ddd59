"""Gradient boosting on the CPU, by the machine code of `boosting_functions`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.on_cpu.host import at, function_of, functions

__all__ = [
    "HESSIAN_BITS",
    "TREE",
    "TREE_WITH_SETS",
    "Split",
    "Splitting",
    "Thresholds",
    "add_by_bins",
    "add_by_rows",
    "add_histogram",
    "add_leaves",
    "as_integers",
    "part_node",
]

_F8, _I8, _I4, _F4, _U1 = (np.dtype(name) for name in ("f8", "i8", "i4", "f4", "u1"))
_TOGETHER = 4096  # rows that are copied side by side
_AT_A_TIME = 1 << 17  # rows that are added to packed sums, whose bits are enough for so many
_SPARSE = 24  # if at most one of so many rows is in a node, they are copied
_NEAR = 1 << 16  # a column of up to so many rows is in a core's cache
HESSIAN_BITS = 27  # of the largest second derivative as an integer, so that packed sums have room for it
_IN_ORDER = np.arange(_TOGETHER, dtype=np.int32)
_NO_SETS = np.zeros((0, 32), np.uint8)
#: A node of a tree, by scikit-learn's names; the left child follows its parent.
TREE = np.dtype(
    [
        ("value", "f8"), ("gain", "f8"), ("num_threshold", "f8"), ("count", "i8"), ("feature_idx", "i8"),
        ("left", "i4"), ("right", "i4"), ("depth", "i4"), ("bin_threshold", "u1"), ("missing_go_to_left", "u1"),
        ("is_leaf", "u1"),
    ]
)  # fmt: skip
#: The same with the set of bins on the left, which is empty for a split after a bin.
TREE_WITH_SETS = np.dtype([*TREE.descr, ("left_bins", "u1", (32,))])


@dataclass(frozen=True)
class Thresholds:
    """The thresholds between the bins of each column: bin b has the values above threshold b - 1, up to threshold b.

    Attributes
    ----------
    columns : list of numpy.ndarray of float64
        Those of each column, ascending.
    missing : int
        The bin of missing values.
    n_categorical : int
        Number of columns, the first, whose values are numbers of categories, and whose bins are these.
    """

    columns: list[npt.NDArray[np.float64]]
    missing: int
    n_categorical: int = 0

    @property
    def n_bins(self) -> npt.NDArray[np.int64]:
        """Number of bins of each column, without that of missing values."""
        return np.array([len(column) + 1 for column in self.columns], np.int64)

    def bins(self, rows: npt.NDArray[np.float64], bins: npt.NDArray[np.uint8]) -> None:
        """Write the bins of values of shape (n, n_features)."""
        counts = self.n_bins - 1
        ends, values = np.cumsum(counts), np.concatenate([*self.columns, np.empty(0)])
        steps = np.where(counts > 0, 1 << np.ceil(np.log2(np.maximum(counts, 1))).astype(_I8), 0)
        function_of("bin_doubles")(
            at(rows, _F8), *rows.shape, at(values, _F8), at(ends, _I8), at(steps, _I8), self.missing, at(bins, _U1)
        )


@dataclass(frozen=True)
class Split:
    """The best split of a node: its gain, and the integer sums (gradients, second derivatives, rows) on the left.

    The left has the bins up to `last_bin`, or those of the set `left_bins`, if there is one.
    """

    gain: float
    feature: int
    last_bin: int
    missing_left: int
    left: tuple[int, int, int]
    left_bins: npt.NDArray[np.uint8] | None = None


class Splitting:
    """Finds the best splits of a tree's nodes.

    Parameters
    ----------
    thresholds : Thresholds
    missing : numpy.ndarray of uint8 of shape (n_features,)
        Whether the column has missing values.
    constraints : numpy.ndarray of int64 of shape (n_features,)
        1 if values must not fall with this column, -1 if they must not rise, 0 without a constraint, as categories are.
    l2, min_rows, g_unit, h_unit : float
        The regularisation, the least number of rows of a leaf, and what the integers are multiplied by.
    """

    def __init__(
        self,
        thresholds: Thresholds,
        missing: npt.NDArray[np.uint8],
        constraints: npt.NDArray[np.int64],
        l2: float,
        min_rows: int,
        g_unit: float,
        h_unit: float,
    ) -> None:
        settings = np.array([0, -np.inf, np.inf, l2, min_rows, 1e-3, 0, g_unit, h_unit], np.float64)
        self._settings, self._whole, self._gain, self._best = settings, np.empty(3, _I8), np.empty(1), np.empty(6, _I8)
        self._left_bins, self._n_categorical = np.empty(32, _U1), thresholds.n_categorical
        # The addresses are found once: there are many nodes of few rows. The arrays live as long as this object.
        n_bins, means, order = thresholds.n_bins, np.empty(256), np.empty(256, _I8)
        self._kept = n_bins, means, order, missing, constraints
        counts, holes = at(n_bins, _I8), at(missing, _U1)
        ends = at(self._whole, _I8), at(settings, _F8), at(self._gain, _F8), at(self._best, _I8)
        room = at(means, _F8), at(order, _I8), at(self._left_bins, _U1)
        of_sets, of_splits = function_of("find_best_set"), function_of("find_best_split")
        k, d, signs = thresholds.n_categorical, len(n_bins), at(constraints, _I8)
        self._find_set = lambda sums, some: of_sets(sums, k, counts, holes, some, thresholds.missing, *ends, *room)
        self._find_split = lambda sums, some: of_splits(sums, k, d, counts, holes, signs, some, *ends)

    def find(
        self,
        sums: npt.NDArray[np.int64],
        whole: tuple[int, int, int],
        value: float,
        lower: float,
        upper: float,
        allowed: npt.NDArray[np.uint8],
    ) -> Split:
        """Return the best split of a node, whose gain is not positive if there is none."""
        self._settings[:3], self._whole[:] = (value, lower, upper), whole
        self._gain[0], self._best[:] = -1, 0
        addresses = at(sums, _I8), at(allowed, _U1)
        if self._n_categorical:
            self._find_set(*addresses)
        self._find_split(*addresses)
        feature, last_bin, missing_left, g, h, n = self._best.tolist()
        chosen = self._left_bins.copy() if feature < self._n_categorical else None
        return Split(float(self._gain[0]), feature, last_bin, missing_left, (g, h, n), chosen)


def as_integers(
    gradients: npt.NDArray[np.float32],
    hessians: npt.NDArray[np.float32],
    g_scale: float,
    h_scale: float,
    numbers: npt.NDArray[np.int64],
) -> None:
    """Multiply gradients and second derivatives by powers of two, and round them to integers, for `add_histogram`.

    The integers of second derivatives have at most `HESSIAN_BITS`, and become one number (n, 2) with the count of rows.
    """
    function_of("as_integers")(
        at(gradients, _F4), at(hessians, _F4), len(gradients), g_scale, h_scale, at(numbers, _I8)
    )


def add_histogram(
    bins: npt.NDArray[np.uint8],
    columns: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.int32],
    begin: int,
    end: int,
    numbers: npt.NDArray[np.int64],
    sums: npt.NDArray[np.int64],
) -> None:
    """Add the rows from `begin` to `end` of the list `rows` to the sums (d, 256, 3) of their node.

    Few of many rows are copied side by side first, some at a time. The processor then waits for several of them at
    once. Many are added column by column.

    Parameters
    ----------
    bins, columns : numpy.ndarray of uint8 of shape (n_own, d) and (d, n_own)
        The same bins.
    """
    n, d = bins.shape
    packed = np.zeros((d, 256, 2), np.int64)
    for first in range(begin, end, _AT_A_TIME):
        last = min(first + _AT_A_TIME, end)
        if n <= _NEAR or _SPARSE * (end - begin) > n:
            function_of("add_by_columns")(
                at(columns, _U1), n, d, at(rows, _I4), first, last, at(numbers, _I8), at(packed, _I8)
            )
        else:
            _add_copied(bins, rows[first:last], numbers, packed)
        function_of("add_packed")(at(packed, _I8), d * 256, at(sums, _I8))


def _add_copied(
    bins: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.int32],
    numbers: npt.NDArray[np.int64],
    packed: npt.NDArray[np.int64],
) -> None:
    """Copy rows side by side, some at a time, and add them to packed sums."""
    add, d, size = function_of("add_histogram"), bins.shape[1], min(len(rows), _TOGETHER)
    near, near_numbers = np.empty((size, d), np.uint8), np.empty((size, 2), np.int64)
    for first in range(0, len(rows), _TOGETHER):
        some = rows[first : first + _TOGETHER]
        n = len(some)
        bins.take(some, axis=0, out=near[:n], mode="clip")  # with "raise", NumPy would copy twice
        numbers.take(some, axis=0, out=near_numbers[:n], mode="clip")
        add(at(near, _U1), d, at(_IN_ORDER, _I4), 0, n, at(near_numbers, _I8), at(packed, _I8))


def part_node(
    column: npt.NDArray[np.uint8],
    split: Split,
    missing: int,
    rows: npt.NDArray[np.int32],
    begin: int,
    end: int,
    aside: npt.NDArray[np.int32],
) -> int:
    """Bring the rows on the left of a split before those on the right; return where the latter begin.

    `column` has the bins of the column of the split (n_own,).
    """
    if split.left_bins is not None:
        chosen, node = at(split.left_bins, _U1), (at(rows, _I4), begin, end, at(aside, _I4))
        return int(function_of("part_node_by_set")(at(column, _U1), chosen, *node))
    return int(
        function_of("part_node")(
            at(column, _U1), 1, 0, split.last_bin, missing, split.missing_left, at(rows, _I4), begin, end,
            at(aside, _I4),
        )
    )  # fmt: skip


def add_leaves(
    rows: npt.NDArray[np.int32],
    bounds: npt.NDArray[np.int64],
    values: npt.NDArray[np.float64],
    raw: npt.NDArray[np.float64],
) -> None:
    """Add the values of leaves to their rows, which are those from ``bounds[leaf, 0]`` to ``bounds[leaf, 1]``."""
    function_of("add_leaves")(at(rows, _I4), at(bounds, _I8), at(values, _F8), len(values), at(raw, _F8))


def _packed(tree: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the nodes of a tree, and their sets of bins, as the machine code takes them."""
    nodes, own = np.empty((len(tree), 4), np.int32), np.arange(len(tree))
    leaf = tree["is_leaf"] != 0
    nodes[:, 0], nodes[:, 1] = (np.where(leaf, own, tree[side]) for side in ("left", "right"))
    nodes[:, 2] = np.where(leaf, 0, 2 * tree["feature_idx"].astype(np.int64) + tree["missing_go_to_left"])
    nodes[:, 3] = tree["bin_threshold"]
    if tree.dtype != TREE_WITH_SETS:
        return nodes, _NO_SETS
    with_set = tree["left_bins"].any(axis=1)
    sets = np.ascontiguousarray(tree["left_bins"][with_set])
    nodes[with_set, 3] = -1 - np.arange(len(sets))
    return nodes, sets


def add_by_bins(
    bins: npt.NDArray[np.uint8], missing: int, tree: npt.NDArray[Any], raw: npt.NDArray[np.float64]
) -> None:
    """Add the values of a tree's leaves to the rows that come to them."""
    (nodes, sets), values = _packed(tree), np.ascontiguousarray(tree["value"])
    function_of("add_by_bins")(
        at(bins, _U1), *bins.shape, missing, at(nodes, _I4), at(sets, _U1), at(values, _F8), at(raw, _F8)
    )


def add_by_rows(
    rows: npt.NDArray[Any],
    nodes: npt.NDArray[np.int32],
    sets: npt.NDArray[np.uint8],
    thresholds: npt.NDArray[np.float64],
    values: npt.NDArray[np.float64],
    roots: npt.NDArray[np.int64],
    sums: npt.NDArray[np.float64],
) -> None:
    """Add the values of the leaves of all trees that rows come to, in the order of the trees.

    Tree t adds to column ``t % width`` of the sums (n, width).
    """
    abreast = np.empty(8, _I8)  # with a name, so that it lives during the call
    functions(rows.dtype).add_by_rows(
        at(rows, rows.dtype), *rows.shape, at(nodes, _I4), at(sets, _U1), at(thresholds, _F8), at(values, _F8),
        at(roots, _I8), len(roots), sums.shape[1], at(abreast, _I8), at(sums, _F8),
    )  # fmt: skip
