"""A job that this process has submitted for a cluster, and what is shown of it before it is submitted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from xpulab.deploy.jobs import keeper
from xpulab.deploy.launchers import choice
from xpulab.deploy.launchers.scheduler import Job, JobEnded, Wanted, seconds
from xpulab.deploy.plan.plan import Plan
from xpulab.exceptions import ClusterStartError, UsageError
from xpulab.report.rendering import block, counted, escape, plain
from xpulab.sharing.program import program

__all__ = ["LIMIT", "JobPlan", "Submission", "holding", "wanted"]

LIMIT = 30.0  # seconds without a sign of the notebook's side after which a job ends

_LOOK = 0.2  # seconds between two looks at what the keeper has said
_GRACE = 15.0  # seconds that a scheduler has to end a job
_WORDS = 5.0  # seconds that the keeper has to say how the job has ended

_let_go: list[subprocess.Popen[bytes]] = []

_WORD = re.compile(r"[^\s,'\"-][^\s'\"]*")


def wanted(nodes: object, time: object, partition: object, extra: object) -> Wanted:
    """Return the job that a user wants, from the arguments of `XPUCluster`.

    Raises
    ------
    UsageError
        If one of them has a wrong type or value.
    """
    if nodes is not None and (isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1):
        raise UsageError(f"nodes={nodes!r} was given; expected an integer of at least 1, such as --nodes 2")
    if isinstance(time, bool) or not isinstance(time, int | str | None):
        raise UsageError(f"time={time!r} was given; expected minutes, such as --time 30")
    if time is not None:
        seconds(str(time))
    if partition is not None and not (isinstance(partition, str) and _WORD.fullmatch(partition)):
        raise UsageError(f"partition={partition!r} was given; expected the name of a partition or queue")
    if not isinstance(extra, str | None):
        raise UsageError(f"job_args={extra!r} was given; expected a text such as '--gres=gpu:2'")
    try:
        words = shlex.split(extra or "")
    except ValueError as error:
        raise UsageError(f"--job-args: received {extra!r}, expected options as a shell reads them: {error}") from None
    if any("\n" in word for word in words):
        raise UsageError(f"--job-args: received {extra!r}, expected options without line ends")
    if words and not words[0].startswith("-"):
        raise UsageError(f"--job-args: received {extra!r}, expected options that begin with a dash")
    return Wanted(nodes or 1, "" if time is None else str(time), partition or "", tuple(words))


def holding(what: str, name: str) -> list[str]:
    """Return the words of the program that holds a job's nodes ("hold"), or passes on signs of life to it ("sign")."""
    limit = ["--limit", f"{LIMIT:g}"] if what == "hold" else []
    return program("xpulab.deploy.jobs.holder", what, name, *limit)


@dataclass(frozen=True)
class JobPlan(Plan):
    """What `start` would submit. It has no ranks: which engine runs on which device is known when the job runs.

    Attributes
    ----------
    scheduler : str
    wanted : Wanted
    engines : int or None
        Number of engines; None for one per device.
    script : str
        The job's script, if it was asked for.
    commands : mapping of str to str
        What a command line is for -> the command line, if they were asked for.
    """

    scheduler: str = "slurm"
    wanted: Wanted = field(default_factory=Wanted)
    engines: int | None = None
    script: str = ""
    commands: Mapping[str, str] | None = None

    @property
    def _title(self) -> str:
        engines = "one engine per device" if self.engines is None else counted(self.engines, "engine")
        return (
            f"Plan: {engines} on {counted(self.wanted.nodes, 'node')} of a job of {choice.module(self.scheduler).LABEL}"
        )

    @property
    def _parts(self) -> list[tuple[str, str]]:
        script = [("the job's script", self.script)] if self.script else []
        return [*script, *(self.commands or {}).items()]

    @property
    def _note(self) -> str:
        if self.commands:
            return (
                "nothing was submitted; NODE1, JOB, and this host's ADDRESS and INTERFACE to the nodes are known when "
                "the job runs, and so are the devices, by which engines are spread"
            )
        return "nothing was submitted; for the job's script and the command lines, add --show"

    def __str__(self) -> str:
        parts = ["\n".join(["", f"{title}:", *map(plain, text.splitlines())]) for title, text in self._parts]
        return "\n".join([self._title, f"  {self._note}", *parts])

    def _repr_html_(self) -> str:
        parts = [f"<div>{escape(title)}</div><pre>{escape(text)}</pre>" for title, text in self._parts]
        notes = [f"<div>{escape(self._title)}</div>", f'<div class="xpu-note">{escape(self._note)}</div>']
        return block("plan of a job", [*notes, *parts])


