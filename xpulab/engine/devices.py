"""The devices that this host has for engines, as a JSON document on standard output: ``-m xpulab.engine.devices``.

It runs in a process of its own, because it loads every driver that there is. Nothing ends in a traceback: what could
not be found out is said in the document's ``errors``.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xpulab import oneapi
from xpulab.sharing import host_memory

__all__ = ["describe"]

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"


def describe() -> dict[str, Any]:
    """Host, cores, memory and devices.

    Returns
    -------
    dict
        What `xpulab.deploy.probe.Probe` holds: ``host``; ``cores``, the logical CPUs that this process may use, in one
        list per physical core; ``memory_total`` and ``memory_available`` in bytes; ``libraries``, the folder of the
        oneAPI runtime; ``devices``; ``errors``, as text.
    """
    document: dict[str, Any] = {
        "host": platform.node(),
        "cores": _cores(),
        "libraries": "",
        "devices": [],
        "errors": [],
    }
    document["memory_total"] = document["memory_available"] = 0
    with _noting(document["errors"]):
        document.update(memory_total=host_memory.total(), memory_available=host_memory.available())
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
    """Logical CPUs by physical core, and these by package: who splits the list keeps neighbours together."""
    cores: dict[tuple[int, str], list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        folder = Path(_TOPOLOGY.format(cpu))
        try:
            package = int((folder / "physical_package_id").read_text())
            siblings = (folder / "thread_siblings_list").read_text()
        except (OSError, ValueError):  # some containers and virtual machines hide it
            package, siblings = 0, str(cpu)
        cores.setdefault((package, siblings), []).append(cpu)
    return [cores[key] for key in sorted(cores, key=lambda key: (key[0], cores[key]))]


def _runtime(document: dict[str, Any]) -> None:
    os.environ.pop(oneapi.SELECTOR, None)  # it would renumber the devices
    document["libraries"] = str(oneapi.load())
    import dpctl

    seen: Counter[str] = Counter()
    for device in dpctl.get_devices():
        backend = device.backend.name
        index = seen[backend]
        seen[backend] += 1
        with _noting(document["errors"], f"{backend}:{index}: "):  # a broken device must not hide the others
            document["devices"].append(_device(device, backend, index))


def _device(device: Any, backend: str, index: int) -> dict[str, Any]:
    from dpctl.utils import intel_device_info

    # dpctl 0.17 tells neither the PCI address nor the UUID, only the PCI number of the model.
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


def _sub_devices(device: Any) -> int:
    """Tiles of a GPU; 0 where it has none, or where each is a device of its own already."""
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
    # A driver that crashes while it is unloaded has answered already.
    os._exit(0)
