"""What the ranks of a cluster tell about themselves: the engines when they have started, and the helper rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["DeviceDescription", "EngineDescription", "HelperDescription"]


@dataclass(frozen=True)
class DeviceDescription:
    """A device, as its driver describes it on the engine that uses it.

    Attributes
    ----------
    name : str
    backend : str
        SYCL's name of the runtime: "level_zero", "opencl" or "cuda".
    device_type : str
        "cpu", "gpu" or "accelerator".
    driver : str
        Version of the driver.
    memory : int
        Bytes.
    compute_units : int
    float64 : bool
        Whether it computes in float64.
    """

    name: str
    backend: str
    device_type: str
    driver: str
    memory: int
    compute_units: int
    float64: bool


@dataclass(frozen=True)
class EngineDescription:
    """An engine, its process, and its device.

    Attributes
    ----------
    rank : int
    mpi_rank : int
        mpiexec's number of the process, which differs if there is a helper rank.
    host : str
    pid : int
    device : DeviceDescription
    cores : tuple of int
        The logical CPUs that the process may use.
    here : bool
        Whether it runs on the notebook's host.
    board : str
        `Board.path` of the board of its host.
    mpi : str
        The first line of what its MPI says of its version.
    selector : str
        The device in the form of ``ONEAPI_DEVICE_SELECTOR``; empty in a script.
    launch_shapes : str
        The file with the launch shapes that were measured on such a device; empty if tuning is off.
    """

    rank: int
    mpi_rank: int
    host: str
    pid: int
    device: DeviceDescription
    cores: tuple[int, ...]
    here: bool
    board: str
    mpi: str
    selector: str
    launch_shapes: str

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> EngineDescription:
        """Return the description of which `dataclasses.asdict` gave this content; lists may stand for tuples."""
        device, cores = DeviceDescription(**content["device"]), tuple(content["cores"])
        return cls(**{**content, "device": device, "cores": cores})


@dataclass(frozen=True)
class HelperDescription:
    """The helper rank, which runs on the notebook's host and has no device (see `xpulab.engine.hosts.helper`).

    Attributes
    ----------
    rank : int
        The number after those of the engines.
    mpi_rank : int
        mpiexec's number of the process.
    host : str
    pid : int
    """

    rank: int
    mpi_rank: int
    host: str
    pid: int

    @property
    def here(self) -> bool:
        """Whether it runs on the notebook's host: always."""
        return True
