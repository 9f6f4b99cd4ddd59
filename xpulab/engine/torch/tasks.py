"""The tasks of networks. An engine imports PyTorch when it gets the first of them."""

from __future__ import annotations

from typing import Any

from xpulab.engine.engine import Task, task

__all__ = ["METRICS"]

#: Metrics of an epoch; NaN if there is no validation.
METRICS = ("train_loss", "valid_loss", "valid_acc", "rows_per_s")


@task("NeuralNet.fit", metrics=METRICS)
def _fit(task: Task, **arguments: Any) -> dict[str, Any]:
    from xpulab.engine.torch.training import fit

    return fit(task, **arguments)


@task("NeuralNet.forward")
def _forward(task: Task, **arguments: Any) -> dict[str, Any]:
    from xpulab.engine.torch.training import forward

    return forward(task, **arguments)
