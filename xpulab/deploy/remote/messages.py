"""What relay and agents send each other, one JSON document on each line, and what is written down after a loss."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, Literal, TypedDict, TypeVar, cast

from xpulab.sharing.folder import write_private

__all__ = ["LOST", "OF_OTHERS", "FromAgent", "FromRelay", "Lines", "Lost", "RankState", "Start"]

_OfOthers = Literal["failed", "ended", "waits", "met"]
#: The fields with numbers of the board by which each host learns of the ranks of the other hosts.
OF_OTHERS: tuple[_OfOthers, ...] = ("failed", "ended", "waits", "met")

#: File in a cluster's folder with what was lost.
LOST = "lost.json"

MessageT = TypeVar("MessageT")


class Start(TypedDict, total=False):
    """The relay's first message.

    `folder` is that of the cluster, `limit` the seconds of silence after which the engines end, `silence` the seconds
    that an engine may stand still while it starts, `mpi` the name of the MPI, `munge` the socket of munge's daemon.
    `remove` is for an agent that does nothing but end what another one has left.
    """

    folder: str
    limit: float
    silence: float
    mpi: str
    munge: str
    remove: bool


class FromRelay(Start, total=False):
    """A message of the relay; one with nothing but `clock` is a sign of life.

    `files` are the texts of files by name, and `sealed` the same as munge has encrypted them. `cancelled` has the
    numbers of the tasks that should stop; with it come the fields of the board that tell of all ranks. `clock` is
    `time.perf_counter` of the relay's host when the message was sent. `end` asks the agent to end.
    """

    files: dict[str, str]
    sealed: dict[str, str]
    clock: float
    cancelled: list[int]
    failed: list[int]
    ended: list[int]
    waits: list[float]
    waits_in: list[str]
    met: list[int]
    end: bool


class RankState(TypedDict):
    """A rank: its record on the board as base64, the age of its heartbeat, its other signs of life, and its bytes.

    `used` are the seconds of processors that its process has used, and `read` is when they were read.
    """

    record: str
    age: float
    signs: float
    memory: int
    used: float
    read: float


class FromAgent(TypedDict, total=False):
    """A message of an agent; one with nothing but `clock` is a sign of life.

    `ranks` are the ranks of its host, `free` the free bytes there, and `logs` what its ranks have printed, as base64 by
    the name of the file. `iterations` has what is new in the rings of ranks, as `Board.iterations_since` returns it,
    with the entries as base64. `clock` is `time.perf_counter` of the agent's host when the message was sent, and `late`
    how late the relay's messages come by it, see `xpulab.deploy.remote.clocks`. `lost` says what was lost, and `gone`
    are the ranks that ended first, at a `moment` by the same clock as `clock`.
    """

    ranks: dict[str, RankState]
    free: int
    logs: dict[str, str]
    iterations: dict[str, tuple[int, str]]
    clock: float
    late: float
    lost: str
    gone: list[int]
    moment: float


class Lines(Generic[MessageT]):
    """Messages from a pipe, one JSON document on each line.

    Parameters
    ----------
    descriptor : int

    Attributes
    ----------
    open : bool
        Whether more can come.
    other : bytes
        The last line that was no message.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.open = True
        self.other = b""
        self._rest = b""

    def read(self) -> list[MessageT]:
        """Return the messages that have come. Lines that are none, as a shell's start file may print, are left out."""
        while self.open:
            try:
                found = os.read(self.descriptor, 1 << 20)
            except BlockingIOError:
                break
            self._rest += found
            self.open = bool(found)
        *lines, self._rest = self._rest.split(b"\n")
        messages: list[MessageT] = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                self.other = line
                continue
            if isinstance(message, dict):
                messages.append(cast("MessageT", message))
        return messages


@dataclass(frozen=True)
class Lost:
    """What was lost.

    Attributes
    ----------
    why : str
        Empty if `ranks` says it.
    ranks : tuple of int
        The engines that ended first.
    job : bool
        Whether the job in which the engines ran has ended.
    """

    why: str = ""
    ranks: tuple[int, ...] = ()
    job: bool = False

    def write(self, folder: Path) -> None:
        """Write it down in the folder of the cluster."""
        write_private(folder / LOST, json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Lost | None:
        """Return what was written down; None if nothing was."""
        try:
            content = json.loads((folder / LOST).read_text())
        except (OSError, ValueError):
            return None
        return cls(**{**content, "ranks": tuple(content["ranks"])})
