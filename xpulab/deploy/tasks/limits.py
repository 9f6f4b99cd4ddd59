"""Check that rows fit into the memory of host and devices, before any row is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xpulab.exceptions import NotEnoughMemoryError
from xpulab.report.rendering import format_size
from xpulab.sharing import host_memory

__all__ = ["LEAST", "TAKE_PARTS", "Demand", "require_free", "require_room"]

LEAST = 64 << 20  # fewer bytes of rows are not checked, because the check takes as long as a small call


#: Estimators that can be fitted to rows part by part.
TAKE_PARTS = (
    "IncrementalBasicStatistics",
    "IncrementalEmpiricalCovariance",
    "IncrementalLinearRegression",
    "IncrementalPCA",
    "IncrementalRidge",
    "MaxAbsScaler",
    "MinMaxScaler",
    "MiniBatchKMeans",
    "StandardScaler",
)


@dataclass(frozen=True)
class Demand:
    """Rows that a call needs on the engines, and the memory that it needs for them.

    Attributes
    ----------
    what : str
        Description for messages: ``"X of 1,000 × 14 float32"``.
    counts : sequence of int
        Number of rows of each rank.
    row_bytes : float
        Bytes of one row, or of an average row of a CSR matrix.
    there : bool
        Whether the rows are already on the devices.
    sent : bool
        Whether the rows go through shared memory.
    adopted : bool
        Whether a CPU device uses the shared memory itself.
    work_per_row : float
        Bytes of working arrays on the device for each row.
    work_share : float
        Bytes of working arrays on the device, as a share of the bytes of the rows.
    result : float
        Bytes of the result in the memory of this process.
    double : bool
        Whether the rows are float64.
    """

    what: str
    counts: Sequence[int]
    row_bytes: float
    there: bool = False
    sent: bool = True
    adopted: bool = True
    work_per_row: float = 0.0
    work_share: float = 0.0
    result: float = 0.0
    double: bool = False

    @property
    def nbytes(self) -> float:
        """Bytes of all rows."""
        return sum(self.counts) * self.row_bytes

    @property
    def instead(self) -> str:
        """What can be done if there is no room for the rows."""
        if self.result:
            first = "pass parts of X, such as X[:1_000_000], one after the other"
        else:
            first = f"fit parts of X one after the other with partial_fit, which {_listed(TAKE_PARTS)} have"
        return ", ".join(
            [*([first] * (not self.there)), "use fewer rows", *["convert float64 to float32"] * self.double]
        )


def require_room(
    rows: Demand, facts: Sequence[dict[str, Any]], held: Sequence[int], free: float, host: str = "this host"
) -> None:
    """Raise an error if a host has too little memory for the rows and for the working arrays of the call.

    Parameters
    ----------
    rows : Demand
    facts : sequence of dict
        Description that each engine sent, by rank: ``device`` (name, device_type, memory) and ``selector``.
    held : sequence of int
        Bytes that each rank holds on its device already.
    free : float
        Free bytes of the host's memory.
    host : str
        The host, for messages.

    Raises
    ------
    NotEnoughMemoryError
        The message says how much memory is needed, how much is free, and what to do.
    """
    on_host = rows.result + (rows.nbytes if rows.sent and not rows.there else 0.0)
    on_device: Counter[str] = Counter()
    room: dict[str, float] = {}
    for fact, count, bytes_held in zip(facts, rows.counts, held, strict=True):
        shard = count * rows.row_bytes
        need = (0.0 if rows.there else shard) + shard * rows.work_share + count * rows.work_per_row
        if fact["device"]["device_type"] == "cpu":
            on_host += need - (shard if rows.sent and rows.adopted and not rows.there else 0.0)
            continue
        name = f"{fact['device']['name']} ({fact['selector']})"
        on_device[name] += int(need)
        room[name] = room.get(name, fact["device"]["memory"]) - bytes_held
    if on_host > free:
        raise NotEnoughMemoryError(
            f"{rows.what} needs {format_size(on_host)} of {host}'s memory for the transfer, on the engines and for the "
            f"result, and {format_size(max(0.0, free))} are free; {rows.instead}, or free memory: delete handles and "
            "arrays that you no longer need"
        )
    for name, need in on_device.items():
        if need > room[name]:
            raise NotEnoughMemoryError(
                f"{rows.what} needs {format_size(need)} on {name} for its rows and the working arrays, and "
                f"{format_size(max(0.0, room[name]))} are free; {rows.instead}, delete handles that you no longer "
                "need, or use more devices: %xpu_cluster plan"
            )


def require_free(what: str, nbytes: int, instead: str) -> None:
    """Raise an error if this host has less free memory than copies of rows in this process need.

    Parameters
    ----------
    what : str
        The copies, for messages.
    nbytes : int
    instead : str
        What can be done.
    """
    if nbytes >= LEAST and nbytes > (free := host_memory.available(swap=True)):
        raise NotEnoughMemoryError(
            f"{what} needs {format_size(nbytes)} of this host's memory, and {format_size(max(0, free))} are free; "
            f"{instead}, or free memory: delete handles and arrays that you no longer need"
        )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
