"""Measures training steps of PyTorch on engines against torchrun with gloo, and against a plain process.

python benchmarks/pytorch/torch_ddp.py --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_steps

import xpulab
from xpulab.console.cells import run_cell
from xpulab.report.rendering import table_text
from xpulab.torch import NeuralNetClassifier

STEPS = Path(torch_steps.__file__)


def with_torchrun(n: int, steps: int, cores: list[int]) -> dict[str, Any]:
    """Measure in `n` processes under torchrun, with gloo; in a plain process if `n` is 0."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"] if n else []
    command = [sys.executable, *launcher, str(STEPS), "--steps", str(steps), "--cores", *map(str, cores)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def on_engines(cluster: Any, n: int, steps: int) -> dict[str, Any]:
    """Measure on the first `n` engines of the cluster."""
    source = f"""
import sys
sys.path.insert(0, {str(STEPS.parent)!r})
import torch_steps, xpulab.torch
xpulab.torch.init()
found = torch_steps.measured({steps}, True)
"""
    output = run_cell(cluster, source, ranks=list(range(n)), out=["found"])
    found: dict[str, Any] = output.values["found"][0]
    return found


def first_step(rows: int = 128) -> float:
    """Return the seconds of a fit of one step on engines that have imported PyTorch."""
    X, y = np.zeros((rows, 784), np.float32), np.zeros(rows, np.int64)
    net = NeuralNetClassifier(
        torch_steps.MLP, criterion=torch.nn.CrossEntropyLoss, max_epochs=1, batch_size=rows, train_split=None, verbose=0
    ).initialize()
    started = time.perf_counter()
    net.partial_fit(X, y)
    return time.perf_counter() - started


def main() -> None:
    """Measure the systems in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system")
    parser.add_argument("--steps", type=int, default=20, help="steps of each network in a turn")
    asked = parser.parse_args()
    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    parameters: dict[str, int] = {}
    fits = []
    with xpulab.XPUCluster(2, timeout=120, display="none") as cluster:
        cores = [fact.cores[0] for fact in cluster.facts]
        systems: dict[str, Callable[[], dict[str, Any]]] = {
            "a plain process": lambda: with_torchrun(0, asked.steps, cores),
            "torchrun, gloo, 1 process": lambda: with_torchrun(1, asked.steps, cores),
            "torchrun, gloo, 2 processes": lambda: with_torchrun(2, asked.steps, cores),
            "xpulab, 1 engine": lambda: on_engines(cluster, 1, asked.steps),
            "xpulab, 2 engines": lambda: on_engines(cluster, 2, asked.steps),
        }
        for _ in range(asked.rounds):
            for system, measure in systems.items():
                for name, found in measure().items():
                    if isinstance(found, int):
                        parameters[name] = found
                    else:
                        seconds[system][name] += found
            fits.append(first_step())
    names = [*torch_steps.NETWORKS, "all-reduce"]
    lines = []
    for system, found in seconds.items():
        medians = {name: statistics.median(found[name]) for name in names if name in found}
        n = 2 if system.endswith(("engines", "processes")) else 1
        rates = [n * torch_steps.NETWORKS[name][2] / medians[name] for name in torch_steps.NETWORKS]
        reduce = f"{1e3 * medians['all-reduce']:.3f}" if "all-reduce" in medians and n > 1 else ""
        lines.append([system, *(f"{1e3 * medians[name]:.1f}" for name in torch_steps.NETWORKS), reduce,
                      *(f"{rate:,.0f}" for rate in rates)])  # fmt: skip
    about = ", ".join(f"{name} {count:,}" for name, count in parameters.items())
    print(f"torch {torch.__version__}, one core each, {about}")
    titles = ["median ms", *(f"{name} step" for name in torch_steps.NETWORKS), "all-reduce of 1 MiB"]
    print(table_text([*titles, *(f"{name} rows/s" for name in torch_steps.NETWORKS)], lines, "lrrrrr"))
    print(f"a fit of one step on a warm cluster takes {statistics.median(fits):.2f} s")


if __name__ == "__main__":
    main()
