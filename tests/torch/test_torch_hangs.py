"""Networks whose ranks wait for ever, and predictions that are interrupted."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from presses import Presses
from strikes import pressed_when

import xpulab
from xpulab.console.cells import CellInterrupted, run_cell
from xpulab.exceptions import EngineError
from xpulab.sharing import hangs

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


#: The same with PyTorch's own backend gloo, which waits in C++. Without GPUs PyTorch chooses it.
GLOO = """import os, time, torch, torch.distributed as dist
dist.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
for batch in range(3):
    model(torch.ones(8, 4)).sum().backward()
"""
FUNCTIONAL = "from torch.distributed import _functional_collectives as functional; "
MORE = "if rank == 0:\n    model(torch.ones(8, 4)).sum().backward()\n"
#: Rank 0 waits for a message that no rank sends. It makes a file when it does.
ALONE = """
import pathlib, sys, threading
if rank == 0:
    main = threading.get_ident()
    def tell():
        while sys._current_frames()[main].f_code.co_name != "recv":
            time.sleep(0.01)
        pathlib.Path("&{path}").touch()
    threading.Thread(target=tell, daemon=True).start()
    dist.recv(torch.ones(1), 1)
"""


def hurry(task: Any, told: float, chance: float) -> None:
    from xpulab.sharing import hangs

    hangs.TOLD, hangs.LAST_CHANCE = told, chance


def hurry_all(cluster: xpulab.XPUCluster, chance: float) -> None:
    cluster.run(hurry, 0.5, chance)


@pytest.fixture
def hurried(on_pair: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[xpulab.XPUCluster]:
    usual = hangs.TOLD, hangs.LAST_CHANCE
    monkeypatch.setattr(hangs, "TOLD", 0.5)
    hurry_all(on_pair, 1.0)
    yield on_pair
    on_pair.run(hurry, *usual)


def test_a_rank_with_more_batches_than_the_others_says_in_which_line_it_waits(hurried: xpulab.XPUCluster) -> None:
    with pytest.raises(EngineError, match=r"rank 0 waits in line 6 \(backward\); rank 1 has ended"):
        run_cell(hurried, UNEVEN)
    run_cell(hurried, "xpulab.torch.init()\nt = torch.ones(1)\ndist.all_reduce(t)\nassert t.item() == 2")
    run_cell(hurried, "dist.destroy_process_group()")


@pytest.fixture
def with_gloo(hurried: xpulab.XPUCluster) -> Iterator[xpulab.XPUCluster]:
    """Yield a cluster on which a new group can be made after the test, by the same engines."""
    before = hurried.status()
    yield hurried
    run_cell(hurried, "dist.destroy_process_group()")
    run_cell(
        hurried,
        GLOO.replace("()", "('gloo')", 1) + "total = torch.ones(1)\ndist.all_reduce(total)\nassert total.item() == 2",
    )
    run_cell(hurried, "dist.destroy_process_group()")
    assert [each.pid for each in hurried.status().engines] == [each.pid for each in before.engines]


def test_a_rank_that_waits_in_gloo_is_named_and_freed(
    with_gloo: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = "rank 0 waits in line 7 (backward) inside of gloo; rank 1 has ended"
    with pytest.raises(EngineError, match=re.escape(f"no rank can answer any more: {waits}")):
        run_cell(with_gloo, GLOO + MORE)
    assert f"{waits}; Stop frees it\n" in capsys.readouterr().err
    with pytest.raises(EngineError, match=r"type torch\.distributed\.destroy_process_group\(\)"):
        run_cell(with_gloo, "dist.all_reduce(torch.ones(1))")


def test_ranks_that_wait_for_each_other_in_gloo_are_all_freed(with_gloo: xpulab.XPUCluster) -> None:
    waits = "rank 0 waits in line 7 (backward) inside of gloo; rank 1 waits in line 9 (recv) inside of gloo"
    with pytest.raises(EngineError, match=re.escape(f"no rank can answer any more: {waits}")):
        run_cell(with_gloo, GLOO + MORE + "else:\n    dist.recv(torch.ones(1), 0)\n")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("dist.irecv(torch.ones(1), 1).wait()", "wait"),
        ("works = [dist.irecv(torch.ones(1), 1)]; works[0].wait()", "wait"),
        ("works = {'a': dist.irecv(torch.ones(1), 1)}; works['a'].wait()", "wait"),
        ("dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()", "wait"),
        ("future = dist.all_reduce(torch.ones(1), async_op=True).get_future(); future.wait()", "wait"),
        ("functional.all_reduce(torch.ones(1), 'sum', dist.group.WORLD).wait()", "wait"),
        ("dist.distributed_c10d._get_default_store().get('nothing')", "get"),
        ("store = dist.distributed_c10d._get_default_store(); store.wait(['nothing'])", "wait"),
        ("dist.new_group([0, 1])", "new_group"),
    ],
)
def test_each_call_that_waits_in_gloo_is_freed(with_gloo: xpulab.XPUCluster, call: str, named: str) -> None:
    waits = f"rank 0 waits in line 7 ({named}) inside of gloo; rank 1 has ended"
    with pytest.raises(EngineError, match=re.escape(f"no rank can answer any more: {waits}")):
        run_cell(with_gloo, f"{FUNCTIONAL}{GLOO}if rank == 0:\n    {call}\n")


def test_a_rank_that_makes_a_group_alone_is_named(hurried: xpulab.XPUCluster) -> None:
    alone = "import torch.distributed as dist\nif rank == 0:\n    dist.init_process_group()"
    waits = "rank 0 waits in line 3 (init_process_group); rank 1 has ended"
    with pytest.raises(EngineError, match=re.escape(f"no rank can answer any more: {waits}")):
        run_cell(hurried, alone)
    run_cell(hurried, GLOO + "dist.destroy_process_group()")


def test_an_error_of_gloo_after_the_connections_were_closed_says_why(with_gloo: xpulab.XPUCluster) -> None:
    """Also if the code goes on for so long that the rank no longer waits when the error comes."""
    waits = "rank 0 waits in line 8 (all_reduce) inside of gloo; rank 1 has ended"
    source = "if rank == 0:\n    try:\n        dist.all_reduce(torch.ones(1))\n    finally:\n        time.sleep(2)\n"
    with pytest.raises(EngineError, match=re.escape(f"no rank can answer any more: {waits}")):
        run_cell(with_gloo, GLOO + source)


def test_stop_frees_a_rank_that_waits_in_gloo(with_gloo: xpulab.XPUCluster, tmp_path: Path) -> None:
    hurry_all(with_gloo, 120.0)
    with pressed_when(tmp_path / "waits"), pytest.raises(CellInterrupted):
        run_cell(with_gloo, GLOO + ALONE.replace("&{path}", str(tmp_path / "waits")))


def test_an_exception_on_another_rank_frees_a_rank_that_waits_in_gloo(
    with_gloo: xpulab.XPUCluster, tmp_path: Path
) -> None:
    hurry_all(with_gloo, 120.0)
    source = ALONE + "while not os.path.exists('&{path}'):\n    time.sleep(0.01)\nraise KeyError('mine')"
    with pytest.raises(EngineError, match="KeyError: 'mine'") as caught:
        run_cell(with_gloo, GLOO + source.replace("&{path}", str(tmp_path / "waits")))
    assert "gloo" not in str(caught.value)


def test_ranks_of_gloo_that_work_are_not_blamed(
    with_gloo: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 1 sleeps, reads, and computes, while rank 0 waits for it; then both make many short calls."""
    source = """
dist.barrier()  # PyTorch imports more at the first one
reads, writes = os.pipe()
for work in range(4):
    if rank == 1 and work == 0:
        time.sleep(2.5)
    elif rank == 1 and work == 1:
        os.system(f"(sleep 2.5; echo) >&{writes} &")
        os.read(reads, 1)
    elif rank == 1 and work == 2:
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            torch.ones(100, 100) @ torch.ones(100, 100)
    elif work == 3:
        for _ in range(8):
            if rank == 1:
                time.sleep(0.3)
            dist.all_reduce(torch.ones(1))
    dist.barrier()
if rank == 0:
    time.sleep(2.5)
"""
    run_cell(with_gloo, GLOO + source.replace("&{writes}", "/proc/{os.getpid()}/fd/{writes}"))
    assert capsys.readouterr().err == ""


