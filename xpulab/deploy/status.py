"""What a cluster looks like from outside: plain data, with a text and an HTML form."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from xpulab.deploy.status_view import status_html, status_text
from xpulab.rendering import Displayed, Html

__all__ = ["ClusterStatus", "EngineStatus"]


@dataclass(frozen=True)
class EngineStatus:
    """One engine.

    Attributes
    ----------
    state : str
        "idle", the name of the task in hand, or "silent" when its heartbeat stopped.
    heartbeat_age_s : float
        Seconds since it last wrote to the board.
    tile : str
        The tile (see `EngineReport`) last used, and for how many classes of sizes one is tuned.
    memory_used, device_bytes, device_memory : int
        Resident memory of the process, bytes held on the device for handles, and the device's memory, in bytes.
    """

    rank: int
    host: str
    pid: int
    device: str
    selector: str
    cores: tuple[int, ...]
    state: str
    heartbeat_age_s: float
    memory_used: int
    device_bytes: int
    device_memory: int
    tile: str


@dataclass(frozen=True, repr=False)
class ClusterStatus(Displayed):
    """A cluster at one moment.

    Attributes
    ----------
    state : {"running", "stopped", "lost"}
    seconds_to_start : float or None
    engines : tuple of EngineStatus
    warnings : tuple of str
    tile_files : tuple of str
        Where tuned tiles are kept, a file for each kind of device; none where tuning is off.
    """

    state: str
    n: int
    seconds_to_start: float | None = None
    engines: tuple[EngineStatus, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    tile_files: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """The same as plain lists and dicts."""
        return asdict(self)

    def __str__(self) -> str:
        return status_text(self.to_dict())

    __repr__ = __str__

    def _repr_html_(self) -> Html:
        return status_html(self.to_dict())
