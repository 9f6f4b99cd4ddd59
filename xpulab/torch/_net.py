"""skorch's estimators, whose module is trained on all engines with DistributedDataParallel."""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import skorch
import torch
from skorch.dataset import get_len

from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.deploy.tasks.answers import Answer
from xpulab.deploy.tasks.pickling import by_value
from xpulab.estimator.call import Call
from xpulab.estimator.interrupted import CallInterrupted, Interruptible, NothingToResumeError
from xpulab.exceptions import EngineLostError, NoClusterError, UsageError
from xpulab.report.fit import FitReport
from xpulab.sharing.memory import shared_or_sent
from xpulab.sharing.sources import SharedArray, Source
from xpulab.sources.mapped import mapped
from xpulab.torch._returned import returned

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NeuralNetClassifier", "NeuralNetRegressor"]

_EVERY = 5.0  # seconds between two states that are kept for new engines
_OWN = ("report_", "_job", "_state")


class _Shape:
    """Shape and dtype of the rows, for the report."""

    def __init__(self, X: object) -> None:
        first = next(iter(X.values())) if isinstance(X, dict) else X[0] if isinstance(X, list | tuple) else X
        self.shape = tuple(getattr(first, "shape", None) or (get_len(X),))
        self.ndim = len(self.shape)
        self.dtype = getattr(first, "dtype", type(X).__name__)


class _Sending:
    """Sends a net and its rows to the engines, as often as needed. Large arrays travel through shared memory."""

    def __init__(self, things: Mapping[str, Any]) -> None:
        self._things = things
        # The rows of a handle are lost with the engines.
        self.again = not any(isinstance(things[name], Source) for name in ("X", "y"))

    def require_room(self) -> None:
        """Do nothing: what a dataset needs is not known."""

    def __call__(self, outgoing: Outgoing) -> dict[str, Any]:
        """Send everything, and return the arguments that say where it is."""
        buffers: list[pickle.PickleBuffer] = []
        head = _pickled(self._things, buffers.append)
        return {"call": head, "buffers": shared_or_sent(buffers, outgoing.send)}


def _pickled(things: Mapping[str, Any], collect: Callable[[pickle.PickleBuffer], object] | None = None) -> bytes:
    """Return the bytes of a net and its rows.

    Raises
    ------
    TypeError
        If a part cannot be sent; the message has the part and the reason.
    """
    try:
        return by_value(dict(things), _owners(things), protocol=5, buffer_callback=collect)
    except Exception as error:
        parts = {**things, **things["net"]}
        part = next((name for name, value in parts.items() if name != "net" and not _can_be_sent(value)), "net")
        raise TypeError(
            f"{part.rstrip('_')} cannot be sent to the engines: {type(error).__name__}: {error}. Make what cannot be "
            "pickled, such as an open file or a lock, when it is used, and not in the constructor"
        ) from error


def _owners(things: Mapping[str, Any]) -> list[Any]:
    """Return the classes whose code may be the user's: those of the net, its parts, its callbacks and the rows."""
    values = [things["class"], things["X"], *things["net"].values()]
    values += [value for found in things["net"].values() if isinstance(found, list | tuple) for value in found]
    values += [value for found in values if isinstance(found, tuple) for value in found]
    modules = [module for found in values if isinstance(found, torch.nn.Module) for module in found.modules()]
    return [*values, *map(type, values), *map(type, modules)]


def _can_be_sent(value: object) -> bool:
    try:
        by_value(value, [type(value)])
    except Exception:
        return False
    return True


