"""The rows of a tree that are nearest to queries.

The search descends to the leaf of a query, and then looks into those other leaves whose boxes are as near as the rows
found so far [1]_. Distances are computed in float64, in the order in which `xpulab.kernels.on_cpu.host.compare_with`
computes them. Of rows that are equally far, the first one comes first.

References
----------
.. [1] J. H. Friedman, J. L. Bentley and R. A. Finkel, "An algorithm for finding best matches in logarithmic expected
   time", ACM Transactions on Mathematical Software 3(3), 1977, pages 209 to 226.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xpulab.kernels.on_cpu.host import at, function_of
from xpulab.kernels.on_cpu.trees import Look, Tree, in_threads

__all__ = ["KINDS", "nearest_in"]

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
