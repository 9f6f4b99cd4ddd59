"""The process group ``xpulab``: every collective on 1, 2 and 3 engines; DistributedDataParallel; Stop and failures."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from constants import constants
from strikes import come_to, is_waiting, pressed_when

import xpulab
from xpulab.console.cells import CellInterrupted, run_cell
from xpulab.exceptions import EngineError

COLLECTIVES = Path(__file__).with_name("collectives.py").read_text()

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("merged_lines")]


@pytest.fixture(params=[1, 2, 3])
def engines(request: pytest.FixtureRequest, clusters: Callable[[int], xpulab.XPUCluster]) -> xpulab.XPUCluster:
    """A running cluster of 1, 2 and 3 engines."""
    if request.param == 2:
        pair: xpulab.XPUCluster = request.getfixturevalue("pair")
        return pair
    return clusters(request.param)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that runs a cell, and returns its output."""

    def run(cluster: xpulab.XPUCluster, source: str) -> str:
        capsys.readouterr()
        run_cell(cluster, source)
        return capsys.readouterr().out

    return run


def test_every_collective(engines: xpulab.XPUCluster, said: Callable[..., str]) -> None:
    require_passed(engines, said(engines, COLLECTIVES))


def test_every_collective_in_many_messages(engines: xpulab.XPUCluster, said: Callable[..., str]) -> None:
    """Open MPI refuses messages of 2 GiB, so that what is larger is cut; here, what is larger than a few kilobytes."""
    with constants(engines, "xpulab.engine.torch.group", PIECE=4099):
        require_passed(engines, said(engines, COLLECTIVES))


def require_passed(engines: xpulab.XPUCluster, printed: str) -> None:
    """Check that every part of the collectives was computed as in one process."""
    everyone = "[0]" if engines.size == 1 else f"[0-{engines.size - 1}]"
    subjects = re.findall(r'^print\("(passed .*)"\)$', COLLECTIVES, re.MULTILINE)
    assert len(subjects) == 7
    passed = [line for line in printed.splitlines() if "] passed" in line]  # PyTorch prints that it renames functions
    assert passed == [f"{everyone} {subject}" for subject in subjects]


TRAIN = """
import torch, xpulab.torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def trained(wrap):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(60, 300), torch.nn.Tanh(), torch.nn.Linear(300, 5))
    model = wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(48, 60), torch.randint(0, 5, (48,))
    mine = slice(None) if wrap is plain else slice(rank, None, size)
    for _ in range(20):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])

plain = lambda net: net
"""


def test_ddp_trains_what_one_process_trains_and_all_ranks_have_the_same_bits(
    engines: xpulab.XPUCluster, said: Callable[..., str]
) -> None:
    """Buckets of 10 KB, so that there are several, which overlap with the backward pass."""
    printed = said(
        engines,
        f"""{TRAIN}
xpulab.torch.init()
alone, together = trained(plain), trained(lambda net: DistributedDataParallel(net, bucket_cap_mb=0.01))
every = [torch.empty_like(together) for _ in range(size)]
dist.all_gather(every, together)
all(torch.equal(each, together) for each in every), torch.allclose(alone, together, atol=1e-5), together.norm() > 1
""",
    )
    assert printed.endswith("(True, True, tensor(True))\n")


def test_buckets_are_reduced_while_the_rank_computes(pair: xpulab.XPUCluster, said: Callable[..., str]) -> None:
    """The rank waits for nothing, and a collective that it has begun is complete after some time."""
    source = """
import time, torch, xpulab.torch
import torch.distributed as dist
xpulab.torch.init()
works = [dist.all_reduce(torch.ones(300_000), async_op=True) for _ in range(5)]
deadline = time.monotonic() + 120
while not works[-1].is_completed() and time.monotonic() < deadline:
    torch.randn(100, 100) @ torch.randn(100, 100)
[work.is_success() for work in works]
"""
    assert said(pair, source) == "[0-1] [True, True, True, True, True]\n"


def test_gloo_computes_the_same_and_listens_on_loopback_only(pair: xpulab.XPUCluster, said: Callable[..., str]) -> None:
    source = f"""{TRAIN}
import psutil
before = {{c.laddr for c in psutil.Process().net_connections() if c.status == "LISTEN"}}
xpulab.torch.init()
ours = trained(DistributedDataParallel)
setting = xpulab.torch.init(backend="gloo")
theirs = trained(DistributedDataParallel)
new = {{c.laddr for c in psutil.Process().net_connections() if c.status == "LISTEN"}} - before
xpulab.torch.init()
setting.backend, dist.get_backend(), {{address.ip for address in new}}, torch.allclose(ours, theirs, atol=1e-5)
"""
    assert said(pair, source) == "[0-1] ('gloo', 'xpulab', {'127.0.0.1'}, True)\n"


