"""The training loop of a cell or a script: a model on all ranks, the rows of each rank, epochs that end together."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from xpulab.engine.torch.collective_queue import PATIENCE
from xpulab.engine.torch.setting import init
from xpulab.engine.waiting import hear
from xpulab.exceptions import UsageError

__all__ = ["Loader", "epochs", "prepare"]

_END = object()


class Loader(DataLoader):
    """PyTorch's loader of this rank's batches, on the device of this rank. `prepare` makes it.

    Attributes
    ----------
    device : torch.device
        The device of the batches.
    """

    def __init__(self, dataset: Dataset, device: torch.device, **options: object) -> None:
        super().__init__(dataset, **options)
        self.device = device
        self._stop: _Stop | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yield this rank's batches. Within `epochs` all ranks end together."""
        batches, number = super().__iter__(), 0
        while True:
            batch = next(batches, _END)
            if self._stop is not None:
                self._stop.agree(number, batch is _END)
            if batch is _END:
                return
            yield _moved(batch, self.device)
            number += 1


class _Stop:
    """Lets all ranks leave a loop at the same step: it notes Ctrl-C, and the ranks compare their notes at each step.

    If a rank does not come to its next step within `PATIENCE` seconds, Ctrl-C ends it where it is.
    """

    def __init__(self) -> None:
        self._pressed = 0.0
        self._again: threading.Timer | None = None
        self.steps = 0

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._again is not None:
            self._again.cancel()
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == self._note:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, *frame: Any) -> None:
        if not self._pressed:
            self._pressed = time.monotonic()
            self._again = threading.Timer(PATIENCE, os.kill, (os.getpid(), signal.SIGINT))
            self._again.daemon = True
            self._again.start()
        if time.monotonic() - self._pressed > PATIENCE and callable(self._before):
            self._before(*frame)

    def agree(self, number: int, ends: bool) -> None:
        """Exchange with the other ranks whether to stop, and whether there is another batch.

        Raises
        ------
        KeyboardInterrupt
            On all ranks, if one of them has noted Ctrl-C.
        ValueError
            On all ranks, if some of them have no more batches.
        """
        mine = torch.tensor([self._pressed > 0, ends])
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(every, mine)
        if any(bool(pressed) for pressed, _ in every):
            hear()
            raise KeyboardInterrupt
        ended = [rank for rank, (_, end) in enumerate(every) if end]
        if ended and len(ended) < len(every):
            raise ValueError(
                f"received {number} batches on rank {', '.join(map(str, ended))} and more on the others; expected the "
                "same number on every rank. Pass the same dataset and batch_size to xpulab.torch.prepare on every rank"
            )
        self.steps += not ends


def prepare(
    model: torch.nn.Module,
    dataset: Dataset | DataLoader,
    batch_size: int = 64,
    *,
    shuffle: bool = True,
    seed: int = 0,
    backend: str | None = None,
    device: str | None = None,
    ddp: dict[str, Any] | None = None,
    **loading: object,
) -> tuple[torch.nn.Module, Loader]:
    """Put a model on all ranks that run this code, and give each of them its part of a dataset.

    All ranks call this together, with the same model and the same dataset.

    Parameters
    ----------
    model : torch.nn.Module
        All ranks begin with the parameters and buffers of rank 0.
    dataset : torch.utils.data.Dataset or torch.utils.data.DataLoader
        The whole dataset. Of a loader, the dataset and the settings are taken.
    batch_size : int
        Rows of a batch of one rank. A step of all ranks uses as many rows for each rank.
    shuffle : bool
        Whether each epoch has another order of rows; it is the same for any number of ranks.
    seed : int
        Determines the order of rows.
    backend, device : str, optional
        See `init`.
    ddp : dict, optional
        Arguments of `torch.nn.parallel.DistributedDataParallel`, such as ``{"find_unused_parameters": True}``.
    **loading : Any
        Other arguments of `torch.utils.data.DataLoader`, such as ``collate_fn``.

    Returns
    -------
    model : torch.nn.Module
        The model on this rank's device, in DistributedDataParallel if it has parameters to train.
    loader : Loader
        The batches of this rank. `epochs` needs it.

    Raises
    ------
    UsageError
        If the dataset has no length, or not the same one on every rank.

    Examples
    --------
    In a ``%%xpu`` cell, or in a script under ``xpulab run``::

        model, loader = xpulab.torch.prepare(Net(), dataset, batch_size=64)
        for epoch in xpulab.torch.epochs(5, loader):
            for x, y in loader:
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()
    """
    setting = init(backend, device)
    if isinstance(dataset, DataLoader):
        if dataset.batch_size is None:
            raise UsageError("received a DataLoader with batch_size=None; expected one that makes batches")
        loading = {"collate_fn": dataset.collate_fn, "drop_last": dataset.drop_last, **loading}
        loading.setdefault("num_workers", dataset.num_workers)
        dataset, batch_size = dataset.dataset, dataset.batch_size
    _check(dataset, batch_size)
    sampler: Any = DistributedSampler(
        dataset, setting.size, setting.rank, shuffle, seed, drop_last=loading.get("drop_last", False)
    )
    loader = Loader(dataset, setting.device, batch_size=batch_size, sampler=sampler, **loading)
    model = model.to(setting.device)
    if any(parameter.requires_grad for parameter in model.parameters()):
        model = DistributedDataParallel(model, **(ddp or {}))
    return model, loader


