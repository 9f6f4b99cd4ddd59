"""What classifiers that minimise the logistic loss share: their labels, their solvers, and their logarithms."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from xpulab.data import ShardedArray
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.resumable import FitInput
from xpulab.linear_model._classifiers.linear import ProbableClassifier
from xpulab.sharing.linear_models import Coding, Minimisation

__all__ = ["Checked", "ClassesInput", "LogisticClassifier"]

_SOLVERS = ("lbfgs", "newton-cg", "newton-cholesky", "sag", "saga")


class Checked(Exception):
    """scikit-learn's estimator has taken its parameters; ours goes on."""


@dataclass(frozen=True, kw_only=True)
class ClassesInput(FitInput):
    """A fit. Its `targets` are the numbers of the classes, or a handle for labels, whose classes are in `coding`."""

    classes: np.ndarray
    coding: Coding


class LogisticClassifier(ProbableClassifier):
    """Base of classifiers that minimise the logistic loss."""

    #: For each row, the number of its class and its weight; both exist twice while they are computed.
    _work_memory: ClassVar[tuple[float, float]] = (32.0, 0.0)
    _stored_work: ClassVar[float] = 2.0  # a copy of sparse rows by column, and its values in float64
    _rules: ClassVar[Mapping[str, Any]] = {"accept_sparse": "csr"}

    solver: str
    fit_intercept: bool
    tol: float
    max_iter: int
    verbose: int

    def _require_solver(self) -> None:
        """Raise an error for a solver that the engines do not have."""
        if self.solver not in _SOLVERS:
            raise ValueError(
                f"solver={self.solver!r} was given; the engines compute {', '.join(map(repr, _SOLVERS))}: choose one "
                f"of these ('saga' for the l1 penalty), or use sklearn.linear_model.{type(self).__name__}"
            )

    def _require_strategy(self, n_classes: int) -> None:
        """Raise an error if scikit-learn, up to release 1.7, would fit several models, or one too many."""
        strategy = getattr(self, "multi_class", "auto")
        if strategy == ("multinomial" if n_classes == 2 else "ovr"):
            raise ValueError(
                f"multi_class={strategy!r} was given for {n_classes} classes; leave it out, or, for one model per "
                f"class, use sklearn.multiclass.OneVsRestClassifier({type(self).__name__}())"
            )

    def _minimisation(self, start: npt.NDArray[np.float64], penalty: float, l1: float) -> Minimisation:
        """Return how the loss is minimised with penalties on half the squared norm and on the l1 norm."""
        solver = self.solver
        if solver in ("sag", "saga"):
            solver = "l1" if l1 else "sag"
        return Minimisation(
            solver=solver,
            start=start,
            fit_intercept=bool(self.fit_intercept),
            penalty=penalty,
            l1=l1,
            tol=float(self.tol),
            max_iter=int(self.max_iter),
            verbose=int(self.verbose),
        )

    def predict_log_proba(
        self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None
    ) -> np.ndarray:
        """Return the logarithm of each class's probability; minus infinity if the probability is rounded to zero.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), float64 if X or the fit is

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `decision_function`.
        """
        if out is not None:
            return in_file(self.predict_log_proba, X, out)
        return self._predicted("predict_log_proba", "log_proba", X)
