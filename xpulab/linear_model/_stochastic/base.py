"""What `SGDClassifier` and `SGDRegressor` share: their parameters, the state of a fit, and their fitted attributes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from xpulab.data import ShardedArray
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.call import Call
from xpulab.estimator.callbacks import Callbacks
from xpulab.estimator.interrupted import CallInterrupted
from xpulab.estimator.resumable import FitInput, ResumableFit
from xpulab.estimator.sending import Result
from xpulab.sharing.linear_models import Descent, DescentState

__all__ = ["StochasticFit", "StochasticInput"]

_SEEDS = np.iinfo(np.int32).max

_Floats = npt.NDArray[np.float64]


def _dense(values: Any) -> _Floats:
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values, np.float64)


@dataclass(frozen=True, kw_only=True)
class StochasticInput(FitInput):
    """A fit: how its steps are taken, and where they begin.

    `start` has the points and their averages so far, each with coefficients and intercepts: (2, n_columns,
    n_features + 1). With `partial`, the fit is one call of `partial_fit`. `classes` is None for a regression.
    """

    descent: Descent
    start: _Floats
    partial: bool
    classes: npt.NDArray[Any] | None


class StochasticFit(ResumableFit[StochasticInput]):
    """Base of the estimators. Among the bases, it comes first."""

    #: For each row, its place in the order of the batches, its target and its weight; and a copy of the rows.
    _work_memory: ClassVar[tuple[float, float]] = (48.0, 1.0)
    _stored_work: ClassVar[float] = 1.0  # a copy of sparse rows in the order of the batches
    _rules: ClassVar[Mapping[str, Any]] = {"accept_sparse": "csr"}
    _task: ClassVar[str] = "SGD.fit"
    _left: ClassVar[tuple[str, str]] = ("coefficients", "model.set_params(warm_start=True).fit(X, y)")
    _fitted: ClassVar[tuple[str, ...]] = ("coef_", "intercept_", "t_", "n_iter_")

    loss: str
    penalty: str | None
    alpha: float
    l1_ratio: float | None
    epsilon: float
    learning_rate: str
    eta0: float
    power_t: float
    fit_intercept: bool
    shuffle: bool
    early_stopping: bool
    max_iter: int
    n_iter_no_change: int
    tol: float | None
    verbose: int
    average: Any
    random_state: Any
    warm_start: bool
    coef_: Any
    intercept_: Any
    t_: float
    n_iter_: int

    def _require_parameters(self, partial: bool = False) -> None:
        """Raise an error as scikit-learn for parameters that do not go together, and for those that have no steps."""
        self._more_validate_params(for_partial_fit=partial)
        if self.power_t < 0:
            warnings.warn(
                f"power_t={self.power_t} was given. Negative values for `power_t` are deprecated, and scikit-learn "
                "1.10 refuses them: choose 0 or more",
                FutureWarning,
                stacklevel=4,
            )
        if self.learning_rate in ("pa1", "pa2"):
            name = type(self).__name__
            raise ValueError(
                f"learning_rate={self.learning_rate!r} was given; the engines take steps for batches of rows, and this "
                "rate is one of single rows: choose 'optimal', 'constant', 'invscaling' or 'adaptive', or use "
                f"sklearn.linear_model.{name}"
            )

    def _first(self, n_columns: int, n_features: int, coef_init: Any, intercept_init: Any) -> _Floats:
        """Return the start of a fit, see `StochasticInput`; no attribute changes.

        Raises
        ------
        ValueError
            If what is given, or is there with `warm_start`, has not the shape of this fit.
        """
        start = np.zeros((2, n_columns, n_features + 1))
        points = start[0]
        parts = ("coef", coef_init, points[:, :-1]), ("intercept", intercept_init, points[:, -1])
        for name, given, part in parts:
            what, hint = f"Provided {name}_init", "leave it out"
            if given is None and self.warm_start:
                given, what, hint = (
                    getattr(self, f"{name}_", None),
                    f"{name}_ of the fit before",
                    "set warm_start=False",
                )
            if given is None:
                continue
            values = _dense(given)
            if values.shape != part.shape and not (n_columns == 1 and values.size == part.size):
                raise ValueError(
                    f"{what} does not match dataset: its shape is {values.shape}, and {part.shape} is expected for the "
                    f"features and classes of this fit: {hint}"
                )
            part[...] = values.reshape(part.shape)
        return start

    def _present(self, n_columns: int, n_features: int) -> _Floats:
        """Return with what `partial_fit` goes on, as `_first`; zeros at the first call."""
        start = np.zeros((2, n_columns, n_features + 1))
        points, averages = start
        own = vars(self)
        of_steps = "_standard" if self.average and own.get("_standard_coef") is not None else ""
        for name, table in (("_average", averages), (of_steps, points)):
            if own.get(f"{name}_coef" if name else "coef_") is not None:
                table[:, :-1] = _dense(own[f"{name}_coef" if name else "coef_"]).reshape(n_columns, -1)
                table[:, -1] = own[f"{name}_intercept" if name else "intercept_"]
        return start

    def _descent(self, n_columns: int, partial: bool, held_out: Any, **of_classes: Any) -> Descent:
        """Return how the steps are taken."""
        random = check_random_state(self.random_state)
        ratio = {"l1": 1.0, "elasticnet": self.l1_ratio}.get(str(self.penalty).lower(), 0.0)
        return Descent(
            loss=self.loss,
            learning_rate=self.learning_rate,
            epsilon=float(self.epsilon),
            alpha=float(self.alpha),
            eta0=float(self.eta0),
            power_t=float(self.power_t),
            l1_ratio=float(ratio or 0.0),
            penalty=self.penalty is not None,
            fit_intercept=bool(self.fit_intercept),
            shuffle=bool(self.shuffle),
            early_stopping=held_out is not None,
            max_iter=1 if partial else int(self.max_iter),
            n_iter_no_change=int(self.n_iter_no_change),
            verbose=int(self.verbose),
            tol=-np.inf if self.tol is None else float(self.tol),
            average=int(self.average),
            seed=int(random.randint(_SEEDS)),
            seeds=tuple(random.randint(_SEEDS, size=n_columns).tolist()),
            t=float(getattr(self, "t_", 1.0)) if partial else 1.0,
            held_out=held_out,
            **of_classes,
        )

    def _held_out(self, y: Any, weights: Any) -> npt.NDArray[np.uint8] | None:
        """Return packed bits of the rows, 1 for those for validation; None without any."""
        if not self.early_stopping:
            return None
        y = y.gather() if isinstance(y, ShardedArray) else y
        weights = weights.gather() if isinstance(weights, ShardedArray) else weights
        there = np.ones(len(y), bool) if weights is None else weights > 0
        return np.packbits(self._make_validation_split(y, sample_mask=there))

    def _room(self, checked: StochasticInput) -> int:
        return checked.start.nbytes + 8 * checked.n_init + (16 << 10)

    def _callbacks(self, checked: StochasticInput) -> Callbacks:
        runs = checked.n_init
        return Callbacks(self, checked.X, checked.weights, runs, checked.max_iter, runs=runs > 1)

    def _arguments(self, cluster: Ranks, checked: StochasticInput, state: Mapping[str, Any] | None) -> dict[str, Any]:
        return {"descent": checked.descent, "start": checked.start}

    def _keep_state(self, checked: StochasticInput, state: Any, labels: npt.NDArray[Any] | None) -> None:
        self._set(checked, state)

    def _keep(self, checked: StochasticInput, answer: Mapping[str, Any], labels: npt.NDArray[Any] | None) -> None:
        self._set(checked, answer["state"])

    def _keep_interrupted(
        self, interrupt: CallInterrupted, call: Call, checked: StochasticInput, labels: Result | None
    ) -> str:
        """As other estimators; the rows of an interrupted `partial_fit` do not count, and none of it is kept."""
        if not checked.partial:
            return super()._keep_interrupted(interrupt, call, checked, labels)
        self.report_ = call.report
        return call.interrupted()

    def _set(self, checked: StochasticInput, state: DescentState) -> None:
        """Set the fitted attributes after an iteration."""
        n, average, dtype = checked.X.shape[0], checked.descent.average, checked.X.dtype
        self.n_iter_ = max([state["iteration"], *state["n_iter"]])
        self.t_ = checked.descent.t + self.n_iter_ * n
        standard, averages = (self._split(state[name], dtype) for name in ("points", "averages"))
        self.coef_, self.intercept_ = standard if average > self.t_ - 1 else averages
        if average:
            self._standard_coef, self._standard_intercept = standard
            self._average_coef, self._average_intercept = averages
        else:  # those of an earlier fit
            for name in ("_standard_coef", "_standard_intercept", "_average_coef", "_average_intercept"):
                self.__dict__.pop(name, None)
        if checked.classes is not None:
            self.classes_ = checked.classes

    def _split(self, table: _Floats, dtype: npt.DTypeLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return coefficients and intercepts in the shapes and dtypes of scikit-learn's fitted attributes."""
        coef, intercept = table[:, :-1].astype(dtype), table[:, -1].copy()
        return (coef, intercept.astype(dtype)) if is_classifier(self) else (coef[0], intercept)

    def _tell(self, checked: StochasticInput, answer: Mapping[str, Any]) -> None:
        print(answer["said"], end="")
        if not checked.partial and self.tol is not None and self.n_iter_ == checked.max_iter:
            warnings.warn(
                "Maximum number of iteration reached before convergence. Consider increasing max_iter to improve the "
                "fit.",
                ConvergenceWarning,
                stacklevel=5,
            )
