"""Whether rows fit the host and the devices, before any of them is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xpulab.exceptions import NotEnoughMemoryError
from xpulab.rendering import format_size

__all__ = ["LEAST", "Demand", "require_room"]

LEAST = 64 << 20  # bytes of rows; fewer are not looked at, as asking the host costs as long as a small call

#: What a fit holds on a device beside the rows: label, label before and bound of each, and a part of the shard in which
#: rows are put side by side (measured: benchmarks/README.md).
_PER_ROW = 12
_PART = 1 / 30


@dataclass(frozen=True)
class Demand:
    """Demand that a call needs on the engines, in bytes.

    Attributes
    ----------
    what : str
        For messages: ``"X of 1,000 × 14 float32"``.
    counts : sequence of int
        Demand of each rank.
    row_bytes : float
        Of one row, or of one of the average length.
    there : bool
        Whether they are on the devices already.
    sent : bool
        Whether they go through shared memory.
    adopted : bool
        Whether a CPU takes the shared memory for its own.
    """

    what: str
    counts: Sequence[int]
    row_bytes: float
    there: bool = False
    sent: bool = True
    adopted: bool = True

    @property
    def nbytes(self) -> float:
        """Of all rows."""
        return sum(self.counts) * self.row_bytes


def require_room(rows: Demand, facts: Sequence[dict[str, Any]], held: Sequence[int], free: float) -> None:
    """Raise unless the rows and the working arrays of a fit fit.

    Parameters
    ----------
    rows : Demand
    facts : sequence of dict
        What each engine said of itself, by rank: ``device`` (name, device_type, memory) and ``selector``.
    held : sequence of int
        Bytes that each rank holds on its device already.
    free : float
        Bytes that the host has left.

    Raises
    ------
    NotEnoughMemoryError
        With what is needed, what there is, and what to do.
    """
    on_host = rows.nbytes if rows.sent and not rows.there else 0.0
    on_device: Counter[str] = Counter()
    room: dict[str, float] = {}
    for fact, count, bytes_held in zip(facts, rows.counts, held, strict=True):
        shard = count * rows.row_bytes
        need = (0.0 if rows.there else shard) + shard * _PART + count * _PER_ROW
        if fact["device"]["device_type"] == "cpu":
            on_host += need - (shard if rows.sent and rows.adopted and not rows.there else 0.0)
            continue
        name = f"{fact['device']['name']} ({fact['selector']})"
        on_device[name] += int(need)
        room[name] = room.get(name, fact["device"]["memory"]) - bytes_held
    if on_host > free:
        raise NotEnoughMemoryError(
            f"{rows.what} needs {format_size(on_host)} of this host's memory on its way to the engines and on them, "
            f"and {format_size(free)} are free; take fewer rows, cast to float32 if it is float64, or free memory: "
            "del handles and arrays that are done with"
        )
    for name, need in on_device.items():
        if need > room[name]:
            raise NotEnoughMemoryError(
                f"{rows.what} needs {format_size(need)} on {name}, for its rows there and the working arrays, and "
                f"{format_size(max(0.0, room[name]))} are left by what the engines hold; take fewer rows, cast to "
                "float32 if it is float64, del handles, or use more devices: %xpu_cluster plan"
            )
