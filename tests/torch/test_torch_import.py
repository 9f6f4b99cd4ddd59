"""PyTorch and the oneAPI runtime in one engine: each computes what it should, in both orders of their imports."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest

import xpulab
from xpulab.console.cells import run_cell

pytestmark = pytest.mark.cluster

#: Rank 0 imports PyTorch first, and rank 1 dpnp. Both then compute with both, twice: each also runs after the other.
BOTH = """
import numpy as np

def with_torch():
    import torch
    torch.manual_seed(0)
    found = {}
    for dtype, most in ((torch.float32, 1e-3), (torch.float64, 1e-10)):
        a = torch.randn(130, 130, dtype=dtype) + 20 * torch.eye(130, dtype=dtype)
        h = a.numpy()
        u, s, vh = torch.linalg.svd(a)
        x = torch.randn(2, 3, 12, 12, dtype=dtype)
        w = torch.randn(4, 3, 3, 3, dtype=dtype)
        windows = np.lib.stride_tricks.sliding_window_view(x.numpy(), (3, 3), axis=(2, 3))
        pairs = {
            "matmul": ((a @ a).numpy(), h @ h),
            "svd": ((u @ torch.diag(s) @ vh).numpy(), h),
            "values": (s.numpy(), np.linalg.svd(h, compute_uv=False)),
            "solve": ((a @ torch.linalg.solve(a, a[:, :5])).numpy(), h[:, :5]),
            "conv": (torch.nn.functional.conv2d(x, w).numpy(), np.einsum("nchwij,ocij->nohw", windows, w.numpy())),
        }
        for name, (got, expected) in pairs.items():
            assert np.abs(got - expected).max() <= most, (name, dtype, np.abs(got - expected).max())
    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(400, 2))
    layer(x.float()).sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())

def with_dpnp():
    import dpnp
    h = np.random.default_rng(0).normal(size=(100, 100)) + 20 * np.eye(100)
    a = dpnp.asarray(h)
    np.testing.assert_allclose(dpnp.asnumpy(dpnp.matmul(a, a)), h @ h)
    np.testing.assert_allclose(dpnp.asnumpy(dpnp.linalg.svd(a)[1]), np.linalg.svd(h, compute_uv=False))
    np.testing.assert_allclose(dpnp.asnumpy(dpnp.linalg.solve(a, a[:, :3])), np.eye(100)[:, :3], atol=1e-12)

order = [with_torch, with_dpnp] if rank == 0 else [with_dpnp, with_torch]
for work in order * 2:
    work()
import sys
sys.getdlopenflags(), "torch" in sys.modules and "dpnp" in sys.modules
"""


@pytest.fixture(scope="module")
def fresh() -> Iterator[xpulab.XPUCluster]:
    """A cluster of 2 engines in which nothing was imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", xpulab.exceptions.OversubscribedWarning)
        with xpulab.XPUCluster(2, timeout=60) as cluster:
            yield cluster


@pytest.mark.usefixtures("merged_lines")
def test_torch_and_dpnp_compute_in_both_orders(fresh: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    before = fresh.run(lambda task: __import__("sys").getdlopenflags())
    run_cell(fresh, BOTH)
    assert capsys.readouterr().out == f"[0-1] ({before[0]}, True)\n"


def test_the_estimators_and_scipy_compute_after_torch(fresh: xpulab.XPUCluster) -> None:
    run_cell(
        fresh,
        "import torch, scipy.linalg, numpy as np\n"
        "h = np.random.default_rng(0).normal(size=(90, 90)) + 20 * np.eye(90)\n"
        "np.testing.assert_allclose(scipy.linalg.inv(h) @ h, np.eye(90), atol=1e-12)",
    )
    fresh.activate()
    rows = [[1.0, 2.0], [1.0, 4.0], [10.0, 2.0], [10.0, 4.0]]
    assert xpulab.cluster.KMeans(2, random_state=0).fit(rows).inertia_ == 4.0


def test_a_torch_that_is_missing_is_a_plain_import_error(fresh: xpulab.XPUCluster) -> None:
    with pytest.raises(xpulab.exceptions.EngineError, match=r"No module named .torch\.nothing."):
        run_cell(fresh, "import torch.nothing")


def test_ctrl_c_during_the_import_waits_for_its_end() -> None:
    """A half-imported PyTorch would be lost for this engine: it cannot be imported again."""
    code = """
import os, signal, sys, threading
from xpulab.libraries import oneapi
oneapi.load()
def press():
    while "torch._C" not in sys.modules:
        pass
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press, daemon=True).start()
signal.signal(signal.SIGINT, signal.default_int_handler)
came = False
try:
    import torch
except KeyboardInterrupt:
    came = True
import torch
print(came, torch.ones(3).sum().item())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout == "True 3.0\n", done.stderr
