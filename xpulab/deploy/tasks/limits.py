"""Check that rows fit into the memory of host and devices, before any row is sent to the engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xpulab.deploy.memory import Memory
from xpulab.exceptions import NotEnoughMemoryError
from xpulab.report.rendering import format_size
from xpulab.sharing import host_memory
from xpulab.sharing.descriptions import EngineDescription

__all__ = ["LEAST", "READING", "Demand", "require_free", "require_room", "that_fit"]

LEAST = 64 << 20  # fewer bytes of rows are not checked, because the check takes as long as a small call


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
    fits : bool
        Whether the result is a part of a fit, which needs all rows.
    double : bool
        Whether the rows are float64.
    take_parts : sequence of str
        Estimators like the one of the call that can be fitted to rows part by part, for messages.
    least : float
        Bytes for each row that must have room within `memory`, because a call in passes keeps these of each row.
    passes : bool
        Whether the call takes the rows in passes, so that the engines need not have room for all of them.
    every_row : float
        Bytes of the host's memory for each row, also of those that are read in passes, beside those of `memory`.
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
    fits: bool = False
    double: bool = False
    take_parts: Sequence[str] = ()
    passes: bool = False
    least: float = 0.0
    every_row: float = 0.0

    @property
    def nbytes(self) -> float:
        """Bytes of all rows."""
        return sum(self.counts) * self.row_bytes

    @property
    def instead(self) -> str:
        """What can be done if there is no room for the rows."""
        if self.result and not self.fits:
            first = "pass parts of X, such as X[:1_000_000], one after the other"
        else:
            first = f"fit parts of X one after the other with {_with_partial_fit(self.take_parts)}"
        return ", ".join(
            [*([first] * (not self.there)), "use fewer rows", *["convert float64 to float32"] * self.double]
        )


#: Bytes that an engine takes to read rows again: two parts of them, and what decodes them (about 80 MB for Parquet).
READING = 96 << 20


def that_fit(
    rows: Demand, facts: Sequence[EngineDescription], held: Sequence[int], free: float, memory: Memory
) -> list[int]:
    """Return how many of its rows each rank of a host can keep.

    Parameters
    ----------
    rows, facts, held, free
        As for `require_room`. The result of the call is in the memory of the host, too.
    memory : Memory
        What the rows of the host's engines may take.
    """
    each = rows.row_bytes * (1 + rows.work_share) + rows.work_per_row
    on_cpu = [fact.device.device_type == "cpu" for fact in facts]
    of_cpus = sum(count for count, cpu in zip(rows.counts, on_cpu, strict=True) if cpu)
    every = max(1, sum(rows.counts))
    free -= rows.result
    if of_cpus * each > memory.of_free(free, sum(held), of_cpus / every):
        free -= every * rows.every_row + len(facts) * READING
    of_host = memory.of_free(free, sum(held), of_cpus / every)
    users = Counter((fact.device.name, fact.selector) for fact, cpu in zip(facts, on_cpu, strict=True) if not cpu)
    kept = []
    for fact, count, bytes_held, cpu in zip(facts, rows.counts, held, on_cpu, strict=True):
        if cpu:
            room = of_host * count / max(1, of_cpus)
        else:
            sharing = users[fact.device.name, fact.selector]
            room = memory.of_free(fact.device.memory / sharing - bytes_held, sum(held), count / every)
        kept.append(min(count, int(room / each)))
    return kept


def require_room(
    rows: Demand, facts: Sequence[EngineDescription], held: Sequence[int], free: float, host: str = "this host"
) -> None:
    """Raise an error if a host has too little memory for the rows and for the working arrays of the call.

    Parameters
    ----------
    rows : Demand
    facts : sequence of EngineDescription
        Description that each engine sent, by rank.
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
    of_every = rows.every_row * sum(rows.counts) if rows.passes else 0.0
    if rows.passes:
        rows = replace(rows, row_bytes=0.0, work_share=0.0, work_per_row=0.0)
    on_host = of_every + rows.result + (rows.nbytes if rows.sent and not rows.there else 0.0)
    on_device: Counter[str] = Counter()
    room: dict[str, float] = {}
    for fact, count, bytes_held in zip(facts, rows.counts, held, strict=True):
        shard = count * rows.row_bytes
        need = (0.0 if rows.there else shard) + shard * rows.work_share + count * rows.work_per_row
        if fact.device.device_type == "cpu":
            on_host += need - (shard if rows.sent and rows.adopted and not rows.there else 0.0)
            continue
        name = f"{fact.device.name} ({fact.selector})"
        on_device[name] += int(need)
        room[name] = room.get(name, fact.device.memory) - bytes_held
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


def _with_partial_fit(names: Sequence[str]) -> str:
    if not names:
        return "an estimator that has partial_fit"
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"partial_fit, which {listed} {'have' if names[1:] else 'has'}"