class _OnEngines(Interruptible):
    """What the estimators add to skorch's. Among the bases it comes first."""

    report_: FitReport

    def partial_fit(self, X: object, y: object = None, classes: object = None, **fit_params: object) -> Any:
        """Train the module for `max_epochs` more epochs on all engines.

        Parameters
        ----------
        X : array-like, ShardedArray, torch.utils.data.Dataset, or a list or dict of arrays
            As skorch takes it. NumPy arrays travel through shared memory; the engines read the file of a memory-mapped
            one. A dataset is sent by value; one that reads files opens them on the engines.
        y : array-like or ShardedArray, optional
        classes : array, optional
            As in skorch.
        **fit_params : Any
            As in skorch.

        Returns
        -------
        self

        Raises
        ------
        NoClusterError
            If no cluster is running.
        TypeError
            If the module, or another part, cannot be sent to the engines.
        CallInterrupted
            If the user pressed Stop. The net then has the weights of the last step, and `resume` goes on.
        EngineError
            If the module raised an exception on an engine.
        EngineLostError
            If engines were lost, and the cluster starts no new ones. The net then has the weights of the last state
            that was kept, and `resume` goes on.
        ValueError
            If the loss is NaN or infinite.
        """
        net: Any = self
        fit_params.pop("_routing_method", None)
        cluster = current_ranks()
        if not net.initialized_:
            net.initialize()
        if not isinstance(y, ShardedArray):  # the ranks check the targets of a handle
            net.check_data(X, y)
        job = {"X": X, "y": y, "fit_params": fit_params, "randoms": _randoms(), "epochs": net.max_epochs}
        return self._run(cluster, job, None)

    def resume(self) -> Any:
        """Go on with a fit that was interrupted, at the step at which it stopped, until it has had `max_epochs` epochs.

        Parameters that were set since then count, such as those of ``net.set_params(max_epochs=20, lr=0.01)``.

        Returns
        -------
        self

        Raises
        ------
        NotFittedError
            If no fit of this net was interrupted, or if this is a copy of the net.
        """
        if vars(self).get("_state") is None:
            raise NothingToResumeError("this net has no interrupted fit to go on with; call its fit")
        net: Any = self
        job = {**vars(self)["_job"], "epochs": net.max_epochs}
        # The net itself has the state of the stopped one, and what the user has changed since.
        state = {name: value for name, value in vars(self)["_state"].items() if name != "net"}
        return self._run(current_ranks(), job, state)

    def _run(self, cluster: Ranks, job: dict[str, Any], state: dict[str, Any] | None) -> Any:
        net: Any = self
        mine = {name: value for name, value in vars(self).items() if name not in _OWN}
        rows = {name: _where(job[name], cluster) for name in ("X", "y")}
        things = {"class": type(self), "net": mine, **{name: job[name] for name in ("fit_params", "randoms")}, **rows}
        room = 64 << 20
        if hasattr(net, "module_"):
            room += 8 * sum(each.nbytes for each in net.module_.state_dict().values()) + 16 * get_len(job["X"])
        call = Call(self, "fit", _Shape(job["X"]), cluster, parameters=_parameters(net))
        vars(self)["report_"] = call.report
        vars(self)["_job"] = vars(self)["_state"] = None
        arguments = {"resume": state, "epochs": job["epochs"], **self._where(), "every": _EVERY}
        try:
            with call:
                self._take(call.send("NeuralNet.fit", _Sending(things), room, **arguments), call)
        except CallInterrupted as interrupt:
            raise CallInterrupted(self._keep_interrupted(interrupt, call, job)) from None
        except EngineLostError:
            if call.kept is not None:
                self._set(call.kept)
                self._keep_state(job, call.kept)
                cluster.keep_interrupted(self)
            raise
        if cluster.interrupted is self:
            cluster.interrupted = None
        return self

    def _keep_state(self, job: dict[str, Any], state: dict[str, Any]) -> None:
        """Keep what `resume` needs."""
        vars(self).update(_job=job, _state=state)

    def _where(self) -> dict[str, Any]:
        """Return the arguments that say on which of PyTorch's devices the engines compute."""
        device = str(self.device).partition(":")[0]  # type: ignore[attr-defined]
        # skorch's default is the CPU, which means here: the engine's own device, as for all estimators of xpulab.
        return {"device": None if device == "cpu" else device, "group": None}

    def _take(self, answer: Answer, call: Call) -> dict[str, Any]:
        """Set the attributes from the state that rank 0 has returned."""
        first = answer.results[0]
        state: dict[str, Any] = _received(first["state"])
        self._set(state)
        setting = f"PyTorch computed on {first['device']} ({first['why']}), with the process group {first['backend']}"
        call.report.notes.append(setting)
        return state

    def _set(self, state: Mapping[str, Any]) -> None:
        mine = vars(self)
        found = cloudpickle.loads(state["net"])
        seen: dict[int, tuple[Any, Any]] = {}
        mine.update({name: returned(mine.get(name), value, seen) for name, value in found.items()})
        of_torch, of_numpy, of_python = state["randoms"][0]
        torch.set_rng_state(of_torch)
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)

    def _keep_interrupted(self, interrupt: CallInterrupted, call: Call, job: dict[str, Any]) -> str:
        """Keep the state of an interrupted fit, and return a message that says what the user can do now."""
        answer = interrupt.answer
        state = call.kept
        if answer is not None and "state" in answer.results[0]:
            state = self._take(answer, call)
            if answer.results[0]["ended"]:
                return call.had_ended()
        elif state is not None:
            self._set(state)
        if state is None:
            return call.interrupted(" before its first step had ended")
        self._keep_state(job, state)
        place = state["place"]
        at = f" in epoch {place['epoch'] + 1} after {place['step']} steps of it, of which it has the weights"
        said = call.interrupted(at, resumes=True)
        call.keep_interrupted(self, said)
        return said

    def forward_iter(self, X: object, training: bool = False, device: str = "cpu") -> Any:
        """Yield the output of the module for the rows of X, a batch at a time, computed on the engines.

        Parameters
        ----------
        X : array-like, ShardedArray, torch.utils.data.Dataset, or a list or dict of arrays
            The rows, as for `partial_fit`.
        training : bool, default=False
            Whether the module computes as in training, with dropout.
        device : str, default="cpu"
            Accepted as in skorch; the output is in this process.

        Raises
        ------
        NoClusterError
            If no cluster is running; the message says how to compute without one.
        """
        net: Any = self
        if training:
            raise UsageError("received training=True; expected False: xpulab computes predictions of fitted modules")
        net.check_is_fitted()
        try:
            cluster = current_ranks()
        except NoClusterError as error:
            raise NoClusterError(f"{error}\nto compute without a cluster, type: net.to_skorch().predict(X)") from None
        mine = {name: value for name, value in vars(self).items() if name not in (*_OWN, "history_", "optimizer_")}
        things = {"class": type(self), "net": mine, "X": _where(X, cluster), "y": None, "randoms": _randoms()}
        with Call(self, "predict", _Shape(X), cluster, parameters=_parameters(net)) as call:
            answer = call.send("NeuralNet.forward", _Sending(things), **self._where())
            parts = [_received(result["parts"]) for result in answer.results]
        for part in parts:
            yield from part

    def to_skorch(self) -> Any:
        """Return skorch's net with the same parameters and fitted attributes. It needs no cluster.

        Returns
        -------
        skorch.NeuralNet
        """
        kind = next(each for each in type(self).__mro__ if each.__module__.startswith("skorch."))
        plain: Any = object.__new__(kind)
        vars(plain).update({name: value for name, value in vars(self).items() if name not in _OWN})
        return plain

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copies, without the rows of an interrupted fit."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[misc]
        return {name: value for name, value in state.items() if name not in ("_job", "_state")}


