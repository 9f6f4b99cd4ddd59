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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from xpulab.deploy.launchers import choice as schedulers
from xpulab.deploy.launchers import munge, slurm
from xpulab.deploy.launchers.scheduler import Job, Launcher
from xpulab.deploy.launchers.ssh import Ssh
from xpulab.deploy.mpi import choice
from xpulab.deploy.remote.agent import STEP, board_of
from xpulab.deploy.remote.clocks import Lateness, ahead
from xpulab.deploy.remote.messages import OF_OTHERS, FromAgent, FromRelay, Lines, Lost, Start
from xpulab.deploy.watch.first import FirstOfHosts, FirstToEnd
from xpulab.sharing import owner
from xpulab.sharing.board import ITERATION, Board
from xpulab.sharing.folder import HOST, write_private
from xpulab.sharing.program import program

__all__ = ["LIMIT", "OPTIONS", "Options"]

#: File in a cluster's folder with the relay's options.
OPTIONS = "relay.json"

LIMIT = 15.0  # seconds without a sign of the other side after which a host counts as lost
_SAID = 0.5  # seconds after which a message is sent also if nothing has changed
_TOLD = 1.5  # seconds that other hosts have to say which of their ranks ended first, after one has said so
_CAUSE = 1.5  # seconds that mpiexec has to end the other engines after one has ended; Intel's takes milliseconds
_STATE = 0.7  # seconds that a scheduler has to answer while a call waits to know why engines were lost
_END = 4.0  # seconds that the agents have to end the processes of their hosts

#: Files that the engines wait for. The second has the cluster's keys.
_FILES = ("placements.json", "security/ipcontroller-engine.json")


@dataclass(frozen=True)
class Options:
    """The options of the relay.

    Attributes
    ----------
    hosts : list of str
        The other hosts, as ssh or srun knows them.
    ssh_config : str or None
        File with ssh's configuration.
    job : Job or None
        The scheduler's job whose nodes the hosts are.
    owner : int
        The process with which the cluster ends; 0 for none.
    interface : str
        Network interface of this host that leads to the other hosts.
    mpi : str
        Name of the MPI.
    helped : bool
        Whether the helper rank runs on this host.
    silence : float
        Seconds that an engine may stand still while it starts.
    limit : float
        Seconds without a sign of the other side after which a host counts as lost.
    """

    hosts: list[str]
    ssh_config: str | None
    job: Job | None
    owner: int
    interface: str
    mpi: str
    helped: bool
    silence: float
    limit: float = LIMIT

    def write(self, folder: Path) -> None:
        """Write the options into the folder of the cluster."""
        (folder / OPTIONS).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Options:
        """Return the options that `write` has written."""
        content = json.loads((folder / OPTIONS).read_text())
        return cls(**{**content, "job": content["job"] and Job.from_dict(content["job"])})


class _LostError(Exception):
    """An engine or a host was lost."""

    def __init__(self, lost: Lost) -> None:
        super().__init__(lost.why)
        self.lost = lost


