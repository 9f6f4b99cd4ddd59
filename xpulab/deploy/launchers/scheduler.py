"""What `slurm` and `pbs` have in common: the wanted job, the job that runs, and the functions of such a module."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from xpulab.exceptions import ClusterStartError, UsageError

__all__ = ["Job", "JobEnded", "Launcher", "Look", "Scheduler", "Wanted", "body", "lines", "seconds"]

#: Slurm's forms of a time limit, which xpulab takes for each scheduler (sbatch(1), --time).
_TIMES = (
    r"(?P<minutes>\d+)(:(?P<seconds>\d+))?",
    r"(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)",
    r"(?P<days>\d+)-(?P<hours>\d+)(:(?P<minutes>\d+)(:(?P<seconds>\d+))?)?",
)
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


class JobEnded(ClusterStartError):
    """A job has ended before its engines had started; the message says how."""


@dataclass(frozen=True)
class Job:
    """A job whose nodes the engines use.

    Attributes
    ----------
    id : str
    nodes : tuple of str
        The scheduler's names of its nodes.
    here : str
        The one of these names that belongs to this host; empty if none does, or if this is not known.
    scheduler : str
        Name of the scheduler among those of `choice`.
    submitted : bool
        Whether xpulab has submitted it, so that it ends with the cluster. Otherwise this process runs in it.
    """

    id: str
    nodes: tuple[str, ...]
    here: str = ""
    scheduler: str = "slurm"
    submitted: bool = False

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Job:
        """Return the job of which `dataclasses.asdict` gave this content; a list may stand for the tuple."""
        return cls(**{**content, "nodes": tuple(content["nodes"])})


@dataclass(frozen=True)
class Wanted:
    """A job that a user wants.

    Attributes
    ----------
    nodes : int
        Number of its nodes.
    time : str
        Its time limit in one of Slurm's forms; empty for that of the site.
    partition : str
        The partition or queue; empty for that of the site.
    extra : tuple of str
        The user's own options for the script.
    """

    nodes: int = 1
    time: str = ""
    partition: str = ""
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class Look:
    """What a scheduler says of a job.

    Attributes
    ----------
    state : {"waiting", "never", "running", "ending", "ended", ""}
        "never" if it waits for what it cannot get, "ending" while its processes end, and empty if the scheduler has not
        answered.
    words : str
        The state in the scheduler's words while the job waits or runs, such as "PENDING (Resources)"; afterwards how it
        has ended, such as "was cancelled", and empty if this is not known yet.
    nodes : str
        Its nodes as the scheduler writes them; empty if it has none yet.
    first : str
        The node on which the script runs.
    """

    state: Literal["waiting", "never", "running", "ending", "ended", ""]
    words: str = ""
    nodes: str = ""
    first: str = ""


class Launcher(Protocol):
    """Starts commands on another host, as `Srun` and `Ssh` do."""

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on the host, in its root folder."""


class Scheduler(Protocol):
    """The module of a scheduler. Its functions start nothing, except `allocation` and `submitted_job`.

    Attributes
    ----------
    LABEL : str
        The scheduler's name in messages.
    BY_SSH : bool
        Whether commands on nodes run by ssh. Otherwise the scheduler runs them and encrypts nothing, so that munge has
        to encrypt the cluster's keys.
    REACH : str
        The program that reaches a node, in messages.
    UNKNOWN : str
        Pattern of what `state_command` writes of a job that the scheduler has forgotten.
    INSTALL : str
        What to type if one of its programs is missing.
    """

    LABEL: str
    BY_SSH: bool
    REACH: str
    UNKNOWN: str
    INSTALL: str

    def script(self, wanted: Wanted, name: str, program: Sequence[str], output: str) -> str:
        """Return the script of a job with this name, which runs a program on its first node, see `body`."""

    def submission(self) -> list[str]:
        """Return the command line that submits the script on its standard input."""

    def parse_job_id(self, said: str) -> str:
        """Return the job's id from what the submission prints."""

    def ids_command(self, name: str) -> list[str]:
        """Return the command line that prints the ids of this user's jobs with a name."""

    def state_command(self, job: str) -> list[str]:
        """Return the command line that asks for a job's state."""

    def parse_state(self, said: str, log: str = "") -> Look:
        """Return what `state_command` has printed; `log` is what the processes on the job's nodes have written."""

    def cancellation(self, job: str) -> list[str]:
        """Return the command line that ends a job."""

    def advice(self, refusal: str) -> str:
        """Return what to type after a submission was refused in these words, or if a job waits for ever with them."""

    def allocation(self, variables: Mapping[str, str]) -> Job | None:
        """Return the job in which a process with these environment variables runs; None if it runs in none."""

    def submitted_job(self, job: str, nodes: str) -> Job:
        """Return the submitted job with these nodes, as `Look` has them."""

    def launcher(self, host: str, job: Job, ssh_config: str | None) -> Launcher:
        """Return what starts commands with standard input and output on a node of a job."""

    def starter(self, job: Job) -> tuple[str, ...]:
        """Return the program, with its options, that starts MPI's own programs on a node; empty for ssh."""


def seconds(time: str) -> int:
    """Return a time limit in seconds.

    Raises
    ------
    UsageError
        If it is not of one of Slurm's forms, or 0.
    """
    for form in _TIMES:
        if found := re.fullmatch(form, time):
            parts = found.groupdict()
            if total := sum(int(parts[name] or 0) * unit for name, unit in _SECONDS.items() if name in parts):
                return total
    raise UsageError(
        f"--time: received {time!r}, expected minutes, or one of minutes:seconds, hours:minutes:seconds, days-hours, "
        "days-hours:minutes and days-hours:minutes:seconds, such as --time 30 or --time 1-12:00"
    )


def body(program: Sequence[str], output: str) -> list[str]:
    """Return the lines of a script that run a program.

    Its output goes into a file, if the node sees the file's folder. The scheduler would not run the script if it could
    not write its output, and so has none to write.
    """
    log = shlex.quote(output)
    return [f"(: > {log}) 2> /dev/null && exec > {log} 2>&1", f"cd / && exec {shlex.join(program)}", ""]


def lines(prefix: str, words: Sequence[str]) -> list[str]:
    """Lines of a script for a scheduler, one for each option; a word without a dash belongs to the word before it."""
    found: list[str] = []
    for word in words:
        if found and not word.startswith("-"):
            found[-1] += f" {_quoted(word)}"
        else:
            found.append(f"{prefix} {_quoted(word)}")
    return found


def _quoted(word: str) -> str:
    """Return a word as sbatch and qsub read it from a script: quotation marks hold words with spaces together."""
    if not re.search(r"[\s'\"]", word) and word:
        return word
    return f'"{word}"' if '"' not in word else f"'{word}'"
