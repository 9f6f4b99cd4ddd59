"""skorch's training loop on the ranks: each rank computes its part of every batch, and all ranks see global numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import skorch
import torch
import torch.distributed as dist
from skorch.callbacks import Checkpoint as SkorchCheckpoint
from skorch.callbacks import EpochScoring, PrintLog
from skorch.dataset import unpack_data
from skorch.utils import to_device
from torch.nn.parallel import DistributedDataParallel

from xpulab.engine.comm import Interrupted
from xpulab.engine.engine import Task
from xpulab.engine.host_arrays import rows_of_all
from xpulab.engine.torch.batches import Batches
from xpulab.engine.torch.horovod import allgather
from xpulab.engine.torch.refusals import of_criterion, of_module
from xpulab.engine.torch.saves import Saves, moved, set_randoms
from xpulab.engine.torch.setting import init
from xpulab.engine.waiting import cause_of, watched_by
from xpulab.exceptions import UsageError
from xpulab.sharing.sources import SharedArray, Source
from xpulab.sources.mapped import MappedFile

if TYPE_CHECKING:
    from xpulab.engine.torch.setting import Setting

__all__ = ["fit", "forward"]

_WEIGHTED = (torch.nn.NLLLoss, torch.nn.CrossEntropyLoss)


class _Stopped(BaseException):
    """The user has asked for the end, and all ranks have seen it in the same step."""


class RankNet:
    """The first base of a net on a rank. The other base is the class of the user's net, a subclass of skorch's."""

    _task: Task
    _setting: Any
    _saves: Saves
    _ddp: Any
    _trained: list[bool] | None
    _share: tuple[int, int]
    _weight: float
    _gathers: bool
    _rows: int
    _began: float
    forward_seconds: float
    backward_seconds: float

    def _begin(self, task: Task, setting: Setting, saves: Saves) -> None:
        here = vars(self)
        here.update(_task=task, _setting=setting, _saves=saves, _ddp=None, _trained=None, _gathers=False)
        here.update(_rows=0, forward_seconds=0.0, backward_seconds=0.0, _began=time.perf_counter())
        self._gathers = any(
            isinstance(callback, EpochScoring) and callback.on_train
            for _, callback in self.callbacks_  # type: ignore[attr-defined]
        )

    # The loop.

    def fit_loop(self, X: object, y: object = None, epochs: int | None = None, **fit_params: object) -> Any:
        """Train as skorch does, from the place at which the state of the net was kept."""
        net: Any = self
        net.check_data(X, y)
        train, valid = net.get_split_datasets(X, y, **fit_params)
        about = {"dataset_train": train, "dataset_valid": valid}
        batches = Batches(net.get_iterator(train, training=True))
        checks = None if valid is None else Batches(net.get_iterator(valid, training=False))
        self._saves.apply()
        place = self._saves.place
        for epoch in range(place["epoch"], epochs or 0):
            begun = place["epoch"] == epoch and place["drawn"] is not None
            if not begun:
                net.notify("on_epoch_begin", **about)
                place.update(epoch=epoch, drawn=batches.drawn(), step=0, rows=0)
            started, rows_before, self._rows = time.perf_counter(), place["rows"], 0
            self._train(batches, place, fit_params)
            seconds, rows = time.perf_counter() - started, place["rows"] - rows_before
            net.history.record("train_batch_count", len(place["drawn"]))
            if checks is not None:
                self._validate(checks, fit_params)
            net.notify("on_epoch_end", **about)
            place.update(epoch=epoch + 1, drawn=None, step=0)
            self._show(epoch, rows / max(seconds, 1e-9))
        return net

    def _train(self, batches: Batches, place: dict[str, Any], fit_params: Mapping[str, Any]) -> None:
        net: Any = self
        for step in range(place["step"], len(place["drawn"])):
            rows = place["drawn"][step]
            mine = batches.part(rows)
            batch = batches.made(mine or rows[:1])
            vars(self)["_share"] = (len(mine), len(rows))
            net.notify("on_batch_begin", batch=batch, training=True)
            found = net.train_step(batch, **fit_params)
            loss, stop, save = self._agreed(found["loss"])
            if not math.isfinite(loss):
                raise ValueError(
                    f"the loss is {loss} at step {step + 1} of epoch {place['epoch'] + 1}; expected a finite number. "
                    "Lower the learning rate, or look for NaN and infinity in X and y"
                )
            if self._gathers:
                batch, found = self._global(batch, found, len(mine))
            net.history.record_batch("train_loss", loss)
            net.history.record_batch("train_batch_size", len(rows))
            net.notify("on_batch_end", batch=batch, training=True, **{**found, "loss": torch.tensor(loss)})
            place.update(step=step + 1, rows=place["rows"] + len(rows))
            self._rows += len(mine)
            if save:
                self._saves.keep(net)
            if stop:
                raise _Stopped

    def _validate(self, batches: Batches, fit_params: Mapping[str, Any]) -> None:
        net: Any = self
        drawn = batches.drawn()
        for rows in drawn:
            mine = batches.part(rows)
            batch = batches.made(mine or rows[:1])
            vars(self)["_share"] = (len(mine), len(rows))
            net.notify("on_batch_begin", batch=batch, training=False)
            found = net.validation_step(batch, **fit_params)
            share, total = self._weights(unpack_data(batch)[1], found["y_pred"])
            # 0 * NaN is NaN: the row of a rank without rows must not count.
            part = found["loss"].detach().double().cpu() * share / total
            part = part if len(mine) else torch.zeros_like(part)
            dist.all_reduce(part)
            batch, found = self._global(batch, found, len(mine))
            net.history.record_batch("valid_loss", float(part))
            net.history.record_batch("valid_batch_size", len(rows))
            net.notify("on_batch_end", batch=batch, training=False, **{**found, "loss": part})
        net.history.record("valid_batch_count", len(drawn))

    def _global(self, batch: object, found: dict[str, Any], n: int) -> tuple[Any, dict[str, Any]]:
        """Return a batch and a result with the targets and predictions of all ranks, for scores."""
        X, y = unpack_data(batch)
        return (X, _joined(y, n)), {**found, "y_pred": _joined(found["y_pred"], n)}

    def _show(self, epoch: int, speed: float) -> None:
        """Show the metrics of an epoch on the board, and keep them for the report."""
        row = self.history[-1]  # type: ignore[attr-defined]
        metrics = (
            float(row.get("train_loss", math.nan)),
            float(row.get("valid_loss", math.nan)),
            float(row.get("valid_acc", math.nan)),
            speed,
        )
        self._task.show(run=1, iteration=epoch + 1, metrics=metrics)
        self._task.note_iteration(1, epoch + 1)
        self._saves.history.append((1, epoch + 1, *metrics, time.perf_counter() - self._began))

    def _show_passes(self) -> None:
        self._task.device.kernel_seconds = self.forward_seconds + self.backward_seconds
        self._task.engine.record["passes"][1:] = self.forward_seconds, self.backward_seconds
        self._task.show()

    # A step.

    def infer(self, x: object, **fit_params: object) -> Any:
        """Compute the module's output: in a training step by DistributedDataParallel."""
        net: Any = self
        module = net.module_
        if torch.is_grad_enabled() and module.training:
            vars(self)["module_"] = self._wrapped()
        try:
            with of_module(module, x):
                return super().infer(x, **fit_params)  # type: ignore[misc]
        finally:
            vars(self)["module_"] = module

    def get_loss(self, y_pred: object, y_true: object, *args: object, **kwargs: object) -> Any:
        """Compute the loss."""
        with of_criterion(self.criterion_, y_pred, y_true):  # type: ignore[attr-defined]
            return super().get_loss(y_pred, y_true, *args, **kwargs)  # type: ignore[misc]

    def _wrapped(self) -> Any:
        """Return the module in DistributedDataParallel; anew if other parameters are trained than before."""
        net: Any = self
        trained = [parameter.requires_grad for parameter in net.module_.parameters()]
        if not any(trained):
            return net.module_
        if trained != self._trained:
            vars(self).update(_trained=trained, _ddp=DistributedDataParallel(net.module_))
        return self._ddp

    def train_step_single(self, batch: object, **fit_params: object) -> dict[str, Any]:
        """Compute the loss and the gradients of the whole batch."""
        net: Any = self
        started = time.perf_counter()
        net._set_training(True)
        Xi, yi = unpack_data(batch)
        y_pred = net.infer(Xi, **fit_params)
        loss = net.get_loss(y_pred, yi, X=Xi, training=True)
        middle = time.perf_counter()
        share, total = self._weights(yi, y_pred)
        size = dist.get_world_size()
        vars(self)["_weight"] = share / total
        (loss if share * size == total else loss * (share * size / total)).backward()
        self._require_gradients()
        self.forward_seconds += middle - started
        self.backward_seconds += time.perf_counter() - middle
        return {"loss": loss, "y_pred": y_pred}

    def _weights(self, y: Any, y_pred: Any) -> tuple[float, float]:
        """Return the weight of this rank's part of a batch in the loss, and the weight of the whole batch.

        DistributedDataParallel averages over the ranks, and a criterion over the rows of a rank.
        """
        net: Any = self
        mine, every = self._share
        criterion = net.criterion_
        if getattr(criterion, "reduction", "mean") == "sum":
            return (1.0 if mine else 0.0), 1.0
        weighted = isinstance(criterion, _WEIGHTED) and isinstance(y, torch.Tensor) and not y.is_floating_point()
        if not weighted or (criterion.weight is None and criterion.ignore_index < 0):
            return float(mine), float(every)
        target = y.to(net.device)
        counts = (target != criterion.ignore_index).double()
        if criterion.weight is not None:
            counts *= criterion.weight.double()[target.clamp(min=0)]
        total = counts.sum().cpu() if mine else torch.zeros((), dtype=torch.float64)
        share = float(total)
        dist.all_reduce(total)
        return share, float(total)

    def _require_gradients(self) -> None:
        """Raise an error that names the parameters without a gradient; the other ranks would wait for them."""
        net: Any = self
        without = [name for name, each in net.module_.named_parameters() if each.requires_grad and each.grad is None]
        if without:
            raise UsageError(
                f"rank {dist.get_rank()} has no gradient of {', '.join(without)}; expected that every step uses all "
                "parameters of the module. For parameters that are not trained, type: parameter.requires_grad_(False)"
            )

    def _agreed(self, loss: torch.Tensor) -> tuple[float, bool, bool]:
        """Return the loss of the whole batch, whether to stop, and whether to keep the state; the same on all ranks."""
        started = time.perf_counter()
        mine = self._share[0] > 0
        numbers = torch.tensor(
            [
                float(loss.detach()) * self._weight if mine else 0.0,
                float(self._task.cancelled()),
                float(self._saves.due()),
            ],
            dtype=torch.float64,
        )
        dist.all_reduce(numbers)
        self._task.comm.communicate += time.perf_counter() - started
        self._show_passes()
        return float(numbers[0]), bool(numbers[1]), bool(numbers[2])

    #: Predictions for a callback, such as a score without a cache, are computed on each rank as in one process.
    forward_iter = skorch.NeuralNet.forward_iter

    def notify(self, method_name: str, **cb_kwargs: object) -> None:
        """Call the callbacks as skorch does. Rank 0 alone writes checkpoints; the live view shows what is printed."""
        net: Any = self
        getattr(net, method_name)(net, **cb_kwargs)
        for _, callback in net.callbacks_:
            elsewhere = isinstance(callback, SkorchCheckpoint) and dist.get_rank() > 0
            if not elsewhere and not isinstance(callback, PrintLog):
                getattr(callback, method_name)(net, **cb_kwargs)


