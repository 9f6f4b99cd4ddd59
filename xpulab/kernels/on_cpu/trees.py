"""Rows in a k-d tree on the CPU, and the passes over pairs of near rows that density needs.

All of it is machine code of `tree_functions`. It compares in float64, in the order in which scikit-learn's trees
compute; of rows with many features, products in float32 decide the most pairs, whose errors are bounded [2]_. A pass
takes a tree whose rows ask, and a tree of rows that are compared with them. It leaves out pairs of nodes whose
boxes are too far apart, and those that can change nothing: rows that are known to have enough neighbours, and rows that
are in one set already [1]_.

References
----------
.. [1] J. L. Bentley, "Multidimensional binary search trees used for associative searching", Communications of the ACM
   18(9), 1975, pages 509 to 517; A. G. Gray and A. W. Moore, "N-body problems in statistical learning", NIPS 2000: two
   trees that are descended together.
.. [2] N. J. Higham, "Accuracy and stability of numerical algorithms", SIAM 2002, section 3.1.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from xpulab.kernels.on_cpu.host import at, function_of
from xpulab.kernels.on_cpu.host_functions import TOGETHER

__all__ = [
    "BEYOND",
    "Look",
    "Near",
    "Tree",
    "count_near",
    "in_threads",
    "joined",
    "least_listed",
    "least_near",
    "link_near",
    "roots_of",
]

BEYOND = 2**62  # a label of rows that are no cores: greater than all others
_LEAF, _WIDE = 48, 8  # rows of a leaf at most; more features than so many are wide, and boxes leave out less
_LEAST, _LARGEST = 1e-30, 1e30  # squared distances whose products float32 has room for
_STACK = 1024  # nodes, or pairs of nodes: a few for each level
_LEAVES = 256  # that one call passes over: a request to stop is seen between two calls
_PAIRS = 4096  # pairs of leaves that one call compares at most
_KINDS = ("euclidean", "manhattan", "chebyshev", "minkowski", "cosine")
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)

Number = TypeVar("Number", np.int64, np.float64)

#: Called now and then by a pass that may take long, with the number of leaves or queries that are done; it may raise.
Look = Callable[[int], None]


@dataclass(frozen=True)
class Near:
    """The rule that says which rows are near to each other.

    Attributes
    ----------
    name : {"euclidean", "manhattan", "chebyshev", "minkowski", "cosine"}
        The distance. Rows are divided by their norms for "cosine".
    power : float
        Of "minkowski".
    limit : float
        At most so much is the number that grows with the distance: the sum of squares, of absolute differences or of
        their powers, the largest difference, or 1 minus the product.
    """

    name: str
    power: float
    limit: float

    @property
    def reach(self) -> float:
        """Return the greatest distance of boxes with near rows (for directions its square), with room for rounding."""
        return 2 * self.limit + 1e-9 if self.name == "cosine" else self.limit

    def measure(self, error: float) -> npt.NDArray[np.float64]:
        """Return the rule as the machine code reads it. No whole box is near where rounding may not be monotone."""
        inside = -1.0 if self.name in ("cosine", "minkowski") else self.limit
        return np.array([_KINDS.index(self.name), self.power, self.limit, self.reach, inside, error])


@dataclass(frozen=True, eq=False)
class Tree:
    """Rows in the order of a tree's leaves.

    Attributes
    ----------
    order : numpy.ndarray of int64 of shape (n,)
        The index that each row had among the given rows.
    shape : numpy.ndarray of int64 of shape (4,)
        Numbers of rows, of levels below the root, of rows that a leaf has room for, and of features.
    leaves : numpy.ndarray of float64 of shape (n_leaves, n_features, width)
        The rows of each leaf; infinity fills it up.
    boxes : numpy.ndarray of float64 of shape (2 n_leaves, 2, n_features)
        The first of them is not used.
    middle : numpy.ndarray of float64 of shape (n_features,)
        What is subtracted from rows before they are rounded to float32.
    singles : numpy.ndarray of float32 of shape (n_leaves, 1 + n_features, TOGETHER)
        Half the squared norms of the rounded rows, and these rows. Empty for few features, and for rows too long for
        float32.
    spheres : numpy.ndarray of float32 of shape (n_leaves, n_features + 2)
        Of each leaf half the squared norm of a centre, the centre, and how far its singles are from it at most.
    """

    order: npt.NDArray[np.int64]
    shape: npt.NDArray[np.int64]
    leaves: npt.NDArray[np.float64]
    boxes: npt.NDArray[np.float64]
    middle: npt.NDArray[np.float64]
    singles: npt.NDArray[np.float32]
    spheres: npt.NDArray[np.float32]

    @classmethod
    def of(cls, rows: npt.NDArray[np.float64], middle: npt.NDArray[np.float64] | None = None) -> Tree:
        """Build a tree of rows (n, n_features), which are put into another order.

        Two trees that are compared need the same middle. By default it is that of the box of all rows.
        """
        n, d = rows.shape
        n_leaves = -(-n // (_LEAF if d <= _WIDE else TOGETHER))
        depth = max(0, n_leaves - 1).bit_length()
        width = max(4, -(-n // (1 << depth)) + 3 & ~3)
        shape = np.array([n, depth, width, d], np.int64)
        order = np.arange(n)
        leaves, boxes = np.full((1 << depth, d, width), np.inf), np.empty((2 << depth, 2, d))
        boxes[:, 0], boxes[:, 1] = np.inf, -np.inf  # near to nothing
        if n:
            function_of("plant")(
                at(rows, _FLOAT64), at(order, _INT64), at(shape, _INT64),
                at(leaves, _FLOAT64), at(boxes, _FLOAT64),
            )  # fmt: skip
        if middle is None:
            middle = (boxes[1] / 2).sum(axis=0) if n else np.zeros(d)  # halves, which cannot overflow
        return cls(order, shape, leaves, boxes, middle, *_singles(leaves, middle))

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def n_leaves(self) -> int:
        """Number of leaves, which is a power of 2."""
        return len(self.leaves)

    @property
    def nbytes(self) -> int:
        """Number of bytes in memory."""
        return self.order.nbytes + self.leaves.nbytes + self.boxes.nbytes + self.singles.nbytes

    @cached_property
    def largest(self) -> float:
        """The largest squared norm of a row of singles."""
        halves = self.singles[:, 0]
        return 2 * float(halves.max(initial=0.0, where=np.isfinite(halves)))

    def by_node(self, values: npt.NDArray[Number], combined: np.ufunc) -> npt.NDArray[Number]:
        """Combine the values of the rows (n,) over the rows of each node; the result has shape (2 n_leaves,)."""
        first = len(self) * np.arange(self.n_leaves) >> int(self.shape[1])
        levels: list[npt.NDArray[Number]] = [combined.reduceat(values, first)]
        while len(levels[-1]) > 1:
            levels.append(combined(levels[-1][0::2], levels[-1][1::2]))
        return np.concatenate([levels[-1][:1], *levels[::-1]])


def _singles(
    leaves: npt.NDArray[np.float64], middle: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return `Tree.singles` and `Tree.spheres` for the leaves of a tree."""
    n_leaves, d, _ = leaves.shape
    none = np.empty((0, 1 + d, TOGETHER), np.float32), np.empty((0, d + 2), np.float32)
    if d <= _WIDE:
        return none
    singles, spheres = _aligned((n_leaves, 1 + d, TOGETHER)), np.zeros((n_leaves, d + 2), np.float32)
    singles[:, 0] = np.inf
    for single, sphere, leaf in zip(singles, spheres, leaves, strict=True):
        there = int(np.isfinite(leaf[0]).sum())  # infinity fills up a leaf
        if not there:
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            single[1:, :there] = leaf[:, :there] - middle[:, None]
            rows = single[1:, :there].astype(np.float64)
            squares = np.square(rows).sum(axis=0)
            sphere[1:-1] = rows.mean(axis=1)
            centre = sphere[1:-1].astype(np.float64)
            radius = np.sqrt(np.square(rows - centre[:, None]).sum(axis=0).max())
        if not squares.max() <= _LARGEST:
            return none
        single[0, :there] = squares / 2
        sphere[0], sphere[-1] = np.square(centre).sum() / 2, radius * (1 + 1e-6)  # not below, once it is rounded
    return singles, spheres


