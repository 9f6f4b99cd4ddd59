"""``python -m xpulab.deploy.remote.relay``: connects the notebook's host with the other hosts of a cluster.

It runs on the notebook's host, starts an `agent` on each other host by ssh or, in a job of Slurm, by srun, and copies
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

from xpulab.deploy.launchers import choice as schedulers
from xpulab.deploy.launchers import munge, slurm
from xpulab.deploy.launchers.scheduler import Job, Launcher
from xpulab.deploy.launchers.ssh import Ssh
from xpulab.deploy.mpi import choice
from xpulab.deploy.remote.agent import OF_OTHERS, STEP, Lines, board_of
from xpulab.sharing import owner
from xpulab.sharing.board import Board
from xpulab.sharing.folder import HOST, write_private
from xpulab.sharing.program import program

__all__ = ["LIMIT", "LOST", "OPTIONS"]

#: Files in a cluster's folder: the relay's options, and what it has lost.
OPTIONS, LOST = "relay.json", "lost.json"

LIMIT = 15.0  # seconds without a sign of the other side after which a host counts as lost
_SAID = 0.5  # seconds after which a message is sent also if nothing has changed
_CAUSE = 1.5  # seconds that mpiexec has to end the other engines after one has ended; Intel's takes milliseconds
_STATE = 0.7  # seconds that a scheduler has to answer while a call waits to know why engines were lost
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

    def __init__(self, host: str, launcher: Launcher, about: dict[str, Any]) -> None:
        self.host, self._launcher, self._about = host, launcher, about
        self.heard = float("inf")  # until the first message: ssh and the cluster have limits for a start
        self._said = time.monotonic()
        self._state: dict[str, Any] = {}
        self.beats: dict[int, tuple[float, float]] = {}  # rank -> its heartbeat there, and its time here
        self._begin(about)

    def _begin(self, about: dict[str, Any]) -> None:
        """Start an agent, and send it its first message."""
        self.process = subprocess.Popen(
            self._launcher.command(program("xpulab.deploy.remote.agent")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in = self.process.stdin.fileno()
        os.set_blocking(self._in, False)
        self.lines = Lines(self.process.stdout.fileno())
        self._unsent = b""
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

    def end(self, silent: bool) -> None:
        """Have the processes of the host ended, and what they leave removed.

        If the connection of an agent that has worked ended, it may have been killed, and has then removed nothing:
        another agent does it. The agent of a host of which nothing is heard (`silent`) does it by itself.
        """
        if silent:
            self.process.kill()
        elif self.lines.open or self.heard == float("inf"):
            self.say({"end": True})
        else:
            with self.process:
                self.process.kill()
            self._begin({**self._about, "remove": True})

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
        ``hosts`` (names for ssh or srun), ``ssh_config``, ``job`` (attributes of `Job`, or None), ``owner``,
        ``interface``, ``mpi``, ``helped`` (whether the helper rank runs on this host), ``limit``, the seconds
        without a sign of the other side after which a host counts as lost, and ``silence``, the seconds that an engine
        may stand still while it starts.
    """

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.folder = folder
        environment = choice.environment_of(options["mpi"], options["interface"])
        about = {"owner": options["owner"], "environment": environment, "helps": options["helped"]}
        write_private(folder / HOST, json.dumps(about))
        self.limit: float = options["limit"]
        self.job = Job(**options["job"]) if options["job"] else None
        self.scheduler = schedulers.module(self.job.scheduler) if self.job else None
        self.sealing = self.scheduler is not None and not self.scheduler.BY_SSH
        self.socket = munge.socket_in(slurm.config()) if self.sealing else ""  # of munge's daemon
        about = {"folder": str(folder), "mpi": options["mpi"], "munge": self.socket}
        about |= {"limit": self.limit, "silence": options["silence"]}
        self.links: list[_Link] = []
        for host in options["hosts"]:
            launcher: Launcher = Ssh(host, options["ssh_config"])
            if self.scheduler and self.job:
                launcher = self.scheduler.launcher(host, self.job, options["ssh_config"])
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
            if self._silent(link):
                raise _Lost(f"nothing was heard of {link.host} for {self.limit:g} s", [])
        for descriptor in self.watched:
            poll.register(descriptor, select.POLLIN)

    def _silent(self, link: _Link) -> bool:
        """Whether nothing was heard of a host for too long."""
        return time.monotonic() - link.heard > self.limit

    def _pass_on_files(self) -> None:
        for name in self._files.copy():
            with contextlib.suppress(FileNotFoundError, ValueError):
                text = (self.folder / name).read_text()
                json.loads(text)  # it may be half written
                self._files.remove(name)
                for link in self.links:
                    link.say({"sealed": {name: self._sealed(text)}} if self.sealing else {"files": {name: text}})

    def _sealed(self, text: str) -> str:
        """A text as it travels by srun, which encrypts nothing. It can be opened once, so each link has its own."""
        try:
            return munge.sealed(text, self.socket)
        except munge.MungeError as error:
            job = schedulers.label(self.job) if self.job else ""
            raise _Lost(
                f"the keys of the cluster cannot be sent to other nodes of {job}: {error}\n"
                "srun would send them without encryption; type: %xpu_cluster start --launcher local, or, if ssh "
                "reaches the nodes, name them: --hosts node1,node2",
                [],
            ) from None

    def _open_board(self) -> None:
        if self.board is None and (found := board_of(self.folder)) is not None:
            self.board, self.ranks = found
        if self.board is not None and not self.watched and self.board.every["pid"][self.ranks].all():
            for rank in self.ranks:
                with contextlib.suppress(ProcessLookupError):
                    self.watched[os.pidfd_open(int(self.board.every["pid"][rank]))] = rank

    def _tell(self) -> None:
        """Tell every agent which tasks should stop, and in which tasks a rank has failed, has ended, or waits."""
        known: dict[str, Any] = {}
        if self.board is not None:
            every = self.board.every
            known = {name: every[name].tolist() for name in OF_OTHERS} | {"cancelled": self.board.requests}
            known["waits_in"] = [where.decode(errors="replace") for where in every["waits_in"].tolist()]
        for link in self.links:
            link.tell(known)

    def _take(self, link: _Link, message: dict[str, Any]) -> None:
        """Take over what an agent has sent."""
        for name, text in message.get("logs", {}).items():
            with open(self.folder / "log" / os.path.basename(name), "ab") as file:
                file.write(base64.b64decode(text))
        if message.get("lost"):
            raise _Lost(f"{link.host}: {message['lost']}", [])
        if message.get("gone"):
            raise _Lost("", message["gone"])
        if self.board is None:
            return
        for key, about in message.get("ranks", {}).items():
            rank = int(key)
            record = np.frombuffer(base64.b64decode(about["record"]), self.board.every.dtype).copy()
            there = float(record["heartbeat"][0])
            if link.beats.get(rank, (None,))[0] != there:  # the hosts' clocks may differ: only ages are compared
                link.beats[rank] = there, time.time() - about["age"]
            record["heartbeat"] = link.beats[rank][1]
            record["pid"] = 0
            record["signs"], record["memory"], record["free"] = about["signs"], about["memory"], message["free"]
            self.board.every[rank] = record[0]

    def await_mpi(self) -> None:
        """Give mpiexec time to end the other engines: it then logs how the first one ended."""
        deadline = time.monotonic() + _CAUSE
        poll = select.poll()
        for descriptor in self.watched:
            poll.register(descriptor, select.POLLIN)
        while len(poll.poll(0)) < len(self.watched) and time.monotonic() < deadline:
            time.sleep(0.01)

    def end_of_job(self) -> str:
        """How the scheduler's job has ended, which has then ended the engines, too; empty if it still runs."""
        if self.job is None:
            return ""
        log = (self.folder / "log" / "relay.log").read_text(errors="replace")  # srun writes there
        look = schedulers.asked(self.job.scheduler, self.job.id, log, _STATE)
        return f"{schedulers.label(self.job)} {look.words or 'has ended'}" if look.state in ("ending", "ended") else ""

    def end(self) -> None:
        """Have the agents end the processes of their hosts, and wait until they have."""
        for link in self.links:
            link.end(self._silent(link))
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
        if lost.about["ranks"]:
            relay.await_mpi()
        if why := relay.end_of_job():
            write_private(folder / LOST, json.dumps({"why": why, "ranks": [], "job": True}))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        relay.end()


def _ended(*_: Any) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
