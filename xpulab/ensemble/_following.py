"""The base class of estimators with trees, which the engines keep, and follow for the rows of predictions."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from xpulab._sklearn import _num_samples
from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.proxy import Proxy
from xpulab.estimator.sending import Result
from xpulab.scanning import scanned
from xpulab.sharing.sources import SharedArray

__all__ = ["TreesProxy", "few_here"]

_MOST_HERE = 20_000  # largest number of rows times trees for which this process predicts, because sending takes longer


def few_here(X: Any, n_trees: int) -> bool:
    """Return whether X are so few rows of this process that it follows the trees itself."""
    here = not isinstance(X, ShardedArray) and scanned(X) is None
    return bool(here and _num_samples(X) * n_trees <= _MOST_HERE)


class TreesProxy(Proxy):
    """Base class of estimators with trees. Among the bases, it comes before scikit-learn's class.

    The first prediction for many rows sends the trees to the engines, which keep them for further predictions.
    """

    #: Attributes that no copy has: a copy sends its trees again if needed.
    _passing: ClassVar[tuple[str, ...]] = ("_index",)
    _own: ClassVar[tuple[str, ...]] = (*Proxy._own, "_index")

    estimators_: list[Any]
    _index: ShardedArray | None = None

    def _followed(self, cluster: Ranks, method: str, X: Any, width: int) -> npt.NDArray[np.float64]:
        """Return the means over the trees of the values, `width` each, of the leaves that rows come to."""
        result = Result(width, np.float64)
        self._ask(cluster, method, "forest.predict", X, result=result, send_more=self._sending(cluster))
        found: npt.NDArray[np.float64] = result.value
        return found

    def _sending(self, cluster: Ranks) -> Any:
        """Return the function that sends the trees with a task, unless the engines have them."""

        def forget() -> None:  # perhaps only some of the engines have the trees
            self._index = None

        def send(outgoing: Outgoing) -> dict[str, Any]:
            if self._index is not None and self._index.is_on(cluster):
                return {"forest": self._index.id, "sent": None}
            sent = self._sent(outgoing)
            n = sent["nodes"].shape[0]
            outgoing.after_error(forget)
            self._index = cluster.made_handle((n, 1), np.dtype(np.float64), [0] * cluster.size + [n])
            return {"forest": self._index.id, "sent": sent}

        return send

    def _sent(self, outgoing: Outgoing) -> dict[str, SharedArray]:
        """Send the trees; return where they are, as the engines take them."""
        nodes, roots, leaves = self._packed()
        return {"nodes": outgoing.send(nodes), "roots": outgoing.send(roots), "values": outgoing.send(leaves)}

    def _leaf_values(self, number: int, leaves: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        """Return the values (n_leaves, width) of some nodes of a tree."""
        values: npt.NDArray[np.float64] = self.estimators_[number].tree_.value[leaves].reshape(len(leaves), -1)
        return values

    def _columns_of(self, number: int) -> npt.NDArray[np.intp] | None:
        """Return the columns of a tree; None for all."""
        return None

    def _packed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return nodes, roots, and the values of the leaves, as `kernels.on_cpu.forests.add_values` takes them."""
        trees = [tree.tree_ for tree in self.estimators_]
        roots = np.cumsum([0, *(tree.node_count for tree in trees)])
        nodes = np.empty((roots[-1], 4), np.int32)
        values: list[np.ndarray] = []
        first_leaf = 0
        for number, (tree, root) in enumerate(zip(trees, roots[:-1], strict=True)):
            given, part = tree.__getstate__()["nodes"], nodes[root : root + tree.node_count]
            columns = self._columns_of(number)
            feature = given["feature"] if columns is None else columns[np.maximum(given["feature"], 0)]
            part[:, 0], part[:, 1] = given["left_child"] + root, given["right_child"] + root
            part[:, 2] = 2 * feature + given["missing_go_to_left"]
            part[:, 3] = _rounded_down(given["threshold"]).view(np.int32)
            leaves = np.flatnonzero(part[:, 0] < root)
            part[leaves, 0] = part[leaves, 1] = leaves + root
            part[leaves, 2], part[leaves, 3] = 0, first_leaf + np.arange(len(leaves))
            values.append(self._leaf_values(number, leaves))
            first_leaf += len(leaves)
        return nodes, roots[:-1], np.concatenate(values)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what no copy has."""
        return {name: value for name, value in super().__getstate__().items() if name not in self._passing}


def _rounded_down(thresholds: np.ndarray) -> np.ndarray:
    """Return the largest float32 numbers that are not above the thresholds.

    A float32 value is above the result exactly if it is above the threshold, so rows take the same way in the tree.
    """
    found = thresholds.astype(np.float32)
    found[found > thresholds] = np.nextafter(found[found > thresholds], np.float32(-np.inf))
    return found
