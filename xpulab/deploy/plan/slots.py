"""The devices and tiles that engines of a host can use: which of them the user chose, and why others are idle."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from xpulab.deploy.plan.probe import DeviceInfo, Probe
from xpulab.exceptions import DeviceNotFoundError

__all__ = ["Idle", "Slot", "choose"]


@dataclass(frozen=True)
class Idle:
    """A device or tile that no engine uses, and the reason."""

    device: DeviceInfo
    tile: int | None
    reason: str
    host: str = ""


@dataclass(frozen=True)
class Slot:
    """A device, or a tile of a device, that one engine can use alone."""

    device: DeviceInfo
    tile: int | None

    @property
    def on_cpu(self) -> bool:
        return self.device.kind == "cpu"

    @property
    def selector(self) -> str:
        return self.device.selector + ("" if self.tile is None else f".{self.tile}")

    @property
    def memory(self) -> int:
        return self.device.memory // (1 if self.tile is None else self.device.sub_devices)

    def __str__(self) -> str:
        return f"{self.selector} ({self.device.name}, {self.device.kind.upper()})"


def _slots(device: DeviceInfo) -> list[Slot]:
    if device.sub_devices > 1:
        return [Slot(device, tile) for tile in range(device.sub_devices)]
    return [Slot(device, None)]


def choose(probe: Probe, devices: str | None) -> tuple[list[Slot], list[Idle]]:
    """Return the slots that engines may use, GPUs and larger devices first, and the idle ones."""
    every = [slot for device in probe.devices for slot in _slots(device)]
    if not every:
        raise DeviceNotFoundError(_explain(f"no SYCL device was found on {probe.host}.", probe))
    wanted = every if devices is None else _selected(every, devices, probe)
    reasons = _unusable({slot.device for slot in wanted})
    usable = [slot for slot in wanted if slot.device not in reasons]
    if devices is None and not all(slot.on_cpu for slot in usable):
        reasons |= {slot.device: "engines run on the GPU" for slot in usable if slot.on_cpu}
        usable = [slot for slot in usable if not slot.on_cpu]
    if not usable:
        why = "; ".join(f"{slot}: {reasons[slot.device]}" for slot in wanted)
        raise DeviceNotFoundError(_explain(f"no engine can run on {why}.", probe))
    usable.sort(key=lambda slot: (slot.on_cpu, -slot.device.compute_units))
    left = [slot for slot in every if slot not in usable]
    return usable, [Idle(s.device, s.tile, reasons.get(s.device, f"the user chose {devices}")) for s in left]


def _selected(every: Sequence[Slot], devices: str, probe: Probe) -> list[Slot]:
    """Return the slots that the user's selector matches, in the order of the probe."""
    words = str(devices).strip().lower()
    backend, _, items = words.rpartition(":")
    found: set[Slot] = set()
    for item in items.split(","):
        matching = {slot for slot in every if _answers(slot, backend, item)}
        if not matching:
            what = f"no device matches {devices!r}{_nearest(words, every)}"
            raise DeviceNotFoundError(_explain(f"{what} Devices found: {', '.join(map(str, every))}.", probe))
        found |= matching
    return [slot for slot in every if slot in found]


def _answers(slot: Slot, backend: str, item: str) -> bool:
    index, kind = slot.device.index, slot.device.kind
    if not backend:
        return item == kind
    names = ("*", kind, f"{index}", f"{index}.*", f"{index}.{slot.tile}")
    return backend in ("*", slot.device.backend) and item in names


def _nearest(words: str, every: Sequence[Slot]) -> str:
    kinds = {slot.device.kind for slot in every}
    known = [*kinds, *(name for s in every for name in (s.selector, f"{s.device.backend}:{s.device.kind}"))]
    parts = words.split(":")
    short = f"{parts[0]}:{parts[-1]}"  # dpctl prints a device as "level_zero:gpu:0", which is not a valid selector
    near = [short] if short in known else difflib.get_close_matches(words, known, n=1)
    return f"; did you mean {near[0]!r}?" if near and words not in ("gpu", "cpu") else "."


def _explain(what: str, probe: Probe) -> str:
    said = "".join(f" The drivers said: {error}." for error in probe.errors)
    return (
        f"{what}{said} Give gpu, cpu, or a selector such as level_zero:0; to see what is missing, type: xpulab doctor"
    )


def _unusable(devices: Collection[DeviceInfo]) -> dict[DeviceInfo, str]:
    """Return the devices that no engine may use, and the reason for each."""
    reasons = {device: _unfit(device) for device in devices}
    fit = [device for device in devices if not reasons[device]]
    for device in fit:
        if any(_same(other, device) for other in fit):
            reasons[device] = f"another driver already offers the same {device.kind.upper()}"
    return {device: reason for device, reason in reasons.items() if reason}


def _unfit(device: DeviceInfo) -> str:
    if device.kind not in ("gpu", "cpu"):
        return f"its kind is {device.kind}, and engines run on GPUs and CPUs only"
    if device.backend not in ("level_zero", "opencl"):
        return f"its backend is {device.backend}, and engines use Level Zero and OpenCL only"
    return "" if device.usm else "it has no unified shared memory"


def _same(preferred: DeviceInfo, device: DeviceInfo) -> bool:
    """Return whether two drivers offer the same device, and the entry `preferred` is the one to use.

    The entries are compared by model, because each of Intel's backends lists every GPU of a model, and a host has only
    one kind of CPU.
    """
    if preferred.kind != device.kind:
        return False
    if device.kind == "cpu":
        return preferred.index < device.index
    if (preferred.backend, device.backend) != ("level_zero", "opencl"):
        return False
    known = preferred.pci_id and device.pci_id
    return preferred.pci_id == device.pci_id if known else preferred.name == device.name
