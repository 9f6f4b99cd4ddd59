"""The rows of a tree that are nearest to queries, or to rows of other sets.

The search descends to the leaf of a query, and then looks into those other leaves whose boxes are as near as the rows
found so far [1]_. Distances are computed in float64, in the order in which `xpulab.kernels.on_cpu.host.compare_with`
computes them. Of rows that are equally far, the first one comes first.

References
----------
.. [1] J. H. Friedman, J. L. Bentley and R. A. Finkel, "An algorithm for finding best matches in logarithmic expected
   time", ACM Transactions on Mathematical Software 3(3), 1977, pages 209 to 226.
.. [2] W. B. March, P. Ram and A. G. Gray, "Fast Euclidean minimum spanning tree: algorithm, analysis, and
   applications", KDD 2010, pages 603 to 612.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xpulab.kernels.on_cpu.host import at, function_of
from xpulab.kernels.on_cpu.trees import Look, Tree, in_threads, roots_of

__all__ = ["KINDS", "Reaches", "hung_up", "nearest_in", "unite_in_turn"]

#: Kinds of distances: sums of squares, of absolute differences, and the largest difference.
KINDS = ("squares", "absolute", "largest")
_QUERIES = 4096  # that one call looks for: a request to stop is seen between two calls
_STACK = 128  # open nodes: one for each level
_FLOAT64, _INT64 = np.dtype(np.float64), np.dtype(np.int64)


def nearest_in(
    tree: Tree,
    queries: npt.NDArray[np.float64],
    visits: npt.NDArray[np.int64],
    k: int,
    kind: str,
    look: Look,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Find the k nearest rows to each query.

    Parameters
    ----------
    tree : Tree
        With at least k rows.
    queries : numpy.ndarray of float64 of shape (m, n_features)
    visits : numpy.ndarray of int64 of shape (m,)
        The queries in the order in which they are looked for: neighbours after each other use the same cache lines.
    k : int
        At least 1.
    kind : {"squares", "absolute", "largest"}
    look : callable
        Called now and then with the number of queries that are done; it may raise.

    Returns
    -------
    compared : numpy.ndarray of float64 of shape (m, k)
        The distances, or their squares, in ascending order.
    places : numpy.ndarray of int64 of shape (m, k)
        The index that each row had among the rows of which the tree was made.
    """
    best, places = np.full((len(queries), k), np.inf), np.full((len(queries), k), len(tree))

    def search(first: int) -> None:
        stack, bounds, found = np.empty(_STACK, np.int64), np.empty(_STACK), np.empty(4 * int(tree.shape[2]))
        function_of("nearest_in_tree")(
            at(tree.leaves, _FLOAT64), at(tree.boxes, _FLOAT64), at(tree.shape, _INT64), at(tree.order, _INT64),
            at(queries, _FLOAT64), KINDS.index(kind), at(visits, _INT64), first, min(first + _QUERIES, len(visits)), k,
            at(best, _FLOAT64), at(places, _INT64), at(stack, _INT64), at(bounds, _FLOAT64), at(found, _FLOAT64),
        )  # fmt: skip

    if len(queries):
        in_threads(range(0, len(visits), _QUERIES), search, look)
    return best, places


@dataclass(frozen=True)
class Reaches:
    """The mutual reachability of the rows of a tree: of two rows, the largest of their distance and of both cores [2]_.

    Attributes
    ----------
    tree : Tree
    rows : numpy.ndarray of float64 of shape (n, n_features)
        In the order of the tree.
    kind : {"squares", "absolute", "largest"}
        What is compared.
    scale : float
        Distances are multiplied by it.
    cores, least_cores : numpy.ndarray of float64
        Of each row, in the order of the tree, and the least of each node.
    least_numbers : numpy.ndarray of int64
        The least number of a row of each node.
    """

    tree: Tree
    rows: npt.NDArray[np.float64]
    kind: str
    scale: float
    cores: npt.NDArray[np.float64]
    least_cores: npt.NDArray[np.float64]
    least_numbers: npt.NDArray[np.int64]

    def look_outside(
        self,
        visits: npt.NDArray[np.int64],
        sets: npt.NDArray[np.int64],
        limits: npt.NDArray[np.float64],
        reaches: npt.NDArray[np.float64],
        partners: npt.NDArray[np.int64],
        look: Look,
    ) -> None:
        """Find the least reach of rows to a row of another set, unless another row of their set has a lesser one.

        Parameters
        ----------
        visits : numpy.ndarray of int64
            Rows, by their places in the tree; those that may be near to other sets had better come first.
        sets : numpy.ndarray of int64 of shape (n,)
            The set of each row.
        limits : numpy.ndarray of float64 of shape (n_sets,)
            Of each set the least reach that is known; it becomes less.
        reaches : numpy.ndarray of float64 of shape (n,)
            A lower bound of the reach of each row, or, with a partner, the reach.
        partners : numpy.ndarray of int64 of shape (n,)
            The row of another set, of several the one with the least number; -1 without one.
        look : callable
            Called now and then with the number of rows that are done; it may raise.
        """
        tree = self.tree
        low, high = tree.by_node(sets, np.minimum), tree.by_node(sets, np.maximum)
        of_nodes = np.where(low == high, low, -1)

        def search(first: int) -> None:
            stack, bounds, found = np.empty(_STACK, np.int64), np.empty(_STACK), np.empty(4 * int(tree.shape[2]))
            function_of("nearest_outside")(
                at(tree.leaves, _FLOAT64), at(tree.boxes, _FLOAT64), at(tree.shape, _INT64), at(self.rows, _FLOAT64),
                at(tree.order, _INT64), at(self.least_numbers, _INT64), KINDS.index(self.kind), self.scale,
                at(visits, _INT64), first, min(first + _QUERIES, len(visits)), at(self.cores, _FLOAT64),
                at(self.least_cores, _FLOAT64), at(sets, _INT64), at(of_nodes, _INT64), at(limits, _FLOAT64),
                at(reaches, _FLOAT64), at(partners, _INT64), at(stack, _INT64), at(bounds, _FLOAT64),
                at(found, _FLOAT64),
            )  # fmt: skip

        if len(visits):
            in_threads(range(0, len(visits), _QUERIES), search, look)


def unite_in_turn(
    order: npt.NDArray[np.int64], first: npt.NDArray[np.int64], second: npt.NDArray[np.int64], n: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Join n sets by edges, in an order; return which edges joined two sets, and the set of each, counted from 0."""
    parents, taken = np.arange(n), np.empty(len(order), np.int64)
    function_of("unite_in_turn")(
        at(order, _INT64), at(first, _INT64), at(second, _INT64), len(order), at(parents, _INT64), at(taken, _INT64)
    )
    _, numbers = np.unique(roots_of(parents), return_inverse=True)
    return taken.astype(bool), numbers


def hung_up(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return, for each edge of a tree of the rows 0 to n, whether its first row is the one nearer to row 0."""
    n = len(first) + 1
    ends, others = np.concatenate([first, second]), np.concatenate([second, first])
    order = np.argsort(ends, kind="stable")
    starts, others = np.searchsorted(ends[order], np.arange(n + 1)), others[order]
    parents, stack = np.empty(n, np.int64), np.empty(n, np.int64)
    function_of("hang_up")(at(starts, _INT64), at(others, _INT64), n, at(parents, _INT64), at(stack, _INT64))
    nearer: npt.NDArray[np.bool_] = parents[second] == first
    return nearer