def test_a_collective_that_only_one_rank_has_begun_ends_after_its_cell(pair: xpulab.XPUCluster) -> None:
    begin = "import torch, xpulab.torch\nimport torch.distributed as dist\nxpulab.torch.init()\n"
    run_cell(pair, f"{begin}\nif rank == 0:\n    work = dist.all_reduce(torch.ones(3), async_op=True)")
    time.sleep(4)
    assert run_cell(pair, "ended = rank == 1 or work.is_completed()", out=["ended"]).values["ended"] == [True, True]
    pair.run(lambda task: task.engine.renew_communicators())
    run_cell(pair, "tensor = torch.ones(3)\ndist.all_reduce(tensor)\nassert tensor[0] == 2")


def test_cells_on_some_ranks_have_groups_of_their_own(pair: xpulab.XPUCluster) -> None:
    source = "import torch, xpulab.torch\nimport torch.distributed as dist\nsetting = xpulab.torch.init()\n"
    source += "tensor = torch.ones(3)\ndist.all_reduce(tensor)\ntotal = (setting.size, tensor[0].item())"
    for ranks, total in (([0, 1], 2), ([1], 1), ([0, 1], 2), ([0], 1), ([0, 1], 2)):
        assert run_cell(pair, source, ranks=ranks, out=["total"]).values["total"] == [(total, total)] * len(ranks)


STEPS = f"""{TRAIN}
import time
xpulab.torch.init()
net = torch.nn.Sequential(torch.nn.Linear(60, 300), torch.nn.Linear(300, 5))
model = DistributedDataParallel(net, bucket_cap_mb=0.01)
"""


def test_stop_ends_a_training_loop_and_the_next_cell_goes_on(
    pair: xpulab.XPUCluster, said: Callable[..., str], tmp_path: Path
) -> None:
    run_cell(pair, STEPS)
    came, have_come = come_to(tmp_path / "came")
    step = "model(torch.ones(8, 60)).sum().backward()"
    with pytest.raises(CellInterrupted), pressed_when(have_come):
        run_cell(pair, f"for _ in range(3): {step}\n{came}\nwhile True: {step}")
    assert said(pair, "t = torch.ones(100_000)\ndist.all_reduce(t)\nt.sum()") == "[0-1] tensor(200000.)\n"


def test_stop_frees_a_rank_that_waits_in_a_backward_pass(pair: xpulab.XPUCluster, said: Callable[..., str]) -> None:
    """Rank 1 has fewer batches, and its cell has ended. Rank 0 waits in C++ code, where no signal is handled."""
    run_cell(pair, STEPS)
    with pytest.raises(CellInterrupted), pressed_when(lambda: is_waiting(pair)):
        run_cell(pair, "for _ in range(3 - rank):\n    model(torch.ones(8, 60)).sum().backward()")
    assert said(pair, "t = torch.ones(1)\ndist.all_reduce(t)\nt") == "[0-1] tensor([2.])\n"


@pytest.mark.parametrize("where", ["forward", "all_reduce", "asynchronous"])
def test_an_exception_on_one_rank_is_one_error_and_no_rank_waits(
    pair: xpulab.XPUCluster, said: Callable[..., str], where: str
) -> None:
    waits = {
        "forward": "model(torch.ones(8, 60)).sum().backward()",
        "all_reduce": "dist.all_reduce(torch.ones(9))",
        "asynchronous": "dist.all_reduce(torch.ones(90000), async_op=True).get_future().wait()",
    }[where]
    run_cell(pair, STEPS)
    with pytest.raises(EngineError) as caught:
        run_cell(pair, f"if rank == 1:\n    time.sleep(0.2)\n    raise KeyError('mine')\n{waits}")
    assert "KeyError: 'mine'" in str(caught.value)
    assert "PeerFailed" not in str(caught.value)
    assert str(caught.value).count("Traceback") == 1
    assert said(pair, "t = torch.ones(1)\ndist.all_reduce(t)\nt") == "[0-1] tensor([2.])\n"


def test_ranks_that_call_different_collectives_learn_which(pair: xpulab.XPUCluster) -> None:
    xpus = "dist.all_reduce(torch.ones(4)) if rank else dist.broadcast(torch.ones(2), 0)"
    with pytest.raises(EngineError, match=r"broadcast of 8 bytes as collective \d+ on rank 0; allreduce of 16 bytes"):
        run_cell(pair, f"{STEPS}\n{xpus}")


def test_ranks_with_unequal_numbers_of_batches_learn_it_at_the_next_collective(pair: xpulab.XPUCluster) -> None:
    loop = "for _ in range(3 - rank):\n    model(torch.ones(8, 60)).sum().backward()\ndist.barrier()"
    with pytest.raises(EngineError, match="same number of batches on every rank"):
        run_cell(pair, f"{STEPS}\n{loop}")


def test_init_in_the_notebook_says_where_it_belongs() -> None:
    import xpulab.torch

    with pytest.raises(xpulab.exceptions.UsageError, match="a cell that begins with %%xpu"):
        xpulab.torch.init()