def test_a_script_whose_rank_waits_in_gloo_ends_with_an_error(tmp_path: Path) -> None:
    """A rank that ends closes its connections, which ends the others' calls. Here each rank waits for the other."""
    begin = "from xpulab.sharing import hangs; hangs.TOLD, hangs.LAST_CHANCE = 0.5, 1.0\nimport os\n"
    rank = 'rank = int(os.environ["RANK"])\n'
    source = GLOO + MORE + "else:\n    dist.recv(torch.ones(1), 0)\n"
    (tmp_path / "script.py").write_text(begin + rank + source)
    run = "import sys, xpulab.cli; sys.exit(xpulab.cli.main())"
    command = [sys.executable, "-c", run, "run", "-n", "2", str(tmp_path / "script.py")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
    says = "rank 0 waits in line 10 (backward) inside of gloo; rank 1 waits in line 12 (recv) inside of gloo"
    assert ran.returncode == 1, ran.stderr
    assert f"NeverAnsweredError: no rank can answer any more: {says}" in ran.stderr


def test_a_script_with_fewer_batches_on_a_rank_ends_with_an_error_that_names_it(tmp_path: Path) -> None:
    uneven = GLOO.replace("range(3)", "range(3 + 2 * (dist.get_rank() == 0))")
    (tmp_path / "script.py").write_text(uneven)
    command = [sys.executable, "-m", "xpulab", "run", "-n", "2", str(tmp_path / "script.py")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 1, ran.stderr
    assert "in <module>" in ran.stderr
    assert "line 5" in ran.stderr.partition("in <module>")[0]
    assert "Every rank needs the same number of batches" in ran.stderr
    assert "rank 0 ended with status 1, and so all ranks were ended; rank 1 had ended before, without" in ran.stderr


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
    calls = {
        "predict": lambda: net.predict(rows),
        "predict_proba": lambda: net.predict_proba(rows),
        "score": lambda: net.score(rows, labels),
    }
    for method, call in calls.items():
        said = list(presses.at_each(call))
        assert said
        assert set(said) == {f"NeuralNetClassifier.{method} was interrupted: call it again"}
