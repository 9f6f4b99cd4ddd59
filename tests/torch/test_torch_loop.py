"""`xpulab.torch.prepare` and `epochs` in cells: training on all ranks, Stop at one step, and bad input."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from strikes import come_to, pressed_when

import xpulab
from xpulab.console.cells import CellInterrupted, run_cell
from xpulab.exceptions import EngineError

pytestmark = pytest.mark.cluster

NET = """
import torch, xpulab.torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

torch.manual_seed(rank)
x = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
y = (x[:, 0] > x[:, 1]).long()
dataset = TensorDataset(x, y, torch.arange(96))
net = torch.nn.Linear(6, 2)

def trained(model, loader, epochs, seen):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in xpulab.torch.epochs(epochs, loader):
        seen.append([])
        for x, y, which in loader:
            seen[-1] += which.tolist()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return float((model(dataset.tensors[0]).argmax(1) == dataset.tensors[1]).float().mean())
"""


@pytest.mark.parametrize("n", [1, 2, 3])
def test_all_ranks_train_one_model_each_on_its_part(
    n: int,
    clusters: Callable[[int], xpulab.XPUCluster],
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = request.getfixturevalue("pair") if n == 2 else clusters(n)
    source = f"""{NET}
seen = []
model, loader = xpulab.torch.prepare(net, dataset, batch_size=48 // size)
accuracy = trained(model, loader, 20, seen)
weights = net.weight.detach().clone()
every = [torch.empty_like(weights) for _ in range(size)]
dist.all_gather(every, weights)
same = all(torch.equal(each, weights) for each in every)
"""
    output = run_cell(cluster, source, out=["seen", "accuracy", "same", "weights"])
    values = output.values
    assert values["same"] == [True] * n
    assert values["accuracy"][0] > 0.9
    first, second = ([row for mine in values["seen"] for row in mine[epoch]] for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(96))
    assert first != second  # set_epoch
    lines = re.findall(
        r"^\[0\] epoch (\d+) of 20: 2 steps, 96 rows, [\d.]+ s, [\d,]+ rows/s$", capsys.readouterr().out, re.M
    )
    assert lines == [str(epoch + 1) for epoch in range(20)]


def test_worker_processes_of_a_loader_give_the_same_model(pair: xpulab.XPUCluster) -> None:
    """Each rank forks two processes that read its batches. They end with the loader."""
    source = f"""{NET}
import copy, psutil
found, seen = [], []
for workers in 0, 2:
    torch.manual_seed(0)
    loading = {{"num_workers": workers, "multiprocessing_context": "fork"}} if workers else {{}}
    model, loader = xpulab.torch.prepare(copy.deepcopy(net), dataset, batch_size=24, **loading)
    trained(model, loader, 2, seen)
    found.append(model.module.weight.detach().numpy())
same, left = bool((found[0] == found[1]).all()), len(psutil.Process().children())
"""
    values = run_cell(pair, source, out=["same", "left"]).values
    assert values == {"same": [True, True], "left": [0, 0]}


def test_the_result_is_the_same_for_any_number_of_ranks(
    clusters: Callable[[int], xpulab.XPUCluster], pair: xpulab.XPUCluster
) -> None:
    source = f"""{NET}
model, loader = xpulab.torch.prepare(net, dataset, batch_size=48 // size, seed=3)
trained(model, loader, 5, [])
weights = net.weight.detach().clone()
"""
    found = [
        run_cell(cluster, source, out=["weights"]).values["weights"][0] for cluster in (clusters(1), pair, clusters(3))
    ]
    for other in found[1:]:
        assert abs(other - found[0]).max() < 1e-6


def test_a_loader_gives_its_settings(pair: xpulab.XPUCluster) -> None:
    source = f"""{NET}
given = DataLoader(dataset, batch_size=5, drop_last=True, collate_fn=lambda rows: torch.stack([row[0] for row in rows]))
model, loader = xpulab.torch.prepare(net, given, shuffle=False)
shapes = [tuple(batch.shape) for batch in loader]
"""
    assert run_cell(pair, source, out=["shapes"]).values["shapes"] == [[(5, 6)] * 9] * 2


def test_a_model_without_parameters_to_train_is_not_wrapped(pair: xpulab.XPUCluster) -> None:
    run_cell(pair, f"{NET}\nmodel, loader = xpulab.torch.prepare(torch.nn.Identity(), dataset)")
    run_cell(pair, "assert isinstance(model, torch.nn.Identity)\nassert sum(len(x) for x, *_ in loader) == 48")


@pytest.mark.timeout(60)
def test_a_stop_that_one_rank_has_seen_first_ends_all_at_the_same_step(pair: xpulab.XPUCluster) -> None:
    source = f"""{NET}
import os, signal
model, loader = xpulab.torch.prepare(net, dataset, batch_size=4)
optimizer, steps, ended = torch.optim.SGD(model.parameters(), lr=0.1), 0, False
try:
    for epoch in xpulab.torch.epochs(3, loader):
        for x, y, which in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            steps += 1
            if steps == 17 and rank == 1:
                os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    ended = True
"""
    values = run_cell(pair, source, out=["steps", "ended"]).values
    assert values == {"steps": [17, 17], "ended": [True, True]}


@pytest.mark.parametrize("step", [5, 14])
def test_stop_ends_all_ranks_at_one_step_and_the_next_cell_goes_on(
    pair: xpulab.XPUCluster, tmp_path: Path, step: int
) -> None:
    """Rank 1 is slower, so that the ranks are at different places when the signal comes."""
    run_cell(pair, f"{NET}\nimport time\nmodel, loader = xpulab.torch.prepare(net, dataset, batch_size=4)\nsteps = 0")
    came, have_come = come_to(tmp_path / "came")
    loop = f"""
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in xpulab.torch.epochs(10_000, loader):
    for x, y, which in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        time.sleep(0.02 * rank)
        optimizer.step()
        steps += 1
        if steps == {step}: {came}
"""
    with pytest.raises(CellInterrupted), pressed_when(have_come):
        run_cell(pair, loop)
    first: Any = run_cell(pair, "weights = net.weight.detach().clone()", out=["steps", "weights"]).values
    assert first["steps"][0] == first["steps"][1] > 0
    assert (first["weights"][0] == first["weights"][1]).all()
    run_cell(pair, loop.replace("10_000", "1"))
    again: Any = run_cell(pair, "weights = net.weight.detach().clone()", out=["steps", "weights"]).values
    assert again["steps"] == [steps + 12 for steps in first["steps"]]
    assert (again["weights"][0] == again["weights"][1]).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("xpulab.torch.prepare(net, TensorDataset(x[: 90 + rank]))", "90 rows in batches of 64 on rank 0; 91 rows"),
        (
            "xpulab.torch.prepare(net, type('D', (IterableDataset,), {'__iter__': iter})())",
            "received a D, which has no length",
        ),
        ("xpulab.torch.prepare(net, dataset, batch_size=0)", "batch_size=0 was given, expected an integer"),
        ("xpulab.torch.prepare(net, TensorDataset(x[:0]))", "received a dataset without rows"),
        ("xpulab.torch.prepare(net, dataset, device='xpu')", "received device='xpu', and torch .* has cpu"),
        ("xpulab.torch.prepare(net, DataLoader(dataset, batch_size=None))", "one that makes batches"),
        ("next(xpulab.torch.epochs(2, DataLoader(dataset)))", "expected the loader that xpulab.torch.prepare"),
    ],
)
def test_bad_input(pair: xpulab.XPUCluster, call: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        run_cell(pair, f"{NET}\n{call}")


def test_batches_of_unequal_number_are_an_error_on_all_ranks(pair: xpulab.XPUCluster) -> None:
    source = f"""{NET}
model, loader = xpulab.torch.prepare(net, dataset, batch_size=4)
loader.batch_sampler.batch_size += rank
trained(model, loader, 1, [])
"""
    with pytest.raises(EngineError, match="received 10 batches on rank 1 and more on the others"):
        run_cell(pair, source)