def opened(task: Task, call: bytes, buffers: Sequence[bytes | SharedArray]) -> dict[str, Any]:
    """Return what the notebook has sent. Its large arrays are in shared memory, which is valid during the task.

    The rows of a handle are copied from all ranks into memory of each host.
    """
    sent = cloudpickle.loads(call, buffers=[b if isinstance(b, bytes) else b.open() for b in buffers])
    for name in ("X", "y"):
        if isinstance(sent.get(name), MappedFile):
            sent[name] = sent[name].open()
        elif isinstance(sent.get(name), Source):
            sent[name] = rows_of_all(task, sent[name])
    return sent


def _net(sent: Mapping[str, Any], kept: bytes | None, task: Task, saves: Saves, setting: Setting) -> Any:
    """Return the user's net on this rank, with the attributes of a state, if there is one."""
    kind = type(sent["class"].__name__, (RankNet, sent["class"]), {})
    net: Any = object.__new__(kind)
    vars(net).update(sent["net"])
    if kept is not None:
        vars(net).update(cloudpickle.loads(kept))
    vars(net)["device"] = str(setting.device)
    moved(net.module_, getattr(net, "criterion_", None), getattr(net, "optimizer_", None), setting.device)
    net._begin(task, setting, saves)
    return net


def fit(
    task: Task,
    call: bytes,
    buffers: Sequence[Any],
    epochs: int,
    every: float,
    device: str | None,
    group: str | None,
    resume: dict[str, Any] | None = None,
    checkpoint: str | None = None,
) -> dict[str, Any]:
    """Train a net.

    Parameters
    ----------
    call, buffers : bytes and sequence
        The net, X, y, further arguments of `fit`, and the generators of random numbers, see `opened`.
    epochs : int
        Number of epochs.
    every : float
        Seconds between two states that are kept for new engines.
    device, group : str, optional
        The user's choice, see `setting.init`.
    resume : dict, optional
        The state with which to go on. Without ``net``, that of the call counts.
    checkpoint : str, optional
        Where to keep states.

    Returns
    -------
    dict
        ``state`` (on rank 0, its place in shared memory), ``history``, ``setting``, ``steps``.
    """
    if resume is not None:
        task.show(doing="going on")
    with watched_by(task.check_peers):
        try:
            return _fit(task, opened(task, call, buffers), epochs, every, init(group, device), resume, checkpoint)
        except RuntimeError as error:
            raise cause_of(error) from None


