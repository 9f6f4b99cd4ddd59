"""Calls scikit-learn's callbacks (``sklearn.callback``, since 1.9) while the engines fit k-means.

The callbacks see three levels of tasks: ``fit``, in it an ``init`` for each run, and in that an ``iteration`` for each
iteration; a fit without runs has its iterations directly below ``fit``. The engines do not wait for the notebook. When
the notebook sees on the board that an iteration has ended, it reports its begin and its end at once. No iteration is
left out, and the order is that of the fit. A callback that returns True cannot end the loop, as with scikit-learn's
LogisticRegression. A callback that raises an error ends the fit.
"""

from __future__ import annotations

import contextlib
from typing import Any

from sklearn.base import BaseEstimator

try:
    from sklearn.callback import CallbackSupportMixin

    from xpulab._sklearn import callback_management_context
except ImportError:  # scikit-learn before 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Empty class for versions of scikit-learn without callbacks."""

    def callback_management_context(estimator: BaseEstimator) -> Any:
        """Return an empty context for versions of scikit-learn without callbacks."""
        return contextlib.nullcontext()


__all__ = ["CallbackSupportMixin", "Callbacks", "callback_management_context"]


class Callbacks:
    """The callbacks of one fit. It does nothing if the estimator has no callbacks.

    Parameters
    ----------
    estimator : sklearn.base.BaseEstimator
    X : array-like of shape (n_samples, n_features)
    sample_weight : numpy.ndarray of shape (n_samples,), or None
    n_init, max_iter : int
        Number of runs, and the largest number of iterations of a run.
    runs : bool
        If False, there are no runs, and iterations are directly below ``fit``, as in scikit-learn's LogisticRegression:
        their largest number is `n_init`, and the last one is empty.
    """

    def __init__(
        self, estimator: BaseEstimator, X: Any, sample_weight: Any, n_init: int, max_iter: int, runs: bool = True
    ) -> None:
        self._runs = runs or n_init == 0
        self._told = (0, 0)  # run and iteration
        self._context: Any = None
        self._run: Any = None
        if not getattr(estimator, "_skl_callbacks", None):
            return
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self._facts = {"estimator": estimator, "X": X, "metadata": metadata}
        self._max_iter = max_iter
        self._context = estimator._init_callback_context(max_subtasks=n_init)
        self._context.call_on_fit_task_begin(**self._facts)

    def reached(self, run: int, iteration: int) -> None:
        """Report all iterations up to iteration `iteration` of run `run` to the callbacks; both count from 1."""
        if self._context is None or iteration == 0 or (run, iteration) <= self._told:
            return
        if run != self._told[0]:
            self._end_run()
            if self._runs:
                self._run = self._context.subcontext(task_name="init", max_subtasks=self._max_iter)
                self._run.call_on_fit_task_begin(**self._facts)
            self._told = (run, 0)
        for _ in range(self._told[1], iteration):
            self._iterate()
        self._told = (run, iteration)

    def end(self, history: list[tuple[Any, ...]], fitted: dict[str, Any]) -> None:
        """Report the remaining iterations and the end of the fit to the callbacks.

        Parameters
        ----------
        history : list of tuple
            A tuple for each iteration, in the order of the fit. Its first two elements are the run and the iteration.
        fitted : dict
            Fitted attributes, with which the callbacks can use the estimator.
        """
        if self._context is None:
            return
        for run, iteration, *_ in history:
            self.reached(run, iteration)
        self._end_run()
        if not self._runs:
            for _ in range(1 if self._told[1] else 2):  # scikit-learn begins an iteration in any case, and one too many
                self._iterate()
        self._context.call_on_fit_task_end(**self._facts, reconstruction_attributes=fitted)

    def _iterate(self) -> None:
        """Report the begin and the end of an iteration."""
        each = (self._run or self._context).subcontext(task_name="iteration")
        each.call_on_fit_task_begin(**self._facts)
        each.call_on_fit_task_end(**self._facts)

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.call_on_fit_task_end(**self._facts)
            self._run = None
