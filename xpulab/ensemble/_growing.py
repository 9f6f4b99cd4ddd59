"""The code that both forests share: the engines grow the trees, which become scikit-learn's trees, and predict."""

from __future__ import annotations

import inspect
import itertools
import numbers
import warnings
from typing import Any, ClassVar

import numpy as np
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import NODE_DTYPE, Tree, _forest, _num_samples
from xpulab.checks import ONE_AT_A_TIME, type_of_target
from xpulab.data import Outgoing, ShardedArray, mapped
from xpulab.deploy.cluster import current_cluster
from xpulab.deploy.tasks.answers import Answer
from xpulab.estimator.proxy import Proxy, Result
from xpulab.estimator.rows import gathered_targets
from xpulab.estimator.scoring import ScoredHere
from xpulab.sharing.memory import SharedBlock

__all__ = ["ForestProxy"]

_MOST_HERE = 20_000  # largest number of rows times trees for which this process predicts, because sending takes longer
_ANY_DEPTH = 2**31 - 1
#: Whether this release of scikit-learn draws the rows of a tree in proportion to their weights.
_WEIGHTS_DRAW = "sample_weight" in inspect.signature(_forest._generate_sample_indices).parameters


class ForestProxy(ScoredHere, Proxy):
    """Base class of forests. Among the bases, it comes before scikit-learn's class.

    The first prediction for many rows sends the trees to the engines, which keep them for further predictions.
    """

    _rules: ClassVar[Any] = {"dtype": np.float32, "ensure_all_finite": "allow-nan"}
    #: In the hosts' memory: two copies of the rows in float32, the bin of each value, and the state of a growing tree.
    _work_memory: ClassVar[tuple[float, float]] = (96.0, 0.25)

    n_estimators: int
    criterion: str
    max_depth: int | None
    min_samples_split: float
    min_samples_leaf: float
    min_weight_fraction_leaf: float
    max_features: Any
    max_leaf_nodes: int | None
    min_impurity_decrease: float
    bootstrap: bool
    oob_score: Any
    random_state: Any
    warm_start: bool
    ccp_alpha: float
    max_samples: Any
    monotonic_cst: Any
    estimators_: list[Any]
    n_outputs_: int
    n_features_in_: int
    _index: ShardedArray | None = None
    #: During a fit: for each row the sum of the predictions by trees that were grown without it, and the number of
    #: these trees; and the means that were subtracted from the targets.
    _oob: Any = None
    #: The least and the largest target of each output, of all trees: means are rounded, and must not leave this range.
    _range: Any = None

    def _grow(self, X: Any, y: Any, sample_weight: Any) -> Any:
        """Fit the forest, in the steps of scikit-learn's `fit`."""
        cluster = current_cluster()
        self._require_computed()
        X = self._checked(cluster, X, reset=True)
        y = gathered_targets(self, cluster, X, y)
        weights: Any = self._weights(sample_weight, X, dtype=np.float64)
        if isinstance(weights, ShardedArray):  # a rank has passed the weights of its own rows
            weights = weights.gather()
        weights = None if weights is None else weights.astype(np.float64, copy=False)
        y, classes, weights = self._read_targets(y, weights)
        n = X.shape[0]
        self._n_samples, self._sample_weight = n, weights
        draws = self._draws(n, weights)
        self._validate_estimator()
        if not self.warm_start and hasattr(self, "estimators_"):
            del self.estimators_  # the trees of an earlier fit do not belong to the new targets
        before = getattr(self, "estimators_", [])
        random_state = check_random_state(self.random_state)
        there, more = len(before), self.n_estimators - len(before)
        if more < 0:
            raise ValueError(
                f"n_estimators={self.n_estimators} must be larger or equal to len(estimators_)={there} when "
                "warm_start==True"
            )
        if more == 0:
            warnings.warn(
                "Warm-start fitting without increasing n_estimators does not fit new trees.", UserWarning, stacklevel=3
            )
            if self.oob_score and not hasattr(self, "oob_score_"):
                self._score_oob(X, y)
            return self._decapsulated()
        if there:
            random_state.randint(np.iinfo(np.int32).max, size=there)
        trees = [self._make_estimator(append=False, random_state=random_state) for _ in range(more)]
        if self.oob_score:
            self._require_oob(y)
        # The ranks can compute these predictions only if all trees are new, and none is pruned afterwards.
        together = bool(self.oob_score) and not there and self.ccp_alpha == 0
        self._range = _joined(self._range if there else None, y)
        middle = np.zeros(y.shape[1])
        if self.criterion in ("squared_error", "friedman_mse"):
            middle = y.mean(axis=0)

        def send(outgoing: Outgoing) -> dict[str, Any]:
            return {"y": outgoing.send(y - middle), "shares": None if weights is None else outgoing.send(weights)}

        growth = self._absolute(n)
        self._index = None
        with self._fitting(X):
            answer = self._ask(
                cluster,
                "fit",
                "forest.grow",
                X,
                more=send,
                classes=classes,
                seeds=[int(tree.random_state) for tree in trees],
                growth=growth,
                draws=draws,
                by_weight=_WEIGHTS_DRAW,
                balanced=getattr(self, "class_weight", None) == "balanced_subsample" and self.bootstrap,
                oob=together,
                then=lambda answer: self._take(answer, trees, classes, middle),
            )
            for tree in trees:
                tree.max_features_ = growth["max_features"]
            self.estimators_ = [*before, *trees]
            if together:
                self._oob = answer.results[0]["oob"], answer.results[0]["times"], middle
            if self.oob_score:
                self._score_oob(X, y)
        return self._decapsulated()

    def _decapsulated(self) -> Any:
        return self

    def _require_computed(self) -> None:
        """Raise ValueError for parameters that the engines do not support."""
        if not isinstance(self.criterion, str):
            raise ValueError(f"criterion={self.criterion!r} was given; expected the name of a criterion")
        if self.criterion == "absolute_error":
            raise ValueError(
                "criterion='absolute_error' was given; the engines compute 'squared_error' and 'poisson', "
                "because histograms do not give medians; use scikit-learn's RandomForestRegressor"
            )
        if self.monotonic_cst is not None:
            raise ValueError(
                "monotonic_cst was given, which the engines do not support; leave it out, or use scikit-learn's "
                f"{type(self).__name__}"
            )

    def _read_targets(
        self, y: np.ndarray, weights: np.ndarray | None
    ) -> tuple[np.ndarray, list[int], np.ndarray | None]:
        """Return the targets, the number of classes of each output, and the weights of rows times those of classes.

        The targets are float64 of shape (n_samples, n_outputs): numbers, or indices of classes.
        """
        if y.ndim == 2 and y.shape[1] == 1:
            warnings.warn(
                "A column-vector y was passed when a 1d array was expected. Please change the shape of y to "
                "(n_samples,), for example using ravel().",
                DataConversionWarning,
                stacklevel=4,
            )
        y = y.reshape(len(y), -1)
        if self.criterion == "poisson":
            if (y < 0).any():
                raise ValueError("Some value(s) of y are negative which is not allowed for Poisson regression.")
            if y.sum() <= 0:
                raise ValueError("Sum of y is not strictly positive which is necessary for Poisson regression.")
        self.n_outputs_ = y.shape[1]
        read: Any = self._validate_y_class_weight
        more = (weights,) if len(inspect.signature(read).parameters) == 2 else ()
        with ONE_AT_A_TIME:
            y, of_classes = read(y, *more)
        if of_classes is not None:
            weights = of_classes if weights is None else weights * of_classes
        classes = [int(n) for n in getattr(self, "n_classes_", [0] * self.n_outputs_)]
        return np.ascontiguousarray(y, np.float64), classes, weights

    def _draws(self, n: int, weights: np.ndarray | None) -> int | None:
        """Return the number of rows that are drawn for a tree; None without a bootstrap."""
        if not self.bootstrap:
            if self.max_samples is not None:
                raise ValueError(
                    "`max_sample` cannot be set if `bootstrap=False`. Either switch to `bootstrap=True` or set "
                    "`max_sample=None`."
                )
            if self.oob_score:
                raise ValueError("Out of bag estimation only available if bootstrap=True")
            self._n_samples_bootstrap = None
            return None
        arguments = (weights,) if _WEIGHTS_DRAW else ()
        self._n_samples_bootstrap = int(_forest._get_n_samples_bootstrap(n, self.max_samples, *arguments))
        return self._n_samples_bootstrap

    def _absolute(self, n: int) -> dict[str, Any]:
        """Return the parameters of trees, with shares as numbers of rows and columns, as in scikit-learn's trees."""
        d = self.n_features_in_
        leaf = self.min_samples_leaf
        leaf = leaf if isinstance(leaf, numbers.Integral) else int(np.ceil(leaf * n))
        split = self.min_samples_split
        split = split if isinstance(split, numbers.Integral) else max(2, int(np.ceil(split * n)))
        features = {"sqrt": max(1, int(np.sqrt(d))), "log2": max(1, int(np.log2(d))), None: d}.get(self.max_features)
        if features is None:
            whole = isinstance(self.max_features, numbers.Integral)
            features = self.max_features if whole else max(1, int(self.max_features * d))
        return {
            "criterion": self.criterion,
            "max_features": int(features),
            "min_samples_split": max(int(split), 2 * int(leaf)),
            "min_samples_leaf": int(leaf),
            "min_weight_fraction_leaf": float(self.min_weight_fraction_leaf),
            "max_depth": _ANY_DEPTH if self.max_depth is None else int(self.max_depth),
            "min_impurity_decrease": float(self.min_impurity_decrease),
            "max_leaf_nodes": -1 if self.max_leaf_nodes is None else int(self.max_leaf_nodes),
        }

    def _take(self, answer: Answer, trees: list[Any], classes: list[int], middle: np.ndarray) -> bool:
        """Copy the trees that the ranks have grown into scikit-learn's trees."""
        grown = [self._trees_of(result, classes) for result in answer.results]
        for number, tree in enumerate(trees):
            nodes, values, depth = grown[number % len(grown)][number // len(grown)]
            if not any(classes):
                values = np.clip(values + middle[None, :, None], *self._range[:, None, :, None])
            tree.n_features_in_, tree.n_outputs_ = self.n_features_in_, self.n_outputs_
            widths = [max(1, n) for n in classes]
            if any(classes):
                # The trees of a forest predict numbers of classes.
                each = [np.arange(n, dtype=np.float64) for n in classes]
                several = len(classes) > 1
                tree.classes_, tree.n_classes_ = (each, np.array(classes)) if several else (each[0], classes[0])
            tree.tree_ = Tree(self.n_features_in_, np.array(widths, np.intp), self.n_outputs_)
            state = {"max_depth": depth, "node_count": len(nodes), "nodes": nodes, "values": values}
            tree.tree_.__setstate__(state)
            tree._prune_tree()
        return True

    def _trees_of(self, result: dict[str, Any], classes: list[int]) -> list[tuple[np.ndarray, np.ndarray, int]]:
        counts = result["counts"]
        shape = (sum(counts), self.n_outputs_, max(1, *classes))
        found = []
        every, all_values = _array_of(result["nodes"], NODE_DTYPE), _array_of(result["values"], np.float64)
        all_values = all_values.reshape(shape)
        for (first, last), depth in zip(itertools.pairwise([0, *np.cumsum(counts)]), result["depths"], strict=True):
            found.append((every[first:last], all_values[first:last], depth))
        return found

    def _require_oob(self, y: np.ndarray) -> None:
        kind = type_of_target(y)
        if kind == "unknown" or (hasattr(self, "n_classes_") and kind == "multiclass-multioutput"):
            raise ValueError(
                f"The type of target cannot be used to compute OOB estimates. Got {kind} while only the following are "
                "supported: continuous, continuous-multioutput, binary, multiclass, multilabel-indicator."
            )

    def _score_oob(self, X: Any, y: np.ndarray) -> None:
        """Set the predictions of rows by the trees that were grown without them, and the score of these predictions."""
        scoring = {"scoring_function": self.oob_score} if callable(self.oob_score) else {}
        if self._oob is None:
            X = np.asarray(X.gather() if isinstance(X, ShardedArray) else X, np.float32)
        try:
            self._set_oob_score_and_attributes(X, y, **scoring)
        finally:
            self._oob = None

    def _set_oob_score_and_attributes(self, X: Any, y: np.ndarray, scoring_function: Any = None) -> None:
        if self._oob is None:
            super()._set_oob_score_and_attributes(X, y, scoring_function)
            self._correct_oob()
            return
        sums, times, middle = self._oob
        if (times == 0).any():
            warnings.warn(
                "Some inputs do not have OOB scores. This probably means too few trees were used to compute any "
                "reliable OOB estimates.",
                UserWarning,
                stacklevel=5,
            )
        means = sums / np.maximum(times, 1)[:, None, None]
        means += (times > 0)[:, None, None] * middle[:, None]
        means[times > 0] = self._in_range(means[times > 0])
        self._take_oob(means, y, scoring_function)

    def _correct_oob(self) -> None:
        """Correct what scikit-learn has computed from the trees, as `_in_range` does."""

    def _take_oob(self, means: np.ndarray, y: np.ndarray, scoring_function: Any) -> None:
        """Set the attributes for `oob_score` from the mean predictions, of shape (n_samples, n_outputs, n_values).

        `n_values` is the largest number of classes of an output; 1 for numbers.
        """
        raise NotImplementedError

    def _means(self, method: str, X: Any) -> np.ndarray | None:
        """Return the means over the trees of the leaves' values, as for `_take_oob`; None if this process predicts."""
        check_is_fitted(self)
        here = not isinstance(X, ShardedArray) and mapped(X) is None
        if here and _num_samples(X) * len(self.estimators_) <= _MOST_HERE:
            return None
        cluster = self._cluster()
        X = self._checked(cluster, X, reset=False)
        values = self.estimators_[0].tree_.value
        result = Result(int(np.prod(values.shape[1:])), np.float64)
        sends = False

        def send(outgoing: Outgoing) -> dict[str, Any]:
            nonlocal sends
            sends = self._index is None or not self._index.is_on(cluster)
            sent = None
            if sends:
                nodes, roots, leaves = self._packed()
                sent = {
                    "nodes": outgoing.send(nodes), "roots": outgoing.send(roots), "values": outgoing.send(leaves)
                }  # fmt: skip
                bounds = [0] * cluster.size + [len(nodes)]
                self._index = cluster.made_handle((len(nodes), 1), np.dtype(np.float64), bounds)
            assert self._index is not None
            return {"forest": self._index.id, "sent": sent}

        try:
            self._ask(cluster, method, "forest.predict", X, result=result, more=send)
            sends = False
        finally:
            if sends:
                self._index = None  # the call failed: perhaps only some of the engines have the trees
        means: np.ndarray = result.value.reshape(len(result.value), *values.shape[1:])
        return self._in_range(means)

    def _in_range(self, means: np.ndarray) -> np.ndarray:
        """Return predictions of numbers, of shape (n_samples, n_outputs, 1), within the range of the targets."""
        return means

    def _packed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return nodes, roots, and the values of the leaves, as `kernels.on_cpu.forests.add_values` takes them."""
        trees = [tree.tree_ for tree in self.estimators_]
        roots = np.cumsum([0, *(tree.node_count for tree in trees)])
        first_leaves = np.cumsum([0, *(tree.n_leaves for tree in trees)])
        nodes = np.empty((roots[-1], 4), np.int32)
        values = np.empty((first_leaves[-1], trees[0].value[0].size))
        for tree, root, first_leaf in zip(trees, roots[:-1], first_leaves[:-1], strict=True):
            given, part = tree.__getstate__()["nodes"], nodes[root : root + tree.node_count]
            part[:, 0], part[:, 1] = given["left_child"] + root, given["right_child"] + root
            part[:, 2] = 2 * given["feature"] + given["missing_go_to_left"]
            part[:, 3] = _rounded_down(given["threshold"]).view(np.int32)
            leaves = np.flatnonzero(part[:, 0] < root)
            part[leaves, 0] = part[leaves, 1] = leaves + root
            part[leaves, 2], part[leaves, 3] = 0, first_leaf + np.arange(len(leaves))
            values[first_leaf : first_leaf + len(leaves)] = tree.value[leaves].reshape(len(leaves), -1)
        return nodes, roots[:-1], values

    def _validate_X_predict(self, X: Any) -> Any:
        """Check X for scikit-learn's methods that run in this process, such as `apply`; gather a handle's rows."""
        if isinstance(X, ShardedArray):
            X = self._checked(self._cluster(), X, reset=False).gather()
        with ONE_AT_A_TIME:
            return super()._validate_X_predict(X)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "estimators_")

    def to_sklearn(self) -> Any:
        """Return scikit-learn's forest with the same trees. It needs no cluster.

        Returns
        -------
        sklearn.ensemble.RandomForestClassifier or sklearn.ensemble.RandomForestRegressor

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        """
        plain = super().to_sklearn()
        for name in ("_index", "_oob", "_range"):
            vars(plain).pop(name, None)
        return plain

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the handle of the trees on the engines. A copy sends the trees again if needed."""
        return {name: value for name, value in super().__getstate__().items() if name not in ("_index", "_oob")}


def _joined(before: np.ndarray | None, y: np.ndarray) -> np.ndarray:
    """Return the least and the largest target of each output, of an earlier fit and of these targets."""
    found = [y.min(axis=0), y.max(axis=0)]
    return np.array(found if before is None else [np.minimum(before[0], found[0]), np.maximum(before[1], found[1])])


def _array_of(given: bytes | dict[str, Any], dtype: Any) -> np.ndarray:
    """Return an array that a rank has given."""
    if isinstance(given, bytes):
        return np.frombuffer(bytearray(given), dtype)
    with SharedBlock.open(given["path"]) as block:
        return block.array((given["nbytes"] // np.dtype(dtype).itemsize,), dtype)


def _rounded_down(thresholds: np.ndarray) -> np.ndarray:
    """Return the largest float32 numbers that are not above the thresholds.

    A float32 value is above the result exactly if it is above the threshold, so rows take the same way in the tree.
    """
    found = thresholds.astype(np.float32)
    found[found > thresholds] = np.nextafter(found[found > thresholds], np.float32(-np.inf))
    return found