def _fit(
    task: Task,
    sent: dict[str, Any],
    epochs: int,
    every: float,
    setting: Setting,
    resume: dict[str, Any] | None,
    checkpoint: str | None,
) -> dict[str, Any]:
    kept = task.checkpoint(checkpoint) if checkpoint is not None and dist.get_rank() == 0 else None
    saves = Saves(resume, kept, every)
    set_randoms(sent["randoms"])
    net = _net(sent, resume.get("net") if resume else None, task, saves, setting)
    task.show(rows=0, doing="computing")
    try:
        if resume is None:
            net.notify("on_train_begin", X=sent["X"], y=sent["y"])
        try:
            net.fit_loop(sent["X"], sent["y"], epochs, **sent["fit_params"])
        except _Stopped:
            raise Interrupted(_result(task, net, saves, setting, False)) from None
        except KeyboardInterrupt:  # so EarlyStopping ends a fit, on all ranks, which see the same scores
            pass
        net.notify("on_train_end", X=sent["X"], y=sent["y"])
        return _result(task, net, saves, setting, True)
    finally:
        saves.close()


def _result(task: Task, net: skorch.NeuralNet, saves: Saves, setting: Setting, converged: bool) -> dict[str, Any]:
    state = saves.state(net)
    result: dict[str, Any] = {
        "rows": net._rows,
        "history": saves.history,
        "converged": None,
        "ended": converged,
        "device": str(setting.device),
        "backend": setting.backend,
        "why": setting.why,
        "passes": task.engine.record["passes"].tolist(),
    }
    if dist.get_rank() == 0:
        raw = np.frombuffer(cloudpickle.dumps(state), np.uint8)
        result["state"] = task.arrays_for_client([raw])
    return result