class NeuralNetClassifier(_OnEngines, skorch.NeuralNetClassifier):
    """Classification by a network of PyTorch that all engines train, with skorch's interface.

    Parameters, methods and fitted attributes are those of `skorch.NeuralNetClassifier`. Each engine computes its part
    of every batch, so that `batch_size` is that of one process, and the result is the same for any number of engines,
    to rounding. Callbacks, history and scores see global numbers. The live view takes the place of the lines that
    skorch prints. Dropout draws other masks on each engine. Batch normalisation uses the rows of each engine's part of
    a batch, and keeps the statistics of rank 0.

    Parameters
    ----------
    module : torch.nn.Module (class or instance)
        The network. A class is made with the parameters `module__...`.
    *args, **kwargs : Any
        The other parameters of `skorch.NeuralNet`, such as `max_epochs`, `lr`, `batch_size`, `optimizer`, `criterion`,
        `train_split` and `callbacks`. `batch_size` is that of one process: each engine computes its part of a batch.

    Attributes
    ----------
    module_ : torch.nn.Module
        The trained network, with the same weights as on all engines.
    history_ : skorch.history.History
        The losses, scores and seconds of each epoch, over all rows.
    report_ : FitReport
        The report of the last fit.

    See Also
    --------
    skorch.NeuralNetClassifier : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.torch import NeuralNetClassifier
    >>> import numpy as np, torch
    >>> generator = torch.manual_seed(0)
    >>> X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(-1, 1)
    >>> y = (X[:, 0] > 0).astype(np.int64)
    >>> net = NeuralNetClassifier(torch.nn.Linear(1, 2), criterion=torch.nn.CrossEntropyLoss, max_epochs=20, lr=1.0)
    >>> with xpulab.XPUCluster(n=2):
    ...     net = net.fit(X, y)
    >>> bool(net.to_skorch().score(X, y) > 0.9)
    True
    """


class NeuralNetRegressor(_OnEngines, skorch.NeuralNetRegressor):
    """Regression by a network of PyTorch that all engines train, with skorch's interface.

    Parameters, methods and fitted attributes are those of `skorch.NeuralNetRegressor`. `NeuralNetClassifier` says how
    the engines compute.

    Parameters
    ----------
    module : torch.nn.Module (class or instance)
        The network. A class is made with the parameters `module__...`.
    *args, **kwargs : Any
        The other parameters of `skorch.NeuralNet`, such as `max_epochs`, `lr`, `batch_size`, `optimizer`, `criterion`,
        `train_split` and `callbacks`. `batch_size` is that of one process: each engine computes its part of a batch.

    Attributes
    ----------
    module_ : torch.nn.Module
        The trained network, with the same weights as on all engines.
    history_ : skorch.history.History
        The losses, scores and seconds of each epoch, over all rows.
    report_ : FitReport
        The report of the last fit.

    See Also
    --------
    skorch.NeuralNetRegressor : The same in one process.
    """


def _where(rows: object, cluster: Ranks) -> Any:
    """Return rows that pickle can send; of a handle and of a memory-mapped file, where the engines find them."""
    return rows.source(cluster) if isinstance(rows, ShardedArray) else mapped(rows) or rows


def _randoms() -> tuple[Any, ...]:
    """Return the states of the generators of random numbers of this process, with which the engines go on."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def _received(part: bytes | SharedArray) -> Any:
    """Return the outputs that a rank has sent."""
    return cloudpickle.loads(part if isinstance(part, bytes) else part.open().tobytes())


def _parameters(net: skorch.NeuralNet) -> dict[str, Any]:
    """Return the parameters for the report, as plain values."""
    simple = {}
    for name, value in net.get_params(deep=False).items():
        if isinstance(value, str | int | float | bool | None):
            simple[name] = value
        elif name in ("module", "criterion", "optimizer"):
            simple[name] = getattr(value, "__name__", type(value).__name__)
    return simple
