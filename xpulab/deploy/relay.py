"""``python -m xpulab.deploy.relay``: connects the notebook's host with the other hosts of a cluster.

It runs on the notebook's host, starts an `agent` on each other host by ssh or, in a Slurm job, by srun, and copies
between their boards and the board of this host ten times a second: what their engines are doing, requests to stop, and
exceptions. The keys of the cluster reach the other hosts by this connection. If an engine or a connection is lost, the
relay writes down which, and ends; its end tells the notebook.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from xpulab.deploy.agent import STEP, Lines, board_of
from xpulab.deploy.launchers import munge, slurm
from xpulab.deploy.launchers.slurm import Srun
from xpulab.deploy.launchers.ssh import Ssh
from xpulab.deploy.mpi import choice
from xpulab.sharing import owner
from xpulab.sharing.board import Board
from xpulab.sharing.folder import HOST, write_private

__all__ = ["LIMIT", "LOST", "OPTIONS"]

#: Files in a cluster's folder: the relay's options, and what it has lost.
OPTIONS, LOST = "relay.json", "lost.json"

LIMIT = 15.0  # seconds without a sign of the other side after which a host counts as lost
_SAID = 0.5  # seconds after which a message is sent also if nothing has changed
_CAUSE = 1.5  # seconds that mpiexec has to end the other engines after one has ended; Intel's takes milliseconds
_END = 4.0  # seconds that the agents have to end the processes of their hosts

#: Files that the engines wait for. The second has the cluster's keys.
_FILES = ("placements.json", "security/ipcontroller-engine.json")


class _Lost(Exception):
    """An engine or a host was lost.

    Parameters
    ----------
    why : str
        What was lost; empty if `ranks` says it.
    ranks : list of int
        The engines that ended first.
    """

    def __init__(self, why: str, ranks: list[int]) -> None:
        super().__init__(why)
        self.about = {"why": why, "ranks": ranks}


class _Link:
    """The connection to the agent of a host."""

    def __init__(self, host: str, launcher: Ssh | Srun, about: dict[str, Any]) -> None:
        self.host = host
        self.process = subprocess.Popen(
            launcher.command([sys.executable, "-m", "xpulab.deploy.agent"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in = self.process.stdin.fileno()
        os.set_blocking(self._in, False)
        self.lines = Lines(self.process.stdout.fileno())
        self.heard = float("inf")  # until the first message: ssh and the cluster have limits for a start
        self._said = time.monotonic()
        self._unsent = b""
        self._state: dict[str, Any] = {}
        self.beats: dict[int, tuple[float, float]] = {}  # rank -> its heartbeat there, and its time here
        self.say(about)

    def say(self, message: dict[str, Any]) -> None:
        """Send a message."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self._said = time.monotonic()
        self.flush()

    def tell(self, state: dict[str, Any]) -> None:
        """Send a state if it has changed, and an empty message as a sign of life if nothing was sent for a while."""
        if not self._unsent:  # otherwise a later state replaces this one
            if state != self._state:
                self._state = state
                self.say(state)
            elif time.monotonic() - self._said > _SAID:
                self.say({})
        self.flush()

    def flush(self) -> None:
        """Send what could not be sent before."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            self._unsent = self._unsent[os.write(self._in, self._unsent) :] if self._unsent else b""


class _Relay:
    """The relay of a cluster.

    Parameters
    ----------
    folder : pathlib.Path
        Folder of the cluster.
    options : dict
        ``hosts`` (names for ssh or srun), ``ssh_config``, ``job`` (of Slurm; empty for ssh), ``owner``, ``interface``,
        ``mpi``, and ``limit``, the seconds without a sign of the other side after which a host counts as lost.
    """

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.folder = folder
        environment = choice.module(options["mpi"]).interface_variables(options["interface"])
        write_private(folder / HOST, json.dumps({"owner": options["owner"], "environment": environment}))
        self.limit: float = options["limit"]
        self.socket = munge.socket_in(slurm.config()) if options["job"] else ""  # of munge's daemon
        about = {"folder": str(folder), "limit": self.limit, "mpi": options["mpi"], "munge": self.socket}
        self.job: str = options["job"]
        self.links: list[_Link] = []
        for host in options["hosts"]:
            launcher = Srun(host, self.job) if self.job else Ssh(host, options["ssh_config"])
            self.links.append(_Link(host, launcher, about))
        self.board: Board | None = None
        self.ranks: list[int] = []  # those of this host
        self.watched: dict[int, int] = {}
        self._files = list(_FILES)

    def step(self, poll: select.poll) -> None:
        """Pass on what is new on one of the hosts."""
        self._pass_on_files()
        self._open_board()
        self._tell()
        ready = {descriptor for descriptor, _ in poll.poll(1000 * STEP)}
        for link in self.links:  # first: an engine of another host that has ended takes those of this host along
            for message in link.lines.read():
                link.heard = time.monotonic()
                self._take(link, message)
        if gone := sorted(self.watched[descriptor] for descriptor in ready & self.watched.keys()):
            raise _Lost("", gone)
        for link in self.links:
            if not link.lines.open:
                raise _Lost(f"the connection to {link.host} ended", [])
            if time.monotonic() - link.heard > self.limit:
                raise _Lost(f"nothing was heard of {link.host} for {self.limit:g} s", [])
        for descriptor in self.watched:
            poll.register(descriptor, select.POLLIN)

    def _pass_on_files(self) -> None:
        for name in self._files.copy():
            with contextlib.suppress(FileNotFoundError, ValueError):
                text = (self.folder / name).read_text()
                json.loads(text)  # it may be half written
                self._files.remove(name)
                for link in self.links:
                    link.say({"sealed": {name: self._sealed(text)}} if self.job else {"files": {name: text}})

    def _sealed(self, text: str) -> str:
        """A text as it travels by srun, which encrypts nothing. It can be opened once, so each link has its own."""
        try:
            return munge.sealed(text, self.socket)
        except munge.MungeError as error:
            raise _Lost(
                f"the keys of the cluster cannot be sent to the other nodes of Slurm's job {self.job}: {error}\nsrun "
                "would send them without encryption; type: %xpu_cluster start --launcher local, or, if ssh reaches the "
                "nodes, name them: --hosts node1,node2",
                [],
            ) from None

    def _open_board(self) -> None:
        if self.board is None and (found := board_of(self.folder)) is not None:
            self.board, self.ranks = found
        if self.board is not None and not self.watched and self.board.ranks["pid"][self.ranks].all():
            for rank in self.ranks:
                with contextlib.suppress(ProcessLookupError):
                    self.watched[os.pidfd_open(int(self.board.ranks["pid"][rank]))] = rank

    def _tell(self) -> None:
        """Tell every agent which tasks should stop, and in which tasks a rank has raised an exception."""
        known: dict[str, Any] = {}
        if self.board is not None:
            known = {"cancelled": self.board.requests, "failed": self.board.ranks["failed"].tolist()}
        for link in self.links:
            link.tell(known)

    def _take(self, link: _Link, message: dict[str, Any]) -> None:
        """Take over what an agent has sent."""
        for name, text in message.get("logs", {}).items():
            with open(self.folder / "log" / os.path.basename(name), "ab") as file:
                file.write(base64.b64decode(text))
        if message.get("gone"):
            raise _Lost("", message["gone"])
        if self.board is None:
            return
        for key, about in message.get("ranks", {}).items():
            rank = int(key)
            record = np.frombuffer(base64.b64decode(about["record"]), self.board.ranks.dtype).copy()
            there = float(record["heartbeat"][0])
            if link.beats.get(rank, (None,))[0] != there:  # the hosts' clocks may differ: only ages are compared
                link.beats[rank] = there, time.time() - about["age"]
            record["heartbeat"] = link.beats[rank][1]
            record["pid"] = 0
            record["signs"], record["memory"], record["free"] = about["signs"], about["memory"], message["free"]
            self.board.ranks[rank] = record[0]

    def await_mpi(self) -> None:
        """Give mpiexec time to end the other engines: it then logs how the first one ended."""
        deadline = time.monotonic() + _CAUSE
        poll = select.poll()
        for descriptor in self.watched:
            poll.register(descriptor, select.POLLIN)
        while len(poll.poll(0)) < len(self.watched) and time.monotonic() < deadline:
            time.sleep(0.01)

    def end_of_job(self) -> str:
        """How Slurm's job has ended, which has then ended the engines, too; empty if it still runs."""
        state = slurm.state(self.job) if self.job else ""
        log = (self.folder / "log" / "relay.log").read_text(errors="replace")  # srun writes there
        return f"Slurm's job {self.job} {how}" if (how := slurm.ending(state, log)) else ""

    def end(self) -> None:
        """Have the agents end the processes of their hosts, and wait until they have."""
        for link in self.links:
            link.say({"end": True})
        deadline = time.monotonic() + _END
        for link in self.links:
            while link.process.poll() is None and time.monotonic() < deadline:
                link.flush()
                link.lines.read()
                time.sleep(0.01)
            link.process.kill()
            link.process.wait()


def main() -> None:
    """Run until the notebook ends this process, or something is lost."""
    folder = Path(sys.argv[1])
    options = json.loads((folder / OPTIONS).read_text())
    if options["owner"]:
        owner.end_with(options["owner"], functools.partial(owner.successors, str(folder)))
    signal.signal(signal.SIGTERM, _ended)
    relay = _Relay(folder, options)
    poll = select.poll()
    for link in relay.links:
        poll.register(link.lines.descriptor, select.POLLIN)
    try:
        while True:
            relay.step(poll)
    except _Lost as lost:
        write_private(folder / LOST, json.dumps(lost.about))
        relay.await_mpi()
        if why := relay.end_of_job():
            write_private(folder / LOST, json.dumps({"why": why, "ranks": []}))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        relay.end()


def _ended(*_: Any) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
