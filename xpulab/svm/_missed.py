"""What `LinearSVC` and `LinearSVR` share: their parameters, and how their loss is minimised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from xpulab._sklearn import _get_liblinear_solver_type, _validate_dual_parameter
from xpulab.linear_model._minimised import InputT, MinimisedFit, warn_of_iterations
from xpulab.sharing.linear_models import Minimisation

__all__ = ["SupportVectors"]


class SupportVectors(MinimisedFit[InputT]):
    """Base of linear support vector machines. Among the bases, it comes first."""

    _rules: ClassVar[Mapping[str, Any]] = {"accept_sparse": "csr"}

    C: float
    loss: str
    dual: Any
    fit_intercept: bool
    intercept_scaling: float
    tol: float
    max_iter: int
    verbose: int

    def _constant(self) -> float:
        """Return the constant column whose coefficient has a penalty, as in liblinear."""
        return float(self.intercept_scaling) if self.fit_intercept else 0.0

    def _solving(self, X: Any, n_columns: int, penalty: str, strategy: str) -> Minimisation:
        """Return how the loss is minimised, after scikit-learn's check of what goes together."""
        dual = _validate_dual_parameter(self.dual, self.loss, penalty, strategy, X)
        _get_liblinear_solver_type(strategy, penalty, self.loss, dual)
        strength = 1 / float(self.C)
        return Minimisation(
            solver="squares" if self.loss.startswith("squared") else "kinks",
            start=np.zeros(n_columns * (X.shape[1] + bool(self.fit_intercept))),
            fit_intercept=bool(self.fit_intercept),
            penalty=strength if penalty == "l2" else 0.0,
            l1=strength if penalty == "l1" else 0.0,
            tol=float(self.tol),
            max_iter=int(self.max_iter),
            verbose=int(self.verbose),
        )

    def _tell(self, checked: InputT, answer: Mapping[str, Any]) -> None:
        print(answer["said"], end="")
        said = "Liblinear failed to converge, increase the number of iterations"  # scikit-learn's words
        warn_of_iterations(answer, said, f"max_iter={10 * max(checked.max_iter, 1)}")
