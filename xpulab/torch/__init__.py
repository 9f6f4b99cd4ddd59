"""PyTorch on the engines.

In the notebook:

>>> from xpulab.torch import NeuralNetClassifier  # doctest: +SKIP
>>> net = NeuralNetClassifier(Net, max_epochs=10, lr=0.1, batch_size=256).fit(X, y)  # doctest: +SKIP

In a ``%%xpu`` cell, or in a script under ``xpulab run``:

>>> import torch, xpulab.torch  # doctest: +SKIP
>>> model, loader = xpulab.torch.prepare(Net(), dataset, batch_size=64)  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from xpulab.exceptions import UsageError

#: Names for code that runs on the ranks -> their modules.
_ON_RANKS = {
    "DistributedOptimizer": "words",
    "Setting": "setting",
    "allgather": "words",
    "allreduce": "words",
    "broadcast": "words",
    "broadcast_parameters": "words",
    "epochs": "loop",
    "init": "setting",
    "prepare": "loop",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_RANKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "xpulab.engine.engine" not in sys.modules and not _under_mpi():
        raise UsageError(
            f"xpulab.torch.{name} is for code that runs on the engines; call it in a cell that begins with %%xpu, or "
            "in a script under: xpulab run -n 4 script.py"
        )
    return getattr(importlib.import_module(f"xpulab.engine.torch.{_ON_RANKS[name]}"), name)


def _under_mpi() -> bool:
    """Return whether mpiexec has started this process."""
    return any(name in os.environ for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"))


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_RANKS})