def forward(task: Task, call: bytes, buffers: Sequence[Any], device: str | None, group: str | None) -> dict[str, Any]:
    """Compute the output of a net for rows, each rank for its part.

    Returns
    -------
    dict
        ``parts``, the outputs of the module for this rank's rows, one tensor or tuple per batch, as bytes; ``passes``.
    """
    with watched_by(task.check_peers):
        setting = init(group, device)
        sent = opened(task, call, buffers)
        net = _net(sent, None, task, Saves(None, None, 0.0), setting)
        dataset = net.get_dataset(sent["X"])
        first, last = (len(dataset) * each // setting.size for each in (setting.rank, setting.rank + 1))
        mine = torch.utils.data.Subset(dataset, range(first, last))
        started = time.perf_counter()
        batches = net.get_iterator(mine) if last > first else ()
        parts = [to_device(net.evaluation_step(batch), "cpu") for batch in batches]
        task.device.kernel_seconds += (seconds := time.perf_counter() - started)
    raw = np.frombuffer(cloudpickle.dumps(parts), np.uint8)
    passes = float(task.engine.record["passes"][0]), seconds
    return {"rows": last - first, "passes": passes, "parts": task.arrays_for_client([raw])}


def _joined(values: object, n: int) -> Any:
    """Return the values of all ranks, of which `n` rows of this rank count."""
    if isinstance(values, tuple | list):
        return type(values)(_joined(value, n) for value in values)
    if not isinstance(values, torch.Tensor) or values.ndim == 0:
        return values
    return values if dist.get_world_size() == 1 else allgather(values.detach()[:n])
