"""Networks whose ranks wait for ever, and predictions that are interrupted."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from presses import Presses

import xpulab
from xpulab.console.cells import run_cell
from xpulab.exceptions import EngineError

skorch: Any = pytest.importorskip("skorch")
torch: Any = pytest.importorskip("torch")

from xpulab.torch import NeuralNetClassifier  # noqa: E402

pytestmark = pytest.mark.cluster

UNEVEN = """import torch, torch.distributed as dist, xpulab.torch
xpulab.torch.init()
others = dist.new_group()  # of which a second thread runs the collectives
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2), process_group=others)
for batch in range(5 if rank == 0 else 3):
    model(torch.ones(8, 4)).sum().backward()
"""


def hurry(task: Any, seconds: float) -> None:
    from xpulab.sharing import hangs

    hangs.HOPELESS = seconds


def test_a_rank_with_more_batches_than_the_others_says_in_which_line_it_waits(on_pair: xpulab.XPUCluster) -> None:
    on_pair.run(hurry, 1.5)
    try:
        with pytest.raises(EngineError, match=r"rank 0 waits in line 6 \(backward\); rank 1 has ended"):
            run_cell(on_pair, UNEVEN)
    finally:
        on_pair.run(hurry, 8.0)
    run_cell(on_pair, "xpulab.torch.init()\nt = torch.ones(1)\ndist.all_reduce(t)\nassert t.item() == 2")


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Softmax(1))

    def forward(self, rows: Any) -> Any:
        return self.layers(rows)


def test_every_method_of_a_net_says_what_was_interrupted(
    on_pair: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    labels = (rows[:, 0] > 0).astype(int)
    net = NeuralNetClassifier(Module, max_epochs=1, verbose=0, train_split=None)
    presses = Presses(monkeypatch)
    fits = (
        r"NeuralNetClassifier\.fit (was interrupted before its first step had ended; nothing was fitted: call it again"
        r"|had ended when the interrupt came: the estimator is fitted|was interrupted in epoch .*; to go on, type: .*)"
    )
    for said in presses.at_each(lambda: net.fit(rows, labels)):
        assert re.fullmatch(fits, said), said
    for predict in (net.predict, net.predict_proba, lambda rows: net.score(rows, labels)):
        said = list(presses.at_each(lambda: predict(rows)))  # noqa: B023
        assert said
        assert set(said) == {"NeuralNetClassifier.predict was interrupted: call it again"}
