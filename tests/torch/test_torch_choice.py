"""The choice of PyTorch's device and process group, for machines that the tests do not have."""

from __future__ import annotations

import pytest

from xpulab.engine.torch.choice import Found, chosen
from xpulab.exceptions import DeviceError, UsageError

CPU = Found({"xpu": 0, "cuda": 0}, ("gloo",), "2.13.0+cpu")
XPU = Found({"xpu": 1, "cuda": 0}, ("gloo", "xccl"), "2.13.0+xpu")
OLD_XPU = Found({"xpu": 1, "cuda": 0}, ("gloo",), "2.6.0+xpu")
CUDA = Found({"xpu": 0, "cuda": 2}, ("gloo", "nccl"), "2.13.0+cu128")


@pytest.mark.parametrize(
    ("backend", "kind", "found", "size", "place", "device", "group"),
    [
        ("opencl", "cpu", CPU, 4, (0, 4), "cpu", "xpulab"),
        ("opencl", "cpu", CUDA, 4, (0, 4), "cpu", "xpulab"),  # the plan gives this engine a CPU
        ("level_zero", "gpu", CPU, 4, (0, 4), "cpu", "xpulab"),
        ("level_zero", "gpu", XPU, 4, (3, 4), "xpu:0", "xccl"),  # each process sees one tile
        ("level_zero", "gpu", XPU, 1, (0, 1), "xpu:0", "xpulab"),
        ("level_zero", "gpu", OLD_XPU, 4, (1, 4), "xpu:0", "xpulab"),
        ("opencl", "gpu", XPU, 2, (0, 2), "xpu:0", "xccl"),
        ("cuda", "gpu", CUDA, 2, (1, 2), "cuda:1", "nccl"),
        ("ext_oneapi_cuda", "gpu", CUDA, 2, (0, 2), "cuda:0", "nccl"),
        ("cuda", "gpu", CUDA, 4, (3, 4), "cuda:1", "xpulab"),  # two ranks share a GPU, which nccl refuses
        ("cuda", "gpu", CPU, 2, (0, 2), "cpu", "xpulab"),
    ],
)
def test_the_default(
    backend: str, kind: str, found: Found, size: int, place: tuple[int, int], device: str, group: str
) -> None:
    choice = chosen(backend, kind, found, size, place)
    assert (choice.device, choice.group) == (device, group)
    assert choice.why


def test_the_reason_names_a_gpu_that_torch_does_not_know() -> None:
    assert "does not know the engine's GPU" in chosen("level_zero", "gpu", CPU, 2).why
    assert "xccl connects these devices" in chosen("level_zero", "gpu", XPU, 2).why


def test_the_user_chooses() -> None:
    assert chosen("opencl", "cpu", CUDA, 2, (0, 2), device="cuda").device == "cuda:0"
    assert chosen("level_zero", "gpu", XPU, 2, device="cpu", group="gloo").group == "gloo"
    assert chosen("level_zero", "gpu", XPU, 2, group="xpulab").group == "xpulab"


@pytest.mark.parametrize(
    ("found", "device", "group", "kind", "message"),
    [
        (CPU, "xpu", None, DeviceError, "device='xpu', and torch 2.13.0\\+cpu on this engine has cpu; .*Get Started"),
        (XPU, "cuda", None, DeviceError, "has cpu, xpu;"),
        (CPU, "tpu", None, UsageError, "expected 'cpu', 'xpu' or 'cuda'"),
        (CPU, None, "nccl", DeviceError, "has gloo; type: backend='xpulab'"),
        (CPU, None, "mpi", UsageError, "expected one of xpulab, gloo, xccl, nccl"),
        (XPU, "xpu", "gloo", UsageError, "tensors on xpu, and it sends those on cpu"),
    ],
)
def test_bad_input(found: Found, device: str | None, group: str | None, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        chosen("opencl", "cpu", found, 2, device=device, group=group)
