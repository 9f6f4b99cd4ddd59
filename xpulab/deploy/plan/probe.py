"""Devices, cores and memory of this host.

A subprocess (`xpulab.engine.devices`) loads the drivers. If a driver crashes or hangs, the notebook shows an error
message, and its process goes on. Nothing is cached.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from xpulab.exceptions import DeviceError
from xpulab.report.rendering import Displayed, block, escape, format_size, plain, table_html, table_text
from xpulab.sharing.program import program

__all__ = ["ALIGN", "HEADER", "DeviceInfo", "Probe", "core_ranges", "probe", "row_of"]

_LAST_WORDS = 2000  # characters of a driver's output that a message shows


@dataclass(frozen=True)
class DeviceInfo:
    """One SYCL device.

    Attributes
    ----------
    backend : str
        ``"level_zero"``, ``"opencl"``, ``"cuda"``, …
    index : int
        Number of the device within the backend, as in ``ONEAPI_DEVICE_SELECTOR``.
    kind : str
        ``"gpu"``, ``"cpu"`` or ``"accelerator"``.
    name, vendor, driver : str
        Name, vendor and driver version, as the driver reports them.
    compute_units : int
        Number of compute units; for a CPU, of logical cores.
    memory, max_allocation, local_memory : int
        Bytes of the device, of the largest allocation, and of a work-group's local memory.
    max_work_group_size : int
        Largest number of work-items of a work-group.
    float64, float16, usm : bool
        Whether the device has float64, float16, and unified shared memory.
    sub_devices : int
        Number of tiles; 0 if there are none, or if each tile is a device of its own.
    pci_id : str or None
        PCI number of the model, ``"0x56a0"``; None if the driver does not report it.
    """

    backend: str
    index: int
    kind: str
    name: str
    vendor: str
    driver: str
    compute_units: int
    memory: int
    max_allocation: int
    local_memory: int
    max_work_group_size: int
    float64: bool
    float16: bool
    usm: bool
    sub_devices: int
    pci_id: str | None

    @property
    def selector(self) -> str:
        """The device in the form of ``ONEAPI_DEVICE_SELECTOR``."""
        return f"{self.backend}:{self.index}"


@dataclass(frozen=True)
class Probe(Displayed):
    """Devices, cores and memory of a host. A notebook shows it as a table.

    Attributes
    ----------
    host : str
        Name of the machine.
    cores : tuple of tuple of int
        The logical CPUs that the notebook may use, with one tuple per physical core. Neighbouring cores follow each
        other.
    memory_total, memory_available : int
        Bytes of memory of the host, or of the container, and free bytes.
    libraries : str
        Folder of the oneAPI runtime; empty if it was not found.
    devices : tuple of DeviceInfo
        In the runtime's order; a GPU may appear once for each of its drivers.
    errors : tuple of str
        Messages about data that could not be read.
    """

    host: str
    cores: tuple[tuple[int, ...], ...]
    memory_total: int
    memory_available: int
    libraries: str
    devices: tuple[DeviceInfo, ...]
    errors: tuple[str, ...]

    @property
    def logical_cores(self) -> tuple[int, ...]:
        """All logical CPUs, those of one physical core next to each other."""
        return tuple(cpu for core in self.cores for cpu in core)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Probe:
        """Return the inverse of `to_dict`; lists may stand for tuples."""
        fields = dict(document)
        fields["cores"] = tuple(tuple(core) for core in document["cores"])
        fields["devices"] = tuple(DeviceInfo(**device) for device in document["devices"])
        fields["errors"] = tuple(document["errors"])
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-serialisable values."""
        return asdict(self)

    def __str__(self) -> str:
        table = table_text(HEADER, map(row_of, self.devices), ALIGN)
        return "\n".join([self.title, table, *(f"  {plain(error)}" for error in self.errors)])

    def _repr_html_(self) -> str:
        table = table_html(HEADER, map(row_of, self.devices), ALIGN, caption=self.title)
        return block("devices", [table, *(f'<div class="xpu-note">{escape(error)}</div>' for error in self.errors)])

    @property
    def title(self) -> str:
        """Host, cores and free memory, on one line."""
        cores = f"{len(self.logical_cores)} cores ({core_ranges(self.logical_cores)})"
        free = f"{format_size(self.memory_available)} of {format_size(self.memory_total)} free"
        return f"Devices of {self.host}: {cores}, {free}"


HEADER = ("--devices", "device", "kind", "driver", "units", "memory", "float64", "tiles")
ALIGN = "llllrrlr"


def row_of(device: DeviceInfo) -> tuple[object, ...]:
    """Return a device in a table of devices, under `HEADER`."""
    return (
        device.selector,
        device.name,
        device.kind.upper(),
        device.driver,
        device.compute_units,
        format_size(device.memory),
        "yes" if device.float64 else "no",
        device.sub_devices or "",
    )


def probe(timeout: float = 20) -> Probe:
    """Ask the drivers of this host for its devices. Takes about half a second.

    Parameters
    ----------
    timeout : float
        Seconds after which a driver counts as hanging.

    Returns
    -------
    Probe

    Raises
    ------
    DeviceError
        If a driver crashes or hangs; the message has its last output.
    """
    process = subprocess.Popen(
        program("xpulab.engine.devices"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    try:
        answer, words = process.communicate(timeout=timeout)
        return Probe.from_dict(json.loads(answer))
    except subprocess.TimeoutExpired:
        raise DeviceError(_message(f"did not answer within {timeout:g} s", _end(process))) from None
    except json.JSONDecodeError:
        raise DeviceError(_message(_ending(process.returncode), words)) from None
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[str]) -> str:
    """Kill the process, and return its last output."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # a process that waits in the kernel cannot be killed
        return process.communicate(timeout=1)[1]
    return ""


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code} without an answer"


def _message(what: str, words: str) -> str:
    said = words.strip()[-_LAST_WORDS:] or "nothing"
    return (
        f"the process that asks the device drivers {what}; its last output: {said}\n"
        "The usual cause is a driver that was partly updated or removed: reinstall it, or remove it to use the CPU only"
    )


def core_ranges(cores: Iterable[int]) -> str:
    """Core numbers as text, ``"0-3,8"``."""
    ranges: list[list[int]] = []
    for core in sorted(cores):
        if ranges and core == ranges[-1][-1] + 1:
            ranges[-1][1:] = [core]
        else:
            ranges.append([core])
    return ",".join("-".join(map(str, pair)) for pair in ranges)
