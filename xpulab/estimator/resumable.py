"""Base class of the estimators whose fit can be interrupted after an iteration, and resumed there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy.typing as npt

from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.call import Call
from xpulab.estimator.callbacks import Callbacks, callback_management_context
from xpulab.estimator.interrupted import CallInterrupted, NothingToResumeError
from xpulab.estimator.proxy import Proxy
from xpulab.estimator.sending import Result

__all__ = ["FitInput", "ResumableFit"]


@dataclass(frozen=True, kw_only=True)
class FitInput:
    """The checked arguments of a fit. `resume` uses these, even if the estimator's parameters were changed since.

    Parameters
    ----------
    X, weights, targets : Any
        The rows, and what is aligned with them, as `Packing` takes it.
    n_init, max_iter : int
        Number of runs, and the largest number of iterations of a run.
    parameters : dict
        The estimator's parameters, for the report.
    """

    X: Any
    weights: Any = None
    targets: Any = None
    n_init: int = 1
    max_iter: int
    parameters: dict[str, Any]


InputT = TypeVar("InputT", bound=FitInput)
EstimatorT = TypeVar("EstimatorT", bound="ResumableFit[Any]")


class ResumableFit(Proxy, Generic[InputT]):
    """Base of estimators whose fit can be interrupted and resumed. Among the bases, it comes first.

    The method `fit` of a subclass checks its input, makes a `FitInput` of it, and returns the result of `_run`. The
    task on the engines, whose name is `_task`, writes a state to its checkpoint from time to time. If it is asked to
    stop, it raises `Interrupted` with ``{"state": state}`` after an iteration. A state is a dictionary with the
    ``iteration``, and the ``run``, if there are runs. The answer of a fit that has ended has the ``history`` and
    whether the fit has ``converged``.

    A subclass has three hooks: `_room` says how much memory a state needs, `_arguments` how the task begins, or goes on
    from a state, and `_keep_state` what the estimator has of a state. As every estimator, it also turns the answer into
    fitted attributes (`_keep`), and may print and warn (`_tell`).
    """

    #: Name of the task.
    _task: ClassVar[str]
    #: What has ended when there is a first state.
    _part: ClassVar[str] = "an iteration"
    #: What a copy of a stopped estimator has, and how to go on from it.
    _left: ClassVar[tuple[str, str]]
    #: Attributes with which callbacks can use the estimator.
    _fitted: ClassVar[tuple[str, ...]]
    _own: ClassVar[tuple[str, ...]] = (*Proxy._own, "_stopped", "_stopped_in")

    #: The arguments of an interrupted fit, and its state.
    _stopped: tuple[InputT, dict[str, Any]] | None = None
    #: Where it was interrupted, as a copy without the rows says.
    _stopped_in: str | None = None

    def _room(self, checked: InputT) -> int:
        """Bound the bytes of a state."""
        raise NotImplementedError

    def _arguments(self, cluster: Ranks, checked: InputT, state: dict[str, Any] | None) -> dict[str, Any]:
        """Return the arguments of the task, except rows, results and `resume`, which is the state.

        The state is None if the fit begins.
        """
        raise NotImplementedError

    def _keep_state(self, checked: InputT, state: dict[str, Any], labels: npt.NDArray[Any] | None) -> None:
        """Set the attributes of an interrupted fit; `labels` are those of the state, or None if it has none."""
        raise NotImplementedError

    def _stopped_at(self, checked: InputT, state: dict[str, Any]) -> str:
        """Say where a fit was interrupted that has this state."""
        return f"in iteration {int(state['iteration'])} of {checked.max_iter}"

    def _keep(self, checked: InputT, answer: dict[str, Any], labels: Any) -> None:
        """Set the attributes of a fit that has ended."""
        raise NotImplementedError

    def _tell(self, checked: InputT, answer: dict[str, Any]) -> None:
        """Print and warn at the end of a fit that nobody interrupted, as scikit-learn does."""

    def _labels(self, checked: InputT) -> Result | None:
        """Return the result of the fit with one entry per row; None if it has none."""
        return None

    def _callbacks(self, checked: InputT) -> Callbacks:
        return Callbacks(self, checked.X, checked.weights, checked.n_init, checked.max_iter)

    def resume(self: EstimatorT) -> EstimatorT:
        """Continue a fit that was interrupted (with the Stop button or Ctrl-C), from its last iteration.

        The rows and parameters are those of the interrupted fit, even if parameters were changed since.

        Returns
        -------
        self
            This object, fitted as if there had been no interrupt.

        Raises
        ------
        NotFittedError
            If no fit was interrupted, or if none of its iterations had ended.
        NoClusterError, HandleError, EngineError, EngineLostError, KeyboardInterrupt
            As `fit`.
        """
        if self._stopped is None and self._stopped_in is not None:
            has, how = self._left
            raise NothingToResumeError(
                f"the fit was interrupted {self._stopped_in}, and this copy of its estimator has the "
                f"{has} and not the rows; to go on from them, type: {how}"
            )
        if self._stopped is None:
            raise NothingToResumeError("this estimator has no interrupted fit to go on with; call its fit")
        return self._run(current_ranks(), *self._stopped)

    def _run(
        self: EstimatorT,
        cluster: Ranks,
        checked: Any,
        state: dict[str, Any] | None = None,
        method: str = "fit",
        labels: Result | None = None,
    ) -> EstimatorT:
        """Fit from the beginning, or from a state.

        Parameters
        ----------
        cluster : Ranks
        checked : FitInput
        state : dict, optional
            The state of an interrupted fit of this input.
        method : str
            The method that the user called.
        labels : Result, optional
            The result with one entry per row, instead of that of `_labels`.
        """
        if state is None:
            self._stopped = self._stopped_in = None
        with callback_management_context(self):
            callbacks = self._callbacks(checked)
            history = self._fit_on_engines(cluster, checked, state, callbacks, method, labels or self._labels(checked))
            mine = vars(self)
            callbacks.end(history, {name: mine[name] for name in self._fitted if name in mine})
        self._forget(cluster)
        return self

    def _fit_on_engines(
        self,
        cluster: Ranks,
        checked: InputT,
        state: dict[str, Any] | None,
        callbacks: Callbacks,
        method: str,
        labels: Result | None,
    ) -> list[tuple[Any, ...]]:
        """Run the task on the engines, set the attributes, and return the history of the fit."""
        X = checked.X
        call = Call(self, method, X, cluster, checked.n_init, callbacks.reached, checked.parameters)
        try:
            with call:
                found = call.ask(
                    self._task,
                    y=checked.targets,
                    sample_weight=checked.weights,
                    rules=self._rules,
                    held=self._held,
                    result=labels,
                    room=self._room(checked),
                    resume=state,
                    **self._arguments(cluster, checked, state),
                )
        except CallInterrupted as interrupt:
            raise CallInterrupted(self._keep_interrupted(interrupt, call, checked, labels)) from None
        answer: dict[str, Any] = found.results[0]
        self.report_ = call.report
        self._keep(checked, answer, None if labels is None else labels.value)
        self._tell(checked, answer)
        history: list[tuple[Any, ...]] = answer["history"]
        return history

    def _keep_interrupted(self, interrupt: CallInterrupted, call: Call, checked: InputT, labels: Result | None) -> str:
        """Keep the state of an interrupted fit, and return a message that says what the user can do now.

        Usually this is the state after the last complete iteration of all ranks. If the ranks stopped at different
        points, because one of them was compiling kernels, or if they stopped between two runs, it is that of the
        checkpoint, `call.kept`, which has no labels.
        """
        self.report_ = call.report
        found: dict[str, Any] = {} if interrupt.answer is None else interrupt.answer.results[0]
        values = None if labels is None else labels.value
        if "converged" in found:
            self._keep(checked, found, values)
            self._forget(call.ranks)
            return call.had_ended()
        state = found.get("state", call.kept)
        if state is not None:
            self._keep_state(checked, state, values if "state" in found else None)
            self._stopped, self._stopped_in = (checked, state), self._stopped_at(checked, state)
        if self._stopped is None:
            return call.interrupted(f" before {self._part} had ended")
        checked, state = self._stopped
        run = f", run {state['run'] + 1} of {checked.n_init}" if checked.n_init > 1 else ""
        said = call.interrupted(f" {self._stopped_in}{run}", resumes=True)
        call.keep_interrupted(self, said)
        return said

    def _forget(self, cluster: Ranks) -> None:
        """Forget the state of an earlier interrupt, because the fit has ended."""
        self._stopped = self._stopped_in = None
        if cluster.interrupted is self:
            cluster.interrupted = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copies, without the rows of an interrupted fit.

        The method `resume` of a copy raises an error that says so.
        """
        return {name: value for name, value in super().__getstate__().items() if name != "_stopped"}
