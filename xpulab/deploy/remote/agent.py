"""``python -m xpulab.deploy.remote.agent``: connects the engines of another host with the notebook's host.

`relay` starts this program by ssh, or in a Slurm job by srun, on each host but the notebook's. Relay and agent send
each other lines of JSON. The agent makes the cluster's folder on its host, and writes the files there that the engines
wait for. It sends the relay what its engines write on the board of this host, twice a second also their iterations, and
writes on the board which tasks should stop. It signals and watches the engines, because a process of another host
cannot. It ends all of them, and removes what they leave, when the relay says so, when the connection ends, or when the
relay has sent nothing for a set time, because nothing else shows that a network was cut for good.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil

from xpulab.deploy.launchers import munge
from xpulab.deploy.mpi import choice
from xpulab.deploy.network.addresses import interface_with, reached_at
from xpulab.deploy.remote.clocks import Lateness
from xpulab.deploy.remote.messages import OF_OTHERS, FromAgent, FromRelay, Lines, RankState, Start
from xpulab.deploy.watch.descendants import kill, marked
from xpulab.deploy.watch.first import FirstToEnd
from xpulab.deploy.watch.leftovers import remove_leftovers
from xpulab.deploy.watch.silence import Signs
from xpulab.deploy.watch.starting import Starting
from xpulab.sharing import host_memory
from xpulab.sharing.board import ITERATIONS, Board
from xpulab.sharing.folder import BOARD, HOST, write_private

__all__ = ["STEP", "board_of"]

STEP = 0.1  # seconds between two looks at the board

_SAID = 0.5  # seconds after which a message is sent also if nothing has changed, and between two with iterations
#: Iterations in one message, of all ranks together: 470 kB, on which agent and relay spend 2 ms each. Of ranks that
#: iterate faster some are left out, and at the end of a fit the last thousand of each rank follow.
_MOST = 4 * ITERATIONS
_END = 3.0  # seconds that killed processes have to end
_CLEAN = 0.5  # seconds that the programs of MPI which have started the engines have to end by themselves

_ENGINE = "xpulab.engine"  # a word of the command line of an engine, but not of the programs that it starts

#: What the names of these programs begin with: of Intel MPI and MPICH, Open MPI 4, and Open MPI 5.
_LAUNCHERS = ("hydra", "orted", "prted")


def board_of(folder: Path) -> tuple[Board, list[int]] | None:
    """Return the board of this host, and the ranks that run on it; None until the engines have made it."""
    with contextlib.suppress(FileNotFoundError):
        about = json.loads((folder / BOARD).read_text())
        return Board.open(about["path"]), about["ranks"]
    return None


class _Agent:
    """The agent of this host.

    Parameters
    ----------
    start : Start
        The relay's first message.
    """

    def __init__(self, start: Start) -> None:
        self.folder = Path(start["folder"])
        self.made_parent = not self.folder.parent.exists()
        self.folder.parent.mkdir(0o700, exist_ok=True)
        self.folder.mkdir(0o700)  # an error if it is there: it would be another user's
        self.socket = start["munge"]
        self.board: Board | None = None
        self.ranks: list[int] = []
        self.told: FromRelay = {}  # the latest message of the relay about tasks
        self.starting: Starting | None = Starting(start["silence"])  # None after the first task
        self.signs: Signs | None = None
        self.watched: dict[int, int] = {}  # descriptor -> rank
        self.first: FirstToEnd | None = None  # of them
        self.launchers: set[psutil.Process] = set()
        self.engines: set[int] = set()
        self.logs: dict[Path, int] = {}
        self.lateness = Lateness()  # of the relay's messages
        self.noted: dict[int, int] = {}  # rank -> number of its iterations of which the relay knows
        self._noted = 0.0
        self._sent: bytes | None = None
        self._said = 0.0
        environment = choice.environment_of(start["mpi"], interface_with(reached_at()))
        try:
            for name in ("log", "security"):
                (self.folder / name).mkdir(0o700)
            write_private(self.folder / HOST, json.dumps({"owner": os.getpid(), "environment": environment}))
        except OSError:
            self._remove()
            raise

    def take(self, message: FromRelay) -> None:
        """Do what a message of the relay says."""
        if "clock" in message:
            self.lateness.add(message["clock"])
        for name, text in message.get("files", {}).items():
            write_private(self.folder / name, text)
        for name, text in message.get("sealed", {}).items():
            write_private(self.folder / name, munge.opened(text, self.socket))
        if "cancelled" in message:
            self.told = message
        if self.board is None or not self.told:
            return
        self.board.requests = self.told["cancelled"]
        for rank, where in enumerate(self.told["waits_in"]):
            if rank not in self.ranks:
                self.board.every["waits_in"][rank] = where.encode()
                for field in OF_OTHERS:
                    self.board.every[field][rank] = self.told[field][rank]

    def look(self) -> None:
        """Open the board of this host when the engines have made it, and send what has changed."""
        self._look_at_start()
        if self.board is None:
            found = board_of(self.folder)
            if found is None:
                self._say({})
                return
            self.board, self.ranks = found
        records = self.board.every[self.ranks]
        if self.signs is None:
            if not records["pid"].all():
                return
            self._watch([int(pid) for pid in records["pid"]])
        assert self.signs is not None
        self._interrupt(records)
        now, signs = time.time(), self.signs(np.zeros(len(self.ranks)))
        about: dict[str, RankState] = {
            str(rank): {
                "record": base64.b64encode(record.tobytes()).decode(),
                "age": now - float(record["heartbeat"]),
                "signs": float(sign),
                "memory": host_memory.resident(int(record["pid"])),
                "used": float(used),
                "read": self.signs.read,
            }
            for rank, record, sign, used in zip(self.ranks, records, signs, self.signs.used, strict=True)
        }
        said: FromAgent = {"ranks": about, "free": host_memory.available(), "logs": self._new_lines()}
        self._add_iterations(said)
        self._say(said, records.tobytes())

    def _look_at_start(self) -> None:
        """Tell the relay of an engine that ends or is stopped before its first task, when nothing else shows it."""
        if self.board is not None and (self.board.every["name"][self.ranks] != b"").all():
            self.starting = None
        if self.starting is not None and (what := self.starting.lost(self._engines)):
            say({"lost": f"{what} while the cluster was starting"})

    def _engines(self) -> set[int]:
        """Return the engines of this host, also those that have ended, while the program that has started them runs."""
        for process in marked(self.folder):
            with contextlib.suppress(psutil.Error):
                if _ENGINE in process.cmdline():
                    self.engines.add(process.pid)
        return self.engines

    def _say(self, message: FromAgent, state: bytes | None = None) -> None:
        """Send a message if the state has changed, or if nothing was sent for a while."""
        new = state != self._sent or message.get("logs") or "iterations" in message
        if not new and time.monotonic() - self._said < _SAID:
            return
        self._sent, self._said = state, time.monotonic()
        say(message)

    def _watch(self, pids: list[int]) -> None:
        self.signs = Signs(pids, _SAID)
        for rank, pid in zip(self.ranks, pids, strict=True):
            with contextlib.suppress(ProcessLookupError):
                self.watched[os.pidfd_open(pid)] = rank
            with contextlib.suppress(psutil.Error):
                self.launchers |= {each for each in psutil.Process(pid).parents() if each.name().startswith(_LAUNCHERS)}
        self.first = FirstToEnd(self.watched)

    def _interrupt(self, records: Any) -> None:
        """Send SIGINT to the ranks whose user's code was asked to end."""
        assert self.board is not None
        for number in {int(number) for number in records["hears"] if number}:
            self.board.signal(number)

    def _new_lines(self) -> dict[str, str]:
        """Return what the ranks of this host have printed into files since the last look: name -> bytes as base64."""
        found = {}
        for path in (self.folder / "log").glob("rank-*.log"):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                file.seek(self.logs.get(path, 0))
                if text := file.read():
                    self.logs[path] = file.tell()
                    found[path.name] = base64.b64encode(text).decode()
        return found

    def _add_iterations(self, message: FromAgent) -> None:
        """Add what is new in the rings of this host's ranks to a message, and how late the relay's messages are."""
        assert self.board is not None
        late = self.lateness.least
        if late is None or time.monotonic() - self._noted < _SAID:
            return
        self._noted = time.monotonic()
        found: dict[str, tuple[int, str]] = {}
        for rank in self.ranks:
            first, entries = self.board.iterations_since(rank, self.noted.get(rank, 0), _MOST // len(self.ranks))
            if len(entries):
                self.noted[rank] = first + len(entries)
                found[str(rank)] = first, base64.b64encode(entries.tobytes()).decode()
        if found:
            message["iterations"] = found
        message["late"] = late

    def end(self) -> None:
        """End the processes of this host, and remove what they leave."""
        _end_all(self.folder, self.launchers)
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.made_parent:
            with contextlib.suppress(OSError):  # it has the folder of another cluster
                self.folder.parent.rmdir()


def _end_all(folder: Path, launchers: set[psutil.Process]) -> None:
    """End the processes of the cluster with this folder on this host, and remove what they leave."""
    kill(engines := marked(folder))
    _, left = psutil.wait_procs(launchers, _CLEAN)  # they remove their files after the engines have ended
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in left:
            with contextlib.suppress(psutil.Error):
                end(process)
        _, left = psutil.wait_procs(left, _CLEAN)
    psutil.wait_procs([*left, *engines], _END)
    shutil.rmtree(folder, ignore_errors=True)
    remove_leftovers()


def say(message: FromAgent) -> None:
    """Send a message to the relay."""
    sys.stdout.write(json.dumps({**message, "clock": time.perf_counter()}) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run until the relay ends, or nothing is heard of it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the connection's end is seen on standard input
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _ended)  # Slurm ends a job with it, and kills what is left some seconds later
    lines: Lines[FromRelay] = Lines(sys.stdin.fileno())
    messages: list[FromRelay] = []
    poll = select.poll()
    poll.register(lines.descriptor, select.POLLIN)
    while lines.open and not messages:
        poll.poll(1000)
        messages = lines.read()
    if not messages:
        return
    start = messages.pop(0)
    if start.get("remove"):
        _end_all(Path(start["folder"]), set())
        return
    try:
        agent = _Agent(start)
        try:
            _serve(agent, lines, messages, poll, start["limit"])
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            agent.end()
    except OSError as error:
        with contextlib.suppress(BrokenPipeError):
            say({"lost": f"the files of the cluster cannot be written into {start['folder']} there: {error}"})


def _ended(*_: Any) -> NoReturn:
    raise SystemExit(0)


def _serve(agent: _Agent, lines: Lines[FromRelay], messages: list[FromRelay], poll: select.poll, limit: float) -> None:
    heard = time.monotonic()
    known: set[int] = set()
    while lines.open and time.monotonic() - heard < limit:
        if any("end" in message for message in messages):  # of a start that failed, it comes with the first message
            return
        for message in messages:
            agent.take(message)
        with contextlib.suppress(BrokenPipeError):
            agent.look()
            for descriptor in agent.watched.keys() - known:
                poll.register(descriptor, select.POLLIN)
                known.add(descriptor)
            ready = {descriptor for descriptor, _ in poll.poll(1000 * STEP)}
            if ready & known and agent.first is not None:
                gone = sorted(agent.watched[descriptor] for descriptor in agent.first())
                say({"gone": gone, "moment": agent.first.moment})
                for descriptor in ready & known:
                    poll.unregister(descriptor)
        messages = lines.read()
        heard = time.monotonic() if messages else heard


if __name__ == "__main__":
    main()