def epochs(n: int, loader: Loader) -> Iterator[int]:
    """Yield the numbers of epochs, each with another order of rows. Rank 0 prints a line for each epoch.

    Stop ends the loop on all ranks at the same step, before its batch, so that all ranks have the same parameters.

    Parameters
    ----------
    n : int
        Number of epochs.
    loader : Loader
        As `prepare` returned it.

    Yields
    ------
    int
        From 0 to n - 1.

    Raises
    ------
    KeyboardInterrupt
        If the user has pressed Stop.
    ValueError
        If the ranks have different numbers of batches.
    """
    if not isinstance(loader, Loader):
        raise UsageError(
            f"received a {type(loader).__name__}; expected the loader that xpulab.torch.prepare has returned: "
            "model, loader = xpulab.torch.prepare(model, dataset, batch_size=64)"
        )
    rank, size, sampler = dist.get_rank(), dist.get_world_size(), loader.sampler
    with _Stop() as stop, _agreeing(loader, stop):
        for epoch in range(n):
            sampler.set_epoch(epoch)
            stop.steps, started = 0, time.perf_counter()
            yield epoch
            seconds = time.perf_counter() - started
            rows = stop.steps * (loader.batch_size or 1)
            rows = min(rows, len(sampler)) * size
            if rank == 0:
                print(
                    f"epoch {epoch + 1} of {n}: {stop.steps} steps, {rows:,} rows, {seconds:.2f} s, "
                    f"{rows / seconds:,.0f} rows/s"
                )


@contextlib.contextmanager
def _agreeing(loader: Loader, stop: _Stop) -> Iterator[None]:
    """Let the ranks agree at each step of the loader."""
    loader._stop = stop
    try:
        yield
    finally:
        loader._stop = None


def _check(dataset: Dataset, batch_size: int) -> None:
    """Raise the same error on all ranks if the dataset or the size of its batches cannot be used."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise UsageError(
            f"received a {type(dataset).__name__}, which has no length; expected a dataset with __len__ and "
            "__getitem__, of which each rank takes its part, such as torch.utils.data.TensorDataset(X, y)"
        )
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(f"batch_size={batch_size!r} was given, expected an integer of at least 1")
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, (len(dataset), batch_size))
    if len(set(every)) > 1:
        rows = "; ".join(f"{n} rows in batches of {size} on rank {rank}" for rank, (n, size) in enumerate(every))
        raise UsageError(f"received {rows}; expected the whole dataset and the same batch_size on every rank")
    if len(dataset) == 0:
        raise UsageError("received a dataset without rows; expected at least one row")


def _moved(batch: object, device: torch.device) -> Any:
    """Return a batch whose tensors are on this device."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: _moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_moved(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_moved(value, device) for value in batch)
    return batch
