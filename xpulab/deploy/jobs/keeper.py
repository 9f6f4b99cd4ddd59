"""``python -m xpulab.deploy.jobs.keeper``: submits a job to a scheduler, and keeps it as long as its cluster.

It runs on the notebook's host, and tells the notebook on its standard output how the job waits, runs and ends, one JSON
document on each line. From when the job runs, it sends signs of life to the `holder` on the job's first node. The job
ends when this program gets SIGTERM, when the notebook has ended and the cluster is not detached, or when the holder
hears nothing more, because this program or its host was ended, or the network was cut.

If the job ends by itself, this program writes down how, ends the processes of the cluster on this host, and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

from xpulab.deploy.jobs.holder import SIGN
from xpulab.deploy.launchers import choice
from xpulab.deploy.launchers.scheduler import Job, Look
from xpulab.deploy.remote.messages import Lost
from xpulab.exceptions import ClusterStartError
from xpulab.sharing import owner

__all__ = ["OPTIONS", "Message", "Options"]

#: File in a cluster's folder with this program's options.
OPTIONS = "keeper.json"

_ANSWER = 60.0  # seconds that a scheduler has to take a job, or to cancel it
_STEP = 100  # milliseconds between two looks at what has ended
_SIGN = 1.0  # seconds between two signs of life
_AGAIN = 2.0  # seconds after which the signs are sent by a new connection, if one ends and the job runs
_END = 8.0  # seconds that a job has to end after it was cancelled, of which the notebook waits for some
_WORDS = 3.0  # seconds that a scheduler has to say how a job has ended, after it has said that it ends

#: Seconds since the submission, and from then on the seconds between two looks at the queue.
_LOOKS = ((0, 0.5), (30, 3.0), (600, 15.0))


@dataclass(frozen=True)
class Options:
    """The options of the keeper.

    Attributes
    ----------
    scheduler : str
        Name of the scheduler.
    script : str
        The job's script.
    name : str
        The job's name.
    output : str
        File for what the script prints.
    owner : int
        Pid of the notebook's process; 0 for none.
    ssh_config : str or None
        File with ssh's configuration.
    sign : list of str
        Words of the program that passes on the signs of life.
    """

    scheduler: str
    script: str
    name: str
    output: str
    owner: int
    ssh_config: str | None
    sign: list[str]


class Message(TypedDict, total=False):
    """What the keeper tells the notebook.

    `job` is the id of the job after its submission, `waits` says why it waits, `runs` has the fields of `Job`, `ended`
    says how it has ended, and `refused` why it cannot run.
    """

    job: str
    waits: str
    runs: Mapping[str, object]
    ended: str
    refused: str


class _Refused(Exception):
    """The scheduler does not take the job, or would never run it."""


class _Keeper:
    """The keeper of a job.

    Parameters
    ----------
    folder : pathlib.Path
        Folder of the cluster.
    options : Options
    """

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder = folder
        self.options = options
        self.scheduler = choice.module(options.scheduler)
        self.path = Path(options.output)
        self.id = ""
        self.job: Job | None = None
        self.signing: subprocess.Popen[bytes] | None = None
        self._begun = time.monotonic()
        self._signed = self._next = 0.0
        self._told: Message = {}

    def submit(self) -> None:
        """Submit the job."""
        words = self.scheduler.submission()
        try:
            done = self._run(words, self.options.script)
        except FileNotFoundError:
            raise _Refused(f"{words[0]} was not found on PATH; {self.scheduler.INSTALL}") from None
        except subprocess.TimeoutExpired:
            raise _Refused(f"{words[0]} did not answer within {_ANSWER:g} s") from None
        self.id = self.scheduler.parse_job_id(done.stdout)
        if done.returncode or not self.id:
            said = (done.stderr or done.stdout).strip()
            raise _Refused(f"{words[0]} refused the job; it said: {said}\n{self.scheduler.advice(said)}")
        self.tell({"job": self.id})

    def _run(self, words: list[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program of the scheduler."""
        nothing = subprocess.DEVNULL if text is None else None
        return subprocess.run(
            words, stdin=nothing, input=text, capture_output=True, text=True, timeout=_ANSWER, check=False
        )

    def tell(self, message: Message) -> None:
        """Tell the notebook, if it still listens, what it does not know."""
        if message != self._told:
            self._told = message
            with contextlib.suppress(OSError):
                os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")

    def step(self) -> str:
        """Look at the queue, or send a sign of life. Returns how the job has ended; empty if it waits or runs."""
        now = time.monotonic()
        if self.signing is not None and self.signing.poll() is None:
            if now - self._signed >= _SIGN:
                self._signed = now
                assert self.signing.stdin is not None
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    os.write(self.signing.stdin.fileno(), SIGN)
            return ""
        if now < self._next:
            return ""
        look = choice.asked(self.options.scheduler, self.id, self._log())
        pause = next(pause for since, pause in reversed(_LOOKS) if now - self._begun >= since)
        self._next = time.monotonic() + (pause if self.job is None else _AGAIN)
        if look.state in ("ending", "ended"):
            return self._words(look)
        if look.state == "never":
            raise _Refused(f"{self._label} would wait for ever: {look.words}\n{self.scheduler.advice(look.words)}")
        if look.state == "running":
            self._sign(look)
        else:
            self.tell({"waits": look.words})
        return ""

    def _sign(self, look: Look) -> None:
        """Start to send signs of life to the job's first node."""
        if self.job is None:
            self.job = self.scheduler.submitted_job(self.id, look.nodes)
        words = self.scheduler.launcher(look.first or self.job.nodes[0], self.job, self.options.ssh_config)
        with open(self.folder / "log" / "job.log", "ab") as log:
            self.signing = subprocess.Popen(
                words.command(self.options.sign), stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        assert self.signing.stdin is not None
        os.set_blocking(self.signing.stdin.fileno(), False)
        self.tell({"runs": asdict(self.job)})

    @property
    def _label(self) -> str:
        return f"{self.scheduler.LABEL}'s job {self.id}"

    def _log(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "log" / "job.log").read_text(errors="replace")
        return ""

    def _words(self, look: Look) -> str:
        """Return how the job has ended: while its processes end, the scheduler may not say it yet."""
        deadline = time.monotonic() + _WORDS
        while look.state == "ending" and not look.words and time.monotonic() < deadline:
            time.sleep(0.1)
            later = choice.asked(self.options.scheduler, self.id, self._log())
            look = later if later.state else look
        known = look.words and not look.words.startswith("has ended")  # the cause, which the output would only repeat
        said = "" if known else self.output()
        return f"{self._label} {look.words or 'has ended'}" + (f" (its output: {said})" if said else "")

    def output(self) -> str:
        """Return what the job's script has written, if this host sees it."""
        with contextlib.suppress(OSError):
            return self.path.read_text(errors="replace")[-2000:].strip()
        return ""

    def cancel(self) -> None:
        """End the job, also one of which the scheduler has not told the id, and wait until it has ended."""
        known = [self.id] if self.id else []
        if not known:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                known = self._run(self.scheduler.ids_command(self.options.name)).stdout.split()
        for job in known:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                self._run(self.scheduler.cancellation(job))
        deadline = time.monotonic() + _END
        for job in known:
            while choice.asked(self.options.scheduler, job).state != "ended" and time.monotonic() < deadline:
                time.sleep(0.1)

    def clean(self) -> None:
        """End the connection to the job's node, and remove the job's output unless it says why the job ended."""
        if self.signing is not None:
            self.signing.kill()
            self.signing.wait()
        if not self.output():
            with contextlib.suppress(OSError):
                self.path.unlink()


def main() -> None:
    """Run until the cluster or the job ends."""
    folder = Path(sys.argv[1])
    options = Options(**json.loads((folder / OPTIONS).read_text()))
    wake, ended = os.pipe()  # its end wakes the loop
    os.set_blocking(ended, False)
    signal.signal(signal.SIGTERM, lambda *_: os.write(ended, b"."))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    owners, detached = _end_of_notebook(options.owner), False
    for descriptor in owners:
        poll.register(descriptor, select.POLLIN)
    keeper = _Keeper(folder, options)
    folders = sys.stdin.fileno()  # the notebook writes the folder of a later cluster in the same job
    os.set_blocking(folders, False)
    how = ""
    try:
        keeper.submit()
        while not how:
            ready = {descriptor for descriptor, _ in poll.poll(_STEP)}
            if wake in ready:
                break
            if ready & owners:
                later = set() if detached else _after(keeper.folder)
                if not later:
                    break
                for each, change in ((owners, poll.unregister), (later, poll.register)):
                    for descriptor in each:
                        change(descriptor)
                owners, detached = later, True
            with contextlib.suppress(BlockingIOError):
                if found := os.read(folders, 1 << 16).decode().split("\0")[:-1]:
                    keeper.folder = Path(found[-1])
            how = keeper.step()
        if how:
            keeper.tell({"ended": how})
            _give_up(keeper.folder, how)
        else:
            keeper.cancel()
    except (_Refused, ClusterStartError) as error:
        keeper.tell({"refused": str(error)})
        keeper.cancel()
    except BaseException as error:
        keeper.tell({"refused": f"{type(error).__name__}: {error}"})
        keeper.cancel()
        raise
    finally:
        keeper.clean()


def _end_of_notebook(pid: int) -> set[int]:
    """Return a descriptor that is ready when the notebook's process has ended."""
    if not pid:
        return set()
    try:
        return {os.pidfd_open(pid)}
    except ProcessLookupError:
        raise SystemExit(f"the notebook's process {pid} has ended") from None


def _after(folder: Path) -> set[int]:
    """Return descriptors of the processes with which a detached cluster's job ends, after the notebook's process."""
    found = set()
    for pid in owner.successors(str(folder)):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                found.add(os.pidfd_open(pid))
    return found


def _give_up(folder: Path, why: str) -> None:
    """Say why the cluster was lost, and end its processes on this host."""
    from xpulab.deploy.processes.processes import JOB, Processes
    from xpulab.deploy.processes.record import Record

    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        Lost(why, job=True).write(folder)
        record = Record.from_dict(json.loads((folder / owner.RECORD).read_text()))
        record.processes.pop(JOB, None)  # this process
        processes = Processes(record)
        processes.find()
        processes.stop(on_purpose=False)


if __name__ == "__main__":
    main()
