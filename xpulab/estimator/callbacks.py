"""scikit-learn's callbacks (``sklearn.callback``, since 1.9): told what the engines do while they do it.

The tasks are those of a k-means fit: ``fit``, in it one ``init`` for each run, and in that one ``iteration`` each. The
engines do not wait for the notebook, so that an iteration is told when it has been seen on the board, begin and end
together; none is left out, and the order is that of the fit. For the same reason a callback that returns True does not
end the loop (nor does it in scikit-learn's LogisticRegression); one that raises ends the fit.
"""

from __future__ import annotations

import contextlib
from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin
    from sklearn.callback._callback_support import callback_management_context
except ImportError:  # scikit-learn before 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing to support."""

    def callback_management_context(estimator: Any) -> Any:
        """Nothing to tear down."""
        return contextlib.nullcontext()


__all__ = ["CallbackSupportMixin", "Callbacks", "callback_management_context"]


class Callbacks:
    """The callbacks of one fit; does nothing where none were set.

    Parameters
    ----------
    estimator : sklearn.base.BaseEstimator
    X : array-like
    sample_weight : numpy.ndarray or None
    n_init, max_iter : int
    """

    def __init__(self, estimator: Any, X: Any, sample_weight: Any, n_init: int, max_iter: int) -> None:
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
        """Tell all iterations up to this one, counted from 1, of this run, counted from 1."""
        if self._context is None or iteration == 0 or (run, iteration) <= self._told:
            return
        if run != self._told[0]:
            self._end_run()
            self._run = self._context.subcontext(task_name="init", max_subtasks=self._max_iter)
            self._run.call_on_fit_task_begin(**self._facts)
            self._told = (run, 0)
        for _ in range(self._told[1], iteration):
            each = self._run.subcontext(task_name="iteration")
            each.call_on_fit_task_begin(**self._facts)
            each.call_on_fit_task_end(**self._facts)
        self._told = (run, iteration)

    def end(self, history: list[tuple[Any, ...]], fitted: dict[str, Any]) -> None:
        """Tell the rest of a fit that has ended.

        Parameters
        ----------
        history : list of tuple
            Run and iteration first, in the order of the fit.
        fitted : dict
            The attributes that make an estimator a fitted one.
        """
        if self._context is None:
            return
        for run, iteration, *_ in history:
            self.reached(run, iteration)
        self._end_run()
        self._context.call_on_fit_task_end(**self._facts, reconstruction_attributes=fitted)

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.call_on_fit_task_end(**self._facts)
            self._run = None
