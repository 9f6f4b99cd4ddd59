"""Grows one tree of gradient boosting over the rows of all ranks.

Nodes are split in the order of their gains, as in scikit-learn's ``grower.py``. For each split, the ranks add up the
histogram of the child that has fewer rows; that of the other child is the difference from the parent's. Histograms have
integers, so all ranks get the same ones, whatever the order of the rows.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.engine.engine import Task
from xpulab.kernels.on_cpu.boosting import (
    TREE,
    TREE_WITH_SETS,
    Split,
    Splitting,
    Thresholds,
    add_histogram,
    part_node,
)
from xpulab.sharing.sources import Growth

__all__ = ["Binned", "Node", "grow", "nodes_of"]

_MIN_HESSIAN = 1e-3
_FOR_THREADS = 1 << 19  # values of a node's rows from which on several threads add its histogram

_Sums = tuple[int, int, int]


@dataclass(frozen=True)
class Binned:
    """The bins of this rank's rows, in the order of rows (n_own, n_features) for sums over the columns of a row, and in
    that of columns (n_features, n_own) for splits; the thresholds, which columns have missing values, and which numbers
    in the rows are categories of the first columns.
    """

    bins: npt.NDArray[np.uint8]
    columns: npt.NDArray[np.uint8]
    thresholds: Thresholds
    missing: npt.NDArray[np.uint8]
    categories: list[npt.NDArray[np.float64]]


class Node:
    """A node of the tree, with where its rows of this rank begin and end."""

    __slots__ = (
        "allowed", "begin", "depth", "end", "groups", "histogram", "leaf", "left", "lower", "missing_left", "right",
        "split", "sums", "upper", "value",
    )  # fmt: skip

    def __init__(self, depth: int, begin: int, end: int, sums: _Sums, value: float) -> None:
        self.depth, self.begin, self.end, self.sums, self.value = depth, begin, end, sums, value
        self.leaf, self.missing_left = False, 0
        self.lower, self.upper = -np.inf, np.inf
        self.split: Split | None = None
        self.left: Node
        self.right: Node
        self.histogram: npt.NDArray[np.int64] | None = None
        self.allowed: npt.NDArray[np.int64] | None = None
        self.groups: list[int] = []

    def __lt__(self, other: Node) -> bool:
        assert self.split is not None
        assert other.split is not None
        return self.split.gain > other.split.gain


class _Grower:
    """Grows one tree.

    Parameters
    ----------
    task : Task
    binned : Binned
    growth : Growth
    numbers : numpy.ndarray of int64 of shape (n_own, 2)
        See `as_integers`.
    units : tuple of float
        What integers of gradients and second derivatives are multiplied by.
    rows, aside : numpy.ndarray of int32 of shape (n_own,)
        The rows in the order of the leaves, which is written, and memory.
    rng : numpy.random.Generator
        Draws columns for the nodes, the same on all ranks.
    pool : ThreadPoolExecutor
    """

    def __init__(
        self,
        task: Task,
        binned: Binned,
        growth: Growth,
        numbers: npt.NDArray[np.int64],
        units: tuple[float, float],
        rows: npt.NDArray[np.int32],
        aside: npt.NDArray[np.int32],
        rng: np.random.Generator,
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> None:
        self.task, self.binned, self.growth = task, binned, growth
        self.numbers, self.units, self.rows, self.aside, self.rng = numbers, units, rows, aside, rng
        self.pool, self.threads = pool, threads
        self.d = binned.bins.shape[1]
        self.splitting = Splitting(
            binned.thresholds, binned.missing, growth.constraints, growth.l2_regularization,
            growth.min_samples_leaf, *units,
        )  # fmt: skip
        self.every = np.ones(self.d, np.uint8)
        self.leaves: list[Node] = []
        self.open: list[Node] = []

    def grow(self) -> Node:
        """Grow the tree, and return its first node."""
        groups = self.growth.interactions
        histogram = self.histogram(0, len(self.rows))
        total = histogram[0].sum(axis=0).tolist()
        root = Node(0, 0, len(self.rows), (total[0], total[1], total[2]), 0.0)
        if groups is not None:
            root.groups = list(range(len(groups)))
            root.allowed = np.array(sorted(set().union(*groups)), np.int64)
        few = root.sums[2] < 2 * self.growth.min_samples_leaf or root.sums[1] * self.units[1] < _MIN_HESSIAN
        if few:
            self.end(root)
        else:
            root.histogram = histogram
            self.look(root)
        while self.open:
            self.divide(heappop(self.open))
        for leaf in self.leaves:
            leaf.value *= self.growth.learning_rate
        return root

    def histogram(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """Return the histogram of a node over the rows of all ranks."""
        binned, rows, numbers = self.binned, self.rows, self.numbers

        def add(first: int, last: int) -> npt.NDArray[np.int64]:
            sums = np.zeros((self.d, 256, 3), np.int64)
            add_histogram(binned.bins, binned.columns, rows, first, last, numbers, sums)
            return sums

        if self.threads > 1 and (end - begin) * self.d > _FOR_THREADS:
            cuts = np.linspace(begin, end, self.threads + 1).astype(int).tolist()
            parts = list(self.pool.map(add, cuts[:-1], cuts[1:]))
            sums = parts[0]
            for part in parts[1:]:
                sums += part
        else:
            sums = add(begin, end)
        if self.task.comm.size == 1:
            return sums
        return self.task.comm.allreduce(sums)

    def look(self, node: Node) -> None:
        """Look for the best split of a node, which is a leaf if there is none."""
        assert node.histogram is not None
        allowed, share = self.every, self.growth.max_features
        if node.allowed is not None or share < 1:
            names = np.arange(self.d) if node.allowed is None else node.allowed
            if share < 1:
                chosen = np.zeros(len(names), bool)
                chosen[: max(1, int(np.ceil(share * len(names))))] = True
                self.rng.shuffle(chosen)
                names = names[chosen]
            allowed = np.zeros(self.d, np.uint8)
            allowed[names] = 1
        node.split = self.splitting.find(node.histogram, node.sums, node.value, node.lower, node.upper, allowed)
        if node.split.gain <= 0:
            self.end(node)
        else:
            heappush(self.open, node)

    def end(self, node: Node) -> None:
        """Make a node a leaf."""
        node.leaf, node.histogram = True, None
        self.leaves.append(node)

    def value(self, sums: _Sums, node: Node) -> float:
        """Return the value of a child of a node."""
        gradient, hessian = sums[0] * self.units[0], sums[1] * self.units[1]
        value = -gradient / (hessian + self.growth.l2_regularization + 1e-15)
        return min(max(value, node.lower), node.upper)

    def divide(self, node: Node) -> None:
        """Split a node, and look for the splits of its children."""
        split, growth, missing = node.split, self.growth, self.binned.thresholds.missing
        assert split is not None
        middle = part_node(
            self.binned.columns[split.feature], split, missing, self.rows, node.begin, node.end, self.aside
        )
        on_left, whole = split.left, node.sums
        on_right = whole[0] - on_left[0], whole[1] - on_left[1], whole[2] - on_left[2]
        depth = node.depth + 1
        left = node.left = Node(depth, node.begin, middle, on_left, self.value(on_left, node))
        right = node.right = Node(depth, middle, node.end, on_right, self.value(on_right, node))
        if growth.interactions is not None:
            left.groups = right.groups = [i for i in node.groups if split.feature in growth.interactions[i]]
            allowed = set().union(*(growth.interactions[i] for i in left.groups))
            left.allowed = right.allowed = np.array(sorted(allowed), np.int64)
        node.missing_left = split.missing_left
        if not self.binned.missing[split.feature]:
            # Missing values of later rows go where most rows are.
            node.missing_left = int(on_left[2] > on_right[2])
        leaves = len(self.leaves) + len(self.open) + 2
        if growth.max_leaf_nodes is not None and leaves == growth.max_leaf_nodes:
            for each in (left, right, *reversed(self.open)):
                self.end(each)
            self.open.clear()
            return
        if growth.max_depth is not None and depth == growth.max_depth:
            self.end(left)
            self.end(right)
            return
        self.bound(node)
        splittable = [child.sums[2] >= 2 * growth.min_samples_leaf for child in (left, right)]
        if any(splittable):
            fewer, more = (left, right) if on_left[2] < on_right[2] else (right, left)
            assert node.histogram is not None
            fewer.histogram = self.histogram(fewer.begin, fewer.end)
            more.histogram = np.subtract(node.histogram, fewer.histogram, out=node.histogram)
        node.histogram = None
        for child, whether in zip((left, right), splittable, strict=True):
            if not whether:
                self.end(child)
        for child, whether in zip((left, right), splittable, strict=True):
            if whether:
                self.look(child)

    def bound(self, node: Node) -> None:
        """Bound the values below the children of a node, so that monotonic constraints hold."""
        assert node.split is not None
        left, right = node.left, node.right
        left.lower = right.lower = node.lower
        left.upper = right.upper = node.upper
        constraint = self.growth.constraints[node.split.feature]
        middle = (left.value + right.value) / 2
        if constraint > 0:
            left.upper = right.lower = middle
        elif constraint < 0:
            left.lower = right.upper = middle


def grow(*arguments: Any) -> tuple[Node, list[Node]]:
    """Grow a tree, with the arguments of `_Grower`; return its first node, and its leaves."""
    grower = _Grower(*arguments)
    return grower.grow(), grower.leaves


def nodes_of(root: Node, thresholds: Thresholds) -> npt.NDArray[Any]:
    """Return the nodes of a tree, each before those on its left, and these before those on its right."""
    order: list[Node] = []
    parents: list[tuple[int, str]] = []
    stack: list[tuple[Node, int, str]] = [(root, -1, "left")]
    while stack:
        node, parent, side = stack.pop()
        order.append(node)
        parents.append((parent, side))
        if not node.leaf:
            number = len(order) - 1
            stack += [(node.right, number, "right"), (node.left, number, "left")]
    tree = np.zeros(len(order), TREE_WITH_SETS if thresholds.n_categorical else TREE)
    for number, (parent, side) in enumerate(parents[1:], 1):
        tree[side][parent] = number
    tree["value"], tree["count"] = [node.value for node in order], [node.sums[2] for node in order]
    tree["depth"], tree["is_leaf"] = [node.depth for node in order], [node.leaf for node in order]
    tree["gain"] = [-1 if node.split is None else node.split.gain for node in order]
    inner = [(number, node, node.split) for number, node in enumerate(order) if not node.leaf]
    for number, node, split in inner:
        assert split is not None
        column = thresholds.columns[split.feature]
        tree["feature_idx"][number], tree["bin_threshold"][number] = split.feature, split.last_bin
        tree["missing_go_to_left"][number] = node.missing_left
        if split.left_bins is not None:
            tree["left_bins"][number] = split.left_bins
            continue
        # A split after the last bin has all missing values, and no others, on the right.
        tree["num_threshold"][number] = np.inf if split.last_bin == len(column) else column[split.last_bin]
    return tree