def _aligned(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return zeros that begin at a cache line, so that no vector of them lies in two lines."""
    size, line = math.prod(shape), 64
    memory = np.zeros(4 * size + line, np.uint8)
    first = -memory.ctypes.data % line
    return memory[first : first + 4 * size].view(np.float32).reshape(shape)


class _Arguments:
    """The first arguments of a pass: both trees and the metric; their memory lives as long as this object."""

    def __init__(self, tree: Tree, other: Tree, near: Near) -> None:
        error = _error(tree, other, near)
        self.in_singles = np.isfinite(error) and error <= near.limit / 16
        self._shapes = [np.append(one.shape, self.in_singles) for one in (tree, other)]
        self._measure = near.measure(error)
        self.addresses = (
            at(tree.leaves, _FLOAT64), at(tree.boxes, _FLOAT64), at(tree.singles, _FLOAT32),
            at(self._shapes[0], _INT64), at(other.leaves, _FLOAT64), at(other.boxes, _FLOAT64),
            at(other.singles, _FLOAT32), at(other.spheres, _FLOAT32), at(self._shapes[1], _INT64),
            at(self._measure, _FLOAT64),
        )  # fmt: skip


def _error(tree: Tree, other: Tree, near: Near) -> float:
    """Bound the error of squared distances about the limit that singles give; infinity if they cannot be used.

    With u, the unit roundoff, and r, the largest norm, the sum of a score and its d products has an error of at most
    1.5 (d + 1) u r^2 [2]_, and a distance has twice that of its score. Rounded rows are up to 2 u r closer to each
    other, or farther apart. What is rounded besides takes some more u r^2 and u limit.
    """
    in_range = _LEAST <= near.limit <= _LARGEST
    if near.name != "euclidean" or not in_range or not tree.singles.size or not other.singles.size:
        return np.inf
    assert np.array_equal(tree.middle, other.middle)
    square, unit = max(tree.largest, other.largest), float(np.finfo(np.float32).eps) / 2
    sums = (3 * int(tree.shape[3]) + 16) * square
    return unit * (sums + 8 * float(np.sqrt(square * near.limit)) + 8 * near.limit)


def count_near(
    tree: Tree,
    other: Tree,
    near: Near,
    weights: npt.NDArray[np.float64] | None,
    enough: float,
    totals: npt.NDArray[np.float64],
    look: Look,
    lists: npt.NDArray[np.int32] | None = None,
    offset: int = 0,
) -> bool:
    """Add to the total of each row of a tree the weights of those rows of another that are near.

    Parameters
    ----------
    tree, other : Tree
    near : Near
    weights : numpy.ndarray of float64 of shape (len(other),), optional
        In the order of the other tree; 1 by default.
    enough : float
        Rows whose total has come so far are not looked at any further. Infinity: all totals are complete.
    totals : numpy.ndarray of float64 of shape (len(tree),)
        In the order of the tree.
    look : callable
    lists : numpy.ndarray of int32 of shape (len(tree), room), optional
        Without weights, each row's near rows are added to what its total says are there already, up to `room` in all.
    offset : int
        Added to the indices of the other tree's rows in the lists.

    Returns
    -------
    bool
        Whether the lists are written, which they are where singles are used.
    """
    if not len(tree) or not len(other):
        return True
    arguments = _Arguments(tree, other, near)
    weights_or_none = np.empty(1) if weights is None else weights
    listed = np.empty((1, 0), np.int32) if lists is None else lists

    def count(first: int, last: int, room: int, stack: int) -> None:
        function_of("count_near")(
            *arguments.addresses, at(weights_or_none, _FLOAT64), weights is not None, enough, first, last,
            at(totals, _FLOAT64), at(listed, _INT32), listed.shape[1], offset, room, stack,
        )  # fmt: skip

    _by_leaves(tree, other, count, look)
    return arguments.in_singles


def least_listed(
    lists: npt.NDArray[np.int32], counts: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the least label of the rows that each of several rows (m,) has in its list (m, room); else `BEYOND`."""
    there = np.arange(lists.shape[1]) < counts[:, None]
    return np.where(there, labels[np.where(there, lists, 0)], BEYOND).min(axis=1, initial=BEYOND)


def least_near(
    tree: Tree,
    other: Tree,
    near: Near,
    labels: npt.NDArray[np.int64],
    cores: npt.NDArray[np.int64],
    best: npt.NDArray[np.int64],
    look: Look,
) -> None:
    """Lower the value of each row of a tree that is no core to the least label of the other tree's rows that are near.

    Parameters
    ----------
    tree, other : Tree
    near : Near
    labels : numpy.ndarray of int64 of shape (len(other),)
        `BEYOND` for rows that are no cores.
    cores : numpy.ndarray of int64 of shape (len(tree),)
        At least 0 for cores, whose values stay.
    best : numpy.ndarray of int64 of shape (len(tree),)
    look : callable
    """
    if not len(tree) or not len(other):
        return
    arguments, least = _Arguments(tree, other, near), other.by_node(labels, np.minimum)

    def lower(first: int, last: int, room: int, stack: int) -> None:
        function_of("least_near")(
            *arguments.addresses, at(labels, _INT64), at(least, _INT64), first, last, at(cores, _INT64),
            at(best, _INT64), room, stack,
        )  # fmt: skip

    _by_leaves(tree, other, lower, look)


def _by_leaves(tree: Tree, other: Tree, call: Callable[[int, int, int, int], None], look: Look) -> None:
    """Call a function for some leaves at a time, with memory of its own, on all cores of this process."""

    def call_from(first: int) -> None:
        room, stack = np.empty(int(other.shape[2])), np.empty(_STACK, np.int64)
        last = min(first + _LEAVES, tree.n_leaves)
        call(first, last, at(room, _FLOAT64), at(stack, _INT64))

    in_threads(range(0, tree.n_leaves, _LEAVES), call_from, look)


def in_threads(starts: range, call_from: Callable[[int], None], look: Look) -> None:
    """Call a function, which is machine code for the most part, for each start, on all cores of this process."""
    cores = len(os.sched_getaffinity(0))
    if cores == 1 or len(starts) == 1:
        for first in starts:
            look(first)
            call_from(first)
        return
    with ThreadPoolExecutor(cores, "xpulab-tree") as pool:
        for part in range(0, len(starts), 4 * cores):
            look(starts[part])
            list(pool.map(call_from, starts[part : part + 4 * cores]))


def link_near(tree: Tree, other: Tree, near: Near, parents: npt.NDArray[np.int64], look: Callable[[], None]) -> None:
    """Make one set of the sets of any two cores that are near to each other.

    Parameters
    ----------
    tree, other : Tree
        One and the same, or two.
    near : Near
    parents : numpy.ndarray of int64
        Of the rows of the tree, and then of those of the other if it is another. The parent of a root is its own index,
        and that of a row that is no core is -1.
    look : callable
    """
    if not len(tree) or not len(other):
        return
    arguments, offset = _Arguments(tree, other, near), 0 if tree is other else len(tree)
    room, stack = np.empty(int(other.shape[2])), np.empty(_STACK, np.int64)
    sets = tree.by_node(np.where(parents[: len(tree)] < 0, -2, -1), np.maximum)
    others = sets if tree is other else other.by_node(np.where(parents[offset:] < 0, -2, -1), np.maximum)
    stack[:2], top = 1, 2
    while top:
        look()
        top = function_of("link_near")(
            *arguments.addresses, offset, at(parents, _INT64), at(sets, _INT64), at(others, _INT64), top, _PAIRS,
            at(room, _FLOAT64), at(stack, _INT64),
        )  # fmt: skip


def roots_of(parents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Replace, in place, each row's parent by the first row of its set; -1 stays for rows that are in no set."""
    function_of("flatten")(at(parents, _INT64), len(parents))
    return parents


def joined(pairs: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """Join the two numbers of each pair (m, 2) into one set; return the least number of each number's set, up to n."""
    parents = np.arange(n)
    function_of("join")(at(np.ascontiguousarray(pairs), _INT64), len(pairs), at(parents, _INT64))
    return roots_of(parents)
