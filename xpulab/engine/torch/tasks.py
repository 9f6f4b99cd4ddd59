"""The tasks of networks. An engine imports PyTorch when it gets the first of them."""

from __future__ import annotations

import importlib
import time
from typing import Any

from xpulab.engine.engine import Task
from xpulab.engine.registry import task

__all__ = ["METRICS"]

#: Metrics of an epoch; NaN if there is no validation.
METRICS = ("train_loss", "valid_loss", "valid_acc", "rows_per_s")


@task("NeuralNet.fit", metrics=METRICS)
def _fit(task: Task, **arguments: object) -> dict[str, Any]:
    return _run("fit", task, arguments)


@task("NeuralNet.forward")
def _forward(task: Task, **arguments: object) -> dict[str, Any]:
    return _run("forward", task, arguments)


def _run(name: str, task: Task, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a function of the module that needs PyTorch, and show how long the import took."""
    task.show(passes=(0.0, 0.0, 0.0), doing="importing PyTorch")
    started = time.perf_counter()
    training = importlib.import_module("xpulab.engine.torch.training")
    task.show(passes=(time.perf_counter() - started, 0.0, 0.0), doing="")
    result: dict[str, Any] = getattr(training, name)(task, **arguments)
    return result
