"""Scripts for torchrun, accelerate and Lightning start unchanged: under ``xpulab run``, and in a cell."""

from __future__ import annotations

import ast
import importlib.util
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from strikes import is_waiting, pressed_when

import xpulab
from xpulab.console.cells import CellInterrupted, run_cell
from xpulab.exceptions import EngineError

HERE = Path(__file__).parent

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("merged_lines")]

NEEDS = {"with_torchrun": "torch", "with_accelerate": "accelerate", "with_lightning": "lightning"}


@pytest.fixture(autouse=True)
def no_groups(pair: xpulab.XPUCluster, clusters: Callable[[int], xpulab.XPUCluster]) -> None:
    """Destroy the groups that tests of other files have left on the engines."""
    for cluster in (pair, clusters(3)):
        run_cell(cluster, "import torch.distributed as dist\nif dist.is_initialized(): dist.destroy_process_group()")


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """A function that runs a script on two ranks, and returns the lines of its output."""

    def run(pair: xpulab.XPUCluster, where: str, name: str) -> list[str]:
        if importlib.util.find_spec(NEEDS[name]) is None:
            pytest.skip(f"{NEEDS[name]} is not installed; type: pip install -e '.[test-more]'")
        script = HERE / f"{name}.py"
        if where == "run":
            command = [sys.executable, "-m", "xpulab", "run", "-n", "2", str(script)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=100)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()
        capsys.readouterr()
        run_cell(pair, script.read_text())
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("where", ["run", "cell"])
def test_groups_are_made_and_destroyed_in_turn(
    pair: xpulab.XPUCluster, said: Callable[..., list[str]], where: str
) -> None:
    sums = [3] * 5
    assert said(pair, where, "with_torchrun")[-1] == f"[0-1] {[[0, *sums], [1, *sums]]}"


@pytest.mark.parametrize("where", ["run", "cell"])
@pytest.mark.parametrize("name", ["with_accelerate", "with_lightning"])
def test_a_framework_trains_what_one_process_trains(
    pair: xpulab.XPUCluster, said: Callable[..., list[str]], name: str, where: str
) -> None:
    import torch

    lines = said(pair, where, name)
    assert "[0] 2 processes, 4 batches" in lines
    found = [ast.literal_eval(line.partition("weights ")[2]) for line in lines if "weights" in line]
    torch.manual_seed(0)
    rows = torch.randn(64, 8)
    targets, model = rows @ torch.randn(8, 1), torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3 * 4):
        order = torch.arange(64)
        if name == "with_lightning":  # it gives the ranks a DistributedSampler, which shuffles with the epoch's number
            order = torch.randperm(64, generator=torch.Generator().manual_seed(number // 4))
        batch = order.view(4, 16)[number % 4]
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(rows[batch]), targets[batch]).backward()
        optimizer.step()
    assert found
    for weights in found:
        assert weights == pytest.approx(model.weight.detach().flatten().tolist(), abs=1e-6)


INIT = """
import os, torch, torch.distributed as dist
dist.init_process_group()
total = torch.ones(1)
dist.all_reduce(total)
dist.destroy_process_group()
total = int(total)
"""


def test_cells_on_some_ranks_are_a_world_of_their_own(clusters: Callable[[int], xpulab.XPUCluster]) -> None:
    """The first of these ranks serves its own port: rank 0 may not have imported PyTorch."""
    three = clusters(3)
    for ranks in ([1, 2], [0, 1, 2], [2], [1, 2], [0, 2]):
        assert run_cell(three, INIT, ranks=ranks, out=["total"]).values["total"] == [len(ranks)] * len(ranks)


def test_two_clusters_make_groups_at_the_same_time(
    pair: xpulab.XPUCluster, clusters: Callable[[int], xpulab.XPUCluster]
) -> None:
    found: dict[int, list[list[int]]] = {2: [], 3: []}

    def work(cluster: xpulab.XPUCluster) -> None:
        for _ in range(4):
            found[cluster.size].append(run_cell(cluster, INIT, out=["total"]).values["total"])

    threads = [threading.Thread(target=work, args=[cluster]) for cluster in (pair, clusters(3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {2: [[2] * 2] * 4, 3: [[3] * 3] * 4}


def test_a_rank_that_raises_frees_those_that_wait_for_it_and_the_next_cell_makes_a_group(
    pair: xpulab.XPUCluster,
) -> None:
    """The ranks have then begun different numbers of groups. The first rank serves the port; each may be the one."""
    for rank in (1, 0):
        fails = f"if rank == {rank}:\n    time.sleep(0.2)\n    raise ValueError('mine')"
        with pytest.raises(EngineError, match="1 of 2 engines raised ValueError") as caught:
            run_cell(pair, f"import time, torch.distributed as dist\n{fails}\ndist.init_process_group()")
        assert "mine" in str(caught.value)
        assert run_cell(pair, INIT, out=["total"]).values["total"] == [2, 2]


def test_stop_frees_a_rank_that_waits_for_one_that_never_comes(pair: xpulab.XPUCluster) -> None:
    place = r"rank 0 was in line 2: rank or dist\.init_process_group"
    with pytest.raises(CellInterrupted, match=place), pressed_when(lambda: is_waiting(pair)):
        run_cell(pair, "import torch.distributed as dist\nrank or dist.init_process_group()")
    assert run_cell(pair, INIT, out=["total"]).values["total"] == [2, 2]


def test_a_rank_waits_for_as_long_as_the_timeout_says(pair: xpulab.XPUCluster) -> None:
    source = "import datetime, torch.distributed as dist\n"
    source += "rank or dist.init_process_group(timeout=datetime.timedelta(seconds=0.5))"
    with pytest.raises(EngineError, match="has waited for all of 2 ranks; expected that all ranks call it together"):
        run_cell(pair, source)


def test_a_function_makes_a_group(pair: xpulab.XPUCluster) -> None:
    def total(here: Any) -> int:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo", rank=here.rank, world_size=here.size)
        dist.all_reduce(total := torch.ones(1))
        dist.destroy_process_group()
        return int(total)

    assert pair.run(total) == [2, 2]


def test_a_port_of_the_users_own_is_pytorchs(pair: xpulab.XPUCluster) -> None:
    """As in PyTorch's tutorial. Names of the host that the user gives the cluster's port are right, too."""
    own = f"import os\nbefore = dict(os.environ)\nos.environ['MASTER_ADDR'] = 'localhost'\n{INIT}\n"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    other = f"os.environ['MASTER_PORT'] = '{port}'\n{INIT}\n"
    back = "os.environ.update({name: before[name] for name in ('MASTER_ADDR', 'MASTER_PORT')})"
    for source in (own, other, back):
        run_cell(pair, source)
    assert run_cell(pair, INIT, out=["total"]).values["total"] == [2, 2]


def test_nothing_listens_before_a_group_is_made() -> None:
    with xpulab.XPUCluster(1, timeout=60) as fresh:
        source = """
import os, socket, psutil, torch
def listens():
    port = int(os.environ["MASTER_PORT"])
    return [c.laddr.ip for c in psutil.Process().net_connections() if c.status == "LISTEN" and c.laddr.port == port]
found = [listens()]
torch.distributed.init_process_group()
found.append(listens())
"""
        assert run_cell(fresh, source, out=["found"]).values["found"] == [[[], ["127.0.0.1"]]]
