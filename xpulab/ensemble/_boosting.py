"""The code that both estimators of histogram gradient boosting share: the engines grow the trees, and predict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier
from sklearn.metrics import check_scoring
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state, resample
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from xpulab._sklearn import _BinMapper, _check_monotonic_cst
from xpulab.checks import ONE_AT_A_TIME, check_y, place_named
from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.deploy.tasks.pickling import by_value
from xpulab.ensemble._boosted_trees import as_scikit_learns, as_sent, packed
from xpulab.ensemble._categorical import (
    as_fitted,
    as_trees_have_them,
    columns_for_fit,
    keep_encoder,
    marked,
    require_same,
    rows_and_columns,
)
from xpulab.ensemble._scores_of_raw import ScoreOfRaw
from xpulab.estimator.columns import ScannedColumn, beside
from xpulab.estimator.resumable import FitInput, ResumableFit
from xpulab.estimator.rows import checked_weights
from xpulab.estimator.scoring import ScoredHere
from xpulab.estimator.sending import Result
from xpulab.scanning import Scan, read_here
from xpulab.sharing.answers import Boosted
from xpulab.sharing.sources import CategoricalColumns, Growth, SharedArray
from xpulab.sources.source import Column
from xpulab.tables import ShardedColumn

__all__ = ["BoostingProxy"]

_SUBSAMPLE = 200_000  # rows from which scikit-learn chooses the thresholds between bins
_SCORED = 10_000  # rows for training that scikit-learn's early stopping scores by a scorer
_STAGES_BYTES = 64 << 20  # of the predictions of several stages that are in this process at a time
_STATE_BYTES = 256 << 20  # of the largest state that a fit keeps
_NODE_BYTES = 96

_Sent = dict[str, np.ndarray | None]


@dataclass(frozen=True, kw_only=True)
class _Input(FitInput):
    """A fit: the arrays that are sent with the rows, the other arguments of the task, and the bin mapper to be."""

    sent: _Sent
    arguments: Mapping[str, object]
    growth: Growth
    mapper: Any
    columns: CategoricalColumns | None
    about: list[Column]
    classifies: bool


class BoostingProxy(ScoredHere, ResumableFit[_Input]):
    """Base class of histogram gradient boosting. Among the bases, it comes before scikit-learn's class."""

    _rules: ClassVar[Any] = {"ensure_all_finite": False}
    #: In the hosts' memory: the rows in float64, their bins twice, and gradients, sums and indices for each row.
    _work_memory: ClassVar[tuple[float, float]] = (96.0, 2.5)
    _task: ClassVar[str] = "HistGradientBoosting.fit"
    _left: ClassVar[tuple[str, str]] = ("trees so far", "model.set_params(warm_start=True).fit(X, y)")
    _fitted: ClassVar[tuple[str, ...]] = ("_predictors", "_baseline_prediction", "_bin_mapper", "_loss")

    loss: Any
    max_iter: int
    max_bins: int
    max_leaf_nodes: int | None
    max_depth: int | None
    min_samples_leaf: int
    learning_rate: float
    l2_regularization: float
    max_features: float
    warm_start: bool
    early_stopping: Any
    scoring: Any
    validation_fraction: Any
    n_iter_no_change: int
    tol: float
    monotonic_cst: Any
    categorical_features: Any
    random_state: Any
    n_trees_per_iteration_: int
    n_features_in_: int
    train_score_: np.ndarray
    validation_score_: np.ndarray
    _predictors: list[list[Any]]
    _baseline_prediction: np.ndarray
    _bin_mapper: Any
    _loss: Any
    _random_seed: Any
    _feature_subsample_rng: Any
    _preprocessor: Any
    is_categorical_: npt.NDArray[np.bool_] | None

    @property
    def _least_row(self) -> float:  # type: ignore[override]
        """Bytes of the bins of a row, which are kept twice, and of its gradients, sums and indices."""
        return 2.0 * self.n_features_in_ + 96.0

    @property
    def _every_row(self) -> float:  # type: ignore[override]
        return self._least_row

    def _boost(self, X: Any, y: Any, sample_weight: Any, X_val: Any, y_val: Any, sample_weight_val: Any) -> Any:
        """Fit, in the steps of scikit-learn's `fit`."""
        cluster = current_ranks()
        self._require_computed()
        goes_on = self.warm_start and self._is_fitted()
        mask = marked(self, X)
        if goes_on:
            require_same(mask, self.is_categorical_)
        self.is_categorical_ = mask
        X, about = (X, []) if mask is None else rows_and_columns(cluster, X, mask)
        rows = self._checked(cluster, X, reset=True, categories=mask is not None)
        y = self._targets(cluster, beside(y, rows, cluster, np.float64), rows.shape[0])
        weights = self._gathered_weights(sample_weight, rows.shape[0])
        if weights is not None:
            self._fitted_with_sw = True
        with ONE_AT_A_TIME:
            y = self._encode_y(y)
            weights = self._finalize_sample_weight(weights, y)
        columns = None if mask is None else columns_for_fit(self, mask, about, goes_on)
        given = self._validation(cluster, X_val, y_val, sample_weight_val, about)
        self._seed(goes_on)
        self._validate_parameters()
        n, self._n_features = rows.shape
        growth = self._growth(columns)
        self._loss = self._get_loss(sample_weight=weights)
        self.do_early_stopping_ = n > 10_000 if self.early_stopping == "auto" else self.early_stopping
        self._use_validation_data = self.validation_fraction is not None or bool(given)
        self._scorer = self._scorer_of_rows()
        if goes_on and self.max_iter < self.n_iter_:
            raise ValueError(
                f"max_iter={self.max_iter} must be larger than or equal to n_iter_={self.n_iter_} when warm_start==True"
            )
        split = None
        if self.do_early_stopping_ and self._use_validation_data and not given:
            split = self._split(y, weights)
        some = slice(None) if split is None else split
        y_train, weights_train = y[some], None if weights is None else weights[some]
        if not goes_on:
            self._predictors = []
            self._baseline_prediction = self._loss.fit_intercept_only(
                y_true=y_train, sample_weight=weights_train
            ).reshape((1, -1))
            self.train_score_, self.validation_score_ = np.array([]), np.array([])
        held_out = None
        if split is not None:
            held_out = np.ones(n, np.uint8)
            held_out[split] = 0
        sent: _Sent = {"y": np.ascontiguousarray(y, np.float64), "weights": weights, "held_out": held_out}
        sent["times"] = self._times(n, split, len(y_train), weights_train)
        sent["scored"] = self._scored(n, split, y_train)
        sent |= {name: given.get(name) for name in ("X_val", "y_val", "weights_val")}
        if columns is None:
            self._preprocessor = self._is_categorical_remapped = None
        return self._run(cluster, self._input(rows, sent, self._told(), growth, columns, about))

    def _told(self) -> dict[str, object]:
        """Return what the engines are told beside the rows, the targets, and how trees are grown."""
        return {
            "loss": self._name_of_loss(),
            "quantile": 0.5 if getattr(self, "quantile", None) is None else float(self.quantile),
            "baseline": np.ascontiguousarray(self._baseline_prediction, np.float64).ravel(),
            "max_iter": int(self.max_iter),
            "max_bins": int(self.max_bins),
            "stopping": (int(self.n_iter_no_change), float(self.tol)) if self.do_early_stopping_ else None,
            "scoring": None if self._scorer is None else by_value(ScoreOfRaw.of(self, self._scorer), None),
            "start": self._begin(),
        }

    def _growth(self, columns: CategoricalColumns | None) -> Growth:
        """Return how trees are grown, as the engines take it."""
        constraints = _check_monotonic_cst(self, self.monotonic_cst)
        interactions = self._check_interaction_cst(self._n_features)
        if columns is not None:
            if np.any(constraints[self.is_categorical_]):
                raise ValueError("Categorical features cannot have monotonic constraints.")
            constraints, place = constraints[columns.order], np.argsort(columns.order)
            interactions = None if interactions is None else [place[list(group)] for group in interactions]
        return Growth(
            learning_rate=float(self.learning_rate),
            max_leaf_nodes=self.max_leaf_nodes,
            max_depth=self.max_depth,
            min_samples_leaf=int(self.min_samples_leaf),
            l2_regularization=float(self.l2_regularization),
            max_features=float(self.max_features),
            constraints=np.asarray(constraints, np.int64),
            interactions=None if interactions is None else [sorted(map(int, group)) for group in interactions],
        )

    def _input(
        self,
        rows: Any,
        sent: _Sent,
        arguments: Mapping[str, object],
        growth: Growth,
        columns: CategoricalColumns | None,
        about: list[Column],
    ) -> _Input:
        mapper = _BinMapper(n_bins=self.max_bins + 1, random_state=self._random_seed)
        return _Input(
            X=rows, sent=sent, arguments=arguments, growth=growth, mapper=mapper, columns=columns, about=about,
            classifies=is_classifier(self), max_iter=int(self.max_iter), parameters=self.get_params(deep=False),
        )  # fmt: skip

    def _require_computed(self) -> None:
        """Raise ValueError for parameters that the engines do not support."""
        if not isinstance(self.loss, str):
            raise ValueError(
                f"loss={self.loss!r} was given; expected the name of a loss, or use scikit-learn's "
                f"{type(self).__name__}"
            )

    def _scorer_of_rows(self) -> Any:
        """Return the scorer that early stopping looks at; None if it looks at the loss, or does not stop."""
        if not self.do_early_stopping_ or self.scoring == "loss":
            return None
        with ONE_AT_A_TIME:
            return check_scoring(self, self.scoring)

    def _scored(self, n: int, split: npt.NDArray[np.intp] | None, y_train: np.ndarray) -> npt.NDArray[np.uint8] | None:
        """Return which rows for training a scorer scores, drawn as scikit-learn draws them; None for all."""
        if self._scorer is None or len(y_train) <= _SCORED:
            return None
        drawn = resample(
            np.arange(len(y_train)), n_samples=_SCORED, replace=False, random_state=self._random_seed,
            stratify=y_train if is_classifier(self) else None,
        )  # fmt: skip
        found = np.zeros(n, np.uint8)
        found[drawn if split is None else split[drawn]] = 1
        return found

    def _targets(self, cluster: Ranks, y: Any, n: int) -> npt.NDArray[Any]:
        """Return the targets in this process, as scikit-learn checks them."""
        if y is None:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        if isinstance(y, ScannedColumn):
            y = self._read_targets(cluster, y)
        elif isinstance(y, ShardedArray):
            y.source(cluster)
            found = y.gather()
            if is_classifier(self):
                y.require_exact(found)
            y = y.labels(found) if isinstance(y, ShardedColumn) else found
        elif isinstance(y, Scan):
            y = y.read()
        with place_named(y):
            y = check_y(y, multi_output=False, y_numeric=False, estimator=self)
        check_consistent_length(np.empty((n, 0)), y)
        checked: npt.NDArray[Any] = y
        return checked

    def _read_targets(self, cluster: Ranks, y: ScannedColumn) -> npt.NDArray[Any]:
        """Return the numbers of a column of files, which the engines read, in the dtype of the column."""
        result = Result(1, np.float64)
        self._ask(cluster, "targets", "HistGradientBoosting.targets", y, result=result)
        found: npt.NDArray[Any] = result.value[:, 0]
        if not is_classifier(self):
            return found
        return y.gather() if y.rounds(found) else found.astype(y.scan.numeric_dtypes[0])

    def _gathered_weights(self, sample_weight: Any, n: int) -> npt.NDArray[Any] | None:
        weights = checked_weights(sample_weight, n, np.float64, only_non_negative=False)
        if isinstance(weights, ShardedArray):
            weights = weights.gather()
        return None if weights is None else np.ascontiguousarray(weights, np.float64)

    def _validation(self, cluster: Ranks, X: Any, y: Any, sample_weight: Any, fitted: list[Column]) -> _Sent:
        """Return the rows for validation that were given, with their targets and weights; empty without."""
        if X is None and y is None:
            return {}
        if y is None:
            raise ValueError("X_val is provided, but y_val was not provided.")
        if X is None:
            raise ValueError("y_val is provided, but X_val was not provided.")
        mask, about = self.is_categorical_, fitted
        if mask is not None:
            X, about = rows_and_columns(cluster, X, mask)
        rows = self._checked(cluster, X, reset=False, categories=mask is not None)
        rows = rows.gather() if isinstance(rows, ShardedArray) else read_here(rows)
        if mask is not None:
            rows = as_fitted(rows, about, fitted, mask)
        encoded = self._encode_y_val(self._targets(cluster, y, len(rows)))
        if self.early_stopping is False:
            raise ValueError(
                "X_val and y_val are passed to fit while at the same time early_stopping is False. When passing X_val "
                "and y_val to fit, early_stopping should be set to either 'auto' or True."
            )
        return {
            "X_val": np.ascontiguousarray(rows, np.float64),
            "y_val": np.ascontiguousarray(encoded, np.float64),
            "weights_val": self._gathered_weights(sample_weight, len(rows)),
        }

    def _encode_y_val(self, y: Any) -> Any:
        """Encode targets for validation, also where scikit-learn has no such method yet."""
        with ONE_AT_A_TIME:
            return self._label_encoder.transform(y) if is_classifier(self) else self._encode_y(y)

    def _seed(self, goes_on: bool) -> None:
        """Draw the seeds of a fit, unless it goes on with those of the last one."""
        rng = check_random_state(self.random_state)
        if not goes_on:
            largest = np.iinfo(np.uint32).max
            self._random_seed = rng.randint(largest, dtype="u8")
            self._feature_subsample_rng = np.random.default_rng(rng.randint(largest, dtype="u8"))

    def _split(self, y: np.ndarray, weights: np.ndarray | None) -> npt.NDArray[np.intp]:
        """Return the indices of the rows for training, in the order that scikit-learn draws."""
        with ONE_AT_A_TIME:
            train, _ = train_test_split(
                np.arange(len(y)),
                test_size=self.validation_fraction,
                stratify=y if is_classifier(self) else None,
                random_state=self._random_seed,
            )
        found: npt.NDArray[np.intp] = train
        return found

    def _times(
        self, n: int, split: npt.NDArray[np.intp] | None, n_train: int, weights: np.ndarray | None
    ) -> npt.NDArray[np.int64] | None:
        """Return how many times each row counts for the thresholds between bins; None if all do once."""
        if n_train <= _SUBSAMPLE:
            return None
        shares = None if weights is None else weights / np.sum(weights)
        drawn = check_random_state(self._random_seed).choice(n_train, _SUBSAMPLE, p=shares, replace=True)
        return np.bincount(drawn if split is None else split[drawn], minlength=n)

    def _name_of_loss(self) -> str:
        if self.loss != "log_loss":
            return str(self.loss)
        return "binomial" if self.n_trees_per_iteration_ == 1 else "multinomial"

    def _begin(self) -> Boosted:
        """Return the trees from which the fit goes on, with their scores."""
        return {
            "trees": [[as_sent(predictor) for predictor in each] for each in self._predictors],
            "train_score": self.train_score_.tolist(),
            "validation_score": self.validation_score_.tolist(),
            "rng": self._feature_subsample_rng.bit_generator.state,
        }

    def _room(self, checked: _Input) -> int:
        leaves = checked.growth.max_leaf_nodes or checked.X.shape[0]
        nodes = 2 * min(leaves, max(1, checked.X.shape[0] // checked.growth.min_samples_leaf) + 1)
        trees = checked.max_iter * self.n_trees_per_iteration_
        return min(_STATE_BYTES, trees * (nodes * _NODE_BYTES + 512) + 2100 * checked.X.shape[1] + (1 << 16))

    def _arguments(self, cluster: Ranks, checked: _Input, state: Mapping[str, Any] | None) -> dict[str, object]:
        def send(outgoing: Outgoing) -> dict[str, object]:
            sent = checked.sent
            return {"sent": {name: None if given is None else outgoing.send(given) for name, given in sent.items()}}

        return {**checked.arguments, "growth": checked.growth, "columns": checked.columns, "send_more": send}

    def _keep_state(self, checked: _Input, state: Mapping[str, Any], labels: Any) -> None:
        mapper = checked.mapper
        thresholds = [np.asarray(column) for column in state["thresholds"]]
        counts = [len(column) + 1 for column in thresholds]
        n_categorical = 0
        if checked.columns is not None:
            n_categorical = len(checked.columns.names)
            thresholds[:n_categorical] = [np.arange(float(n)) for n in counts[:n_categorical]]  # the categories
            if checked.columns.values is None:
                keep_encoder(self, checked.columns, checked.about, state["categories"])
        mapper.missing_values_bin_idx_ = mapper.n_bins - 1
        mapper.bin_thresholds_ = thresholds
        mapper.is_categorical_ = np.asarray(np.arange(len(counts)) < n_categorical, np.uint8)
        mapper.n_bins_non_missing_ = np.array(counts, np.uint32)
        self._bin_mapper = mapper
        missing = int(mapper.missing_values_bin_idx_)
        self._predictors = [[as_scikit_learns(tree, missing) for tree in trees] for trees in state["trees"]]
        self.train_score_ = np.array(state["train_score"])
        self.validation_score_ = np.array(state["validation_score"])
        self._feature_subsample_rng.bit_generator.state = state["rng"]

    def _keep(self, checked: _Input, answer: Mapping[str, Any], labels: Any) -> None:
        self._keep_state(checked, answer, labels)

    def __sklearn_is_fitted__(self) -> bool:
        return bool(getattr(self, "_predictors", []))

    def _raw(self, method: str, X: Any) -> np.ndarray:
        """Return the raw predictions: float64 of shape (n_samples, n_trees_per_iteration_)."""
        check_is_fitted(self)
        cluster = self._cluster()
        X, columns = self._prepared(cluster, X)
        result = Result(self.n_trees_per_iteration_, np.float64)
        self._follow(cluster, method, X, result, self._predictors, columns=columns)
        found: np.ndarray = result.value
        return found

    def _raw_predict(self, X: Any, n_threads: int | None = None) -> np.ndarray:
        return self._raw("predict", X)

    def _staged_raw_predict(self, X: Any) -> Iterator[np.ndarray]:
        check_is_fitted(self)
        cluster = self._cluster()
        return self._stages(cluster, *self._prepared(cluster, X))

    def _prepared(self, cluster: Ranks, X: Any) -> tuple[Any, CategoricalColumns | None]:
        """Return checked rows for a prediction, with numbers in place of strings, and what the numbers stand for."""
        X, columns = as_trees_have_them(self, cluster, X)
        return self._checked(cluster, X, reset=False, categories=columns is not None), columns

    def _stages(self, cluster: Ranks, X: Any, columns: CategoricalColumns | None) -> Iterator[np.ndarray]:
        """Yield the raw predictions after each iteration, of which the engines compute several at a time."""
        k = self.n_trees_per_iteration_
        several = max(1, _STAGES_BYTES // (8 * k * max(1, X.shape[0])))
        for first in range(0, len(self._predictors), several):
            last = min(first + several, len(self._predictors))
            result = Result((last - first) * k, np.float64)
            self._follow(
                cluster, "staged_predict", X, result, self._predictors[:last], columns=columns,
                stages=(last - first, first * k),
            )  # fmt: skip
            for stage in range(last - first):
                yield np.array(result.value[:, stage * k : (stage + 1) * k])

    def _follow(
        self, cluster: Ranks, method: str, X: Any, result: Result, predictors: list[list[Any]], **more: Any
    ) -> None:
        """Have the engines add up the values of trees."""
        trees = [predictor for each in predictors for predictor in each]

        def send(outgoing: Outgoing) -> dict[str, dict[str, SharedArray]]:
            return {"forest": {name: outgoing.send(array) for name, array in packed(trees).items()}}

        self._ask(
            cluster,
            method,
            "HistGradientBoosting.predict",
            X,
            result=result,
            send_more=send,
            baseline=np.ascontiguousarray(self._baseline_prediction, np.float64).ravel(),
            **more,
        )

    def _classes_of(self, raw: np.ndarray) -> npt.NDArray[np.intp]:
        """Return the numbers of the most probable classes."""
        found: npt.NDArray[np.intp] = (raw[:, 0] > 0).astype(np.intp) if raw.shape[1] == 1 else np.argmax(raw, axis=1)
        return found
