"""Which of PyTorch's devices is that of an engine, and which process group connects these devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xpulab.exceptions import DeviceError, UsageError

__all__ = ["GROUPS", "Choice", "Found", "chosen"]

#: Names of process groups -> the kinds of PyTorch's devices whose tensors they send.
GROUPS = {"xpulab": ("cpu", "xpu", "cuda"), "gloo": ("cpu",), "xccl": ("xpu",), "nccl": ("cuda",)}

_OWN = {"xpu": "xccl", "cuda": "nccl"}


@dataclass(frozen=True)
class Found:
    """What the PyTorch that is installed has.

    Attributes
    ----------
    devices : mapping of str to int
        Kind of device ("xpu", "cuda") -> number of devices that this process sees.
    groups : tuple of str
        Names of PyTorch's own process groups: "gloo", "xccl", "nccl".
    version : str
    """

    devices: Mapping[str, int]
    groups: tuple[str, ...]
    version: str


@dataclass(frozen=True)
class Choice:
    """A device, a process group, and the reason for the report.

    Attributes
    ----------
    device : str
        As `torch.device` takes it, such as "cpu" or "xpu:0".
    group : str
        A name in `GROUPS`.
    why : str
    """

    device: str
    group: str
    why: str


def chosen(
    backend: str,
    device_type: str,
    found: Found,
    size: int,
    place: tuple[int, int] = (0, 1),
    device: str | None = None,
    group: str | None = None,
) -> Choice:
    """Choose PyTorch's device and the process group of an engine.

    Parameters
    ----------
    backend, device_type : str
        The engine's SYCL device: "level_zero", "opencl" or "cuda", and "gpu" or "cpu".
    found : Found
    size : int
        Number of ranks.
    place : tuple of int
        The number of this rank among the ranks of its host, and the number of these ranks.
    device : str, optional
        The kind of device that the user wants: "cpu", "xpu" or "cuda".
    group : str, optional
        The process group that the user wants.

    Returns
    -------
    Choice

    Raises
    ------
    DeviceError
        If PyTorch lacks the device or the process group.
    UsageError
        If a name is unknown, or if the process group does not send tensors of the device.
    """
    kind, why = _kind(backend, device_type, found) if device is None else (_wanted(device, found), "as asked for")
    number = place[0] % max(1, found.devices.get(kind, 0))
    name = kind if kind == "cpu" else f"{kind}:{number}"
    if group is not None:
        return Choice(name, _checked(group, kind, found), why)
    own = _OWN.get(kind)
    # A process sees the one tile that the plan gives it as its only XPU. It sees all CUDA devices.
    alone = kind == "xpu" or place[1] <= found.devices.get(kind, 0)
    if own is not None and own in found.groups and size > 1 and alone:
        return Choice(name, own, f"{why}; {own} connects these devices")
    return Choice(name, "xpulab", why)


def _kind(backend: str, device_type: str, found: Found) -> tuple[str, str]:
    """Return the kind of PyTorch's device that is the engine's own, or the CPU."""
    if "gpu" not in device_type:
        return "cpu", "the engine's device is a CPU"
    kind = {"level_zero": "xpu", "opencl": "xpu", "cuda": "cuda"}.get(backend.removeprefix("ext_oneapi_"), "none")
    if found.devices.get(kind):
        return kind, f"the engine's device is a GPU that torch {found.version} knows"
    return "cpu", f"torch {found.version} does not know the engine's GPU, so it computes on the cores of the engine"


def _wanted(device: str, found: Found) -> str:
    if device not in ("cpu", "xpu", "cuda"):
        raise UsageError(f"received device={device!r}; expected 'cpu', 'xpu' or 'cuda'")
    if device != "cpu" and not found.devices.get(device):
        has = [kind for kind, number in found.devices.items() if number]
        makers = "Intel" if device == "xpu" else "NVIDIA"
        raise DeviceError(
            f"received device={device!r}, and torch {found.version} on this engine has {', '.join(['cpu', *has])}; "
            f"leave the argument out, or install PyTorch's build for {makers}'s GPUs: the page Get Started of "
            "pytorch.org has the command"
        )
    return device


def _checked(group: str, kind: str, found: Found) -> str:
    if group not in GROUPS:
        raise UsageError(f"received backend={group!r}; expected one of {', '.join(GROUPS)}")
    if group != "xpulab" and group not in found.groups:
        raise DeviceError(
            f"received backend={group!r}, and torch {found.version} has {', '.join(found.groups) or 'none of its own'}"
            "; type: backend='xpulab'"
        )
    if kind not in GROUPS[group]:
        raise UsageError(
            f"received backend={group!r} for tensors on {kind}, and it sends those on {', '.join(GROUPS[group])}; "
            "type: backend='xpulab'"
        )
    return group
