"""``python -m xpulab.deploy.agent``: keeps the engines of another host together with the notebook's host.

`relay` starts this program by ssh, on each host but the notebook's. Both write lines of JSON to each other. The agent
makes the cluster's folder on its host, and writes the files there that the engines wait for. It copies between the
board of its host and the relay. It signals and watches the processes of its host, which no other host can. It ends all
of them, and removes what they leave, when the relay says so, when the connection ends, or when nothing has come for a
set time: a network that is cut for good looks like a silent one.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from xpulab.deploy.leftovers import remove_leftovers
from xpulab.deploy.silence import Signs
from xpulab.sharing import host_memory
from xpulab.sharing.board import Board

__all__ = ["BOARD", "HOST", "STEP", "Lines", "board_of", "interface_with", "write_private"]

#: The files in a cluster's folder that tell the engines about their host, and others about the host's board.
HOST, BOARD = "host.json", "board.json"

STEP = 0.1  # seconds between two looks at the board
_SAID = 0.5  # seconds after which a message is sent also if nothing has changed
_AGAIN = 0.5  # seconds until SIGINT is repeated to a user's code
_END = 3.0  # seconds that killed processes have to end
_USERS = (b"run", b"%%xpu")  # tasks that run a user's code, which does not read the board


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, so that it is complete as soon as it is there."""
    part = path.with_name(f".{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)
    part.rename(path)


def board_of(folder: Path) -> tuple[Board, list[int]] | None:
    """The board of this host, and the ranks that run on it; None until the engines have made it."""
    with contextlib.suppress(FileNotFoundError):
        about = json.loads((folder / BOARD).read_text())
        return Board.open(about["path"]), about["ranks"]
    return None


def interface_with(address: str) -> str:
    """The network interface of this host that has an address; "" if none has it."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return name
    return ""


class Lines:
    """Messages from a pipe, one JSON document on each line.

    Parameters
    ----------
    descriptor : int

    Attributes
    ----------
    open : bool
        Whether more can come.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.open = True
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """The messages that have come. Lines that are none, as a shell's start file may print, are left out."""
        while self.open:
            try:
                found = os.read(self.descriptor, 1 << 20)
            except BlockingIOError:
                break
            self._rest += found
            self.open = bool(found)
        *lines, self._rest = self._rest.split(b"\n")
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError):
                messages.append(json.loads(line))
        return [message for message in messages if isinstance(message, dict)]


