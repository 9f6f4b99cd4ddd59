"""PyTorch on the engines.

In the notebook::

    from xpulab.torch import NeuralNetClassifier
    net = NeuralNetClassifier(Net, max_epochs=10, lr=0.1, batch_size=256).fit(X, y)

In a ``%%xpu`` cell, or in a script under ``xpulab run``::

    import torch, xpulab.torch
    model, loader = xpulab.torch.prepare(Net(), dataset, batch_size=64)
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from xpulab.exceptions import UsageError

#: Names for code that runs on the ranks -> their modules.
_ON_RANKS = {
    "DistributedOptimizer": "horovod",
    "Setting": "setting",
    "allgather": "horovod",
    "allreduce": "horovod",
    "broadcast": "horovod",
    "broadcast_parameters": "horovod",
    "epochs": "loop",
    "init": "setting",
    "prepare": "loop",
}


#: Names for the notebook -> their modules.
_IN_NOTEBOOK = {"NeuralNetClassifier": "_net", "NeuralNetRegressor": "_net"}


def __getattr__(name: str) -> Any:
    if name in _IN_NOTEBOOK:
        _require_packages()
        return getattr(importlib.import_module(f"xpulab.torch.{_IN_NOTEBOOK[name]}"), name)
    if name not in _ON_RANKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "xpulab.engine.engine" not in sys.modules and not _under_mpi():
        raise UsageError(
            f"xpulab.torch.{name} is for code that runs on the engines; call it in a cell that begins with %%xpu, or "
            "in a script under: xpulab run -n 4 script.py"
        )
    return getattr(importlib.import_module(f"xpulab.engine.torch.{_ON_RANKS[name]}"), name)


def _require_packages() -> None:
    """Raise an error that says what to install, if PyTorch or skorch is missing."""
    missing = [name for name in ("torch", "skorch") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f'{" and ".join(missing)} not found. Type: {sys.executable} -m pip install "xpulab[torch]", which '
            "downloads PyTorch for NVIDIA GPUs (0.5 GB, 2.6 GB with its libraries). For the CPU alone (0.2 GB), or for "
            "Intel GPUs, install PyTorch's build first: the page Get Started of pytorch.org has the command"
        )


def _under_mpi() -> bool:
    """Return whether mpiexec has started this process."""
    return any(name in os.environ for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"))


def __dir__() -> list[str]:
    return sorted({*_IN_NOTEBOOK, *_ON_RANKS})