class _Link:
    """The connection to the agent of a host."""

    def __init__(self, host: str, launcher: Launcher, start: Start) -> None:
        self.host, self._launcher, self._start = host, launcher, start
        self.heard = float("inf")  # until the first message: ssh and the cluster have limits for a start
        self._said = time.monotonic()
        self._state: FromRelay = {}
        self.beats: dict[int, tuple[float, float]] = {}  # rank -> its heartbeat there, and its time here
        self.lateness = Lateness()  # of the agent's messages
        self.ahead = 0.0  # seconds by which the clock of the host is ahead of this host's
        self._begin(start)

    def _begin(self, start: Start) -> None:
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
        self.lines: Lines[FromAgent] = Lines(self.process.stdout.fileno())
        self._unsent = b""
        self.say(start)

    def say(self, message: Start | FromRelay) -> None:
        """Send a message."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self._said = time.monotonic()
        self.flush()

    def tell(self, state: FromRelay) -> None:
        """Send a state if it has changed, and a sign of life if nothing was sent for a while."""
        if not self._unsent:  # otherwise a later state replaces this one
            if state != self._state:
                self._state = state
                self.say({**state, "clock": time.perf_counter()})
            elif time.monotonic() - self._said > _SAID:
                self.say({"clock": time.perf_counter()})
        self.flush()

    def end(self, silent: bool) -> None:
        """Have the processes of the host ended, and what they leave removed.

        If the connection of an agent that has worked ended, it may have been killed, and has then removed nothing:
        another agent does it. The agent of a host of which nothing is heard (`silent`) does it by itself.
        """
        if silent:
            self.process.kill()
        elif self.lines.open or self.heard == float("inf"):
            end: FromRelay = {"end": True}
            self.say(end)
        else:
            with self.process:
                self.process.kill()
            self._begin({**self._start, "remove": True})

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
    options : Options
    """

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder = folder
        environment = choice.environment_of(options.mpi, options.interface)
        about = {"owner": options.owner, "environment": environment, "helps": options.helped}
        write_private(folder / HOST, json.dumps(about))
        self.limit, self.job = options.limit, options.job
        self.scheduler = schedulers.module(self.job.scheduler) if self.job else None
        self.sealing = self.scheduler is not None and not self.scheduler.BY_SSH
        self.socket = munge.socket_in(slurm.config()) if self.sealing else ""  # of munge's daemon
        start: Start = {
            "folder": str(folder),
            "limit": options.limit,
            "silence": options.silence,
            "mpi": options.mpi,
            "munge": self.socket,
        }
        self.links: list[_Link] = []
        for host in options.hosts:
            launcher: Launcher = Ssh(host, options.ssh_config)
            if self.scheduler and self.job:
                launcher = self.scheduler.launcher(host, self.job, options.ssh_config)
            self.links.append(_Link(host, launcher, start))
        self.board: Board | None = None
        self.ranks: list[int] = []  # those of this host
        self.watched: dict[int, int] = {}
        self.first: FirstToEnd | None = None  # of them
        self.ended = FirstOfHosts(_TOLD)
        self._files = list(_FILES)

    def step(self, poll: select.poll) -> None:
        """Pass on what is new on one of the hosts."""
        self._pass_on_files()
        self._open_board()
        self._tell()
        ready = {descriptor for descriptor, _ in poll.poll(1000 * STEP)}
        for link in self.links:
            for message in link.lines.read():
                link.heard = time.monotonic()
                self._take(link, message)
        if ready & self.watched.keys() and self.first is not None:
            gone = [self.watched[descriptor] for descriptor in self.first()]
            self.ended.add(self.first.moment, gone)
            self.first = None
            for descriptor in self.watched:
                poll.unregister(descriptor)
        if ranks := self.ended.ranks(len(self.links) + bool(self.watched)):
            raise _LostError(Lost(ranks=ranks))
        if self.ended:
            return
        for link in self.links:
            if not link.lines.open:
                raise _LostError(Lost(f"the connection to {link.host} ended"))
            if self._silent(link):
                raise _LostError(Lost(f"nothing was heard of {link.host} for {self.limit:g} s"))
        for descriptor in self.watched:
            poll.register(descriptor, select.POLLIN)

    def _silent(self, link: _Link) -> bool:
        """Return whether nothing was heard of a host for too long."""
        return time.monotonic() - link.heard > self.limit

    def _pass_on_files(self) -> None:
        for name in self._files.copy():
            with contextlib.suppress(FileNotFoundError, ValueError):
                text = (self.folder / name).read_text()
                json.loads(text)  # it may be half written
                self._files.remove(name)
                for link in self.links:
                    link.say(self._file(name, text))

    def _file(self, name: str, text: str) -> FromRelay:
        """Return the message with a file."""
        return {"sealed": {name: self._sealed(text)}} if self.sealing else {"files": {name: text}}

    def _sealed(self, text: str) -> str:
        """Return a text as it travels by srun, which encrypts nothing.

        It can be opened once, so each link has its own.
        """
        try:
            return munge.sealed(text, self.socket)
        except munge.MungeError as error:
            job = schedulers.label(self.job) if self.job else ""
            why = (
                f"the keys of the cluster cannot be sent to other nodes of {job}: {error}\n"
                "srun would send them without encryption; type: %xpu_cluster start --launcher local, or, if ssh "
                "reaches the nodes, name them: --hosts node1,node2"
            )
            raise _LostError(Lost(why)) from None

    def _open_board(self) -> None:
        if self.board is None and (found := board_of(self.folder)) is not None:
            self.board, self.ranks = found
        if self.board is not None and not self.watched and self.board.every["pid"][self.ranks].all():
            for rank in self.ranks:
                with contextlib.suppress(ProcessLookupError):
                    self.watched[os.pidfd_open(int(self.board.every["pid"][rank]))] = rank
            if self.watched:
                self.first = FirstToEnd(self.watched)

    def _tell(self) -> None:
        """Tell every agent which tasks should stop, and in which tasks a rank has failed, has ended, or waits."""
        known: FromRelay = {}
        if self.board is not None:
            every = self.board.every
            known["cancelled"] = self.board.requests
            known["waits_in"] = [where.decode(errors="replace") for where in every["waits_in"].tolist()]
            for field in OF_OTHERS:
                known[field] = every[field].tolist()
        for link in self.links:
            link.tell(known)

    def _take(self, link: _Link, message: FromAgent) -> None:
        """Take over what an agent has sent."""
        if "clock" in message:
            link.lateness.add(message["clock"])
        for name, text in message.get("logs", {}).items():
            with open(self.folder / "log" / os.path.basename(name), "ab") as file:
                file.write(base64.b64decode(text))
        if lost := message.get("lost"):
            raise _LostError(Lost(f"{link.host}: {lost}"))
        if gone := message.get("gone"):  # the clocks are not compared yet while the engines start
            self.ended.add(message["moment"] - link.ahead if link.ahead else time.perf_counter(), gone)
        if self.board is None:
            return
        if "late" in message and (here := link.lateness.least) is not None:
            link.ahead = ahead(message["late"], here)
        for key, about in message.get("ranks", {}).items():
            rank = int(key)
            record = np.frombuffer(base64.b64decode(about["record"]), self.board.every.dtype).copy()
            there = float(record["heartbeat"][0])
            if link.beats.get(rank, (None,))[0] != there:  # the hosts' clocks may differ: only ages are compared
                link.beats[rank] = there, time.time() - about["age"]
            record["heartbeat"] = link.beats[rank][1]
            record["pid"] = 0
            record["signs"], record["memory"], record["free"] = about["signs"], about["memory"], message["free"]
            record["used"], record["read"] = about["used"], about["read"]
            record["ahead"] = link.ahead
            self.board.every[rank] = record[0]
        for key, (first, text) in message.get("iterations", {}).items():
            entries = np.frombuffer(base64.b64decode(text), ITERATION).copy()
            entries["ended"] -= link.ahead
            self.board.add_iterations(int(key), first, entries)

    def await_mpi(self) -> None:
        """Give mpiexec time to end the other engines: it then logs how the first one ended."""
        deadline = time.monotonic() + _CAUSE
        poll = select.poll()
        for descriptor in self.watched:
            poll.register(descriptor, select.POLLIN)
        while len(poll.poll(0)) < len(self.watched) and time.monotonic() < deadline:
            time.sleep(0.01)

    def end_of_job(self) -> str:
        """Return how the scheduler's job has ended, which has then ended the engines, too; empty if it still runs."""
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
    options = Options.read(folder)
    if options.owner:
        owner.end_with(options.owner, functools.partial(owner.successors, str(folder)))
    signal.signal(signal.SIGTERM, _ended)
    relay = _Relay(folder, options)
    poll = select.poll()
    for link in relay.links:
        poll.register(link.lines.descriptor, select.POLLIN)
    try:
        while True:
            relay.step(poll)
    except _LostError as error:
        error.lost.write(folder)
        if error.lost.ranks:
            relay.await_mpi()
        if why := relay.end_of_job():
            Lost(why, job=True).write(folder)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        relay.end()


def _ended(*_: object) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
