"""What a cluster looks like from outside: plain data, with a text and an HTML form."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from xpulab import rendering
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


@dataclass(frozen=True, repr=False)
class ClusterStatus(Displayed):
    """A cluster at one moment.

    Attributes
    ----------
    state : {"running", "stopped", "lost"}
    seconds_to_start : float or None
    engines : tuple of EngineStatus
    warnings : tuple of str
    """

    state: str
    n: int
    seconds_to_start: float | None = None
    engines: tuple[EngineStatus, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """The same as plain lists and dicts."""
        return asdict(self)

    def _title(self) -> str:
        started = f", started in {rendering.format_seconds(self.seconds_to_start)}" if self.seconds_to_start else ""
        noun = "engine" if self.n == 1 else "engines"
        return f"xpulab cluster: {self.state}, {self.n} {noun}{started}"

    _header = ("rank", "host", "pid", "device", "cores", "state", "memory", "held on device", "heartbeat")
    _align = "rlrlllrrr"

    def _rows(self) -> list[tuple[object, ...]]:
        return [
            (
                e.rank,
                e.host,
                e.pid,
                e.device,
                ",".join(map(str, e.cores)) or "–",
                e.state,
                rendering.format_size(e.memory_used),
                f"{rendering.format_size(e.device_bytes)} of {rendering.format_size(e.device_memory)}",
                f"{e.heartbeat_age_s:.1f} s ago",
            )
            for e in self.engines
        ]

    def __str__(self) -> str:
        parts = [self._title()]
        if self.engines:
            parts.append(rendering.table_text(self._header, self._rows(), self._align))
        parts += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> Html:
        body = [f"<p><strong>{rendering.escape(self._title())}</strong></p>"]
        if self.engines:
            body.append(rendering.table_html(self._header, self._rows(), self._align))
        body += [f"<p>warning: {rendering.escape(warning)}</p>" for warning in self.warnings]
        return rendering.block("cluster", body)
