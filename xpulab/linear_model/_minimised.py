"""The base class of linear models whose loss a solver minimises, from one evaluation by all engines to the next."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy.typing as npt
from scipy.optimize import OptimizeResult
from sklearn.exceptions import ConvergenceWarning

from xpulab._sklearn import _check_optimize_result
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.callbacks import Callbacks
from xpulab.estimator.resumable import FitInput, ResumableFit
from xpulab.sharing.linear_models import Minimisation

__all__ = ["MinimisedFit", "MinimisedInput", "tell", "warn_of_iterations"]

_ROOM = 8 << 20  # bytes of a fit's state; its evaluations take at most half of them


@dataclass(frozen=True, kw_only=True)
class MinimisedInput(FitInput):
    """A fit, and how its loss is minimised."""

    solving: Minimisation


InputT = TypeVar("InputT", bound=MinimisedInput)


class MinimisedFit(ResumableFit[InputT]):
    """Base of linear models whose loss a solver minimises. Among the bases, it comes first."""

    _left: ClassVar[tuple[str, str]] = ("coefficients", "model.set_params(warm_start=True).fit(X, y)")
    _fitted: ClassVar[tuple[str, ...]] = ("coef_", "intercept_")
    #: What the warning of "lbfgs" has at its end.
    _more: ClassVar[str | None] = None

    def _set(self, checked: InputT, coef: npt.NDArray[Any], n_iter: int) -> None:
        """Set the fitted attributes from coefficients in the layout of scikit-learn's solvers."""
        raise NotImplementedError

    def _callbacks(self, checked: InputT) -> Callbacks:
        return Callbacks(self, checked.X, checked.weights, max(checked.max_iter, 1) + 1, checked.max_iter, runs=False)

    def _room(self, checked: InputT) -> int:
        return _ROOM

    def _arguments(self, cluster: Ranks, checked: InputT, state: dict[str, Any] | None) -> dict[str, Any]:
        return {"solving": checked.solving}

    def _keep_state(self, checked: InputT, state: dict[str, Any], labels: npt.NDArray[Any] | None) -> None:
        self._set(checked, state["coef"], state["iteration"])

    def _keep(self, checked: InputT, answer: dict[str, Any], labels: Any) -> None:
        self._set(checked, answer["coef"], answer["n_iter"])

    def _tell(self, checked: InputT, answer: dict[str, Any]) -> None:
        tell(answer, checked.max_iter, self._more)


def warn_of_iterations(answer: Mapping[str, Any], said: str, more: str) -> None:
    """Warn in words, and with what to type for more iterations, if a fit has not converged."""
    if not answer["converged"]:
        warnings.warn(f"{said}; for more, type: model.set_params({more})", ConvergenceWarning, stacklevel=5)


def tell(solution: Mapping[str, Any], max_iter: int, more: str | None) -> None:
    """Print and warn as scikit-learn's solvers do; the warning of "lbfgs" has `more` at its end."""
    print(solution["said"], end="")
    for category, message in solution["warnings"]:
        warnings.warn(message, category, stacklevel=5)
    if "ending" in solution:
        _check_optimize_result("lbfgs", OptimizeResult(solution["ending"]), max_iter, extra_warning_msg=more)
