"""The code that all forests share: the engines grow the trees, which become scikit-learn's trees, and predict."""

from __future__ import annotations

import itertools
import warnings
from typing import Any, ClassVar

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import NODE_DTYPE, Tree, _forest
from xpulab.checks import ONE_AT_A_TIME, array_of, type_of_target
from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.deploy.tasks.answers import Answer, array_sent
from xpulab.ensemble._following import TreesProxy, few_here
from xpulab.ensemble._rules import require_computed, require_monotone, rules_of
from xpulab.ensemble._targets import WEIGHTS_DRAW, Targets
from xpulab.estimator.columns import beside
from xpulab.estimator.rows import gathered_targets, stays
from xpulab.estimator.scoring import ScoredHere
from xpulab.estimator.sending import Result
from xpulab.scanning import Scan, read_here
from xpulab.sharing.sources import HandleTargets, SharedArray

__all__ = ["ForestProxy"]


class ForestProxy(ScoredHere, TreesProxy):
    """Base class of forests. Among the bases, it comes before scikit-learn's class."""

    _rules: ClassVar[Any] = {"dtype": np.float32, "ensure_all_finite": "allow-nan"}
    #: Whether the best of all splits of a column is taken, or one that is drawn.
    _splitter: ClassVar[str] = "best"
    #: In the hosts' memory: two copies of the rows in float32, the bin of each value, and the state of a growing tree.
    _work_memory: ClassVar[tuple[float, float]] = (96.0, 0.25)

    @property
    def _least_row(self) -> float:  # type: ignore[override]
        """Bytes of the bins of a row, one for each value, and of the state of a growing tree."""
        return self.n_features_in_ + 24.0

    @property
    def _every_row(self) -> float:  # type: ignore[override]
        return self._least_row

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
    n_outputs_: int
    n_features_in_: int
    #: Weights by which rows are drawn, if this process has them.
    _sample_weight: np.ndarray | None
    #: During a fit: for each row the sum of the predictions by trees that were grown without it, and the number of
    #: these trees; and the means that were subtracted from the targets.
    _oob: Any = None
    _passing: ClassVar[tuple[str, ...]] = (*TreesProxy._passing, "_oob")
    _own: ClassVar[tuple[str, ...]] = (*TreesProxy._own, "_oob", "_range")
    #: The least and the largest target of each output, of all trees: means are rounded, and must not leave this range.
    _range: Any = None

    def _grow(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Fit the forest, in the steps of scikit-learn's `fit`."""
        cluster = current_ranks()
        require_computed(self)
        X = self._checked(cluster, X, reset=True)
        y = self._checked_targets(cluster, X, y)
        weights: Any = self._weights(sample_weight, X, dtype=np.float64)
        if isinstance(weights, ShardedArray):  # a rank has passed the weights of its own rows
            weights = weights.gather().astype(np.float64, copy=False)
        targets = Targets.read(self, cluster, y, weights)
        require_monotone(self, targets.counts)
        n = X.shape[0]
        self._n_samples = n
        self._keep_weights(targets)
        draws = self._draws(n, targets.to_draw(self, cluster))
        self._validate_estimator()
        if not self.warm_start and hasattr(self, "estimators_"):
            del self.estimators_  # the trees of an earlier fit do not belong to the new targets
        before = getattr(self, "estimators_", [])
        trees = self._new_trees(len(before))
        if not trees:
            warnings.warn(
                "Warm-start fitting without increasing n_estimators does not fit new trees.", UserWarning, stacklevel=3
            )
            if self.oob_score and not hasattr(self, "oob_score_"):
                self._score_oob(cluster, X, targets)
            return
        if self.oob_score:
            self._require_oob(targets.some)
        # The ranks can compute these predictions only if all trees are new, and none is pruned afterwards.
        together = bool(self.oob_score) and not before and self.ccp_alpha == 0
        self._range = _joined(self._range if before else None, targets)
        centred = self.criterion in ("squared_error", "friedman_mse", "absolute_error")
        middle = _near(targets) if centred else np.zeros(self.n_outputs_)

        def send(outgoing: Outgoing) -> dict[str, SharedArray | HandleTargets | None]:
            return {"y": targets.sent(cluster, outgoing, middle), "shares": targets.sent_weights(outgoing)}

        growth, self._index = rules_of(self, n), None
        with self._fitting(X):
            answer = self._ask(
                cluster,
                "fit",
                "forest.grow",
                X,
                send_more=send,
                classes=targets.counts,
                seeds=[int(tree.random_state) for tree in trees],
                growth=growth,
                draws=draws,
                by_weight=WEIGHTS_DRAW,
                balanced=getattr(self, "class_weight", None) == "balanced_subsample" and self.bootstrap,
                oob=together,
                finish=lambda answer: self._take(answer, trees, targets.counts, middle),
            )
            for tree in trees:
                tree.max_features_ = growth["max_features"]
            self.estimators_ = [*before, *trees]
            if together:
                self._oob = answer.results[0]["oob"], answer.results[0]["times"], middle
            if self.oob_score:
                self._score_oob(cluster, X, targets)

    def _checked_targets(self, cluster: Ranks, X: Any, y: Any) -> np.ndarray | ShardedArray:
        """Check y as scikit-learn does; what the engines have or read beside the rows of X does not come here."""
        y = beside(y, X, cluster, np.float64)
        if not stays(y, X):
            return gathered_targets(self, cluster, X, y)
        y.source(cluster)
        y.require_finite("y")
        handle: ShardedArray = y
        return handle

    def _keep_weights(self, targets: Targets) -> None:
        """Keep the weights by which rows are drawn, for `estimators_samples_`, unless the engines alone have them."""
        if hasattr(self, "_sample_weight"):
            del self._sample_weight
        if targets.of_classes is None or not WEIGHTS_DRAW:
            self._sample_weight = targets.weights

    def _get_estimators_indices(self) -> Any:
        if self.bootstrap and hasattr(self, "estimators_") and not hasattr(self, "_sample_weight"):
            raise AttributeError(
                "class_weight and a y of rows on the engines were given, whose rows were drawn by weights that only "
                "the engines had; for estimators_samples_, fit with y.gather()"
            )
        return super()._get_estimators_indices()

    def _new_trees(self, there: int) -> list[Any]:
        """Return the trees to grow in addition to those of a warm start, with scikit-learn's random numbers."""
        more = self.n_estimators - there
        if more < 0:
            raise ValueError(
                f"n_estimators={self.n_estimators} must be larger or equal to len(estimators_)={there} when "
                "warm_start==True"
            )
        random_state = check_random_state(self.random_state)
        if more and there:
            random_state.randint(np.iinfo(np.int32).max, size=there)
        return [self._make_estimator(append=False, random_state=random_state) for _ in range(more)]

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
        arguments = (weights,) if WEIGHTS_DRAW else ()
        self._n_samples_bootstrap = int(_forest._get_n_samples_bootstrap(n, self.max_samples, *arguments))
        return self._n_samples_bootstrap

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
        every, all_values = array_sent(result["nodes"], NODE_DTYPE), array_sent(result["values"], np.float64)
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

    def _score_oob(self, cluster: Ranks, X: Any, targets: Targets) -> None:
        """Set the predictions of rows by the trees that were grown without them, and the score of these predictions."""
        scoring: Any = self.oob_score if callable(self.oob_score) else None
        if self._oob is None and isinstance(X, ShardedArray) and X.stays:
            self._oob = self._asked_oob(cluster, X, targets)
        elif self._oob is None:
            X = np.asarray(X.gather() if isinstance(X, ShardedArray) else read_here(X), np.float32)
        y: Any = targets.values
        if isinstance(y, ShardedArray) and scoring is None:
            scoring = lambda _, predicted: targets.score(self, cluster, predicted)  # noqa: E731
        elif isinstance(y, ShardedArray):
            y = targets.here()
        try:
            self._set_oob_score_and_attributes(X, y, *([] if scoring is None else [scoring]))
        finally:
            self._oob = None

    def _asked_oob(
        self, cluster: Ranks, X: ShardedArray, targets: Targets
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what `_oob` has, from the engines, which have the rows of a handle, and all trees."""
        shape = self.estimators_[0].tree_.value.shape[1:]
        result = Result(int(np.prod(shape)) + 1, np.float64)

        def send(outgoing: Outgoing) -> dict[str, Any]:
            y = None if targets.of_classes is None else targets.sent(cluster, outgoing)
            return {"sent": self._sent(outgoing), "y": y, "shares": targets.sent_weights(outgoing)}

        report = self.report_
        self._ask(
            cluster,
            "fit",
            "forest.unsampled",
            X,
            send_more=send,
            result=result,
            seeds=[int(tree.random_state) for tree in self.estimators_],
            draws=self._n_samples_bootstrap,
            by_weight=WEIGHTS_DRAW,
        )
        self.report_ = report  # the trees were grown in that call
        found = result.value
        return found[:, :-1].reshape(-1, *shape), found[:, -1], np.zeros(self.n_outputs_)

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
        if few_here(X, len(self.estimators_)):
            return None
        cluster = self._cluster()
        X = self._checked(cluster, X, reset=False)
        values = self.estimators_[0].tree_.value
        found = self._followed(cluster, method, X, int(np.prod(values.shape[1:])))
        means: np.ndarray = found.reshape(len(found), *values.shape[1:])
        return self._in_range(means)

    def _in_range(self, means: np.ndarray) -> np.ndarray:
        """Return predictions of numbers, of shape (n_samples, n_outputs, 1), within the range of the targets."""
        return means

    def _validate_X_predict(self, X: Any) -> Any:
        """Check X for scikit-learn's methods that run in this process, such as `apply`; gather a handle's rows."""
        if isinstance(X, ShardedArray):
            X = self._checked(self._cluster(), X, reset=False).gather()
        elif isinstance(X, Scan):
            X = self._checked(self._cluster(), X, reset=False).read()
        with ONE_AT_A_TIME:
            return super()._validate_X_predict(array_of(X))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "estimators_")

    def to_sklearn(self) -> Any:
        """Return scikit-learn's forest with the same trees. It needs no cluster.

        Returns
        -------
        RandomForestClassifier, RandomForestRegressor, ExtraTreesClassifier or ExtraTreesRegressor
            Of `sklearn.ensemble`.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        """
        return super().to_sklearn()


def _near(targets: Targets) -> np.ndarray:
    """Return numbers near the means of the targets, of few digits, so that targets of few digits keep theirs."""
    with np.errstate(all="ignore"):
        grid = 2.0 ** (np.frexp(targets.largest - targets.least)[1] - 8)
        near: np.ndarray = np.rint(targets.mean / grid) * grid
    return np.where(np.isfinite(near), near, targets.mean)


def _joined(before: np.ndarray | None, targets: Targets) -> np.ndarray:
    """Return the least and the largest target of each output, of an earlier fit and of these targets."""
    found = [targets.least, targets.largest]
    return np.array(found if before is None else [np.minimum(before[0], found[0]), np.maximum(before[1], found[1])])