class Submission:
    """A job that this process submits by its `keeper`.

    Parameters
    ----------
    folder : pathlib.Path
        Folder of the cluster. Its name is the job's name.
    scheduler : str
    wanted : Wanted
    owner : int
        Pid of the process with which the job ends unless the cluster is detached; 0 for none.
    ssh_config : str or None
        File with ssh's configuration, for a scheduler whose nodes ssh reaches.

    Attributes
    ----------
    pid : int
        Pid of the keeper.
    """

    def __init__(self, folder: Path, scheduler: str, wanted: Wanted, owner: int, ssh_config: str | None) -> None:
        name, output = folder.name, os.path.abspath(f"{folder.name}.log")
        options = keeper.Options(
            scheduler=scheduler,
            script=choice.module(scheduler).script(wanted, name, holding("hold", name), output),
            name=name,
            output=output,
            owner=owner,
            ssh_config=ssh_config,
            sign=holding("sign", name),
        )
        self._scheduler = scheduler
        self._said = b""
        self._unsaid: deque[keeper.Message] = deque()  # until `wait` has said them, also those that `ended` has seen
        self._job: Job | None = None
        self._ended = ""
        (folder / keeper.OPTIONS).write_text(json.dumps(asdict(options)))
        (folder / "log").mkdir(exist_ok=True)
        with open(folder / "log" / "job.log", "ab") as log:
            self._keeper = subprocess.Popen(
                program("xpulab.deploy.jobs.keeper", str(folder)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C must not reach it
            )
        self.pid = self._keeper.pid
        assert self._keeper.stdout is not None
        os.set_blocking(self._keeper.stdout.fileno(), False)

    def wait(self, say: Callable[[str], None]) -> Job:
        """Wait until the job runs.

        Parameters
        ----------
        say : callable
            Called with a text for each state of the job in the queue.

        Returns
        -------
        Job

        Raises
        ------
        ClusterStartError
            If the scheduler refuses the job, or would never run it.
        JobEnded
            If the job ends before it runs.
        """
        label, number = choice.module(self._scheduler).LABEL, ""
        say(f"submitting a job to {label}")
        assert self._keeper.stdout is not None
        while self._job is None or self._unsaid:
            select.select([self._keeper.stdout], [], [], 0 if self._unsaid else _LOOK)
            self._look()
            while self._unsaid:
                message = self._unsaid.popleft()
                number = message.get("job", number)
                if "refused" in message:
                    raise ClusterStartError(message["refused"])
                if "waits" in message or "job" in message:
                    say(f"{label}'s job {number}: {message.get('waits') or 'submitted'}")
            if self.ended and not self._unsaid:  # what it has said last comes first
                raise JobEnded(self.ended)
        say(f"{label}'s job {number} runs on {', '.join(self._job.nodes)}")
        return self._job

    @property
    def job(self) -> Job | None:
        """The job; None until it runs."""
        return self._job

    @property
    def ended(self) -> str:
        """How the job has ended; empty if it waits or runs."""
        self._look()
        if not self._ended and self._keeper.poll() is not None:
            self._look()  # its last words
            self._ended = self._ended or "the program that keeps the job has ended, and so did the job"
        return self._ended

    def ended_soon(self) -> str:
        """Return how the job has ended, of which another has heard; empty if the keeper does not say it soon."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(_WORDS)
        return self.ended

    def follow(self, folder: Path) -> None:
        """Tell the keeper the folder of a later cluster in the same job."""
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            os.write(self._keeper.stdin.fileno(), f"{folder}\0".encode())

    def end(self) -> None:
        """End the job. Does nothing if it has ended."""
        if self._keeper.poll() is None:
            self._keeper.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(_GRACE)
        self.leave()

    def leave(self) -> None:
        """Close the connection to the keeper, which goes on until its cluster ends."""
        if self._keeper.poll() is None:
            _let_go.append(self._keeper)  # Python warns if it deletes the Popen of a running process
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                pipe.close()

    def _look(self) -> None:
        """Note what the keeper has said since the last look."""
        assert self._keeper.stdout is not None
        if self._keeper.stdout.closed:
            return
        with contextlib.suppress(BlockingIOError):
            while found := os.read(self._keeper.stdout.fileno(), 1 << 16):
                self._said += found
        *lines, self._said = self._said.split(b"\n")
        messages: list[keeper.Message] = [json.loads(line) for line in lines]
        for message in messages:
            if about := message.get("runs"):
                self._job = Job.from_dict(about)
            self._ended = message.get("ended", self._ended)
        self._unsaid += messages