class _Agent:
    """The agent of this host.

    Parameters
    ----------
    start : dict
        The relay's first message: ``folder``, and ``limit``, the seconds of silence after which the engines end.
    """

    def __init__(self, start: dict[str, Any]) -> None:
        self.folder = Path(start["folder"])
        self.made = [path for path in (self.folder, self.folder.parent) if not path.exists()]
        if not self.folder.parent.exists():
            self.folder.parent.mkdir(0o700)
        self.folder.mkdir(0o700)  # an error if it is there: it would be another user's
        for name in ("log", "security"):
            (self.folder / name).mkdir(0o700)
        self.board: Board | None = None
        self.ranks: list[int] = []
        self.signs: Signs | None = None
        self.watched: dict[int, int] = {}  # descriptor -> rank
        self.launchers: set[psutil.Process] = set()
        self.logs: dict[Path, int] = {}
        self._signalled = 0.0
        self._sent: Any = None
        self._said = 0.0
        _, _, address, _ = os.environ["SSH_CONNECTION"].split()
        environment = {"FI_TCP_IFACE": interface_with(address)}
        write_private(self.folder / HOST, json.dumps({"owner": os.getpid(), "environment": environment}))

    def take(self, message: dict[str, Any]) -> None:
        """Do what a message of the relay says."""
        for name, text in message.get("files", {}).items():
            write_private(self.folder / name, text)
        if self.board is None:
            return
        if "cancelled" in message:
            self.board.requests = np.frombuffer(base64.b64decode(message["cancelled"]), np.uint64)
        for rank, packed in message.get("ranks", {}).items():
            if int(rank) in self.ranks:
                continue
            record = np.frombuffer(base64.b64decode(packed), self.board.ranks.dtype).copy()
            record["pid"] = 0
            self.board.ranks[int(rank)] = record[0]

    def look(self) -> None:
        """Open the board of this host when the engines have made it, and send what has changed."""
        if self.board is None:
            found = board_of(self.folder)
            if found is None:
                self._say({})
                return
            self.board, self.ranks = found
        records = self.board.ranks[self.ranks]
        if self.signs is None:
            if not records["pid"].all():
                return
            self._watch([int(pid) for pid in records["pid"]])
        assert self.signs is not None
        self._interrupt(records)
        now, zeros = time.time(), np.zeros(len(self.ranks))
        about = {
            str(rank): {
                "record": base64.b64encode(record.tobytes()).decode(),
                "age": now - float(record["heartbeat"]),
                "signs": float(signs),
                "memory": _resident(int(record["pid"])),
            }
            for rank, record, signs in zip(self.ranks, records, self.signs(zeros), strict=True)
        }
        self._say({"ranks": about, "free": host_memory.available(), "logs": self._new_lines()}, records.tobytes())

    def _say(self, message: dict[str, Any], state: Any = None) -> None:
        """Send a message if the state has changed, or if nothing was sent for a while."""
        if state == self._sent and not message.get("logs") and time.monotonic() - self._said < _SAID:
            return
        self._sent, self._said = state, time.monotonic()
        say(message)

    def _watch(self, pids: list[int]) -> None:
        self.signs = Signs(pids, _SAID)
        for rank, pid in zip(self.ranks, pids, strict=True):
            with contextlib.suppress(ProcessLookupError):
                self.watched[os.pidfd_open(pid)] = rank
            with contextlib.suppress(psutil.Error):
                self.launchers |= {each for each in psutil.Process(pid).parents() if each.name().startswith("hydra")}

    def _interrupt(self, records: Any) -> None:
        """Send SIGINT to the ranks whose user's code was asked to end."""
        assert self.board is not None
        if time.monotonic() - self._signalled < _AGAIN:
            return
        for record in records:
            busy = record["task"] and record["ended"] != record["task"] and bytes(record["name"]) in _USERS
            if busy and self.board.cancelled(int(record["task"])):
                self._signalled = time.monotonic()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(record["pid"]), signal.SIGINT)

    def _new_lines(self) -> dict[str, str]:
        """What the ranks of this host have printed into files since the last look: name -> bytes as base64."""
        found = {}
        for path in (self.folder / "log").glob("rank-*.log"):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                file.seek(self.logs.get(path, 0))
                if text := file.read():
                    self.logs[path] = file.tell()
                    found[path.name] = base64.b64encode(text).decode()
        return found

    def end(self) -> None:
        """End the processes of this host, and remove what they leave."""
        processes = [*self.launchers, *_engines_of(self.folder)]
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, _END)
        for path in self.made:
            shutil.rmtree(path, ignore_errors=True)
        remove_leftovers()


def say(message: dict[str, Any]) -> None:
    """Send a message to the relay."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _engines_of(folder: Path) -> list[psutil.Process]:
    """The engines on this host that belong to the cluster with this folder."""
    found, mine = [], os.getuid()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == mine and str(folder) in process.environ().get("XPULAB_ENGINE", ""):
                found.append(process)
    return found


def _resident(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def main() -> None:
    """Run until the relay ends, or nothing is heard of it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the connection's end is seen on standard input
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    lines = Lines(sys.stdin.fileno())
    messages: list[dict[str, Any]] = []
    poll = select.poll()
    poll.register(lines.descriptor, select.POLLIN)
    while lines.open and not messages:
        poll.poll(1000)
        messages = lines.read()
    if not messages:
        return
    start = messages.pop(0)
    agent = _Agent(start)
    try:
        say({"ready": socket.gethostname()})
        _serve(agent, lines, messages, poll, start["limit"])
    finally:
        agent.end()


def _serve(agent: _Agent, lines: Lines, messages: list[dict[str, Any]], poll: select.poll, limit: float) -> None:
    heard = time.monotonic()
    known: set[int] = set()
    while lines.open and time.monotonic() - heard < limit:
        for message in messages:
            agent.take(message)
        with contextlib.suppress(BrokenPipeError):
            agent.look()
            for descriptor in agent.watched.keys() - known:
                poll.register(descriptor, select.POLLIN)
                known.add(descriptor)
            ready = {descriptor for descriptor, _ in poll.poll(1000 * STEP)}
            if gone := sorted(agent.watched[descriptor] for descriptor in ready & known):
                say({"gone": gone})
                for descriptor in ready & known:
                    poll.unregister(descriptor)
        messages = lines.read()
        heard = time.monotonic() if messages else heard
        if any("end" in message for message in messages):
            return


if __name__ == "__main__":
    main()
