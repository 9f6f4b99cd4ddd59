"""The program ``python -m xpulab.engine.devices``, which writes the devices of this host as JSON to standard output.

It runs in a separate process, because it loads every driver of the host. It does not raise exceptions: ``errors`` in
the document lists the facts that could not be read, and why.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from xpulab.libraries import oneapi
from xpulab.sharing import host_memory

if TYPE_CHECKING:
    import dpctl

__all__ = ["describe"]

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"


class HostFacts(TypedDict):
    """The document; `describe` says what its fields are."""

    host: str
    cores: list[list[int]]
    memory_total: int
    memory_available: int
    libraries: str
    devices: list[dict[str, object]]
    errors: list[str]


def describe() -> HostFacts:
    """Describe the host, its cores, its memory and its devices.

    Returns
    -------
    dict
        The fields of `xpulab.deploy.plan.probe.Probe`: ``host``; ``cores``, the logical CPUs that this process may use,
        in one list per physical core; ``memory_total`` and ``memory_available`` in bytes; ``libraries``, the folder of
        the oneAPI runtime; ``devices``, a list of dicts; and ``errors``, a list of texts.
    """
    document: HostFacts = {
        "host": platform.node(),
        "cores": _cores(),
        "memory_total": 0,
        "memory_available": 0,
        "libraries": "",
        "devices": [],
        "errors": [],
    }
    with _noting(document["errors"]):
        total, available = host_memory.total(), host_memory.available()
        document["memory_total"], document["memory_available"] = total, available
    with _noting(document["errors"]):
        _runtime(document)
    return document


@contextlib.contextmanager
def _noting(errors: list[str], where: str = "") -> Iterator[None]:
    try:
        yield
    except Exception as error:
        errors.append(f"{where}{type(error).__name__}: {error}")


def _cores() -> list[list[int]]:
    """Return the logical CPUs by physical core. They are sorted by package, so parts of the list are neighbours."""
    cores: dict[tuple[int, str], list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        folder = Path(_TOPOLOGY.format(cpu))
        try:
            package = int((folder / "physical_package_id").read_text())
            siblings = (folder / "thread_siblings_list").read_text()
        except (OSError, ValueError):  # some containers and virtual machines hide the topology
            package, siblings = 0, str(cpu)
        cores.setdefault((package, siblings), []).append(cpu)
    return [cores[key] for key in sorted(cores, key=lambda key: (key[0], cores[key]))]


def _runtime(document: HostFacts) -> None:
    os.environ.pop(oneapi.SELECTOR, None)  # with it the runtime would number the devices differently
    document["libraries"] = str(oneapi.load())
    import dpctl

    seen: Counter[str] = Counter()
    for device in dpctl.get_devices():
        backend = device.backend.name
        index = seen[backend]
        seen[backend] += 1
        with _noting(document["errors"], f"{backend}:{index}: "):  # a broken device must not hide the others
            document["devices"].append(_device(device, backend, index))


def _device(device: dpctl.SyclDevice, backend: str, index: int) -> dict[str, object]:
    from dpctl.utils import intel_device_info

    # dpctl 0.17 gives neither the PCI address nor the UUID of a device, only the PCI number of its model.
    model = intel_device_info(device).get("device_id")
    return {
        "backend": backend,
        "index": index,
        "kind": device.device_type.name,
        "name": device.name,
        "vendor": device.vendor,
        "driver": device.driver_version,
        "compute_units": device.max_compute_units,
        "memory": device.global_mem_size,
        "max_allocation": device.max_mem_alloc_size,
        "local_memory": device.local_mem_size,
        "max_work_group_size": device.max_work_group_size,
        "float64": device.has_aspect_fp64,
        "float16": device.has_aspect_fp16,
        "usm": device.has_aspect_usm_device_allocations,
        "sub_devices": _sub_devices(device),
        "pci_id": None if model is None else f"{model:#06x}",
    }


def _sub_devices(device: dpctl.SyclDevice) -> int:
    """Return the number of tiles of a GPU; 0 if it has none, or if the runtime lists each tile as a device."""
    import dpctl

    if not device.is_gpu:
        return 0
    try:
        return len(device.create_sub_devices(partition="next_partitionable"))
    except dpctl.SyclSubDeviceCreationError:
        return 0


if __name__ == "__main__":
    # Drivers print to standard output; this sends their text to standard error.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with answer:
        json.dump(describe(), answer)
    # Exit without unloading the drivers, because a driver may crash while it is unloaded.
    os._exit(0)
